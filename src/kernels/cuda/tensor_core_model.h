// SPDX-License-Identifier: Apache-2.0
//
// A CPU model of one tensor-core step: the exact products and the accumulator are aligned to the largest exponent among
// them, each is cut (toward zero) below a fixed number of fractional bits, the integers are added exactly, and the sum
// is cut to the accumulator's precision. Idea of the model: "MMA-Sim", arXiv 2511.10909. What it is good for: it says
// which freedoms cannot move bytes (any order inside a step, tile width, operand roles) and which can (the grouping of
// K into steps, their order, the starting value).
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_TENSOR_CORE_MODEL_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_TENSOR_CORE_MODEL_H_

#include <cstdint>

namespace batchproof::cuda {

// Number formats of operands; numbering as MmaType in wgmma.h (checked there).
enum class ModelType : int { bf16, fp16, tf32, e4m3, e5m2 };

struct StepModel {
  int fraction_bits = 25;  // kept below the largest exponent
  int result_bits = 23;    // fraction bits of the accumulator after a step
};

// The model of wgmma on sm_90 as the device test of tensor_core_rules.h identified it.
StepModel wgmma_model(ModelType type);

// Sum over `count` elements in steps of `group`, ascending, from +0. Codes as stored: BF16 and FP16 in 16 bits, FP8 in
// 8, TF32 as FP32 bit patterns (cut to 10 fraction bits). Finite inputs only; a sum beyond FP32 gives infinity.
float model_dot(ModelType type, const void* a, const void* b, int count, int group, StepModel model);

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_TENSOR_CORE_MODEL_H_
