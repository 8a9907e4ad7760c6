// SPDX-License-Identifier: Apache-2.0
//
// reduce() of reduce.h on a device: the same addends in the same order, the same bytes.
#ifndef BATCHPROOF_SRC_COMM_CUDA_REDUCE_H_
#define BATCHPROOF_SRC_COMM_CUDA_REDUCE_H_

#include <cuda_runtime.h>

#include <cstddef>

#include "batchproof/operator.h"

namespace batchproof::cuda {

constexpr int kMostReducedRanks = 256;  // their pointers are an argument of the kernel

struct ReduceLaunch {
  const void* sources[kMostReducedRanks];
  int world = 0;
  std::size_t count = 0;
  bp_dtype dtype = BP_FP32;  // one that reduce_error accepts
  bool tree = false;
  void* out = nullptr;  // one of the sources, or apart from all of them
};
cudaError_t launch_reduce(const ReduceLaunch& reduce, cudaStream_t stream);

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_COMM_CUDA_REDUCE_H_
