#include "cache.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>
#include <stdexcept>

namespace pilotfish {
namespace {

// A row that is no number must not reach rows that do not see it: they weigh it with zero, and
// zero times infinity is no number either.
float finite(float value) { return std::isfinite(value) ? value : 0.0f; }

}  // namespace

void CacheShape::store(uint8_t* page, size_t token, size_t layer, size_t head, const float* key,
                       const float* value) const {
  uint8_t* keys = page + key_offset(layer, head);
  uint8_t* values = keys + key_bytes() + token * padded_head() * element();
  // keys lie with 16 tokens side by side
  keys += (token / kBlockTokens * kBlockTokens * head_size + token % kBlockTokens) * element();
  if (half) {
    for (size_t i = 0; i < head_size; i++) {
      const uint16_t k = half_from_float(finite(key[i])), v = half_from_float(finite(value[i]));
      std::memcpy(keys + 2 * kBlockTokens * i, &k, 2);
      std::memcpy(values + 2 * i, &v, 2);
    }
  } else {
    for (size_t i = 0; i < head_size; i++) {
      const float k = finite(key[i]), v = finite(value[i]);
      std::memcpy(keys + 4 * kBlockTokens * i, &k, 4);
      std::memcpy(values + 4 * i, &v, 4);
    }
  }
}

PagePool::~PagePool() {
  for (uint8_t* page : free_) std::free(page);
}

PagePool::Page PagePool::take() {
  uint8_t* memory = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      memory = free_.back();
      free_.pop_back();
    } else if (free_.capacity() == num_made_) {
      // giving a page back must not need memory
      free_.reserve(2 * num_made_ + 16);
    }
    if (memory == nullptr) num_made_++;
  }
  if (memory == nullptr) {
    const size_t bytes = round_up(shape_.page_bytes(), 64);
    memory = static_cast<uint8_t*>(std::aligned_alloc(64, bytes));
    if (memory == nullptr) throw std::bad_alloc();
    std::memset(memory, 0, bytes);
  }
  return Page(memory, [pool = shared_from_this()](uint8_t* page) {
    const std::lock_guard lock(pool->mutex_);
    pool->free_.push_back(page);
  });
}

void Sequence::require_idle() const {
  if (!is_open()) throw std::runtime_error("the sequence was closed");
  if (pool_->in_use) {
    throw std::runtime_error("the model is at work in another thread; use one thread at a time");
  }
}

void Sequence::truncate(size_t length) {
  require_idle();
  if (length > length_) throw std::invalid_argument("cannot truncate to more than there is");
  length_ = length;
  pages_.resize((length + kPageTokens - 1) / kPageTokens);
}

std::unique_ptr<Sequence> Sequence::prefix(size_t length) const {
  require_idle();
  if (length > length_) throw std::invalid_argument("the prefix is longer than the sequence");
  auto copy = std::make_unique<Sequence>(pool_, shape_);
  copy->pages_.assign(pages_.begin(),
                      pages_.begin() + ptrdiff_t((length + kPageTokens - 1) / kPageTokens));
  copy->length_ = length;
  return copy;
}

void Sequence::close() {
  if (!is_open()) return;
  require_idle();
  pages_.clear();
  pool_.reset();
  length_ = 0;
}

void Sequence::reserve(size_t length) {
  // the page that holds the next token may be shared with a prefix
  const size_t current = length_ / kPageTokens;
  if (current < pages_.size() && pages_[current].use_count() > 1) {
    PagePool::Page own = pool_->take();
    std::memcpy(own.get(), pages_[current].get(), shape_.page_bytes());
    pages_[current] = std::move(own);
  }
  while (pages_.size() * kPageTokens < length) pages_.push_back(pool_->take());
}

}  // namespace pilotfish
