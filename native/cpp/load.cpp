// How a file becomes a model: every tensor is checked, repacked once, and its pages are let go.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <set>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "model.hpp"

namespace pilotfish {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

// What the system said no to, with its reason.
[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// A file mapped for reading.
class Mapping {
 public:
  explicit Mapping(const std::string& path) {
    file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file_ < 0) fail("cannot open " + path);
    struct stat status {};
    if (fstat(file_, &status) != 0 || status.st_size <= 0) {
      ::close(file_);
      refuse(path + " is empty");
    }
    size_ = size_t(status.st_size);
    void* memory = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file_, 0);
    if (memory == MAP_FAILED) {
      const int reason = errno;
      ::close(file_);
      errno = reason;
      fail("cannot map " + path);
    }
    memory_ = static_cast<uint8_t*>(memory);
  }
  Mapping(Mapping&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)),
        size_(other.size_),
        file_(std::exchange(other.file_, -1)) {}
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    if (memory_ != nullptr) munmap(memory_, size_);
    if (file_ >= 0) ::close(file_);
  }

  const uint8_t* at(uint64_t offset) const { return memory_ + offset; }
  size_t size() const { return size_; }
  int file() const { return file_; }

  // Tells the system that these bytes will not be read again.
  void forget(uint64_t offset, uint64_t num_bytes) const {
    const size_t page = size_t(sysconf(_SC_PAGESIZE));
    const size_t begin = round_up(offset, page), end = (offset + num_bytes) / page * page;
    if (begin < end) madvise(memory_ + begin, end - begin, MADV_DONTNEED);
  }

 private:
  uint8_t* memory_ = nullptr;
  size_t size_ = 0;
  int file_ = -1;
};

void check_range(const char* name, uint64_t value, uint64_t most) {
  if (value < 1 || value > most) {
    refuse(std::string(name) + " is " + std::to_string(value) + ", not from 1 to " +
           std::to_string(most));
  }
}

void check_parameters(const Parameters& p) {
  check_range("num_layers", p.num_layers, 4096);
  check_range("hidden_size", p.hidden_size, 1 << 20);
  check_range("num_heads", p.num_heads, 4096);
  check_range("num_kv_heads", p.num_kv_heads, p.num_heads);
  check_range("head_size", p.head_size, 1024);
  check_range("feed_forward_size", p.feed_forward_size, 1 << 22);
  check_range("vocab_size", p.vocab_size, 1 << 24);
  if (p.num_heads % p.num_kv_heads != 0) refuse("num_heads is no multiple of num_kv_heads");
  if (p.rope_size < 2 || p.rope_size > p.head_size || p.rope_size % 2 != 0) {
    refuse("rope_size " + std::to_string(p.rope_size) + " does not fit head_size " +
           std::to_string(p.head_size));
  }
  if (!(p.rms_epsilon >= 0 && p.rms_epsilon < 1)) refuse("rms_epsilon is not from 0 to 1");
  if (!(p.rope_base > 1 && p.rope_base < 1e15)) refuse("rope_base is not above 1");
  if (p.rope_scaling != "none" && p.rope_scaling != "linear" && p.rope_scaling != "yarn") {
    refuse("rope_scaling " + p.rope_scaling + " is not known");
  }
  if (!(p.rope_factor >= 1e-3 && p.rope_factor <= 1e6)) refuse("rope_factor is out of range");
  if (p.rope_scaling == "yarn") check_range("rope_original_context", p.rope_original_context, 1 << 30);
}

bool more_than_4_bits(Format format) {
  return format != Format::q4_0 && format != Format::q4_1 && format != Format::q4_k;
}

}  // namespace

struct Model::Loader {
  // A matrix and the tensor it is packed from; `ids`: only these rows.
  struct Plan {
    Matrix* matrix;
    const TensorInfo* tensor;
    const std::vector<int32_t>* ids;
  };

  std::vector<Mapping> files;
  std::map<std::string, const TensorInfo*> tensors;
  std::set<std::string> used;
  std::vector<Plan> plans;
  size_t lanes;
  bool requantize;

  Loader(const std::vector<std::string>& paths, const std::vector<TensorInfo>& infos, size_t lanes,
         bool requantize)
      : lanes(lanes), requantize(requantize) {
    for (const std::string& path : paths) files.emplace_back(path);
    for (const TensorInfo& info : infos) {
      if (!tensors.emplace(info.name, &info).second) refuse("tensor " + info.name + " occurs twice");
    }
  }

