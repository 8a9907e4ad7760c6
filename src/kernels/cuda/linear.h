// SPDX-License-Identifier: Apache-2.0
//
// y = x . w + bias on CUDA as operators see it: tensors of the operator table in, matrix product calls out.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_LINEAR_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_LINEAR_H_

#include "batchproof/operator.h"
#include "src/kernels/cuda/gemm.h"
#include "src/runtime/error.h"

namespace batchproof::cuda {

// The call for x (m, k), w (k, n), bias (n) or null, y (m, n) in memory of the current device. w may be a transposed
// view. Fails (usage, environment) where a tensor lies elsewhere, has another shape or no memory, or where columns of y
// are not contiguous.
Result<CudaGemmCall> cuda_linear_call(const bp_tensor& x, const bp_tensor& w, const bp_tensor* bias,
                                      const bp_tensor& y);

// Zero times, or another multiple of, elements that no row of y depends on; for controls. Adds
// factor * source[i * source_stride] to every element of row i of y, for i < rows. source: FP32, BF16 or FP16.
Result<void> cuda_add_leak(const CudaGemmCall& call, std::int64_t rows, const void* source, bp_dtype source_dtype,
                           std::int64_t source_stride, float factor, void* stream);

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_LINEAR_H_
