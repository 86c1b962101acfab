#include "model.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <stdexcept>

namespace pilotfish {
namespace {

// Rows evaluated at once; a longer prompt takes several turns, whose bits are the same.
constexpr size_t kMaxRows = 64;
// Weights that a thread takes at a time: much, since each piece begins with a wait for memory, and
// little at the end of a step, so that all threads end it together.
constexpr size_t kPieceBytes = 384 << 10, kLastPieceBytes = 64 << 10;
constexpr size_t kScoreFloats = 32 << 10;      // of scores, so that they stay in the nearest caches
constexpr size_t kGateColumns = 2048;          // taken by a thread at a time
constexpr size_t kMostProducts = 3;            // of one step: query, key and value

bool reads(std::initializer_list<const Matrix*> readers, Input input) {
  for (const Matrix* matrix : readers) {
    if (input_of(matrix->format()) == input) return true;
  }
  return false;
}

// How the groups of a matrix are cut: into large pieces, and at the end of a step, where `tapers`,
// the last quarter into little ones.
class Pieces {
 public:
  Pieces() = default;
  Pieces(const Matrix& matrix, bool tapers)
      : groups_(matrix.groups()),
        large_(std::max<size_t>(1, kPieceBytes / matrix.group_bytes())),
        little_(std::max<size_t>(1, kLastPieceBytes / matrix.group_bytes())) {
    const size_t tail = tapers ? groups_ / 4 * 3 : groups_;
    num_large_ = (tail + large_ - 1) / large_;
    const size_t rest = groups_ - std::min(groups_, num_large_ * large_);
    count_ = num_large_ + (rest + little_ - 1) / little_;
  }

  size_t count() const { return count_; }
  // Returns the first group of a piece; for `count()`, the number of groups.
  size_t begin(size_t piece) const {
    const size_t num_large = std::min(piece, num_large_);
    return std::min(groups_, num_large * large_ + (piece - num_large) * little_);
  }

 private:
  size_t groups_ = 0, large_ = 1, little_ = 1, num_large_ = 0, count_ = 0;
};

void add_bias(float* row, const std::vector<float>& bias) {
  for (size_t i = 0; i < bias.size(); i++) row[i] += bias[i];
}

}  // namespace

void Rows::resize(size_t count, size_t width) {
  const size_t stride = round_up(width, 64), floats = count * stride;
  auto* memory = static_cast<float*>(std::aligned_alloc(64, round_up(4 * floats + 1, 64)));
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, 4 * floats);
  data_ = std::shared_ptr<float[]>(memory, [](float* floats) { std::free(floats); });
  count_ = count;
  width_ = width;
  stride_ = stride;
}

Model::Busy::Busy(Model& model) : model_(model) {
  if (model.process_ != getpid()) {
    throw std::runtime_error("the model was loaded before this process was forked; load it anew");
  }
  if (model.busy_.exchange(true)) {
    throw std::runtime_error("the model is at work in another thread; use one thread at a time");
  }
  if (!model.is_open()) {
    model.busy_.store(false);
    throw std::runtime_error("the model was closed");
  }
  pages_ = model.pages_;
  pages_->in_use = true;
}

Model::Busy::~Busy() {
  pages_->in_use = false;
  model_.busy_.store(false);
}

Model::~Model() {
  // in a forked child the threads do not exist and cannot be joined
  if (process_ != getpid()) static_cast<void>(pool_.release());
  if (head_file_ >= 0) ::close(head_file_);
}

void Model::close() {
  if (!is_open()) return;
  const Busy busy(*this);
  pool_.reset();
  pages_.reset();
  layers_.clear();
  weights_.reset();
}

std::vector<const Matrix*> Model::step_matrices() const {
  std::vector<const Matrix*> matrices = {&head_};
  for (const Layer& layer : layers_) {
    for (const Linear* part : {&layer.query, &layer.key, &layer.value, &layer.output, &layer.gate,
                               &layer.up, &layer.down}) {
      matrices.push_back(&part->matrix);
    }
  }
  return matrices;
}

size_t Model::step_bytes() const {
  size_t total = 0;
  for (const Matrix* matrix : step_matrices()) total += matrix->bytes();
  return total;
}

std::unique_ptr<Sequence> Model::new_sequence() {
  const Busy busy(*this);
  return std::make_unique<Sequence>(pages_, shape_);
}

