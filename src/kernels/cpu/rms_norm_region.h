// SPDX-License-Identifier: Apache-2.0
//
// What the RMSNorm driver hands to the kernel of one instruction set: plain data only, see mhc_region.h.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_RMS_NORM_REGION_H_
#define BATCHPROOF_SRC_KERNELS_CPU_RMS_NORM_REGION_H_

#include <cstdint>

namespace batchproof {

// Rows of BF16 or FP32; strides in elements; `threads` and `segment` as in RmsNormOrder.
struct RmsNormRegion {
  std::int64_t rows, columns;
  bool bf16;
  const void* x;
  std::int64_t x_row;
  const void* weight;
  void* y;
  std::int64_t y_row;
  float eps;
  std::int64_t segment;
  bool descending;
  int threads;
};

using RmsNormKernel = void (*)(const RmsNormRegion& region);
extern const RmsNormKernel kRmsNormPlain;
#if defined(__x86_64__)
extern const RmsNormKernel kRmsNormAvx2;
extern const RmsNormKernel kRmsNormAvx512;
#endif

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_RMS_NORM_REGION_H_
