// SPDX-License-Identifier: Apache-2.0
//
// Single elements of FP32, BF16 and FP16 memory, for the parts of a product that are not worth a vector kernel.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_ELEMENTS_H_
#define BATCHPROOF_SRC_KERNELS_CPU_ELEMENTS_H_

#include <cmath>
#include <cstdint>

#include "batchproof/operator.h"
#include "src/numeric/bf16.h"
#include "src/numeric/fp16.h"

namespace batchproof {

inline float read_float(const void* data, std::int64_t at, bp_dtype dtype) {
  if (dtype == BP_FP32) return static_cast<const float*>(data)[at];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[at];
  return dtype == BP_BF16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

// Rounds to nearest even; a NaN becomes the canonical one (C4).
inline void write_float(void* data, std::int64_t at, bp_dtype dtype, float value) {
  if (dtype == BP_FP32) {
    static_cast<float*>(data)[at] = std::isnan(value) ? cast_bits<float>(kFp32Nan) : value;
  } else {
    static_cast<std::uint16_t*>(data)[at] = dtype == BP_BF16 ? float_to_bf16(value) : float_to_fp16(value);
  }
}

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_ELEMENTS_H_
