// AVX-512 with VNNI: 16 lanes, dot products of bytes in one instruction.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace {

struct Simd {
  static constexpr const char* name = "avx512-vnni";
  static constexpr size_t lanes = 16;
  static constexpr int tile_rows = 8;
  using Int = __m512i;
  using Float = __m512;

  static Int load(const uint8_t* from) { return _mm512_loadu_si512(from); }
  static Int zero() { return _mm512_setzero_si512(); }
  static Int add(Int a, Int b) { return _mm512_add_epi32(a, b); }
  template <int bits>
  static Int shift_left(Int a) {
    return _mm512_slli_epi32(a, bits);
  }
  // shifts within 16 bits: callers mask what crosses bytes
  template <int bits>
  static Int left16(Int a) {
    return _mm512_slli_epi16(a, bits);
  }
  template <int bits>
  static Int right16(Int a) {
    return _mm512_srli_epi16(a, bits);
  }
  static Int mask(Int a, uint8_t byte) { return _mm512_and_si512(a, _mm512_set1_epi8(char(byte))); }
  static Int either(Int a, Int b) { return _mm512_or_si512(a, b); }
  static Int widen_unsigned(const uint8_t* from) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Int widen_signed(const uint8_t* from) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }

  // sum over vectors i and bytes of weights[i] (unsigned, `bits` wide) times x (signed)
  template <int bits, int count>
  static Int dot(Int start, const Int* weights, const int8_t* x) {
    // two chains: one would wait for the latency of each step
    Int even = start, odd = _mm512_setzero_si512();
    const auto* words = reinterpret_cast<const int32_t*>(x);
#pragma GCC unroll 4
    for (int i = 0; i < count; i += 2) {
      even = _mm512_dpbusd_epi32(even, weights[i], _mm512_set1_epi32(words[i]));
      odd = _mm512_dpbusd_epi32(odd, weights[i + 1], _mm512_set1_epi32(words[i + 1]));
    }
    return _mm512_add_epi32(even, odd);
  }
  // the same with weights - 2^shift; minus_sum is minus the sum of x
  template <int bits, int count, int shift>
  static Int dot_offset(int32_t minus_sum, const Int* weights, const int8_t* x) {
    return dot<bits, count>(_mm512_slli_epi32(_mm512_set1_epi32(minus_sum), shift), weights, x);
  }

  static Float to_float(Int a) { return _mm512_cvtepi32_ps(a); }
  static Float fzero() { return _mm512_setzero_ps(); }
  static Float fbroadcast(float value) { return _mm512_set1_ps(value); }
  static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float fadd(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float negate(Float a) { return _mm512_sub_ps(_mm512_setzero_ps(), a); }
  static void store(float* to, Float a) { _mm512_storeu_ps(to, a); }
  static Float half(const uint8_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static Float bfloat(const uint8_t* from) {
    const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
  }
  static Float floats(const uint8_t* from) {
    return _mm512_loadu_ps(reinterpret_cast<const float*>(from));
  }
  // into the nearest cache, or into the second
  static void prefetch(const uint8_t* at) {
    _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0);
  }
  static void prefetch_far(const uint8_t* at) {
    _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
  }
};

// 16 floats.
struct Wide {
  __m512 v;
  static Wide load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static Wide half(const uint8_t* from) { return {Simd::half(from)}; }
  static Wide all(float value) { return {_mm512_set1_ps(value)}; }
  void store(float* to) const { _mm512_storeu_ps(to, v); }
  // rounds to the nearest integer, ties to even, and keeps the low bytes
  void store_bytes(int8_t* to) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
  }
  static Wide fma(Wide a, Wide b, Wide c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  // larger and smaller take b where a or b is not a number
  static Wide larger(Wide a, Wide b) { return {_mm512_max_ps(a.v, b.v)}; }
  static Wide smaller(Wide a, Wide b) { return {_mm512_min_ps(a.v, b.v)}; }
  Wide magnitude() const { return {_mm512_abs_ps(v)}; }
  Wide rounded() const { return {_mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT)}; }
  // 2^n for whole n from -126 to 127
  static Wide power_of_two(Wide n) {
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
  }
  friend Wide operator+(Wide a, Wide b) { return {_mm512_add_ps(a.v, b.v)}; }
  friend Wide operator-(Wide a, Wide b) { return {_mm512_sub_ps(a.v, b.v)}; }
  friend Wide operator*(Wide a, Wide b) { return {_mm512_mul_ps(a.v, b.v)}; }
  friend Wide operator/(Wide a, Wide b) { return {_mm512_div_ps(a.v, b.v)}; }
};

}  // namespace
