// The kernels, in terms of `Simd` (vectors of one group's rows) and `Wide` (16 floats).
// Included once by each file that is compiled for an instruction set.
#pragma once

#include <algorithm>
#include <cfloat>

#include "kernels.hpp"

namespace {

using namespace pilotfish;
using Int = Simd::Int;
using Float = Simd::Float;
constexpr size_t kLanes = Simd::lanes;
constexpr size_t kVector = 4 * kLanes;  // bytes

// Weights are asked for this far ahead, so that memory works while rows are multiplied. For one row
// the nearest cache is best; with more there is time to fill the second, which can wait for more
// lines at once.
constexpr size_t kPrefetchBytes = 3072, kFarPrefetchBytes = 8192;

// Asks for part `s` of `parts` of a unit to come, its scales included.
template <Format format, size_t parts, int count>
inline void prefetch(const uint8_t* unit, size_t s) {
  constexpr size_t lines = (unit_bytes(format, kLanes) + 64 * parts - 1) / (64 * parts);
  const uint8_t* at = unit + s * lines * 64;
#pragma GCC unroll 16
  for (size_t line = 0; line < lines; line++) {
    if constexpr (count == 1) {
      Simd::prefetch(at + kPrefetchBytes + 64 * line);
    } else {
      Simd::prefetch_far(at + kFarPrefetchBytes + 64 * line);
    }
  }
}

// Splits four nibble vectors into eight of values.
inline void take_nibbles(const uint8_t* data, Int* values) {
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    const Int both = Simd::load(data + kVector * size_t(j));
    values[2 * j] = Simd::mask(both, 0x0f);
    values[2 * j + 1] = Simd::mask(Simd::right16<4>(both), 0x0f);
  }
}

inline void add_fifth_bits(const uint8_t* data, Int* values) {
  const Int bits = Simd::load(data);
  values[0] = Simd::either(values[0], Simd::mask(Simd::left16<4>(bits), 0x10));
  values[1] = Simd::either(values[1], Simd::mask(Simd::left16<3>(bits), 0x10));
  values[2] = Simd::either(values[2], Simd::mask(Simd::left16<2>(bits), 0x10));
  values[3] = Simd::either(values[3], Simd::mask(Simd::left16<1>(bits), 0x10));
  values[4] = Simd::either(values[4], Simd::mask(bits, 0x10));
  values[5] = Simd::either(values[5], Simd::mask(Simd::right16<1>(bits), 0x10));
  values[6] = Simd::either(values[6], Simd::mask(Simd::right16<2>(bits), 0x10));
  values[7] = Simd::either(values[7], Simd::mask(Simd::right16<3>(bits), 0x10));
}

inline void add_pairs(const uint8_t* data, Int* values) {
  const Int bits = Simd::load(data);
  values[0] = Simd::either(values[0], Simd::mask(Simd::left16<4>(bits), 0x30));
  values[1] = Simd::either(values[1], Simd::mask(Simd::left16<2>(bits), 0x30));
  values[2] = Simd::either(values[2], Simd::mask(bits, 0x30));
  values[3] = Simd::either(values[3], Simd::mask(Simd::right16<2>(bits), 0x30));
}

