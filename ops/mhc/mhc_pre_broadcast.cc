// SPDX-License-Identifier: Apache-2.0
//
// mhc_pre_broadcast: the first layer's mhc_pre. All four streams are the embedding x, so the product runs over H
// columns with fn_broadcast[c, h] = sum_i fn[c, i * H + h]. And its delayed form.
#include "batchproof/registry.h"
#include "ops/mhc/recipes.h"

namespace batchproof::mhc {
namespace {

const bp_port kPorts[] = {
    along_k(row_input("x", "M, H", kBf16), 1u << 1),
    along_k(weight("fn_broadcast", "24, H", kFp32, BP_PORT_PADDED), 1u << 1),
    weight("hc_scale", "3", kFp32),
    weight("hc_base", "24", kFp32),
    weight("norm_weight", "H", kBf16),
    order_exact(dense_output("residual_out", "M, 4, H", kBf16)),
    output("post_mix", "M, 4, 1", kFp32),
    dense_output("comb_mix", "M, 4, 4", kFp32),
    output("layer_input", "M, H", kBf16),
    output("mixes", "M, 24", kFp32, kOptional),
    output("square_sum", "M", kFp32, kOptional),
};
const bp_dtype kDtypes[] = {BP_BF16, BP_FP32, BP_FP32, BP_FP32, BP_BF16, BP_BF16,
                            BP_FP32, BP_FP32, BP_BF16, BP_FP32, BP_FP32};
const bp_dtype_mode kMode[] = {{"bf16", kDtypes}};

const bp_port kDelayedPorts[] = {
    along_k(row_input("x", "M, H", kBf16), 1u << 1),
    row_input("pre_mix", "M, 4", kFp32, kOptional),
    along_k(weight("fn_broadcast", "24, H", kFp32, BP_PORT_PADDED), 1u << 1),
    weight("hc_scale", "3", kFp32),
    weight("hc_base", "24", kFp32),
    weight("norm_weight", "H", kBf16, kOptional),
    order_exact(dense_output("residual_out", "M, 4, H", kBf16)),
    output("pre_mix_out", "M, 4", kFp32),
    output("post_mix", "M, 4, 1", kFp32),
    dense_output("comb_mix", "M, 4, 4", kFp32),
    order_exact(output("layer_input", "M, H", kBf16)),  // the carried coefficients do not come from the product
    output("mixes", "M, 24", kFp32, kOptional),
    output("square_sum", "M", kFp32, kOptional),
};
const bp_dtype kDelayedDtypes[] = {BP_BF16, BP_FP32, BP_FP32, BP_FP32, BP_FP32, BP_BF16, BP_BF16,
                                   BP_FP32, BP_FP32, BP_FP32, BP_BF16, BP_FP32, BP_FP32};
const bp_dtype_mode kDelayedMode[] = {{"bf16", kDelayedDtypes}};

const bp_implementation kImplementations[] = {
    invariant("cpu-tf32fn-chain256", "weights rounded to TF32, FP32 FMA, segments of 256 columns",
              "cpu-tf32fn-descending", kChain),
    invariant("cpu-fp32fma-chain256", "weights in FP32, FP32 FMA, segments of 256 columns", "cpu-fp32fma-descending",
              kChainFp32),
    invariant("cpu-tf32fn-split16", "weights rounded to TF32, 16 splits of whole K blocks, serial merge",
              "cpu-tf32fn-descending", kPin),
    invariant("external-split16", "the registered external product in 16 splits", "cpu-tf32fn-descending", kExternal),
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
const bp_operator& table<Form::pre_broadcast>() {
  static const bp_operator one = make_table<Form::pre_broadcast>(
      "mhc_pre_broadcast", "mhc_pre of the first layer, where the four streams are the embedding", kPorts,
      kImplementations, kAttrs, kMode);
  return one;
}

template <>
const bp_operator& table<Form::broadcast_delayed>() {
  static const bp_operator one = make_table<Form::broadcast_delayed>(
      "mhc_pre_broadcast_delayed", "mhc_pre_broadcast whose collapse uses the carried coefficients", kDelayedPorts,
      kImplementations, kAttrs, kDelayedMode);
  return one;
}

static const Registration kRegistration(&table<Form::pre_broadcast>());
static const Registration kDelayedRegistration(&table<Form::broadcast_delayed>());

}  // namespace batchproof::mhc
