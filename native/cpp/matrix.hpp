// A weight matrix laid out for the kernels: groups of `lanes` rows, interleaved.
//
// One vector register holds four consecutive values of each of the `lanes` rows of a group, so a
// dot product needs no sums across lanes and a row of the result never depends on its neighbours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "formats.hpp"

namespace pilotfish {

// Activations rounded to 8 bits for the large formats: 256 values to a scale.
struct LargeActivation {
  int8_t values[kLargeBlock];
  // the sum of each 32 values is 128 * high + low, with low from 0 to 127: operands of 8 bits
  int8_t high[8];
  int8_t low[8];
  int32_t minus_sums[16];  // of 16 values each
  float d;
};

// ... and for the small ones: 32 values to a scale.
struct SmallActivation {
  int8_t values[kSmallBlock];
  int32_t minus_sum;
  float d;
  float d_times_sum;
};

// What a matrix reads of a row of activations.
enum class Input { large, small, plain };

static constexpr Input input_of(Format format) {
  switch (format) {
    case Format::q4_k:
    case Format::q5_k:
    case Format::q6_k: return Input::large;
    case Format::f32:
    case Format::f16:
    case Format::bf16: return Input::plain;
    default: return Input::small;
  }
}

static constexpr size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Bytes of a packed unit of one group, by format: 256 columns of a large format, 64 of a small
// one (two blocks), one of a plain one.
//
//   q4_k  d[R] dmin[R] scales[8][R] mins[2][R][4] | 8 x nibbles[4][R][4]
//   q5_k  the same, with 8 x (nibbles[4][R][4] fifth[R][4])
//   q6_k  d[R] scales[16][R] gap | 8 x (nibbles[4][R][4] pairs[2][R][4])
//   small d[2][R] (m[2][R]) | 2 x (nibbles[4][R][4] (fifth[R][4])) or 2 x bytes[8][R][4]
//   plain value[R]
//
// Nibble vector j holds the values 8j..8j+3 of each row in its low and 8j+4..8j+7 in its high
// halves; bit g of `fifth` belongs to values 4g..4g+3; bits 2g, 2g+1 of pair vector p belong to
// values 16p+4g..16p+4g+3.
static constexpr size_t unit_bytes(Format format, size_t lanes) {
  switch (format) {
    case Format::q4_k: return lanes * (2 + 2 + 8 + 8 + 128);
    case Format::q5_k: return lanes * (2 + 2 + 8 + 8 + 128 + 32);
    case Format::q6_k: return lanes * (2 + 16 + 2 + 128 + 64);
    case Format::q4_0: return lanes * (4 + 32);
    case Format::q4_1: return lanes * (8 + 32);
    case Format::q5_0: return lanes * (4 + 40);
    case Format::q5_1: return lanes * (8 + 40);
    case Format::q8_0: return lanes * (4 + 64);
    case Format::f32: return lanes * 4;
    case Format::f16:
    case Format::bf16: return lanes * 2;
  }
  return 0;
}

static constexpr size_t unit_columns(Format format) {
  switch (format) {
    case Format::q4_k:
    case Format::q5_k:
    case Format::q6_k: return 256;
    case Format::f32:
    case Format::f16:
    case Format::bf16: return 1;
    default: return 64;
  }
}

struct FreePages {
  size_t bytes = 0;
  void operator()(uint8_t* pages) const;
};
using PageMemory = std::unique_ptr<uint8_t[], FreePages>;

// Returns zeroed memory in large pages where the system has them; throws std::bad_alloc.
PageMemory allocate_pages(size_t bytes);

class Matrix {
 public:
  Matrix() = default;
  Matrix(Format format, size_t rows, size_t columns, size_t lanes);

  // Gives the matrix its place: bytes() of zeros that outlive it.
  void place(uint8_t* memory) { memory_ = memory; }

  Format format() const { return format_; }
  size_t rows() const { return rows_; }
  size_t columns() const { return columns_; }
  size_t lanes() const { return lanes_; }
  size_t units() const { return units_; }
  size_t groups() const { return (rows_ + lanes_ - 1) / lanes_; }
  size_t group_bytes() const { return units_ * unit_bytes(format_, lanes_); }
  size_t bytes() const { return groups() * group_bytes(); }
  const uint8_t* group(size_t index) const { return memory_ + index * group_bytes(); }
  bool empty() const { return rows_ == 0; }
  // The head of a draft grows; its place must have room.
  void set_rows(size_t rows) { rows_ = rows; }

  // Packs one group from `lanes` rows of `source` format (null: a row of zeros). `source` is the
  // matrix's own format, or any other when that is q4_0: then `round` rounds 32 weights anew.
  void pack_group(size_t index, Format source, const uint8_t* const* rows,
                  void (*round)(const float* weights, BlockParts& parts));

  // Writes the weights of one row as floats, reading the packed form.
  void row(size_t index, float* out) const;

 private:
  Format format_ = Format::f32;
  size_t rows_ = 0, columns_ = 0, lanes_ = 1, units_ = 0;
  uint8_t* memory_ = nullptr;
};

}  // namespace pilotfish
