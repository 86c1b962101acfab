#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <system_error>

#include "model.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using pilotfish::Model;
using pilotfish::Options;
using pilotfish::Parameters;
using pilotfish::Rows;
using pilotfish::Segment;
using pilotfish::Sequence;
using pilotfish::TensorInfo;

namespace {

using FloatRows = nb::ndarray<nb::numpy, float, nb::ndim<2>>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class Value>
Value get(const nb::dict& values, const char* key) {
  if (!values.contains(key)) {
    throw nb::value_error((std::string("parameters has no ") + key).c_str());
  }
  try {
    return nb::cast<Value>(values[key]);
  } catch (const nb::cast_error&) {
    throw nb::value_error((std::string("parameters: ") + key + " has the wrong type").c_str());
  }
}

Parameters read_parameters(const nb::dict& values) {
  Parameters p;
  p.architecture = get<std::string>(values, "architecture");
  p.num_layers = get<size_t>(values, "num_layers");
  p.hidden_size = get<size_t>(values, "hidden_size");
  p.num_heads = get<size_t>(values, "num_heads");
  p.num_kv_heads = get<size_t>(values, "num_kv_heads");
  p.head_size = get<size_t>(values, "head_size");
  p.feed_forward_size = get<size_t>(values, "feed_forward_size");
  p.vocab_size = get<size_t>(values, "vocab_size");
  p.rms_epsilon = get<double>(values, "rms_epsilon");
  p.rope_size = get<size_t>(values, "rope_size");
  p.rope_base = get<double>(values, "rope_base");
  const std::string style = get<std::string>(values, "rope_style");
  if (style != "norm" && style != "neox") throw nb::value_error("rope_style is not norm or neox");
  p.rope_neox = style == "neox";
  p.rope_scaling = get<std::string>(values, "rope_scaling");
  p.rope_factor = get<double>(values, "rope_factor");
  p.rope_original_context = get<size_t>(values, "rope_original_context");
  p.yarn_attention_factor = get<double>(values, "yarn_attention_factor");
  p.yarn_beta_fast = get<double>(values, "yarn_beta_fast");
  p.yarn_beta_slow = get<double>(values, "yarn_beta_slow");
  return p;
}

std::vector<TensorInfo> read_tensors(const nb::sequence& tensors) {
  std::vector<TensorInfo> infos;
  for (const nb::handle entry : tensors) {
    TensorInfo info;
    info.name = nb::cast<std::string>(entry[0]);
    info.shape = nb::cast<std::vector<uint64_t>>(entry[1]);
    info.type_id = nb::cast<int>(entry[2]);
    info.offset = nb::cast<uint64_t>(entry[3]);
    info.num_bytes = nb::cast<uint64_t>(entry[4]);
    info.part = nb::cast<size_t>(entry[5]);
    infos.push_back(std::move(info));
  }
  return infos;
}

// A view on rows; the memory lives as long as the array, even when a later pass needs more.
FloatRows view(const Rows& rows, size_t count, size_t width) {
  auto owner = std::make_unique<std::shared_ptr<float[]>>(rows.owner());
  const nb::capsule keep(owner.get(), [](void* p) noexcept {
    delete static_cast<std::shared_ptr<float[]>*>(p);
  });
  static_cast<void>(owner.release());
  const size_t shape[2] = {count, width};
  const int64_t strides[2] = {int64_t(rows.stride()), 1};
  return FloatRows(rows.owner().get(), 2, shape, keep, strides);
}

void construct(Model* self, const std::vector<std::string>& paths, const nb::sequence& tensors,
               const nb::dict& parameters, size_t threads, const std::string& instructions,
               const std::string& cache_type, const nb::object& head_ids, bool requantize) {
  Options options;
  options.threads = threads;
  options.instructions = instructions;
  options.requantize = requantize;
  if (cache_type != "f16" && cache_type != "f32") {
    throw nb::value_error("cache_type is not f16 or f32");
  }
  options.half_cache = cache_type == "f16";
  if (!head_ids.is_none()) {
    const auto ids = nb::cast<Ids>(head_ids);
    options.has_head_ids = true;
    options.head_ids.assign(ids.data(), ids.data() + ids.size());
  }
  const std::vector<TensorInfo> infos = read_tensors(tensors);
  const Parameters network = read_parameters(parameters);
  const nb::gil_scoped_release release;
  new (self) Model(paths, infos, network, options);
}

// Not the bindings' own conversion, which ends the process where a long prompt finds no memory.
std::vector<int32_t> read_ids(const nb::handle& given) {
  if (!nb::isinstance<nb::sequence>(given)) throw nb::type_error("token_ids holds no sequences");
  std::vector<int32_t> ids;
  ids.reserve(nb::len(given));
  for (const nb::handle id : given) {
    if (!nb::try_cast(id, ids.emplace_back())) throw nb::type_error("a token id is no integer");
  }
  return ids;
}

FloatRows forward(Model& model, const std::vector<Sequence*>& sequences,
                  const nb::sequence& token_ids, const std::vector<size_t>& first_rows) {
  if (nb::len(token_ids) != sequences.size() || first_rows.size() != sequences.size()) {
    throw nb::value_error("sequences, token_ids and first_rows differ in length");
  }
  std::vector<Segment> segments;
  for (size_t i = 0; i < sequences.size(); i++) {
    if (sequences[i] == nullptr) throw nb::value_error("a sequence is None");
    segments.push_back({sequences[i], read_ids(token_ids[i]), first_rows[i]});
  }
  {
    const Model::Busy busy(model);
    const nb::gil_scoped_release release;
    model.forward(busy, segments);
  }
  return view(model.logits(), model.num_rows(), model.vocab_size());
}

nb::dict processor() {
  nb::list names;
  for (const auto* k = pilotfish::available_kernels(); *k != nullptr; k++) names.append((*k)->name);
  nb::dict result;
  result["instructions"] = names[0];
  result["available"] = names;
  return result;
}

}  // namespace

