// SPDX-License-Identifier: Apache-2.0
//
// mhc_pre_delayed: mhc_pre whose collapse uses the pre coefficients of the previous sublayer; its own go to the next.
// Without carried coefficients the collapse is stream 0.
#include "batchproof/registry.h"
#include "ops/mhc/recipes.h"

namespace batchproof::mhc {
namespace {

const bp_port kPorts[] = {
    along_k(row_input("residual", "M, 4, H", kBf16), 1u << 1 | 1u << 2),
    row_input("pre_mix", "M, 4", kFp32, kOptional),
    along_k(weight("fn", "24, 4 * H", kFp32, BP_PORT_PADDED), 1u << 1),
    weight("hc_scale", "3", kFp32),
    weight("hc_base", "24", kFp32),
    weight("norm_weight", "H", kBf16, kOptional),
    output("pre_mix_out", "M, 4", kFp32),
    output("post_mix", "M, 4, 1", kFp32),
    dense_output("comb_mix", "M, 4, 4", kFp32),
    order_exact(output("layer_input", "M, H", kBf16)),  // the carried coefficients do not come from the product
    order_exact(output("streams_mean", "M, H", kBf16, kOptional)),
    output("mixes", "M, 24", kFp32, kOptional),
    output("square_sum", "M", kFp32, kOptional),
};
const bp_dtype kDtypes[] = {BP_BF16, BP_FP32, BP_FP32, BP_FP32, BP_FP32, BP_BF16, BP_FP32,
                            BP_FP32, BP_FP32, BP_BF16, BP_BF16, BP_FP32, BP_FP32};
const bp_dtype_mode kMode[] = {{"bf16", kDtypes}};

const bp_implementation kImplementations[] = {
    invariant("cpu-tf32fn-chain256", "weights rounded to TF32, FP32 FMA, segments of 256 columns",
              "cpu-tf32fn-descending", kChain),
    invariant("cpu-fp32fma-chain256", "weights in FP32, FP32 FMA, segments of 256 columns", "cpu-fp32fma-descending",
              kChainFp32),
    invariant("cpu-tf32fn-split32", "weights rounded to TF32, 32 splits of whole K blocks, serial merge",
              "cpu-tf32fn-descending", kPin),
    invariant("external-split32", "the registered external product in 32 splits", "cpu-tf32fn-descending", kExternal),
    fast("cpu-fast-occupancy", "splits from processors and tokens", "cpu-tf32fn-descending", kOccupancy),
    witness("cpu-tf32fn-descending", "weights rounded to TF32, one chain from the last column to the first",
            kDescending),
    witness("cpu-fp32fma-descending", "weights in FP32, one chain from the last column to the first", kDescendingFp32),
    control("control-occupancy-splits", "the default dispatch", "the split count follows processors and tokens",
            "cpu-tf32fn-descending", kControlOccupancy),
    kCudaInvariant,
    kCudaInvariantPortable,
    kCudaInvariantOlder,
    kCudaFast,
    kCudaWitness,
    kCudaOlderWitness,
    kCudaOccupancyControl,
};

}  // namespace

template <>
const bp_operator& table<Form::pre_delayed>() {
  static const bp_operator one =
      make_table<Form::pre_delayed>("mhc_pre_delayed", "mhc_pre whose collapse uses the carried coefficients", kPorts,
                                    kImplementations, kAttrs, kMode);
  return one;
}

static const Registration kRegistration(&table<Form::pre_delayed>());

}  // namespace batchproof::mhc
