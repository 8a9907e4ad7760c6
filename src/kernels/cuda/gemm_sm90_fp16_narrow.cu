// SPDX-License-Identifier: Apache-2.0
//
// Instances of the sm_90a matrix product: fp16 inputs, narrow tiles.
#include "src/kernels/cuda/gemm_instances.cuh"

namespace batchproof::cuda {

std::vector<GemmInstance> gemm_instances_fp16_narrow() { return gemm_instances_narrow<MmaType::fp16>(); }

}  // namespace batchproof::cuda
