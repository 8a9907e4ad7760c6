// SPDX-License-Identifier: Apache-2.0
//
// y = x . w + bias on CUDA as operators see it: tensors of the operator table in, matrix product calls out.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_LINEAR_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_LINEAR_H_

#include <cstdint>
#include <string>

#include "batchproof/operator.h"
#include "src/kernels/cuda/gemm.h"
#include "src/runtime/error.h"

namespace batchproof::cuda {

// How an implementation multiplies: its order of summation and its path. What its id says.
struct CudaLinearPlan {
  std::int64_t segment = kCudaGemmSegment;  // columns of K; 0: follows the batch (fast mode);
                                            // kCudaGemmSegment: equal ones up to it
  std::int64_t slices = 0;                  // of the tree; 0: a chain
  int generation = 9;                       // major compute capability
  bool portable = false;                    // mma.sync in place of wgmma
};

// One tensor-core step: the order of a witness, alive from K = 17 on.
constexpr std::int64_t kCudaWitnessSegment = 16;
// What a control takes instead of its plan's segment.
constexpr std::int64_t kCudaOtherSegment = 64;

// Why the current device cannot run the plan; empty: it can. Its compute capability is another one, or the probe of the
// tensor-core rules fails.
std::string cuda_linear_refusal(const CudaLinearPlan& plan, bp_dtype dtype);

// Whether the implementation can run the problem on the device at all: dtype of x1, reduction length, refusal.
bool cuda_linear_suits(const CudaLinearPlan& plan, bp_dtype dtype, std::int64_t k, const bp_device& device);

// Refuses what cuda_linear_suits does not take, with the id of the implementation.
Result<void> check_cuda_linear(const CudaLinearPlan& plan, const CudaGemmCall& call, const bp_context& context);

// Enqueues the call on the context's stream in the plan's order, or in a chain of another segment where one is given
// (controls).
Result<void> cuda_linear(const CudaLinearPlan& plan, const CudaGemmCall& call, const bp_context& context,
                         std::int64_t other_segment = 0);

// Rows [first, first + count * step) of a call, every `step`th.
CudaGemmCall cuda_linear_rows(const CudaGemmCall& call, std::int64_t first, std::int64_t count, std::int64_t step = 1);

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
