// The number formats of GGUF files: how a row of blocks becomes plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace pilotfish {

// ggml's type ids.
enum class Format : int {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  bf16 = 30,
};

constexpr int kSmallBlock = 32;
constexpr int kLargeBlock = 256;

static inline float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint32_t bits_from_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float float_from_half(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00) return float_from_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  if (magnitude < 0x0400) {  // zero or subnormal: a multiple of 2^-24
    const float value = float(magnitude) * 5.9604644775390625e-8f;
    return sign ? -value : value;
  }
  return float_from_bits(sign | ((magnitude << 13) + 0x38000000));
}

// Rounds to the nearest half, ties to even; what is too large becomes the largest finite value,
// so that no later product with it is infinite or undefined.
static inline uint16_t half_from_float(float value) {
  const uint32_t bits = bits_from_float(value);
  const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x477ff000) return sign | 0x7bff;
  if (magnitude < 0x38800000) {  // below 2^-14: the sum with 0.5 leaves multiples of 2^-24
    const uint32_t sum = bits_from_float(float_from_bits(magnitude) + 0.5f);
    return uint16_t(sign | (sum - 0x3f000000));
  }
  const uint32_t rounded = magnitude + 0x0fff + (magnitude >> 13 & 1);
  return uint16_t(sign | (rounded - 0x38000000) >> 13);
}

static inline float float_from_bfloat(uint16_t value) { return float_from_bits(uint32_t(value) << 16); }

// A format's block: how many weights, how many bytes; {0, 0} for a format this library lacks.
struct BlockShape {
  int weights;
  int bytes;
};

static inline BlockShape block_shape(Format format) {
  switch (format) {
    case Format::f32: return {1, 4};
    case Format::f16: return {1, 2};
    case Format::bf16: return {1, 2};
    case Format::q4_0: return {32, 18};
    case Format::q4_1: return {32, 20};
    case Format::q5_0: return {32, 22};
    case Format::q5_1: return {32, 24};
    case Format::q8_0: return {32, 34};
    case Format::q4_k: return {256, 144};
    case Format::q5_k: return {256, 176};
    case Format::q6_k: return {256, 210};
  }
  return {0, 0};
}

// One row taken apart: unsigned values, and the scales of its blocks.
//
// A weight is  d * scale * value - dmin * min  in the large formats q4_k and q5_k (32 weights to a
// scale),  d * scale * (value - 32)  in q6_k (16 to a scale),  d * (value - offset)  in q4_0, q5_0
// and q8_0 (offset 8, 16, 128), and  d * value + m  in q4_1 and q5_1.
struct BlockParts {
  uint8_t values[kLargeBlock];
  int8_t scales[16];
  uint8_t mins[8];
  uint16_t d;
  uint16_t m;  // dmin of the large formats
};

void take_apart(Format format, const uint8_t* block, BlockParts& parts);

// Writes `count` weights of a row of blocks as floats.
void dequantize(Format format, const uint8_t* row, size_t count, float* out);

}  // namespace pilotfish
