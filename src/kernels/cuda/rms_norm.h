// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm on CUDA (sm_80 and later): y[t, h] = x[t, h] / sqrt(mean_h(x[t, h]^2) + eps) * w[h].
//
// The bytes of a row are a function of the row, w, eps, the dtype and the order; rows, strides, alignment, threads per
// row, grid, stream and device change time only. Order: chunks of 512 columns. In a chunk lane l of 32 has the vectors
// of 16 bytes l, l + 32, ... and sums its squares in ascending columns (fma from +0); lanes merge as a butterfly (s +=
// the sum of lane l ^ 16, ^ 8, ^ 4, ^ 2, ^ 1); chunk sums merge serially in ascending order, FP32. r = 1 / sqrt(sum / H
// + eps), each operation rounded once; y = round((x * r) * w). Any number of warps may share a row: each takes whole
// chunks, and all chunk sums come together before they are added.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_RMS_NORM_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_RMS_NORM_H_

#include <cstdint>

#include "batchproof/operator.h"
#include "src/runtime/error.h"

namespace batchproof::cuda {

constexpr std::int64_t kCudaRmsChunk = 512;

enum class CudaRmsOrder {
  chunks,      // the invariant one
  descending,  // the witness: columns and chunks from the last to the first
  // Each warp of a row adds its own chunks, then warps merge: the order follows the number of warps, as the block sizes
  // of serving engines do. Fewer merges; not invariant.
  warps
};

// BF16 or FP32, all three alike; columns are contiguous. Device pointers, strides in elements. `weight` null: ones.
struct CudaRmsNormCall {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  bp_dtype dtype = BP_BF16;
  const void* x = nullptr;
  std::int64_t x_row = 0;
  const void* weight = nullptr;
  void* y = nullptr;
  std::int64_t y_row = 0;
  float eps = 1e-6f;
  CudaRmsOrder order = CudaRmsOrder::chunks;
  int warps = 0;       // of one row: 1, 2, 4, 8 or 16; 0: chosen
  int processors = 0;  // that it may use, 0: all
};

// Enqueues one launch on the stream, no allocation, capturable; rows = 0 does nothing. A NaN is stored as the canonical
// one. Fails, with nothing enqueued, where columns, dtype or warps are not supported.
Result<void> cuda_rms_norm(const CudaRmsNormCall& call, void* stream);

// Warps that share a row: enough to fill the device where rows are few, few enough to keep a row in registers.
Result<int> cuda_rms_norm_warps(const CudaRmsNormCall& call);

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_RMS_NORM_H_
