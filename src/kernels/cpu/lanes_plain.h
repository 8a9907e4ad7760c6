// SPDX-License-Identifier: Apache-2.0
//
// Lanes in plain C++: the reference of lanes_avx2.h and lanes_avx512.h. Every function is one IEEE operation per lane
// (C10), so a kernel written over lanes gives the same bytes on every instruction set.
//
// Included by *_plain.cc only; the anonymous namespace keeps each file's code its own.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_LANES_PLAIN_H_
#define BATCHPROOF_SRC_KERNELS_CPU_LANES_PLAIN_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "src/numeric/bf16.h"
#include "src/numeric/host_device.h"

namespace batchproof {
namespace {

struct PlainLanes {
  static constexpr int kWidth = 8;
  static constexpr int kTokens = 4;  // rows of a product tile
  struct F {
    float lane[kWidth];
  };

  template <class Function>
  static F each(const Function& function) {
    F out;
    for (int i = 0; i < kWidth; ++i) out.lane[i] = function(i);
    return out;
  }
  static F zero() { return F{}; }
  static F all(float value) {
    return each([&](int) { return value; });
  }
  static F load(const float* at) {
    F out;
    std::memcpy(out.lane, at, sizeof out.lane);
    return out;
  }
  static void store(float* at, F value) { std::memcpy(at, value.lane, sizeof value.lane); }
  static F load_bf16(const std::uint16_t* at) {
    return each([&](int i) { return bf16_to_float(at[i]); });
  }
  // Round to nearest even, one canonical NaN.
  static void store_bf16(std::uint16_t* at, F value) {
    for (int i = 0; i < kWidth; ++i) at[i] = float_to_bf16(value.lane[i]);
  }
  static F fma(F a, F b, F c) {
    return each([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
  }
  static F add(F a, F b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static F sub(F a, F b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static F mul(F a, F b) {
    return each([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static F div(F a, F b) {
    return each([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  static F sqrt(F a) {
    return each([&](int i) { return std::sqrt(a.lane[i]); });
  }
  // a > b ? a : b; the second where either is NaN.
  static F max(F a, F b) {
    return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static F min(F a, F b) {
    return each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  // The canonical NaN where `probe` is NaN, else `value`.
  static F nan_of(F probe, F value) {
    return each([&](int i) { return std::isnan(probe.lane[i]) ? cast_bits<float>(0x7FC00000u) : value.lane[i]; });
  }
  // 2^n for integral n in [-126, 127].
  static F power_of_two(F n) {
    return each([&](int i) {
      return cast_bits<float>(static_cast<std::uint32_t>(static_cast<std::int32_t>(n.lane[i]) + 127) << 23);
    });
  }

  // 24 accumulators.
  struct C24 {
    float lane[24];
  };
  static C24 zero24() { return C24{}; }
  static C24 load24(const float* at) {
    C24 out;
    std::memcpy(out.lane, at, sizeof out.lane);
    return out;
  }
  static void store24(float* at, const C24& value) { std::memcpy(at, value.lane, sizeof value.lane); }
  static void fma24(const float* scalar, const C24& weights, C24* acc) {
    for (int i = 0; i < 24; ++i) acc->lane[i] = std::fma(*scalar, weights.lane[i], acc->lane[i]);
  }
  static C24 add24(const C24& a, const C24& b) {
    C24 out;
    for (int i = 0; i < 24; ++i) out.lane[i] = a.lane[i] + b.lane[i];
    return out;
  }
};

}  // namespace
}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_LANES_PLAIN_H_
