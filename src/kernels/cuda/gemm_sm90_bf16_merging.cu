// SPDX-License-Identifier: Apache-2.0
//
// Instances of the sm_90a matrix product: bf16 inputs, reductions of several segments.
#include "src/kernels/cuda/gemm_instances.cuh"

namespace batchproof::cuda {

std::vector<GemmInstance> gemm_instances_bf16_merging() { return gemm_instances_merging<MmaType::bf16>(); }

}  // namespace batchproof::cuda