  const TensorInfo* find(const std::string& name, const std::vector<uint64_t>& shape,
                         bool required) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      if (required) refuse("tensor " + name + " is missing");
      return nullptr;
    }
    const TensorInfo& tensor = *found->second;
    if (tensor.shape != shape) refuse("tensor " + name + " does not have the shape of this network");
    const BlockShape block = block_shape(Format(tensor.type_id));
    if (block.weights == 0) refuse("tensor " + name + " is in a number format that is not known");
    if (shape[0] % uint64_t(block.weights) != 0) refuse("tensor " + name + " has broken rows");
    uint64_t num_bytes = shape[0] / uint64_t(block.weights) * uint64_t(block.bytes);
    for (size_t i = 1; i < shape.size(); i++) num_bytes *= shape[i];
    if (tensor.part >= files.size() || tensor.num_bytes != num_bytes ||
        tensor.offset > files[tensor.part].size() ||
        num_bytes > files[tensor.part].size() - tensor.offset) {
      refuse("tensor " + name + " is not inside the file");
    }
    used.insert(name);
    return &tensor;
  }

  // A vector of floats, padded with zeros to a multiple of 64.
  std::vector<float> vector(const std::string& name, size_t size, bool required) {
    const TensorInfo* tensor = find(name, {size}, required);
    if (tensor == nullptr) return {};
    std::vector<float> values(round_up(size, 64));
    dequantize(Format(tensor->type_id), files[tensor->part].at(tensor->offset), size,
               values.data());
    return values;
  }

  void plan(Matrix& matrix, const TensorInfo& tensor, bool may_round, size_t rows,
            const std::vector<int32_t>* ids = nullptr) {
    Format format = Format(tensor.type_id);
    if (requantize && may_round && more_than_4_bits(format) && tensor.shape[0] % kSmallBlock == 0) {
      format = Format::q4_0;
    }
    matrix = Matrix(format, rows, tensor.shape[0], lanes);
    plans.push_back({&matrix, &tensor, ids});
  }

  Linear linear(const std::string& name, size_t rows, size_t columns) {
    Linear linear;
    static_cast<void>(find(name + ".weight", {columns, rows}, true));
    linear.bias = vector(name + ".bias", rows, false);
    if (!linear.bias.empty()) linear.bias.resize(rows);
    return linear;
  }

  // Plans the matrices of layers, once the layers no longer move.
  void plan_linear(Linear& linear, const std::string& name) {
    const TensorInfo& tensor = *tensors.at(name + ".weight");
    plan(linear.matrix, tensor, true, tensor.shape[1]);
  }

  void pack(ThreadPool& pool, const Kernels& kernels) const {
    for (const Plan& plan : plans) {
      const TensorInfo& tensor = *plan.tensor;
      const BlockShape block = block_shape(Format(tensor.type_id));
      const size_t row_bytes = tensor.shape[0] / size_t(block.weights) * size_t(block.bytes);
      const Mapping& file = files[tensor.part];
      const uint8_t* base = file.at(tensor.offset);
      const size_t num_rows = plan.ids == nullptr ? tensor.shape[1] : plan.ids->size();
      pool.run([&](ThreadPool::Worker& worker) {
        worker.each((num_rows + lanes - 1) / lanes, [&](size_t group) {
          const uint8_t* rows[16] = {};
          for (size_t lane = 0; lane < lanes && group * lanes + lane < num_rows; lane++) {
            const size_t row = group * lanes + lane;
            rows[lane] = base + row_bytes * (plan.ids ? size_t((*plan.ids)[row]) : row);
          }
          plan.matrix->pack_group(group, Format(tensor.type_id), rows, kernels.round_weights);
        });
      });
      file.forget(tensor.offset, tensor.num_bytes);
    }
  }
};

