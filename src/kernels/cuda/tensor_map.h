// SPDX-License-Identifier: Apache-2.0
//
// Tensor maps: how the copy engine is told of a tensor in device memory.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_TENSOR_MAP_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_TENSOR_MAP_H_

#include <cuda.h>

#include <array>

#include "batchproof/operator.h"
#include "src/runtime/error.h"

namespace batchproof::cuda {

// A tensor of BF16, FP16 or FP32, contiguous in its first dimension. What a box has outside of the tensor
// reads as zeros and is not written.
struct TensorView {
  const void* data;
  bp_dtype dtype;
  unsigned rank;                        // of which the driver is told, 2 to 4
  std::array<std::int64_t, 4> sizes;    // elements
  std::array<std::int64_t, 3> strides;  // bytes, from the second dimension on; multiples of 16
  std::array<int, 4> box;               // elements, at most 256 each
  bool swizzled;                        // 128 bytes, which then is the box's first dimension
};

// Source: CUDA driver API, cuTensorMapEncodeTiled. Fails where the driver lacks it or refuses the view.
Result<CUtensorMap> encode_tensor_map(const TensorView& view);

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_TENSOR_MAP_H_
