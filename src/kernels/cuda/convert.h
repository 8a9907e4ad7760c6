// SPDX-License-Identifier: Apache-2.0
//
// Device conversions of outputs and biases: to nearest even, a NaN is stored as the one canonical code (C4).
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_CONVERT_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_CONVERT_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "src/kernels/cuda/gemm_params.h"

namespace batchproof::cuda {

__device__ inline std::uint32_t fp32_code(float v) { return v != v ? 0x7FC00000u : __float_as_uint(v); }

__device__ inline std::uint16_t bf16_code(float v) {
  return v != v ? std::uint16_t{0x7FC0} : __bfloat16_as_ushort(__float2bfloat16_rn(v));
}

__device__ inline std::uint16_t fp16_code(float v) {
  return v != v ? std::uint16_t{0x7E00} : __half_as_ushort(__float2half_rn(v));
}

template <bool kBf16>
__device__ inline std::uint16_t code16(float v) {
  return kBf16 ? bf16_code(v) : fp16_code(v);
}

template <bool kBf16>
__device__ inline std::uint32_t code16x2(float low, float high) {
  return static_cast<std::uint32_t>(code16<kBf16>(low)) | static_cast<std::uint32_t>(code16<kBf16>(high)) << 16;
}

// Two codes of values that are no NaN, in one instruction.
template <bool kBf16>
__device__ inline std::uint32_t number16x2(float low, float high) {
  std::uint32_t codes;
  if constexpr (kBf16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(codes) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(codes) : "f"(high), "f"(low));
  return codes;
}

__device__ inline float load_bias(const void* bias, Store type, std::int64_t index) {
  if (type == Store::fp32) return static_cast<const float*>(bias)[index];
  if (type == Store::bf16) return __bfloat162float(static_cast<const __nv_bfloat16*>(bias)[index]);
  return __half2float(static_cast<const __half*>(bias)[index]);
}

__device__ inline void store_one(void* y, Store type, std::int64_t index, float v) {
  if (type == Store::fp32)
    static_cast<std::uint32_t*>(y)[index] = fp32_code(v);
  else
    static_cast<std::uint16_t*>(y)[index] = type == Store::bf16 ? bf16_code(v) : fp16_code(v);
}

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_CONVERT_H_
