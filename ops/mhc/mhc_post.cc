// SPDX-License-Identifier: Apache-2.0
//
// mhc_post: a sublayer's output x and the residual streams become the new streams,
// R'[j] = post[j] * x + sum_i comb[i, j] * R[i]. comb is contracted on its first index.
#include "batchproof/registry.h"
#include "ops/mhc/recipes.h"

namespace batchproof::mhc {
namespace {

const bp_port kPorts[] = {
    row_input("x", "M, H", kBf16),
    row_input("residual", "M, 4, H", kBf16),
    row_input("post_mix", "M, 4, 1", kFp32),
    row_input("comb_mix", "M, 4, 4", kFp32),
    dense_output("residual_out", "M, 4, H", kBf16),
};
const bp_dtype kDtypes[] = {BP_BF16, BP_BF16, BP_FP32, BP_FP32, BP_BF16};
const bp_dtype_mode kMode[] = {{"bf16", kDtypes}};

const bp_implementation kImplementations[] = {
    invariant("cpu-fp32fma-streams", "FP32 FMA, the post term first, then streams 0 to 3", "cpu-fp32fma-reversed",
              kChain),
    witness("cpu-fp32fma-reversed", "streams 3 to 0, the post term last", kDescending),
    control("control-order-by-rows", "the reversed order above 16 tokens", "the order of the sum follows the tokens",
            "cpu-fp32fma-reversed", kControlOrderByRows),
    control("control-comb-transposed", "comb contracted on its second index", "wrong, and invariant",
            "cpu-fp32fma-reversed", kControlCombTransposed),
    on_cuda(invariant("cuda-fp32fma-streams", "FP32 FMA, the post term first, then streams 0 to 3: the CPU's bytes",
                      "cuda-fp32fma-reversed", kCuda)),
    on_cuda(witness("cuda-fp32fma-reversed", "streams 3 to 0, the post term last", kCudaReversed)),
    on_cuda(control("cuda-control-order-by-rows", "the reversed order above 16 tokens",
                    "the order of the sum follows the tokens", "cuda-fp32fma-reversed", kCudaControlRows)),
};

constexpr bp_attr_decl kNoAttrs[] = {{"processors", BP_ATTR_INT, "132", "ignored: one dispatch for all"}};

}  // namespace

template <>
const bp_operator& table<Form::post>() {
  static const bp_operator one = make_table<Form::post>(
      "mhc_post", "a sublayer's output mixed into the residual streams", kPorts, kImplementations, kNoAttrs, kMode);
  return one;
}

static const Registration kRegistration(&table<Form::post>());

}  // namespace batchproof::mhc