void Model::check(const std::vector<Segment>& segments) const {
  for (size_t i = 0; i < segments.size(); i++) {
    const Segment& segment = segments[i];
    if (!segment.sequence->belongs_to(pages_)) {
      throw std::invalid_argument("the sequence was closed or belongs to another model");
    }
    for (size_t j = 0; j < i; j++) {
      if (segments[j].sequence == segment.sequence) {
        throw std::invalid_argument("one sequence appears twice in a pass");
      }
    }
    if (segment.first_row > segment.token_ids.size()) {
      throw std::invalid_argument("first_row is outside the segment");
    }
    for (const int32_t id : segment.token_ids) {
      if (id < 0 || size_t(id) >= parameters_.vocab_size) {
        throw std::invalid_argument("token id " + std::to_string(id) + " is not in the vocabulary");
      }
    }
  }
}

void Model::forward(const Busy&, const std::vector<Segment>& segments) {
  check(segments);
  size_t wanted = 0;
  for (const Segment& segment : segments) {
    wanted += segment.token_ids.size() - segment.first_row;
    segment.sequence->reserve(segment.sequence->length() + segment.token_ids.size());
  }
  if (wanted > hidden_.count()) hidden_.resize(wanted, hidden_size());
  if (wanted > logits_.count() || head_rows_ > logits_.width()) {
    const size_t width = std::max(head_rows_, logits_.width());
    logits_.resize(std::max(wanted, logits_.count()), width);
  }
  std::vector<Row> rows;
  size_t done = 0, num_wanted = 0;
  const auto flush = [&] {
    if (!rows.empty()) run(segments, rows, done);
    done += num_wanted;
    num_wanted = 0;
    rows.clear();
  };
  for (size_t s = 0; s < segments.size(); s++) {
    const Segment& segment = segments[s];
    for (size_t i = 0; i < segment.token_ids.size(); i++) {
      const bool wants = i >= segment.first_row;
      rows.push_back({s, segment.token_ids[i], segment.sequence->length() + i,
                      wants ? ptrdiff_t(num_wanted) : -1});
      if (wants) num_wanted++;
      if (rows.size() == kMaxRows) flush();
    }
  }
  flush();
  num_rows_ = wanted;
  for (const Segment& segment : segments) {
    segment.sequence->set_length(segment.sequence->length() + segment.token_ids.size());
  }
}

void Model::run(const std::vector<Segment>& segments, const std::vector<Row>& rows,
                size_t first_out) {
  const std::vector<Group> groups = group_rows(rows);
  const size_t heads_per_key = parameters_.num_heads / parameters_.num_kv_heads;
  for (Scratch& scratch : scratch_) {
    size_t scores = 0, queries = 0, pages = 0;
    for (const Group group : groups) {
      const size_t limit = round_up(rows[group.end - 1].position + 1, kBlockTokens);
      const size_t count = (group.end - group.begin) * heads_per_key;
      scores = std::max(scores, limit * count);
      queries = std::max(queries, count);
      pages = std::max(pages, limit / kPageTokens + 1);
    }
    if (scratch.scores.size() < scores) scratch.scores.resize(scores);
    if (scratch.queries.size() < queries) scratch.queries.resize(queries);
    const size_t out = queries * shape_.padded_head();
    if (scratch.out.size() < out) scratch.out.resize(out);
    if (scratch.pages.size() < pages) scratch.pages.resize(pages);
  }
  pool_->run([&](ThreadPool::Worker& worker) { pass(worker, segments, rows, groups, first_out); });
}

// Rows of one segment share the keys they read; few enough that their scores stay near.
std::vector<Model::Group> Model::group_rows(const std::vector<Row>& rows) const {
  const size_t heads_per_key = parameters_.num_heads / parameters_.num_kv_heads;
  std::vector<Group> groups;
  for (size_t i = 0; i < rows.size();) {
    size_t end = i + 1;
    while (end < rows.size() && end - i < 8 && rows[end].segment == rows[i].segment &&
           (end + 1 - i) * heads_per_key * rows[end].position < kScoreFloats) {
      end++;
    }
    groups.push_back({i, end});
    i = end;
  }
  return groups;
}

