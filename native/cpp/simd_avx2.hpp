// AVX2 with FMA and F16C: 8 lanes. With PILOTFISH_AVX_VNNI the dot products are one instruction.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace {

struct Simd {
#ifdef PILOTFISH_AVX_VNNI
  static constexpr const char* name = "avx2-vnni";
#else
  static constexpr const char* name = "avx2";
#endif
  static constexpr size_t lanes = 8;
  static constexpr int tile_rows = 8;
  using Int = __m256i;
  using Float = __m256;

  static Int load(const uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static Int zero() { return _mm256_setzero_si256(); }
  static Int add(Int a, Int b) { return _mm256_add_epi32(a, b); }
  template <int bits>
  static Int shift_left(Int a) {
    return _mm256_slli_epi32(a, bits);
  }
  template <int bits>
  static Int left16(Int a) {
    return _mm256_slli_epi16(a, bits);
  }
  template <int bits>
  static Int right16(Int a) {
    return _mm256_srli_epi16(a, bits);
  }
  static Int mask(Int a, uint8_t byte) { return _mm256_and_si256(a, _mm256_set1_epi8(char(byte))); }
  static Int either(Int a, Int b) { return _mm256_or_si256(a, b); }
  static Int widen_unsigned(const uint8_t* from) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }
  static Int widen_signed(const uint8_t* from) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }

#ifdef PILOTFISH_AVX_VNNI
  template <int bits, int count>
  static Int dot(Int start, const Int* weights, const int8_t* x) {
    Int even = start, odd = _mm256_setzero_si256();
    const auto* words = reinterpret_cast<const int32_t*>(x);
#pragma GCC unroll 4
    for (int i = 0; i < count; i += 2) {
      even = _mm256_dpbusd_avx_epi32(even, weights[i], _mm256_set1_epi32(words[i]));
      odd = _mm256_dpbusd_avx_epi32(odd, weights[i + 1], _mm256_set1_epi32(words[i + 1]));
    }
    return _mm256_add_epi32(even, odd);
  }
  template <int bits, int count, int shift>
  static Int dot_offset(int32_t minus_sum, const Int* weights, const int8_t* x) {
    return dot<bits, count>(_mm256_slli_epi32(_mm256_set1_epi32(minus_sum), shift), weights, x);
  }
#else
  // Pairs of products are summed in 16 bits. How many such sums fit before they must be widened
  // depends on the weights: 2 * 15 * 127 = 3810, 2 * 31 * 127 = 7874, 2 * 63 * 127 = 16002.
  static constexpr int sums_in_16_bits(int bits) { return bits == 4 ? 8 : bits == 5 ? 4 : 2; }

  template <int bits, int count>
  static Int dot(Int start, const Int* weights, const int8_t* x) {
    static_assert(bits <= 6, "products of wider weights overflow");
    constexpr int run = sums_in_16_bits(bits) < count ? sums_in_16_bits(bits) : count;
    const auto* words = reinterpret_cast<const int32_t*>(x);
    const Int ones = _mm256_set1_epi16(1);
    Int total = start;
#pragma GCC unroll 4
    for (int i = 0; i < count; i += run) {
      Int pairs = _mm256_maddubs_epi16(weights[i], _mm256_set1_epi32(words[i]));
#pragma GCC unroll 8
      for (int j = 1; j < run; j++) {
        const Int next = _mm256_maddubs_epi16(weights[i + j], _mm256_set1_epi32(words[i + j]));
        pairs = _mm256_add_epi16(pairs, next);
      }
      total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, ones));
    }
    return total;
  }
  template <int bits, int count, int shift>
  static Int dot_offset(int32_t minus_sum, const Int* weights, const int8_t* x) {
    if constexpr (bits <= 6) {
      return dot<bits, count>(_mm256_slli_epi32(_mm256_set1_epi32(minus_sum), shift), weights, x);
    } else {
      // eight bits: the sign moves from weight to activation, so that pairs stay below 2^15
      static_assert(shift == 7, "weights are stored with an offset of 128");
      const auto* words = reinterpret_cast<const int32_t*>(x);
      const Int ones = _mm256_set1_epi16(1);
      Int total = _mm256_setzero_si256();
#pragma GCC unroll 8
      for (int i = 0; i < count; i++) {
        const Int weight = _mm256_xor_si256(weights[i], _mm256_set1_epi8(char(0x80)));
        const Int signed_x = _mm256_sign_epi8(_mm256_set1_epi32(words[i]), weight);
        const Int pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weight), signed_x);
        total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, ones));
      }
      return total;
    }
  }
#endif

  static Float to_float(Int a) { return _mm256_cvtepi32_ps(a); }
  static Float fzero() { return _mm256_setzero_ps(); }
  static Float fbroadcast(float value) { return _mm256_set1_ps(value); }
  static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float fadd(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static Float negate(Float a) { return _mm256_sub_ps(_mm256_setzero_ps(), a); }
  static void store(float* to, Float a) { _mm256_storeu_ps(to, a); }
  static Float half(const uint8_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Float bfloat(const uint8_t* from) {
    const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
  }
  static Float floats(const uint8_t* from) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
  }
  // into the nearest cache, or into the second
  static void prefetch(const uint8_t* at) {
    _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0);
  }
  static void prefetch_far(const uint8_t* at) {
    _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
  }
};

// 16 floats in two registers.
struct Wide {
  __m256 a, b;
  static Wide load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
  static Wide half(const uint8_t* from) { return {Simd::half(from), Simd::half(from + 16)}; }
  static Wide all(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  void store(float* to) const {
    _mm256_storeu_ps(to, a);
    _mm256_storeu_ps(to + 8, b);
  }
  void store_bytes(int8_t* to) const {
    const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(ordered),
                                          _mm256_extracti128_si256(ordered, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
  }
  static Wide fma(Wide x, Wide y, Wide z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
  }
  static Wide larger(Wide x, Wide y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static Wide smaller(Wide x, Wide y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  Wide magnitude() const {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a), _mm256_andnot_ps(sign, b)};
  }
  Wide rounded() const {
    return {_mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  static __m256 power_of_two(__m256 n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  }
  static Wide power_of_two(Wide n) { return {power_of_two(n.a), power_of_two(n.b)}; }
  friend Wide operator+(Wide x, Wide y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  friend Wide operator-(Wide x, Wide y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  friend Wide operator*(Wide x, Wide y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  friend Wide operator/(Wide x, Wide y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
};

}  // namespace
