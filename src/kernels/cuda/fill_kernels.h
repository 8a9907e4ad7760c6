// SPDX-License-Identifier: Apache-2.0
//
// Launches behind fill.h, in terms that nvcc's front end need not share with the rest of the library. Internal.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_FILL_KERNELS_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_FILL_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "src/numeric/recipe_plan.h"

namespace batchproof::cuda {

struct FillLaunch {
  RecipePlan plan;
  bp_dtype dtype = BP_FP32;
  int bits = 32;  // of an element
  std::uint64_t seed = 0, name = 0, row = 0;
  std::int64_t rows = 0, columns = 0;
  void* out = nullptr;
  std::int64_t row_stride = 0, column_stride = 1;
};
cudaError_t launch_fill(const FillLaunch& fill, cudaStream_t stream);
// bytes a multiple of 16: the ceiling of read + write traffic.
cudaError_t launch_copy(const void* from, void* to, std::int64_t bytes, cudaStream_t stream);
cudaError_t launch_count_differing(const void* a, std::int64_t a_stride, const void* b, std::int64_t b_stride,
                                   std::int64_t rows, std::int64_t columns, int element_bytes,
                                   unsigned long long* count, cudaStream_t stream);

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_FILL_KERNELS_H_
