// SPDX-License-Identifier: Apache-2.0
//
// The launch behind rms_norm.h. Internal to this folder.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_RMS_NORM_KERNELS_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_RMS_NORM_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "src/kernels/cuda/rms_norm.h"

namespace batchproof::cuda {

constexpr int kRmsMostHeld = 8;  // chunks of a row that one warp keeps in registers
constexpr int kRmsBlockWarps = 8;
constexpr int kRmsMostWarps = 16;

struct RmsNormLaunch {
  const void* x;
  std::int64_t x_row;
  const void* weight;
  void* y;
  std::int64_t y_row;
  std::int64_t rows;
  std::int32_t columns;
  float eps;
  bool bf16;
  bool vector_x, vector_weight, vector_y;  // rows begin at multiples of 16 bytes
  CudaRmsOrder order;
  int warps_log2;  // of one row
  int blocks;      // of the grid
};
cudaError_t launch_rms_norm(const RmsNormLaunch& launch, cudaStream_t stream);

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_RMS_NORM_KERNELS_H_