// One group of rows times `count` rows of activations. Registers hold one sum per row of
// activations; the weights are unpacked once for all of them.
template <Format format, int count>
void multiply_q45_k(const uint8_t* unit, size_t units, const uint8_t* const* x, float* const* y) {
  constexpr bool fifth = format == Format::q5_k;
  constexpr size_t step = kVector * (fifth ? 5 : 4);
  Float sum[count];
#pragma GCC unroll 8
  for (int n = 0; n < count; n++) sum[n] = Simd::fzero();
  for (size_t u = 0; u < units; u++, unit += unit_bytes(format, kLanes)) {
    const Float d = Simd::half(unit), min_d = Simd::half(unit + 2 * kLanes);
    const uint8_t* scales = unit + 4 * kLanes;
    const uint8_t* data = scales + 16 * kLanes;
    const Int mins[2] = {Simd::load(scales + 8 * kLanes), Simd::load(scales + 12 * kLanes)};
    const Float minus_min_d = Simd::negate(min_d);
    Float part[count];
#pragma GCC unroll 8
    for (int n = 0; n < count; n++) {
      const auto& a = reinterpret_cast<const LargeActivation*>(x[n])[u];
      const Int high = Simd::dot<6, 2>(Simd::zero(), mins, a.high);
      const Int low = Simd::dot<6, 2>(Simd::zero(), mins, a.low);
      const Int total = Simd::add(Simd::shift_left<7>(high), low);
      part[n] = Simd::mul(minus_min_d, Simd::to_float(total));
    }
#pragma GCC unroll 1  // else prefetches come in bursts
    for (size_t s = 0; s < 8; s++, data += step) {
      prefetch<format, 8, count>(unit, s);
      Int values[8];
      take_nibbles(data, values);
      if constexpr (fifth) add_fifth_bits(data + 4 * kVector, values);
      const Float scale =
          Simd::mul(d, Simd::to_float(Simd::widen_unsigned(scales + s * kLanes)));
#pragma GCC unroll 8
      for (int n = 0; n < count; n++) {
        const auto& a = reinterpret_cast<const LargeActivation*>(x[n])[u];
        const Int dot = Simd::dot<fifth ? 5 : 4, 8>(Simd::zero(), values, a.values + 32 * s);
        part[n] = Simd::fma(scale, Simd::to_float(dot), part[n]);
      }
    }
#pragma GCC unroll 8
    for (int n = 0; n < count; n++) {
      const auto& a = reinterpret_cast<const LargeActivation*>(x[n])[u];
      sum[n] = Simd::fma(Simd::fbroadcast(a.d), part[n], sum[n]);
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < count; n++) Simd::store(y[n], sum[n]);
}

template <int count>
void multiply_q6_k(const uint8_t* unit, size_t units, const uint8_t* const* x, float* const* y) {
  constexpr size_t step = kVector * 6;
  Float sum[count];
#pragma GCC unroll 8
  for (int n = 0; n < count; n++) sum[n] = Simd::fzero();
  for (size_t u = 0; u < units; u++, unit += unit_bytes(Format::q6_k, kLanes)) {
    const Float d = Simd::half(unit);
    const uint8_t* scales = unit + 2 * kLanes;
    const uint8_t* data = scales + 18 * kLanes;
    Float part[count];
#pragma GCC unroll 8
    for (int n = 0; n < count; n++) part[n] = Simd::fzero();
#pragma GCC unroll 1  // else prefetches come in bursts
    for (size_t s = 0; s < 8; s++, data += step) {
      prefetch<Format::q6_k, 8, count>(unit, s);
      Int values[8];
      take_nibbles(data, values);
      add_pairs(data + 4 * kVector, values);
      add_pairs(data + 5 * kVector, values + 4);
      const uint8_t* two = scales + 2 * s * kLanes;
      const Float scale0 = Simd::mul(d, Simd::to_float(Simd::widen_signed(two)));
      const Float scale1 = Simd::mul(d, Simd::to_float(Simd::widen_signed(two + kLanes)));
#pragma GCC unroll 8
      for (int n = 0; n < count; n++) {
        const auto& a = reinterpret_cast<const LargeActivation*>(x[n])[u];
        const int8_t* v = a.values + 32 * s;
        const Int dot0 = Simd::dot_offset<6, 4, 5>(a.minus_sums[2 * s], values, v);
        const Int dot1 = Simd::dot_offset<6, 4, 5>(a.minus_sums[2 * s + 1], values + 4, v + 16);
        part[n] = Simd::fma(scale0, Simd::to_float(dot0), part[n]);
        part[n] = Simd::fma(scale1, Simd::to_float(dot1), part[n]);
      }
    }
#pragma GCC unroll 8
    for (int n = 0; n < count; n++) {
      const auto& a = reinterpret_cast<const LargeActivation*>(x[n])[u];
      sum[n] = Simd::fma(Simd::fbroadcast(a.d), part[n], sum[n]);
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < count; n++) Simd::store(y[n], sum[n]);
}

template <Format format, int count>
void multiply_small(const uint8_t* unit, size_t units, const uint8_t* const* x, float* const* y) {
  constexpr bool eight = format == Format::q8_0;
  constexpr bool fifth = format == Format::q5_0 || format == Format::q5_1;
  constexpr bool has_min = format == Format::q4_1 || format == Format::q5_1;
  constexpr int bits = eight ? 8 : fifth ? 5 : 4;
  constexpr size_t step = kVector * (eight ? 8 : fifth ? 5 : 4);
  Float sum[count];
#pragma GCC unroll 8
  for (int n = 0; n < count; n++) sum[n] = Simd::fzero();
  for (size_t u = 0; u < units; u++, unit += unit_bytes(format, kLanes)) {
    const uint8_t* data = unit + kLanes * (has_min ? 8 : 4);
    for (size_t which = 0; which < 2; which++, data += step) {
      // keeps the prefetches of both blocks apart: in one burst they hold up the loads
      asm volatile("" ::: "memory");
      prefetch<format, 2, count>(unit, which);
      Int values[8];
      if constexpr (eight) {
#pragma GCC unroll 8
        for (size_t j = 0; j < 8; j++) values[j] = Simd::load(data + kVector * j);
      } else {
        take_nibbles(data, values);
        if constexpr (fifth) add_fifth_bits(data + 4 * kVector, values);
      }
      const Float d = Simd::half(unit + 2 * kLanes * which);
      Float min = Simd::fzero();
      if constexpr (has_min) min = Simd::half(unit + 2 * kLanes * (2 + which));
#pragma GCC unroll 8
      for (int n = 0; n < count; n++) {
        const auto& a = reinterpret_cast<const SmallActivation*>(x[n])[2 * u + which];
        Int dot;
        if constexpr (has_min) {
          dot = Simd::dot<bits, 8>(Simd::zero(), values, a.values);
        } else {
          dot = Simd::dot_offset<bits, 8, bits - 1>(a.minus_sum, values, a.values);
        }
        const Float scale = Simd::mul(d, Simd::fbroadcast(a.d));
        sum[n] = Simd::fma(scale, Simd::to_float(dot), sum[n]);
        if constexpr (has_min) sum[n] = Simd::fma(min, Simd::fbroadcast(a.d_times_sum), sum[n]);
      }
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < count; n++) Simd::store(y[n], sum[n]);
}

template <Format format>
inline Float plain_values(const uint8_t* from) {
  if constexpr (format == Format::f32) return Simd::floats(from);
  if constexpr (format == Format::f16) return Simd::half(from);
  return Simd::bfloat(from);
}

template <Format format, int count>
void multiply_plain(const uint8_t* unit, size_t units, const uint8_t* const* x, float* const* y) {
  constexpr size_t step = unit_bytes(format, kLanes);
  constexpr size_t chains = 4;  // sums of every fourth column, added at the end
  Float sum[count][chains];
#pragma GCC unroll 8
  for (int n = 0; n < count; n++) {
    for (size_t c = 0; c < chains; c++) sum[n][c] = Simd::fzero();
  }
  size_t k = 0;
  for (; k + chains <= units; k += chains, unit += chains * step) {
    Float weights[chains];
    for (size_t c = 0; c < chains; c++) weights[c] = plain_values<format>(unit + c * step);
#pragma GCC unroll 8
    for (int n = 0; n < count; n++) {
      const float* a = reinterpret_cast<const float*>(x[n]) + k;
      for (size_t c = 0; c < chains; c++) {
        sum[n][c] = Simd::fma(weights[c], Simd::fbroadcast(a[c]), sum[n][c]);
      }
    }
  }
  for (; k < units; k++, unit += step) {
    const Float weight = plain_values<format>(unit);
#pragma GCC unroll 8
    for (int n = 0; n < count; n++) {
      const float* a = reinterpret_cast<const float*>(x[n]);
      sum[n][0] = Simd::fma(weight, Simd::fbroadcast(a[k]), sum[n][0]);
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < count; n++) {
    const Float total =
        Simd::fadd(Simd::fadd(sum[n][0], sum[n][1]), Simd::fadd(sum[n][2], sum[n][3]));
    Simd::store(y[n], total);
  }
}

template <Format format, int count>
inline void multiply_group(const uint8_t* group, size_t units, const uint8_t* const* x,
                           float* const* y) {
  if constexpr (format == Format::q4_k || format == Format::q5_k) {
    multiply_q45_k<format, count>(group, units, x, y);
  } else if constexpr (format == Format::q6_k) {
    multiply_q6_k<count>(group, units, x, y);
  } else if constexpr (input_of(format) == Input::plain) {
    multiply_plain<format, count>(group, units, x, y);
  } else {
    multiply_small<format, count>(group, units, x, y);
  }
}

// Calls multiply_group<format, tile> for a tile known only at run time.
template <Format format, int largest>
inline void multiply_tile(int tile, const uint8_t* group, size_t units, const uint8_t* const* x,
                          float* const* y) {
  if constexpr (largest > 1) {
    if (tile < largest) return multiply_tile<format, largest - 1>(tile, group, units, x, y);
  }
  multiply_group<format, largest>(group, units, x, y);
}

template <Format format>
void multiply_groups(const Matrix& matrix, size_t begin, size_t end, const uint8_t* x,
                     size_t x_stride, size_t count, float* y, size_t y_stride) {
  // as few tiles as possible, of sizes as equal as possible
  constexpr size_t largest = size_t(Simd::tile_rows);
  const size_t tiles = (count + largest - 1) / largest;
  for (size_t g = begin; g < end; g++) {
    size_t n = 0;
    for (size_t t = 0; t < tiles; t++) {
      const size_t tile = (count - n) / (tiles - t);
      const uint8_t* rows[largest];
      float* out[largest];
      for (size_t i = 0; i < tile; i++) {
        rows[i] = x + (n + i) * x_stride;
        out[i] = y + (n + i) * y_stride + g * kLanes;
      }
      multiply_tile<format, int(largest)>(int(tile), matrix.group(g), matrix.units(), rows, out);
      n += tile;
    }
  }
}

void multiply(const Matrix& matrix, size_t begin, size_t end, const uint8_t* x, size_t x_stride,
              size_t count, float* y, size_t y_stride) {
  switch (matrix.format()) {
#define PILOTFISH_CASE(name)                                                        \
  case Format::name:                                                                \
    return multiply_groups<Format::name>(matrix, begin, end, x, x_stride, count, y, \
                                         y_stride);
    PILOTFISH_CASE(q4_k)
    PILOTFISH_CASE(q5_k)
    PILOTFISH_CASE(q6_k)
    PILOTFISH_CASE(q4_0)
    PILOTFISH_CASE(q4_1)
    PILOTFISH_CASE(q5_0)
    PILOTFISH_CASE(q5_1)
    PILOTFISH_CASE(q8_0)
    PILOTFISH_CASE(f32)
    PILOTFISH_CASE(f16)
    PILOTFISH_CASE(bf16)
#undef PILOTFISH_CASE
  }
}

// The sum and the largest of 16 lanes, in a fixed order.
inline float sum_lanes(Wide a) {
  float v[16];
  a.store(v);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; i++) v[i] += v[i + half];
  }
  return v[0];
}

inline float largest_lane(Wide a) {
  float v[16];
  a.store(v);
  float result = v[0];
  for (int i = 1; i < 16; i++) result = v[i] > result ? v[i] : result;
  return result;
}

// Rounds `count` floats to 8 bits with one scale, which it returns.
inline float round_block(const float* x, int count, int8_t* out) {
  Wide most = Wide::load(x).magnitude();
  for (int i = 16; i < count; i += 16) most = Wide::larger(most, Wide::load(x + i).magnitude());
  const float largest = largest_lane(most);
  if (largest < 1e-30f) {
    std::memset(out, 0, size_t(count));
    return 0;
  }
  const Wide inverse = Wide::all(127.0f / largest);
  for (int i = 0; i < count; i += 16) (Wide::load(x + i) * inverse).store_bytes(out + i);
  return largest / 127.0f;
}

inline int32_t sum_bytes(const int8_t* values, int count) {
  int32_t sum = 0;
  for (int i = 0; i < count; i++) sum += values[i];
  return sum;
}

void round_large(const float* x, size_t count, LargeActivation* out) {
  for (size_t block = 0; block < count / kLargeBlock; block++) {
    LargeActivation& a = out[block];
    a.d = round_block(x + block * kLargeBlock, kLargeBlock, a.values);
    for (int s = 0; s < 16; s++) a.minus_sums[s] = -sum_bytes(a.values + 16 * s, 16);
    for (int s = 0; s < 8; s++) {
      const int32_t sum = -(a.minus_sums[2 * s] + a.minus_sums[2 * s + 1]);
      a.high[s] = int8_t(sum >> 7);
      a.low[s] = int8_t(sum & 127);
    }
  }
}

void round_small(const float* x, size_t count, SmallActivation* out) {
  for (size_t block = 0; block < count / kSmallBlock; block++) {
    SmallActivation& a = out[block];
    a.d = round_block(x + block * kSmallBlock, kSmallBlock, a.values);
    const int32_t sum = sum_bytes(a.values, kSmallBlock);
    a.minus_sum = -sum;
    a.d_times_sum = a.d * float(sum);
  }
}

// The plain choice of a scale sends the weight farthest from zero to -8; one nearby often fits the
// others better. For given levels v the best scale is sum(ww wv) / sum(ww vv), where each weight
// counts by its square, as larger ones matter more; it lowers the error by
// sum(ww wv)^2 / sum(ww vv).
void round_weights(const float* weights, BlockParts& parts) {
  const Wide first = Wide::load(weights), second = Wide::load(weights + 16);
  float extreme = 0;
  for (int i = 0; i < kSmallBlock; i++) {
    if (std::fabs(weights[i]) > std::fabs(extreme)) extreme = weights[i];
  }
  parts.d = parts.m = 0;
  std::memset(parts.values, 8, kSmallBlock);
  if (std::fabs(extreme) < 1e-30f) return;
  const auto level = [](Wide weight, Wide inverse) {
    const Wide rounded = (weight * inverse).rounded();
    return Wide::smaller(Wide::larger(rounded, Wide::all(-8)), Wide::all(7));
  };
  float best_gain = 0, best_inverse = -8.0f / extreme, best_scale = -extreme / 8.0f;
  for (int step = -4; step <= 4; step++) {
    const float inverse = -(8.0f + 0.3f * float(step)) / extreme;
    Wide products = Wide::all(0), squares = Wide::all(0);
    for (const Wide w : {first, second}) {
      const Wide v = level(w, Wide::all(inverse)), importance = w * w;
      products = Wide::fma(importance * w, v, products);
      squares = Wide::fma(importance * v, v, squares);
    }
    const float product = sum_lanes(products), square = sum_lanes(squares);
    const float gain = square > 0 ? product * product / square : 0;
    if (gain > best_gain) {
      best_gain = gain;
      best_inverse = inverse;
      best_scale = product / square;
    }
  }
  int8_t levels[kSmallBlock];
  level(first, Wide::all(best_inverse)).store_bytes(levels);
  level(second, Wide::all(best_inverse)).store_bytes(levels + 16);
  for (int i = 0; i < kSmallBlock; i++) parts.values[i] = uint8_t(levels[i] + 8);
  parts.d = half_from_float(best_scale);
}

void normalise(const float* x, const float* weight, size_t count, size_t size, float epsilon,
               float* out) {
  Wide squares = Wide::all(0);
  for (size_t i = 0; i < count; i += 16) {
    const Wide v = Wide::load(x + i);
    squares = Wide::fma(v, v, squares);
  }
  const float mean = sum_lanes(squares) / float(size);
  const Wide scale = Wide::all(1.0f / std::sqrt(mean + epsilon));
  for (size_t i = 0; i < count; i += 16) {
    (Wide::load(x + i) * scale * Wide::load(weight + i)).store(out + i);
  }
}

void add(float* x, const float* y, size_t count) {
  for (size_t i = 0; i < count; i += 16) (Wide::load(x + i) + Wide::load(y + i)).store(x + i);
}

// e^x to about 1 unit in the last place; below -87 it is e^-87.
//
// x = n ln 2 + r with |r| <= ln 2 / 2, then 2^n times the Taylor polynomial of e^r (degree 7: the
// first term left out is below 2^-27).
inline Wide exponential(Wide x) {
  x = Wide::smaller(Wide::larger(x, Wide::all(-87.0f)), Wide::all(88.0f));
  const Wide n = (x * Wide::all(1.44269504f)).rounded();
  Wide r = Wide::fma(n, Wide::all(-0.693359375f), x);  // ln 2 in two parts
  r = Wide::fma(n, Wide::all(2.12194440e-4f), r);
  Wide p = Wide::all(1.0f / 5040);
  for (const float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    p = Wide::fma(p, r, Wide::all(c));
  }
  return p * Wide::power_of_two(n);
}

void gate(const float* gate, const float* up, size_t count, float* out) {
  for (size_t i = 0; i < count; i += 16) {
    const Wide g = Wide::load(gate + i);
    const Wide silu = g / (Wide::all(1) + exponential(Wide::all(0) - g));
    (silu * Wide::load(up + i)).store(out + i);
  }
}

// Widens `count` cached values to floats, and asks for as many at `next`.
inline void widen(const uint8_t* from, const uint8_t* next, size_t count, bool half, float* to) {
  if (half) {
    for (size_t i = 0; i < count; i += 32) {
      Simd::prefetch(next + 2 * i);
      Wide::half(from + 2 * i).store(to + i);
      Wide::half(from + 2 * i + 32).store(to + i + 16);
    }
  } else {
    for (size_t i = 0; i < count; i += 16) {
      Simd::prefetch(next + 4 * i);
      Wide::load(reinterpret_cast<const float*>(from) + i).store(to + i);
    }
  }
}

// Scores of one block of 16 keys for `count` queries: the keys are in `block` as [size][16].
template <int count>
void score_block(const float* block, size_t size, const Query* queries, float* const* scores) {
  Wide sum[count];
  for (int q = 0; q < count; q++) sum[q] = Wide::all(0);
  for (size_t i = 0; i < size; i++) {
    const Wide key = Wide::load(block + 16 * i);
    for (int q = 0; q < count; q++) {
      sum[q] = Wide::fma(key, Wide::all(queries[q].vector[i]), sum[q]);
    }
  }
  for (int q = 0; q < count; q++) sum[q].store(scores[q]);
}

void score_all(const Attention& work, size_t padded_limit, size_t limit) {
  const size_t element = work.half ? 2 : 4;
  const size_t block_bytes = kBlockTokens * work.head_size * element;
  for (size_t token = 0; token < limit; token += kBlockTokens) {
    const auto keys = [&](size_t at) {
      return work.pages[at / kPageTokens] + work.key_offset +
             at % kPageTokens / kBlockTokens * block_bytes;
    };
    const size_t next = token + kBlockTokens < limit ? token + kBlockTokens : token;
    widen(keys(token), keys(next), kBlockTokens * work.head_size, work.half, work.block);
    for (size_t q = 0; q < work.num_queries;) {
      const size_t count = std::min<size_t>(8, work.num_queries - q);
      float* out[8];
      for (size_t i = 0; i < count; i++) out[i] = work.scores + (q + i) * padded_limit + token;
      const Query* queries = work.queries + q;
      switch (count) {
        case 1: score_block<1>(work.block, work.head_size, queries, out); break;
        case 2: score_block<2>(work.block, work.head_size, queries, out); break;
        case 3: score_block<3>(work.block, work.head_size, queries, out); break;
        case 4: score_block<4>(work.block, work.head_size, queries, out); break;
        case 5: score_block<5>(work.block, work.head_size, queries, out); break;
        case 6: score_block<6>(work.block, work.head_size, queries, out); break;
        case 7: score_block<7>(work.block, work.head_size, queries, out); break;
        default: score_block<8>(work.block, work.head_size, queries, out); break;
      }
      q += count;
    }
  }
}

// Turns scores [padded_limit] into weights that sum to 1 / returned value; beyond `limit` they
// are zero, so that a longer neighbour in the pass adds exact zeros.
inline float soften(float* scores, size_t limit, size_t padded_limit) {
  const size_t padded = round_up(limit, 16);
  for (size_t i = limit; i < padded; i++) scores[i] = -FLT_MAX;
  Wide most = Wide::load(scores);
  for (size_t i = 16; i < padded; i += 16) most = Wide::larger(most, Wide::load(scores + i));
  const Wide largest = Wide::all(largest_lane(most));
  for (size_t i = 0; i < padded; i += 16) {
    exponential(Wide::load(scores + i) - largest).store(scores + i);
  }
  for (size_t i = limit; i < padded_limit; i++) scores[i] = 0;
  Wide total = Wide::all(0);
  for (size_t i = 0; i < padded; i += 16) total = total + Wide::load(scores + i);
  return sum_lanes(total);
}

// Adds 16 tokens' values, [16][padded] floats, to the results of `count` queries, weighted.
template <int count, int vectors>
void mix_block(const float* block, size_t padded, const float* const* weights, float* const* out) {
  Wide sum[count][vectors];
  for (int q = 0; q < count; q++) {
    for (int v = 0; v < vectors; v++) sum[q][v] = Wide::load(out[q] + 16 * v);
  }
  for (size_t t = 0; t < kBlockTokens; t++) {
    for (int q = 0; q < count; q++) {
      const Wide weight = Wide::all(weights[q][t]);
      for (int v = 0; v < vectors; v++) {
        const Wide value = Wide::load(block + t * padded + 16 * size_t(v));
        sum[q][v] = Wide::fma(weight, value, sum[q][v]);
      }
    }
  }
  for (int q = 0; q < count; q++) {
    for (int v = 0; v < vectors; v++) sum[q][v].store(out[q] + 16 * v);
  }
}

template <int count>
void mix_queries(const Attention& work, size_t first, size_t padded_limit, size_t token) {
  const size_t padded = round_up(work.head_size, 16);
  const float* weights[count];
  float* out[count];
  for (size_t q = 0; q < count; q++) {
    weights[q] = work.scores + (first + q) * padded_limit + token;
    out[q] = work.queries[first + q].out;
  }
  size_t v = 0;
  const auto advance = [&](size_t width) {
    v += width;
    for (int q = 0; q < count; q++) out[q] += width;
  };
  for (; v + 64 <= padded; advance(64)) mix_block<count, 4>(work.block + v, padded, weights, out);
  for (; v < padded; advance(16)) mix_block<count, 1>(work.block + v, padded, weights, out);
}

void mix_all(const Attention& work, size_t padded_limit, size_t limit) {
  const size_t element = work.half ? 2 : 4, padded = round_up(work.head_size, 16);
  for (size_t token = 0; token < limit; token += kBlockTokens) {
    const auto values = [&](size_t at) {
      return work.pages[at / kPageTokens] + work.value_offset + at % kPageTokens * padded * element;
    };
    const size_t next = token + kBlockTokens < limit ? token + kBlockTokens : token;
    widen(values(token), values(next), kBlockTokens * padded, work.half, work.block);
    size_t q = 0;
    for (; q + 3 <= work.num_queries; q += 3) mix_queries<3>(work, q, padded_limit, token);
    for (; q < work.num_queries; q++) mix_queries<1>(work, q, padded_limit, token);
  }
}

void attend(const Attention& work) {
  size_t limit = 0;
  for (size_t q = 0; q < work.num_queries; q++) limit = std::max(limit, work.queries[q].limit);
  const size_t padded_limit = round_up(limit, 16), padded = round_up(work.head_size, 16);
  score_all(work, padded_limit, limit);
  for (size_t q = 0; q < work.num_queries; q++) {
    // divided at the end would round once less, but the sum is needed only here
    float* weights = work.scores + q * padded_limit;
    const Wide scale = Wide::all(1.0f / soften(weights, work.queries[q].limit, padded_limit));
    for (size_t i = 0; i < round_up(work.queries[q].limit, 16); i += 16) {
      (Wide::load(weights + i) * scale).store(weights + i);
    }
    std::memset(work.queries[q].out, 0, 4 * padded);
  }
  mix_all(work, padded_limit, limit);
}

uint64_t read(const uint8_t* memory, size_t bytes) {
  Int all = Simd::zero();
  for (size_t i = 0; i + 4 * kVector <= bytes; i += 4 * kVector) {
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; j++) all = Simd::either(all, Simd::load(memory + i + kVector * j));
  }
  uint64_t word;
  std::memcpy(&word, &all, sizeof word);
  return word;
}

constexpr Kernels kKernels = {Simd::name,    kLanes,    multiply, round_large, round_small,
                              round_weights, normalise, add,      gate,        attend,
                              read};

}  // namespace
