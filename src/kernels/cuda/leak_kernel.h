// SPDX-License-Identifier: Apache-2.0
//
// The launch behind cuda_add_leak. Internal to this folder.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_LEAK_KERNEL_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_LEAK_KERNEL_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "src/kernels/cuda/gemm_params.h"

namespace batchproof::cuda {

struct LeakLaunch {
  void* y;
  Store y_type;
  std::int64_t y_stride, rows, columns;
  const void* source;
  Store source_type;
  std::int64_t source_stride;
  float factor;
};
cudaError_t launch_leak(const LeakLaunch& leak, cudaStream_t stream);

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_LEAK_KERNEL_H_
