// SPDX-License-Identifier: Apache-2.0
//
// Builds table entries for gemm_sm90.cuh. Split over files by type and width so that they compile side by side.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_GEMM_INSTANCES_CUH_
#define BATCHPROOF_SRC_KERNELS_CUDA_GEMM_INSTANCES_CUH_

#include "src/kernels/cuda/gemm_kernels.h"
#include "src/kernels/cuda/gemm_sm90.cuh"

namespace batchproof::cuda {

template <MmaType kType, int kN, int kGroups, bool kTree, bool kWeightMn, bool kOne = false>
GemmInstance gemm_instance() {
  return {{kN, kGroups, kTree, kOne},
          kWeightMn,
          GemmKernel<kType, kN, kGroups, kTree, kWeightMn, kOne>::kThreads,
          reinterpret_cast<const void*>(gemm_sm90<kType, kN, kGroups, kTree, kWeightMn, kOne>)};
}

template <MmaType kType>
std::vector<GemmInstance> gemm_instances_narrow() {
  return {gemm_instance<kType, 16, 1, false, false>(), gemm_instance<kType, 32, 1, false, false>(),
          gemm_instance<kType, 64, 1, false, false>(), gemm_instance<kType, 16, 1, true, false>(),
          gemm_instance<kType, 64, 1, true, false>(),  gemm_instance<kType, 16, 1, false, true>(),
          gemm_instance<kType, 64, 1, false, true>(),  gemm_instance<kType, 64, 1, true, true>()};
}

template <MmaType kType>
std::vector<GemmInstance> gemm_instances_wide() {
  return {gemm_instance<kType, 128, 1, false, false>(),     gemm_instance<kType, 128, 2, false, false>(),
          gemm_instance<kType, 192, 2, false, false>(),     gemm_instance<kType, 192, 2, false, true>(),
          gemm_instance<kType, 128, 2, false, true>(),      gemm_instance<kType, 256, 2, false, false, true>(),
          gemm_instance<kType, 256, 2, false, true, true>()};
}

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_GEMM_INSTANCES_CUH_
