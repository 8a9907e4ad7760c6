// SPDX-License-Identifier: Apache-2.0
//
// hc_head: the last collapse of the residual streams. Four mixes, no post, no comb, no multiplier; the model's final
// RMSNorm is an operator of its own.
#include "batchproof/registry.h"
#include "ops/mhc/recipes.h"

namespace batchproof::mhc {
namespace {

const bp_port kPorts[] = {
    along_k(row_input("residual", "M, 4, H", kBf16), 1u << 1 | 1u << 2),
    along_k(weight("fn", "4, 4 * H", kFp32, BP_PORT_PADDED), 1u << 1),
    weight("hc_scale", "1", kFp32),
    weight("hc_base", "4", kFp32),
    output("y", "M, H", kBf16),
    output("mixes", "M, 4", kFp32, kOptional),
    output("square_sum", "M", kFp32, kOptional),
};
const bp_dtype kDtypes[] = {BP_BF16, BP_FP32, BP_FP32, BP_FP32, BP_BF16, BP_FP32, BP_FP32};
const bp_dtype_mode kMode[] = {{"bf16", kDtypes}};

const bp_implementation kImplementations[] = {
    invariant("cpu-fp32fma-strand16-chain256", "weights in FP32, 16 strands, segments of 256 columns",
              "cpu-fp32fma-strand16-descending", kChain),
    witness("cpu-fp32fma-strand16-descending", "the same from the last column to the first", kDescending),
    control("control-order-by-rows", "descending above 16 tokens", "the order of the sums follows the tokens",
            "cpu-fp32fma-strand16-descending", kControlOrderByRows),
    kCudaInvariant,
    kCudaInvariantPortable,
    kCudaInvariantOlder,
    kCudaWitness,
    kCudaOlderWitness,
    kCudaRowsControl,
};

}  // namespace

template <>
const bp_operator& table<Form::head>() {
  static const bp_operator one = make_table<Form::head>("hc_head", "the last collapse of the residual streams", kPorts,
                                                        kImplementations, kHeadAttrs, kMode);
  return one;
}

static const Registration kRegistration(&table<Form::head>());

}  // namespace batchproof::mhc
