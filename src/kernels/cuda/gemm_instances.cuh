// SPDX-License-Identifier: Apache-2.0
//
// Builds table entries for gemm_sm90.cuh. Split over files by type and width so that they compile side by side.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_GEMM_INSTANCES_CUH_
#define BATCHPROOF_SRC_KERNELS_CUDA_GEMM_INSTANCES_CUH_

#include "src/kernels/cuda/gemm_kernels.h"
#include "src/kernels/cuda/gemm_sm90.cuh"

namespace batchproof::cuda {

template <MmaType kType, int kN, int kGroups, bool kTree, bool kWeightMn, bool kOne = false, bool kByRows = false>
GemmInstance gemm_instance() {
  return {{kN, kGroups, kTree, kOne, kByRows},
          kWeightMn,
          GemmKernel<kType, kN, kGroups, kTree, kWeightMn, kOne, kByRows>::kThreads,
          reinterpret_cast<const void*>(gemm_sm90<kType, kN, kGroups, kTree, kWeightMn, kOne, kByRows>)};
}

// The schedule's reduction is one segment up to kCudaGemmSegment columns of K.
template <MmaType kType, int kN, int kGroups, bool kWeightMn = false, bool kByRows = false>
GemmInstance gemm_one() {
  return gemm_instance<kType, kN, kGroups, false, kWeightMn, true, kByRows>();
}

template <MmaType kType>
std::vector<GemmInstance> gemm_instances_narrow() {
  return {gemm_one<kType, 16, 1>(),       gemm_one<kType, 32, 1>(),       gemm_one<kType, 64, 1>(),
          gemm_one<kType, 64, 2>(),       gemm_one<kType, 64, 3>(),       gemm_one<kType, 128, 1>(),
          gemm_one<kType, 16, 1, true>(), gemm_one<kType, 64, 1, true>(), gemm_one<kType, 128, 2, true>()};
}

template <MmaType kType>
std::vector<GemmInstance> gemm_instances_wide() {
  return {gemm_one<kType, 128, 2>(),
          gemm_one<kType, 256, 2>(),
          gemm_one<kType, 96, 3>(),
          gemm_one<kType, 128, 3>(),
          gemm_one<kType, 176, 3>(),
          gemm_one<kType, 256, 2, true>(),
          gemm_one<kType, 112, 2, false, true>(),
          gemm_one<kType, 144, 2, false, true>(),
          gemm_one<kType, 192, 2, false, true>()};
}

// Longer reductions, and the tree.
template <MmaType kType>
std::vector<GemmInstance> gemm_instances_merging() {
  return {gemm_instance<kType, 16, 1, false, false>(),  gemm_instance<kType, 64, 1, false, false>(),
          gemm_instance<kType, 128, 2, false, false>(), gemm_instance<kType, 192, 2, false, false>(),
          gemm_instance<kType, 16, 1, true, false>(),   gemm_instance<kType, 64, 1, true, false>(),
          gemm_instance<kType, 16, 1, false, true>(),   gemm_instance<kType, 64, 1, false, true>(),
          gemm_instance<kType, 128, 2, false, true>(),  gemm_instance<kType, 64, 1, true, true>()};
}

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_GEMM_INSTANCES_CUH_
