// ARM with the dot product extension (ARMv8.2): 4 lanes, dot products of bytes in one instruction.
//
// Never run on ARM hardware, and its speed is unknown. It was compiled with gcc 12 and run in an
// emulator (qemu-aarch64), where all formats, attention, norms, gates and rounding equalled the
// portable path bit for bit.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

struct Simd {
  static constexpr const char* name = "neon";
  static constexpr size_t lanes = 4;
  static constexpr int tile_rows = 8;
  using Int = int32x4_t;
  using Float = float32x4_t;

  static Int load(const uint8_t* from) { return vreinterpretq_s32_u8(vld1q_u8(from)); }
  static Int zero() { return vdupq_n_s32(0); }
  static Int add(Int a, Int b) { return vaddq_s32(a, b); }
  template <int bits>
  static Int shift_left(Int a) {
    return vshlq_n_s32(a, bits);
  }
  // shifts within 16 bits: callers mask what crosses bytes
  template <int bits>
  static Int left16(Int a) {
    return vreinterpretq_s32_u16(vshlq_n_u16(vreinterpretq_u16_s32(a), bits));
  }
  template <int bits>
  static Int right16(Int a) {
    return vreinterpretq_s32_u16(vshrq_n_u16(vreinterpretq_u16_s32(a), bits));
  }
  static Int mask(Int a, uint8_t byte) {
    return vandq_s32(a, vreinterpretq_s32_u8(vdupq_n_u8(byte)));
  }
  static Int either(Int a, Int b) { return vorrq_s32(a, b); }
  static uint8x8_t load_four(const uint8_t* from) {
    uint32_t word;
    std::memcpy(&word, from, sizeof word);
    return vreinterpret_u8_u32(vdup_n_u32(word));
  }
  static Int widen_unsigned(const uint8_t* from) {
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(load_four(from)))));
  }
  static Int widen_signed(const uint8_t* from) {
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(load_four(from)))));
  }

  // sum over vectors i and bytes of weights[i] times x, both signed
  template <int count>
  static Int dot_signed(Int sum, const int8x16_t* weights, const int8_t* x) {
    if constexpr (count == 2) {
      const int8x8_t words = vld1_s8(x);
      return vdotq_lane_s32(vdotq_lane_s32(sum, weights[0], words, 0), weights[1], words, 1);
    } else {
      static_assert(count % 4 == 0);
#pragma GCC unroll 2
      for (int i = 0; i < count; i += 4) {
        const int8x16_t words = vld1q_s8(x + 4 * i);
        sum = vdotq_laneq_s32(sum, weights[i], words, 0);
        sum = vdotq_laneq_s32(sum, weights[i + 1], words, 1);
        sum = vdotq_laneq_s32(sum, weights[i + 2], words, 2);
        sum = vdotq_laneq_s32(sum, weights[i + 3], words, 3);
      }
      return sum;
    }
  }
  template <int bits, int count>
  static Int dot(Int start, const Int* weights, const int8_t* x) {
    static_assert(bits <= 7, "the highest bit of a weight is its sign");
    int8x16_t bytes[count];
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) bytes[i] = vreinterpretq_s8_s32(weights[i]);
    return dot_signed<count>(start, bytes, x);
  }
  // the same with weights - 2^shift; minus_sum is minus the sum of x
  template <int bits, int count, int shift>
  static Int dot_offset(int32_t minus_sum, const Int* weights, const int8_t* x) {
    if constexpr (bits < 8) {
      return dot<bits, count>(vshlq_n_s32(vdupq_n_s32(minus_sum), shift), weights, x);
    } else {
      static_assert(shift == 7, "weights are stored with an offset of 128");
      int8x16_t bytes[count];
#pragma GCC unroll 8
      for (int i = 0; i < count; i++) {
        bytes[i] = veorq_s8(vreinterpretq_s8_s32(weights[i]), vdupq_n_s8(-128));
      }
      return dot_signed<count>(zero(), bytes, x);
    }
  }

  static Float to_float(Int a) { return vcvtq_f32_s32(a); }
  static Float fzero() { return vdupq_n_f32(0); }
  static Float fbroadcast(float value) { return vdupq_n_f32(value); }
  static Float mul(Float a, Float b) { return vmulq_f32(a, b); }
  static Float fadd(Float a, Float b) { return vaddq_f32(a, b); }
  static Float fma(Float a, Float b, Float c) { return vfmaq_f32(c, a, b); }
  static Float negate(Float a) { return vsubq_f32(vdupq_n_f32(0), a); }
  static void store(float* to, Float a) { vst1q_f32(to, a); }
  static Float half(const uint8_t* from) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from)));
  }
  static Float bfloat(const uint8_t* from) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(from)), 16));
  }
  static Float floats(const uint8_t* from) { return vreinterpretq_f32_u8(vld1q_u8(from)); }
  static void prefetch(const uint8_t* at) { __builtin_prefetch(at); }
  static void prefetch_far(const uint8_t* at) { __builtin_prefetch(at, 0, 2); }
};

