// The arithmetic of a pass, compiled once for each instruction set.
//
// Every function computes each row of its result in one fixed order that depends on nothing but
// that row: not on how many rows there are, nor on which thread asks. The order is the same in
// every instruction set, too: integer sums are exact, and float sums use 16 lanes and fused
// multiply-adds everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

#include "matrix.hpp"

namespace pilotfish {

// Tokens in a page of the cache, and in one of its blocks: keys lie [block][head size][16 tokens],
// values [token][head size padded to 16].
constexpr size_t kPageTokens = 64;
constexpr size_t kBlockTokens = 16;

// One query vector of one row: float32 [head_size], already scaled; sees tokens below `limit`.
struct Query {
  const float* vector;
  float* out;  // [padded head size]
  size_t limit;
};

struct Attention {
  const Query* queries;
  size_t num_queries;
  const uint8_t* const* pages;
  size_t key_offset, value_offset;  // bytes from a page's start to this head's keys and values
  size_t head_size;
  bool half;      // keys and values are halves, else floats
  float* scores;  // scratch: num_queries * round_up(largest limit, 16) floats
  float* block;   // scratch: 16 * padded head size floats
};

struct Kernels {
  const char* name;
  size_t lanes;
  // y[n][row] of the groups begin..end of a matrix, for `count` rows of activations in x
  // (LargeActivation, SmallActivation or float rows of `x_stride` bytes)
  void (*multiply)(const Matrix& matrix, size_t begin, size_t end, const uint8_t* x,
                   size_t x_stride, size_t count, float* y, size_t y_stride);
  void (*round_large)(const float* x, size_t count, LargeActivation* out);
  void (*round_small)(const float* x, size_t count, SmallActivation* out);
  // rounds 32 weights to q4_0, with the scale of least squared error among some
  void (*round_weights)(const float* weights, BlockParts& parts);
  // out = x / sqrt(mean(x^2) + epsilon) * weight; count is padded to 16, the mean is over `size`
  void (*normalise)(const float* x, const float* weight, size_t count, size_t size, float epsilon,
                    float* out);
  void (*add)(float* x, const float* y, size_t count);
  void (*gate)(const float* gate, const float* up, size_t count, float* out);  // silu(gate) * up
  void (*attend)(const Attention& work);
  uint64_t (*read)(const uint8_t* memory, size_t bytes);
};

// Returns the kernels of an instruction set by name, or null where this processor lacks it.
const Kernels* find_kernels(const char* name);

// Fastest first; ends with null.
const Kernels* const* available_kernels();

}  // namespace pilotfish
