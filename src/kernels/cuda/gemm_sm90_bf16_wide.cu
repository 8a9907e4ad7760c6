// SPDX-License-Identifier: Apache-2.0
//
// Instances of the sm_90a matrix product: bf16 inputs, wide tiles.
#include "src/kernels/cuda/gemm_instances.cuh"

namespace batchproof::cuda {

std::vector<GemmInstance> gemm_instances_bf16_wide() { return gemm_instances_wide<MmaType::bf16>(); }

}  // namespace batchproof::cuda