void Model::pass(ThreadPool::Worker& worker, const std::vector<Segment>& segments,
                 const std::vector<Row>& rows, const std::vector<Group>& groups,
                 size_t first_out) {
  size_t count = rows.size();
  worker.each(count, [&](size_t r) { begin_row(rows[r], r); });
  for (size_t l = 0; l < layers_.size(); l++) {
    const Layer& layer = layers_[l];
    const Matrix &query = layer.query.matrix, &key = layer.key.matrix, &value = layer.value.matrix;
    worker.each(count, [&](size_t r) {
      normalise_row(r, layer.attention_norm);
      round(normed_, r, 0, normed_.width(), {&query, &key, &value});
    });
    multiply(worker, normed_, count,
             {{&query, query_[0], query_.stride()},
              {&key, key_[0], key_.stride()},
              {&value, value_[0], value_.stride()}});
    worker.each(count, [&](size_t r) { store_row(segments[rows[r].segment], rows[r], r, l); });
    worker.each(groups.size() * shape_.num_heads, [&](size_t i) {
      attend(segments, rows, groups[i / shape_.num_heads], l, i % shape_.num_heads,
             worker.index());
    });
    if (l + 1 == layers_.size()) {
      worker.each(1, [&](size_t) { keep_wanted(rows); });
      count = size_t(std::count_if(rows.begin(), rows.end(),
                                   [](const Row& row) { return row.wanted >= 0; }));
      if (count == 0) return;
    }
    worker.each(count,
                [&](size_t r) { round(mixed_, r, 0, mixed_.width(), {&layer.output.matrix}); });
    multiply(worker, mixed_, count, {{&layer.output.matrix, sum_[0], sum_.stride()}});
    feed_forward(worker, layer, count);
  }
  worker.each(count, [&](size_t r) {
    normalise_row(r, output_norm_);
    std::memcpy(hidden_[first_out + r], normed_[r], 4 * hidden_size());
    round(normed_, r, 0, normed_.width(), {&head_});
  });
  multiply(worker, normed_, count, {{&head_, logits_[first_out], logits_.stride()}});
}

void Model::feed_forward(ThreadPool::Worker& worker, const Layer& layer, size_t count) {
  const Matrix &gate = layer.gate.matrix, &up = layer.up.matrix, &down = layer.down.matrix;
  worker.each(count, [&](size_t r) {
    add_bias(sum_[r], layer.output.bias);
    normalise_row(r, layer.feed_forward_norm);
    round(normed_, r, 0, normed_.width(), {&gate, &up});
  });
  multiply(worker, normed_, count,
           {{&gate, gate_[0], gate_.stride()}, {&up, up_[0], up_.stride()}});
  const size_t width = gate_.stride(), parts = (width + kGateColumns - 1) / kGateColumns;
  worker.each(count * parts, [&](size_t i) {
    const size_t r = i / parts, begin = i % parts * kGateColumns;
    const size_t end = std::min(width, begin + kGateColumns);
    if (!layer.gate.bias.empty() || !layer.up.bias.empty()) {
      for (size_t c = begin; c < std::min(end, layer.gate.bias.size()); c++) {
        gate_[r][c] += layer.gate.bias[c];
      }
      for (size_t c = begin; c < std::min(end, layer.up.bias.size()); c++) {
        up_[r][c] += layer.up.bias[c];
      }
    }
    kernels_->gate(gate_[r] + begin, up_[r] + begin, end - begin, gate_[r] + begin);
    round(gate_, r, begin, end, {&down});
  });
  multiply(worker, gate_, count, {{&down, sum_[0], sum_.stride()}});
  if (!layer.down.bias.empty()) {
    worker.each(count, [&](size_t r) { add_bias(sum_[r], layer.down.bias); });
  }
}

// Looks up a token's embedding, and the angles of its position.
void Model::begin_row(const Row& row, size_t index) {
  embedding_.row(size_t(row.token_id), x_[index]);
  std::memset(sum_[index], 0, 4 * sum_.stride());
  for (size_t i = 0; i < frequencies_.size(); i++) {
    const double angle = double(row.position) * frequencies_[i];
    cosine_[index][i] = float(std::cos(angle) * rope_magnitude_);
    sine_[index][i] = float(std::sin(angle) * rope_magnitude_);
  }
}

// Adds what the last block computed, and normalises for the next.
void Model::normalise_row(size_t row, const std::vector<float>& weight) {
  kernels_->add(x_[row], sum_[row], x_.stride());
  kernels_->normalise(x_[row], weight.data(), x_.stride(), hidden_size(),
                      float(parameters_.rms_epsilon), normed_[row]);
}

void Model::store_row(const Segment& segment, const Row& row, size_t index, size_t layer_index) {
  const Layer& layer = layers_[layer_index];
  const size_t size = parameters_.head_size;
  add_bias(query_[index], layer.query.bias);
  add_bias(key_[index], layer.key.bias);
  add_bias(value_[index], layer.value.bias);
  const float scale = float(1.0 / std::sqrt(double(size)));
  for (size_t h = 0; h < parameters_.num_heads; h++) {
    float* query = query_[index] + h * size;
    if (!layer.query_norm.empty()) normalise_head(query, layer.query_norm);
    rotate(query, index);
    for (size_t i = 0; i < size; i++) query[i] *= scale;
  }
  uint8_t* page = segment.sequence->page(row.position);
  for (size_t h = 0; h < parameters_.num_kv_heads; h++) {
    float* key = key_[index] + h * size;
    if (!layer.key_norm.empty()) normalise_head(key, layer.key_norm);
    rotate(key, index);
    shape_.store(page, row.position % kPageTokens, layer_index, h, key, value_[index] + h * size);
  }
}

