// Keys and values of sequences, in pages of 64 tokens that sequences with a common beginning share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels.hpp"

namespace pilotfish {

struct CacheShape {
  size_t num_layers = 0, num_heads = 0, head_size = 0;
  bool half = true;

  size_t element() const { return half ? 2 : 4; }
  size_t padded_head() const { return round_up(head_size, 16); }
  size_t key_bytes() const { return kPageTokens * head_size * element(); }
  size_t head_bytes() const { return key_bytes() + kPageTokens * padded_head() * element(); }
  size_t page_bytes() const { return num_layers * num_heads * head_bytes(); }
  size_t key_offset(size_t layer, size_t head) const {
    return (layer * num_heads + head) * head_bytes();
  }
  // Writes one token's key and value, `head_size` floats each, of one head.
  void store(uint8_t* page, size_t token, size_t layer, size_t head, const float* key,
             const float* value) const;
};

// Hands out pages and keeps those given back. What is in a page was zero or written by `store`:
// always finite.
class PagePool : public std::enable_shared_from_this<PagePool> {
 public:
  explicit PagePool(const CacheShape& shape) : shape_(shape) {}
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  using Page = std::shared_ptr<uint8_t>;
  Page take();

  // Whether a pass is under way: its sequences must not change under it.
  std::atomic<bool> in_use{false};

 private:
  const CacheShape shape_;
  std::mutex mutex_;
  std::vector<uint8_t*> free_;  // with room for every page made
  size_t num_made_ = 0;
};

class Sequence {
 public:
  Sequence(std::shared_ptr<PagePool> pool, const CacheShape& shape)
      : pool_(std::move(pool)), shape_(shape) {}

  size_t length() const { return length_; }
  bool is_open() const { return pool_ != nullptr; }
  // Throws where the sequence was closed or another thread is in a pass of its model.
  void require_idle() const;
  bool belongs_to(const std::shared_ptr<PagePool>& pool) const { return pool_ == pool; }
  void truncate(size_t length);
  std::unique_ptr<Sequence> prefix(size_t length) const;
  void close();

  // Makes room for tokens up to `length`, in pages of this sequence alone where they are written.
  void reserve(size_t length);
  void set_length(size_t length) { length_ = length; }
  uint8_t* page(size_t token) const { return pages_[token / kPageTokens].get(); }

 private:
  std::shared_ptr<PagePool> pool_;
  CacheShape shape_;
  std::vector<PagePool::Page> pages_;
  size_t length_ = 0;
};

}  // namespace pilotfish