// 16 floats in four registers.
struct Wide {
  float32x4_t a, b, c, d;
  template <class Function>
  static Wide each(Function function, Wide x) {
    return {function(x.a), function(x.b), function(x.c), function(x.d)};
  }
  template <class Function>
  static Wide each(Function function, Wide x, Wide y) {
    return {function(x.a, y.a), function(x.b, y.b), function(x.c, y.c), function(x.d, y.d)};
  }

  static Wide load(const float* from) {
    return {vld1q_f32(from), vld1q_f32(from + 4), vld1q_f32(from + 8), vld1q_f32(from + 12)};
  }
  static Wide half(const uint8_t* from) {
    return {Simd::half(from), Simd::half(from + 8), Simd::half(from + 16), Simd::half(from + 24)};
  }
  static Wide all(float value) {
    const float32x4_t v = vdupq_n_f32(value);
    return {v, v, v, v};
  }
  void store(float* to) const {
    vst1q_f32(to, a);
    vst1q_f32(to + 4, b);
    vst1q_f32(to + 8, c);
    vst1q_f32(to + 12, d);
  }
  // rounds to the nearest integer, ties to even, and keeps the low bytes
  void store_bytes(int8_t* to) const {
    const auto words = [](float32x4_t x, float32x4_t y) {
      return vcombine_s16(vmovn_s32(vcvtnq_s32_f32(x)), vmovn_s32(vcvtnq_s32_f32(y)));
    };
    vst1q_s8(to, vcombine_s8(vmovn_s16(words(a, b)), vmovn_s16(words(c, d))));
  }
  static Wide fma(Wide x, Wide y, Wide z) {
    return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c),
            vfmaq_f32(z.d, x.d, y.d)};
  }
  // larger and smaller take y where x or y is not a number; vmaxq and vminq do not
  static Wide larger(Wide x, Wide y) {
    return each(
        [](float32x4_t p, float32x4_t q) { return vbslq_f32(vcgtq_f32(p, q), p, q); }, x, y);
  }
  static Wide smaller(Wide x, Wide y) {
    return each(
        [](float32x4_t p, float32x4_t q) { return vbslq_f32(vcltq_f32(p, q), p, q); }, x, y);
  }
  Wide magnitude() const {
    return each([](float32x4_t x) { return vabsq_f32(x); }, *this);
  }
  Wide rounded() const {
    return each([](float32x4_t x) { return vrndnq_f32(x); }, *this);
  }
  // 2^n for whole n from -126 to 127
  static Wide power_of_two(Wide n) {
    return each(
        [](float32x4_t x) {
          const int32x4_t exponent = vaddq_s32(vcvtnq_s32_f32(x), vdupq_n_s32(127));
          return vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23));
        },
        n);
  }
  friend Wide operator+(Wide x, Wide y) {
    return each([](float32x4_t p, float32x4_t q) { return vaddq_f32(p, q); }, x, y);
  }
  friend Wide operator-(Wide x, Wide y) {
    return each([](float32x4_t p, float32x4_t q) { return vsubq_f32(p, q); }, x, y);
  }
  friend Wide operator*(Wide x, Wide y) {
    return each([](float32x4_t p, float32x4_t q) { return vmulq_f32(p, q); }, x, y);
  }
  friend Wide operator/(Wide x, Wide y) {
    return each([](float32x4_t p, float32x4_t q) { return vdivq_f32(p, q); }, x, y);
  }
};

}  // namespace