void Model::attend(const std::vector<Segment>& segments, const std::vector<Row>& rows, Group group,
                   size_t layer, size_t head, size_t thread) {
  Scratch& scratch = scratch_[thread];
  const Sequence& sequence = *segments[rows[group.begin].segment].sequence;
  const size_t heads = parameters_.num_heads / parameters_.num_kv_heads;
  const size_t size = parameters_.head_size, padded = shape_.padded_head();
  const size_t num_pages = rows[group.end - 1].position / kPageTokens + 1;
  for (size_t p = 0; p < num_pages; p++) scratch.pages[p] = sequence.page(p * kPageTokens);
  size_t count = 0;
  for (size_t r = group.begin; r < group.end; r++) {
    for (size_t h = 0; h < heads; h++, count++) {
      scratch.queries[count] = {query_[r] + (head * heads + h) * size,
                                scratch.out.data() + count * padded, rows[r].position + 1};
    }
  }
  const size_t keys = shape_.key_offset(layer, head);
  kernels_->attend({scratch.queries.data(), count, scratch.pages.data(), keys,
                    keys + shape_.key_bytes(), size, shape_.half, scratch.scores.data(),
                    scratch.block.data()});
  count = 0;
  for (size_t r = group.begin; r < group.end; r++) {
    for (size_t h = 0; h < heads; h++, count++) {
      std::memcpy(mixed_[r] + (head * heads + h) * size, scratch.out.data() + count * padded,
                  4 * size);
    }
  }
}

// Moves the rows whose logits are wanted to the front.
void Model::keep_wanted(const std::vector<Row>& rows) {
  size_t kept = 0;
  for (size_t r = 0; r < rows.size(); r++) {
    if (rows[r].wanted < 0) continue;
    if (kept != r) {
      std::memcpy(x_[kept], x_[r], 4 * x_.stride());
      std::memcpy(mixed_[kept], mixed_[r], 4 * mixed_.stride());
    }
    kept++;
  }
}

void Model::multiply(ThreadPool::Worker& worker, const Rows& from, size_t count,
                     std::initializer_list<Product> products) {
  // no list of all pieces: memory that is wanting here would end the process
  std::array<Pieces, kMostProducts> pieces;
  size_t num_pieces = 0;
  for (size_t p = 0; p < products.size(); p++) {
    pieces[p] = Pieces(*products.begin()[p].matrix, p + 1 == products.size());
    num_pieces += pieces[p].count();
  }
  worker.each(num_pieces, [&](size_t i) {
    size_t p = 0;
    while (i >= pieces[p].count()) i -= pieces[p++].count();
    const Product* product = products.begin() + p;
    const size_t begin = pieces[p].begin(i), end = pieces[p].begin(i + 1);
    const Matrix& matrix = *product->matrix;
    const uint8_t* x = nullptr;
    size_t stride = 0;
    switch (input_of(matrix.format())) {
      case Input::large:
        x = reinterpret_cast<const uint8_t*>(large_.data());
        stride = large_stride_ * sizeof(LargeActivation);
        break;
      case Input::small:
        x = reinterpret_cast<const uint8_t*>(small_.data());
        stride = small_stride_ * sizeof(SmallActivation);
        break;
      case Input::plain:
        x = reinterpret_cast<const uint8_t*>(from[0]);
        stride = 4 * from.stride();
    }
    kernels_->multiply(matrix, begin, end, x, stride, count, product->out, product->stride);
  });
}

// Rounds columns begin..end of a row to what its readers want; `begin` is a multiple of 256.
void Model::round(const Rows& from, size_t row, size_t begin, size_t end,
                  std::initializer_list<const Matrix*> readers) {
  if (reads(readers, Input::large)) {
    kernels_->round_large(from[row] + begin, end - begin,
                          large_.data() + row * large_stride_ + begin / kLargeBlock);
  }
  if (reads(readers, Input::small)) {
    kernels_->round_small(from[row] + begin, round_up(end - begin, 64),
                          small_.data() + row * small_stride_ + begin / kSmallBlock);
  }
}