NB_MODULE(_core, module) {
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const std::system_error& refused) {
      PyErr_SetString(PyExc_OSError, refused.what());
    }
  });
  module.def("processor", processor);

  nb::class_<Sequence>(module, "Sequence")
      .def("__len__", &Sequence::length)
      .def("truncate", &Sequence::truncate, "length"_a)
      .def("prefix", &Sequence::prefix, "length"_a)
      .def("close", &Sequence::close);

  nb::class_<Model>(module, "Model")
      .def("__init__", construct, "paths"_a, "tensors"_a, "parameters"_a, nb::kw_only(),
           "threads"_a, "instructions"_a = "auto", "cache_type"_a = "f16",
           "head_ids"_a = nb::none(), "requantize"_a = false)
      .def_prop_ro("vocab_size", &Model::vocab_size)
      .def_prop_ro("hidden_size", &Model::hidden_size)
      .def_prop_ro("threads", &Model::threads)
      .def_prop_ro("instructions", &Model::instructions)
      .def_prop_ro("weight_bytes", &Model::weight_bytes)
      .def_prop_ro("step_bytes", &Model::step_bytes)
      .def_prop_ro("cache_bytes_per_token", &Model::cache_bytes_per_token)
      .def_prop_ro("load_seconds", &Model::load_seconds)
      .def_prop_ro("is_open", &Model::is_open)
      .def("new_sequence", &Model::new_sequence)
      .def("forward", forward, "sequences"_a, "token_ids"_a, "first_rows"_a)
      .def("hidden",
           [](Model& model) {
             const Model::Busy busy(model);
             return view(model.hidden(), model.num_rows(), model.hidden_size());
           })
      .def("extend_head",
           [](Model& model, const Ids& ids) {
             model.extend_head(std::vector<int32_t>(ids.data(), ids.data() + ids.size()));
           },
           "ids"_a)
      .def("read_weights", &Model::read_weights, nb::call_guard<nb::gil_scoped_release>())
      .def("close", &Model::close, nb::call_guard<nb::gil_scoped_release>());
}
