// SPDX-License-Identifier: Apache-2.0
//
// The instances of gemm_sm90.cuh: which exist, and how the driver finds them. Internal to this folder.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_GEMM_KERNELS_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_GEMM_KERNELS_H_

#include <cuda_runtime.h>

#include <vector>

#include "src/kernels/cuda/gemm_params.h"
#include "src/kernels/cuda/gemm_plan.h"

namespace batchproof::cuda {

struct GemmInstance {
  GemmTile tile;
  bool weight_mn;
  int threads;
  const void* function;
};

std::vector<GemmInstance> gemm_instances_bf16_narrow();
std::vector<GemmInstance> gemm_instances_bf16_wide();
std::vector<GemmInstance> gemm_instances_bf16_merging();
std::vector<GemmInstance> gemm_instances_fp16_narrow();
std::vector<GemmInstance> gemm_instances_fp16_wide();
std::vector<GemmInstance> gemm_instances_fp16_merging();

// mma.sync, any strides, sm_80 and later; see gemm_portable.cu. Strides in elements.
struct PortableOperands {
  const void* x;
  std::int64_t x_row, x_column;
  const void* w;
  std::int64_t w_row, w_column;  // of the K x N view
  bool bf16;
};
cudaError_t launch_gemm_portable(const PortableOperands& operands, const GemmParams& params, cudaStream_t stream);

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_GEMM_KERNELS_H_