void Model::rotate(float* vector, size_t row) const {
  const float *cosine = cosine_[row], *sine = sine_[row];
  const size_t half = frequencies_.size();
  const size_t apart = parameters_.rope_neox ? half : 1, step = parameters_.rope_neox ? 1 : 2;
  for (size_t i = 0; i < half; i++) {
    float &a = vector[i * step], &b = vector[i * step + apart];
    const float turned = a * cosine[i] - b * sine[i];
    b = a * sine[i] + b * cosine[i];
    a = turned;
  }
}

void Model::normalise_head(float* vector, const std::vector<float>& weight) const {
  alignas(64) float padded[1024] = {};
  std::memcpy(padded, vector, 4 * parameters_.head_size);
  kernels_->normalise(padded, weight.data(), weight.size(), parameters_.head_size,
                      float(parameters_.rms_epsilon), padded);
  std::memcpy(vector, padded, 4 * parameters_.head_size);
}

// Angles per position of each pair of dimensions; the scalings are those of ggml's rope.
void Model::prepare_rope(const std::vector<float>& factors) {
  const Parameters& p = parameters_;
  const double size = double(p.rope_size);
  const double interpolation = p.rope_scaling == "none" ? 1 : 1 / p.rope_factor;
  const bool yarn = p.rope_scaling == "yarn";
  // dimension whose wave makes `turns` turns over the context the model was trained on
  const auto dimension = [&](double turns) {
    return size * std::log(double(p.rope_original_context) / (turns * 2 * M_PI)) /
           (2 * std::log(p.rope_base));
  };
  double low = 0, high = 0;
  if (yarn) {
    low = std::max(0.0, std::floor(dimension(p.yarn_beta_fast)));
    high = std::min(size - 1, std::ceil(dimension(p.yarn_beta_slow)));
    rope_magnitude_ = p.yarn_attention_factor * (1 + 0.1 * std::log(p.rope_factor));
  }
  frequencies_.resize(p.rope_size / 2);
  for (size_t i = 0; i < frequencies_.size(); i++) {
    double frequency = std::pow(p.rope_base, -2.0 * double(i) / size);
    if (!factors.empty()) frequency /= double(factors[i]);
    double mix = 0;  // share of the frequency that is not interpolated
    if (yarn) mix = 1 - std::clamp((double(i) - low) / std::max(0.001, high - low), 0.0, 1.0);
    frequencies_[i] = frequency * (interpolation * (1 - mix) + mix);
  }
}

void Model::prepare_buffers() {
  const Parameters& p = parameters_;
  const size_t query_width = p.num_heads * p.head_size, key_width = p.num_kv_heads * p.head_size;
  for (Rows* rows : {&x_, &normed_, &sum_}) rows->resize(kMaxRows, p.hidden_size);
  for (Rows* rows : {&query_, &mixed_}) rows->resize(kMaxRows, query_width);
  for (Rows* rows : {&key_, &value_}) rows->resize(kMaxRows, key_width);
  for (Rows* rows : {&gate_, &up_}) rows->resize(kMaxRows, p.feed_forward_size);
  for (Rows* rows : {&cosine_, &sine_}) rows->resize(kMaxRows, p.rope_size / 2);
  const size_t widest = round_up(std::max({p.hidden_size, query_width, p.feed_forward_size}), 256);
  large_stride_ = widest / kLargeBlock;
  small_stride_ = widest / kSmallBlock;
  large_.resize(kMaxRows * large_stride_);
  small_.resize(kMaxRows * small_stride_);
  scratch_.resize(pool_->num_threads());
  for (Scratch& scratch : scratch_) {
    scratch.block.resize(kBlockTokens * std::max(p.head_size, shape_.padded_head()));
  }
  logits_.resize(kMaxRows, head_rows_);
  hidden_.resize(kMaxRows, p.hidden_size);
}

double Model::read_weights() {
  const Busy busy(*this);
  const std::vector<const Matrix*> matrices = step_matrices();
  std::atomic<uint64_t> sink{0};
  const auto start = std::chrono::steady_clock::now();
  pool_->run([&](ThreadPool::Worker& worker) {
    for (const Matrix* matrix : matrices) {
      const size_t pieces = (matrix->bytes() + kPieceBytes - 1) / kPieceBytes;
      worker.each(pieces, [&](size_t i) {
        const size_t begin = i * kPieceBytes, size = std::min(kPieceBytes, matrix->bytes() - begin);
        sink += kernels_->read(matrix->group(0) + begin, size);
      });
    }
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return seconds.count();
}

}  // namespace pilotfish
