// One model: its weights, and the pass that scores new tokens of several sequences.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "cache.hpp"
#include "kernels.hpp"
#include "matrix.hpp"
#include "threads.hpp"

namespace pilotfish {

struct TensorInfo {
  std::string name;
  std::vector<uint64_t> shape;  // fastest axis first
  int type_id = 0;
  uint64_t offset = 0, num_bytes = 0;
  size_t part = 0;
};

// The shape of the network. Lengths of vectors in floats, `rope_size` in rotated dimensions.
struct Parameters {
  std::string architecture;  // llama, qwen2, qwen3
  size_t num_layers = 0, hidden_size = 0, num_heads = 0, num_kv_heads = 0, head_size = 0;
  size_t feed_forward_size = 0, vocab_size = 0;
  double rms_epsilon = 1e-5;
  size_t rope_size = 0;
  double rope_base = 10000;
  bool rope_neox = false;    // pairs (i, i + half) instead of (2i, 2i + 1)
  std::string rope_scaling;  // none, linear, yarn
  double rope_factor = 1;
  size_t rope_original_context = 0;
  double yarn_attention_factor = 1, yarn_beta_fast = 32, yarn_beta_slow = 1;
};

struct Options {
  size_t threads = 1;
  std::string instructions = "auto";
  bool half_cache = true;
  bool requantize = false;
  bool has_head_ids = false;
  std::vector<int32_t> head_ids;
};

// New tokens of one sequence; logits are wanted from index first_row on.
struct Segment {
  Sequence* sequence = nullptr;
  std::vector<int32_t> token_ids;
  size_t first_row = 0;
};

// Rows of floats with padding, zero at first.
class Rows {
 public:
  void resize(size_t count, size_t width);
  float* operator[](size_t row) const { return data_.get() + row * stride_; }
  size_t stride() const { return stride_; }
  size_t width() const { return width_; }
  size_t count() const { return count_; }
  const std::shared_ptr<float[]>& owner() const { return data_; }

 private:
  std::shared_ptr<float[]> data_;
  size_t count_ = 0, width_ = 0, stride_ = 0;
};

class Model {
 public:
  Model(const std::vector<std::string>& paths, const std::vector<TensorInfo>& tensors,
        const Parameters& parameters, const Options& options);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  size_t vocab_size() const { return head_rows_; }
  size_t hidden_size() const { return parameters_.hidden_size; }
  size_t threads() const { return num_threads_; }
  const char* instructions() const { return kernels_->name; }
  size_t weight_bytes() const { return weight_bytes_; }
  size_t step_bytes() const;
  size_t cache_bytes_per_token() const { return shape_.page_bytes() / kPageTokens; }
  double load_seconds() const { return load_seconds_; }
  bool is_open() const { return weights_ != nullptr; }

  std::unique_ptr<Sequence> new_sequence();
  class Busy;
  // Evaluates the segments; the rows are in `logits()` until the next call. The caller holds the
  // model from before it lets other threads run.
  void forward(const Busy& busy, const std::vector<Segment>& segments);
  const Rows& logits() const { return logits_; }
  const Rows& hidden() const { return hidden_; }
  size_t num_rows() const { return num_rows_; }
  void extend_head(const std::vector<int32_t>& ids);
  double read_weights();
  void close();

 private:
  struct Linear {
    Matrix matrix;
    std::vector<float> bias;
  };
  struct Layer {
    std::vector<float> attention_norm, feed_forward_norm, query_norm, key_norm;
    Linear query, key, value, output, gate, up, down;
  };
  // A matrix and where its product goes.
  struct Product {
    const Matrix* matrix;
    float* out;
    size_t stride;
  };
  // One token of the part of a call that is evaluated at once.
  struct Row {
    size_t segment;
    int32_t token_id;
    size_t position;
    ptrdiff_t wanted;  // its place among the wanted rows, or -1
  };
  // Consecutive rows of one segment that attend together.
  struct Group {
    size_t begin, end;
  };
  struct Loader;

  // All that a pass reads whole: every matrix but the embedding.
  std::vector<const Matrix*> step_matrices() const;

  void check(const std::vector<Segment>& segments) const;
  void run(const std::vector<Segment>& segments, const std::vector<Row>& rows, size_t first_out);
  void pass(ThreadPool::Worker& worker, const std::vector<Segment>& segments,
            const std::vector<Row>& rows, const std::vector<Group>& groups, size_t first_out);
  std::vector<Group> group_rows(const std::vector<Row>& rows) const;
  void begin_row(const Row& row, size_t index);
  void normalise_row(size_t row, const std::vector<float>& weight);
  void store_row(const Segment& segment, const Row& row, size_t index, size_t layer);
  void attend(const std::vector<Segment>& segments, const std::vector<Row>& rows, Group group,
              size_t layer, size_t head, size_t thread);
  void keep_wanted(const std::vector<Row>& rows);
  void feed_forward(ThreadPool::Worker& worker, const Layer& layer, size_t count);
  void multiply(ThreadPool::Worker& worker, const Rows& from, size_t count,
                std::initializer_list<Product> products);
  void round(const Rows& from, size_t row, size_t begin, size_t end,
             std::initializer_list<const Matrix*> readers);
  void rotate(float* vector, size_t row) const;
  void normalise_head(float* vector, const std::vector<float>& weight) const;
  void prepare_rope(const std::vector<float>& factors);
  void prepare_buffers();

  Parameters parameters_;
  CacheShape shape_;
  const Kernels* kernels_ = nullptr;
  size_t num_threads_ = 1;
  std::unique_ptr<ThreadPool> pool_;
  std::shared_ptr<PagePool> pages_;
  PageMemory weights_;
  size_t weight_bytes_ = 0, head_rows_ = 0, head_capacity_ = 0;
  double load_seconds_ = 0;
  int process_ = 0;
  std::atomic<bool> busy_{false};

  Matrix embedding_, head_;  // one memory where a file ties them
  std::vector<float> output_norm_;
  std::vector<Layer> layers_;
  std::vector<double> frequencies_;
  double rope_magnitude_ = 1;
  // what a growing head is read from
  std::vector<int32_t> head_ids_;
  TensorInfo head_tensor_;
  int head_file_ = -1;

  Rows x_, normed_, query_, key_, value_, mixed_, sum_, gate_, up_, cosine_, sine_;
  Rows logits_, hidden_;
  size_t num_rows_ = 0;
  std::vector<LargeActivation> large_;
  std::vector<SmallActivation> small_;
  size_t large_stride_ = 0, small_stride_ = 0;  // blocks of a row
  struct Scratch {
    std::vector<float> scores, block, out;
    std::vector<Query> queries;
    std::vector<const uint8_t*> pages;
  };
  std::vector<Scratch> scratch_;
};

// Holds the model for one call; refuses, rather than waits, where another thread has it.
class Model::Busy {
 public:
  explicit Busy(Model& model);
  ~Busy();
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  Model& model_;
  std::shared_ptr<PagePool> pages_;
};

}  // namespace pilotfish