Model::Model(const std::vector<std::string>& paths, const std::vector<TensorInfo>& tensors,
             const Parameters& parameters, const Options& options)
    : parameters_(parameters), process_(getpid()) {
  const auto start = std::chrono::steady_clock::now();
  check_parameters(parameters);
  check_range("threads", options.threads, 1024);
  kernels_ = options.instructions == "auto" ? available_kernels()[0]
                                            : find_kernels(options.instructions.c_str());
  if (kernels_ == nullptr) refuse("instructions " + options.instructions + " are not available here");
  const Parameters& p = parameters_;
  shape_ = {p.num_layers, p.num_kv_heads, p.head_size, options.half_cache};
  pages_ = std::make_shared<PagePool>(shape_);
  pool_ = std::make_unique<ThreadPool>(options.threads);
  num_threads_ = pool_->num_threads();

  Loader loader(paths, tensors, kernels_->lanes, options.requantize);
  output_norm_ = loader.vector("output_norm.weight", p.hidden_size, true);
  prepare_rope(loader.vector("rope_freqs.weight", p.rope_size / 2, false));
  const size_t query_width = p.num_heads * p.head_size, key_width = p.num_kv_heads * p.head_size;
  layers_.resize(p.num_layers);
  for (size_t l = 0; l < p.num_layers; l++) {
    const std::string name = "blk." + std::to_string(l) + ".";
    Layer& layer = layers_[l];
    const bool qwen3 = p.architecture == "qwen3";
    layer.attention_norm = loader.vector(name + "attn_norm.weight", p.hidden_size, true);
    layer.feed_forward_norm = loader.vector(name + "ffn_norm.weight", p.hidden_size, true);
    if (qwen3) {
      layer.query_norm = loader.vector(name + "attn_q_norm.weight", p.head_size, true);
      layer.key_norm = loader.vector(name + "attn_k_norm.weight", p.head_size, true);
    }
    const auto add = [&](Linear& linear, const char* part, size_t rows, size_t columns) {
      linear = loader.linear(name + part, rows, columns);
      loader.plan_linear(linear, name + part);
    };
    add(layer.query, "attn_q", query_width, p.hidden_size);
    add(layer.key, "attn_k", key_width, p.hidden_size);
    add(layer.value, "attn_v", key_width, p.hidden_size);
    add(layer.output, "attn_output", p.hidden_size, query_width);
    add(layer.gate, "ffn_gate", p.feed_forward_size, p.hidden_size);
    add(layer.up, "ffn_up", p.feed_forward_size, p.hidden_size);
    add(layer.down, "ffn_down", p.hidden_size, p.feed_forward_size);
  }

  const TensorInfo* embedding =
      loader.find("token_embd.weight", {p.hidden_size, p.vocab_size}, true);
  const TensorInfo* head = loader.find("output.weight", {p.hidden_size, p.vocab_size}, false);
  const bool tied = head == nullptr && !options.has_head_ids && !options.requantize;
  if (head == nullptr) head = embedding;
  loader.plan(embedding_, *embedding, false, p.vocab_size);
  head_rows_ = head_capacity_ = p.vocab_size;
  if (options.has_head_ids) {
    head_ids_ = options.head_ids;
    for (size_t i = 0; i < head_ids_.size(); i++) {
      const int32_t id = head_ids_[i];
      if (id < 0 || size_t(id) >= p.vocab_size || (i > 0 && id <= head_ids_[i - 1])) {
        refuse("head_ids must be ascending and in the vocabulary");
      }
    }
    if (head_ids_.empty()) refuse("head_ids is empty");
    head_rows_ = head_ids_.size();
    // room to grow; memory that is never written is never taken
    head_capacity_ = p.vocab_size;
    head_tensor_ = *head;
  }
  if (!tied) loader.plan(head_, *head, true, head_rows_, options.has_head_ids ? &head_ids_ : nullptr);
  for (const auto& [name, tensor] : loader.tensors) {
    if (loader.used.count(name) == 0) refuse("tensor " + name + " belongs to another kind of network");
  }

  size_t total = 0;
  const auto room = [&](const Matrix& matrix) {
    const size_t rows = &matrix == &head_ ? head_capacity_ : matrix.rows();
    return round_up((rows + kernels_->lanes - 1) / kernels_->lanes * matrix.group_bytes(), 64);
  };
  for (const Loader::Plan& plan : loader.plans) total += room(*plan.matrix);
  weights_ = allocate_pages(total);
  size_t used = 0;
  for (const Loader::Plan& plan : loader.plans) {
    plan.matrix->place(weights_.get() + used);
    used += room(*plan.matrix);
    weight_bytes_ += plan.matrix->bytes();
  }
  loader.pack(*pool_, *kernels_);
  if (tied) head_ = embedding_;
  prepare_buffers();
  if (options.has_head_ids) {
    // last of all: nothing closes it for a model that is refused
    head_file_ = dup(loader.files[head->part].file());
    if (head_file_ < 0) fail("cannot keep the file open");
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  load_seconds_ = seconds.count();
}

void Model::extend_head(const std::vector<int32_t>& ids) {
  const Busy busy(*this);
  if (head_file_ < 0) throw std::invalid_argument("the head is whole");
  for (const int32_t id : ids) {
    if (id < 0 || size_t(id) >= parameters_.vocab_size) {
      throw std::invalid_argument("token id " + std::to_string(id) + " is not in the vocabulary");
    }
  }
  if (head_rows_ + ids.size() > head_capacity_) throw std::invalid_argument("the head is full");
  const Format format = Format(head_tensor_.type_id);
  const BlockShape block = block_shape(format);
  const size_t row_bytes = head_tensor_.shape[0] / size_t(block.weights) * size_t(block.bytes);
  const size_t lanes = kernels_->lanes, first = head_rows_ / lanes;
  std::vector<int32_t> all = head_ids_;
  all.insert(all.end(), ids.begin(), ids.end());
  // the last group may be half full: it is packed again, from its first row on
  std::vector<uint8_t> raw((all.size() - first * lanes) * row_bytes);
  for (size_t row = first * lanes; row < all.size(); row++) {
    const off_t offset = off_t(head_tensor_.offset + size_t(all[row]) * row_bytes);
    uint8_t* to = raw.data() + (row - first * lanes) * row_bytes;
    if (pread(head_file_, to, row_bytes, offset) != ssize_t(row_bytes)) {
      throw std::runtime_error("the model file cannot be read any more");
    }
  }
  for (size_t group = first; group * lanes < all.size(); group++) {
    const uint8_t* rows[16] = {};
    for (size_t lane = 0; lane < lanes && group * lanes + lane < all.size(); lane++) {
      rows[lane] = raw.data() + ((group - first) * lanes + lane) * row_bytes;
    }
    head_.pack_group(group, format, rows, kernels_->round_weights);
  }
  head_.set_rows(all.size());
  head_ids_ = std::move(all);
  head_rows_ = head_ids_.size();
}

}  // namespace pilotfish
