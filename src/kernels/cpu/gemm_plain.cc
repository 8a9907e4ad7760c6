// SPDX-License-Identifier: Apache-2.0
//
// The GEMM kernel in plain C++: std::fma on every lane, so it gives the bytes of the vector kernels on any processor.
// It may be slow where the compiler has no FMA instruction to use.
#include <cmath>

#include "src/kernels/cpu/gemm_kernel.h"
#include "src/numeric/bf16.h"
#include "src/numeric/fp16.h"

namespace batchproof {
namespace {

inline float wide(float value) { return value; }
inline float wide(Bf16Bits value) { return bf16_to_float(value.bits); }
inline float wide(Fp16Bits value) { return fp16_to_float(value.bits); }

struct Plain {
  struct F {
    float lane[4];
  };
  static constexpr int kWidth = 4;
  static constexpr int kRows = 4;
  static constexpr int kColumns = 8;

  static F zero() { return F{}; }
  static F load(const float* at) { return {{at[0], at[1], at[2], at[3]}}; }
  static void store(float* at, F value) { std::memcpy(at, value.lane, sizeof(value.lane)); }
  static F broadcast(const float* at) { return {{*at, *at, *at, *at}}; }
  static F fma(F a, F b, F c) {
    for (int i = 0; i < kWidth; ++i) c.lane[i] = std::fma(a.lane[i], b.lane[i], c.lane[i]);
    return c;
  }
  static F add(F a, F b) {
    for (int i = 0; i < kWidth; ++i) a.lane[i] = a.lane[i] + b.lane[i];
    return a;
  }

  template <class T>
  static F widen(const T* at) {
    return {{wide(at[0]), wide(at[1]), wide(at[2]), wide(at[3])}};
  }
  template <class T>
  static void widen8(const T* at, float* out) {
    for (int i = 0; i < 8; ++i) out[i] = wide(at[i]);
  }
  template <int keep>
  static void transpose8(const float* const* from, float* to, std::int64_t ld) {
    for (int k = 0; k < 8; ++k) {
      for (int i = 0; i < keep; ++i) to[k * ld + i] = from[i][k];
    }
  }

  static F canonical(F value) {
    for (float& lane : value.lane) lane = std::isnan(lane) ? cast_bits<float>(kFp32Nan) : lane;
    return value;
  }
  static void narrow_bf16(std::uint16_t* at, F value) {
    for (int i = 0; i < kWidth; ++i) at[i] = float_to_bf16(value.lane[i]);
  }
  static void narrow_fp16(std::uint16_t* at, F value) {
    for (int i = 0; i < kWidth; ++i) at[i] = float_to_fp16(value.lane[i]);
  }
};

}  // namespace

const GemmKernel kGemmPlain = {run_region<Plain>, Plain::kRows, Plain::kColumns};

}  // namespace batchproof
