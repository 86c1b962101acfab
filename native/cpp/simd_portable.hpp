// Plain C++: 8 lanes as arrays, which compilers turn into whatever the processor has.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "formats.hpp"

namespace {

struct Simd {
  static constexpr const char* name = "portable";
  static constexpr size_t lanes = 8;
  static constexpr int tile_rows = 4;
  struct Int {
    uint32_t v[8];
  };
  struct Float {
    float v[8];
  };

  template <class Function>
  static Int each(Function function) {
    Int result;
    for (int i = 0; i < 8; i++) result.v[i] = function(i);
    return result;
  }
  template <class Function>
  static Float feach(Function function) {
    Float result;
    for (int i = 0; i < 8; i++) result.v[i] = function(i);
    return result;
  }

  static Int load(const uint8_t* from) {
    Int result;
    std::memcpy(result.v, from, sizeof result.v);
    return result;
  }
  static Int zero() { return Int{}; }
  static Int broadcast(int32_t value) {
    return each([&](int) { return uint32_t(value); });
  }
  static Int add(Int a, Int b) {
    return each([&](int i) { return a.v[i] + b.v[i]; });
  }
  template <int bits>
  static Int shift_left(Int a) {
    return each([&](int i) { return a.v[i] << bits; });
  }
  template <int bits>
  static Int left16(Int a) {
    return each([&](int i) { return a.v[i] << bits; });
  }
  template <int bits>
  static Int right16(Int a) {
    return each([&](int i) { return a.v[i] >> bits; });
  }
  static Int mask(Int a, uint8_t byte) {
    return each([&](int i) { return a.v[i] & 0x01010101u * byte; });
  }
  static Int either(Int a, Int b) {
    return each([&](int i) { return a.v[i] | b.v[i]; });
  }
  static Int widen_unsigned(const uint8_t* from) {
    return each([&](int i) { return uint32_t(from[i]); });
  }
  static Int widen_signed(const uint8_t* from) {
    return each([&](int i) { return uint32_t(int32_t(int8_t(from[i]))); });
  }
  template <int bits, int count>
  static Int dot(Int start, const Int* weights, const int8_t* x) {
    for (int i = 0; i < count; i++) {
      for (int lane = 0; lane < 8; lane++) {
        const uint32_t w = weights[i].v[lane];
        int32_t sum = 0;
        for (int byte = 0; byte < 4; byte++) {
          sum += int32_t(w >> (8 * byte) & 255) * int32_t(x[4 * i + byte]);
        }
        start.v[lane] += uint32_t(sum);
      }
    }
    return start;
  }
  template <int bits, int count, int shift>
  static Int dot_offset(int32_t minus_sum, const Int* weights, const int8_t* x) {
    return dot<bits, count>(broadcast(minus_sum * (1 << shift)), weights, x);
  }

  static Float to_float(Int a) {
    return feach([&](int i) { return float(int32_t(a.v[i])); });
  }
  static Float fzero() { return Float{}; }
  static Float fbroadcast(float value) {
    return feach([&](int) { return value; });
  }
  static Float mul(Float a, Float b) {
    return feach([&](int i) { return a.v[i] * b.v[i]; });
  }
  static Float fadd(Float a, Float b) {
    return feach([&](int i) { return a.v[i] + b.v[i]; });
  }
  static Float fma(Float a, Float b, Float c) {
    return feach([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
  }
  static Float negate(Float a) {
    return feach([&](int i) { return 0.0f - a.v[i]; });
  }
  static void store(float* to, Float a) { std::memcpy(to, a.v, sizeof a.v); }
  static uint16_t half_at(const uint8_t* from, int i) {
    uint16_t value;
    std::memcpy(&value, from + 2 * i, 2);
    return value;
  }
  static Float half(const uint8_t* from) {
    return feach([&](int i) { return pilotfish::float_from_half(half_at(from, i)); });
  }
  static Float bfloat(const uint8_t* from) {
    return feach([&](int i) { return pilotfish::float_from_bfloat(half_at(from, i)); });
  }
  static Float floats(const uint8_t* from) {
    Float result;
    std::memcpy(result.v, from, sizeof result.v);
    return result;
  }
  static void prefetch(const uint8_t*) {}
  static void prefetch_far(const uint8_t*) {}
};

struct Wide {
  float v[16];
  template <class Function>
  static Wide each(Function function) {
    Wide result;
    for (int i = 0; i < 16; i++) result.v[i] = function(i);
    return result;
  }
  static Wide load(const float* from) {
    Wide result;
    std::memcpy(result.v, from, sizeof result.v);
    return result;
  }
  static Wide half(const uint8_t* from) {
    return each([&](int i) { return pilotfish::float_from_half(Simd::half_at(from, i)); });
  }
  static Wide all(float value) {
    return each([&](int) { return value; });
  }
  void store(float* to) const { std::memcpy(to, v, sizeof v); }
  void store_bytes(int8_t* to) const {
    for (int i = 0; i < 16; i++) {
      // what is not a number has no byte; its scale carries it on
      to[i] = v[i] == v[i] ? int8_t(std::nearbyint(v[i])) : int8_t(0);
    }
  }
  static Wide fma(Wide a, Wide b, Wide c) {
    return each([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
  }
  static Wide larger(Wide a, Wide b) {
    return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static Wide smaller(Wide a, Wide b) {
    return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  Wide magnitude() const {
    return each([&](int i) { return std::fabs(v[i]); });
  }
  Wide rounded() const {
    return each([&](int i) { return std::nearbyint(v[i]); });
  }
  static Wide power_of_two(Wide n) {
    return each([&](int i) {
      const float whole = n.v[i] == n.v[i] ? n.v[i] : 0.0f;
      return pilotfish::float_from_bits(uint32_t(int32_t(whole) + 127) << 23);
    });
  }
  friend Wide operator+(Wide a, Wide b) {
    return each([&](int i) { return a.v[i] + b.v[i]; });
  }
  friend Wide operator-(Wide a, Wide b) {
    return each([&](int i) { return a.v[i] - b.v[i]; });
  }
  friend Wide operator*(Wide a, Wide b) {
    return each([&](int i) { return a.v[i] * b.v[i]; });
  }
  friend Wide operator/(Wide a, Wide b) {
    return each([&](int i) { return a.v[i] / b.v[i]; });
  }
};

}  // namespace
