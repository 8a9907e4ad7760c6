// SPDX-License-Identifier: Apache-2.0
//
// mhc_fused_post_pre: mhc_post, then mhc_pre of its result, with or without RMSNorm. And its delayed form.
//
// Two recipes are legal and give different bytes. A, the default: the product sees the streams as they are stored
// (BF16), with weights in TF32; its bytes are those of mhc_post followed by mhc_pre. B: the product sees the unrounded
// FP32 streams, with weights in FP32.
#include "batchproof/registry.h"
#include "ops/mhc/recipes.h"

namespace batchproof::mhc {
namespace {

// No reduction group: the streams that are summed over are made inside, so no input could be permuted with fn.
const bp_port kPorts[] = {
    row_input("x", "M, H", kBf16),
    row_input("residual", "M, 4, H", kBf16),
    row_input("post_mix", "M, 4, 1", kFp32),
    row_input("comb_mix", "M, 4, 4", kFp32),
    weight("fn", "24, 4 * H", kFp32, BP_PORT_PADDED),
    weight("hc_scale", "3", kFp32),
    weight("hc_base", "24", kFp32),
    weight("norm_weight", "H", kBf16, kOptional),
    dense_output("residual_out", "M, 4, H", kBf16),
    output("post_mix_out", "M, 4, 1", kFp32),
    dense_output("comb_mix_out", "M, 4, 4", kFp32),
    output("layer_input", "M, H", kBf16),
    output("mixes", "M, 24", kFp32, kOptional),
    output("square_sum", "M", kFp32, kOptional),
};
const bp_dtype kDtypes[] = {BP_BF16, BP_BF16, BP_FP32, BP_FP32, BP_FP32, BP_FP32, BP_FP32,
                            BP_BF16, BP_BF16, BP_FP32, BP_FP32, BP_BF16, BP_FP32, BP_FP32};
const bp_dtype_mode kMode[] = {{"bf16", kDtypes}};

const bp_port kDelayedPorts[] = {
    row_input("x", "M, H", kBf16),
    row_input("residual", "M, 4, H", kBf16),
    row_input("post_mix", "M, 4, 1", kFp32),
    row_input("comb_mix", "M, 4, 4", kFp32),
    row_input("pre_mix", "M, 4", kFp32, kOptional),
    weight("fn", "24, 4 * H", kFp32, BP_PORT_PADDED),
    weight("hc_scale", "3", kFp32),
    weight("hc_base", "24", kFp32),
    weight("norm_weight", "H", kBf16, kOptional),
    dense_output("residual_out", "M, 4, H", kBf16),
    output("pre_mix_out", "M, 4", kFp32),
    output("post_mix_out", "M, 4, 1", kFp32),
    dense_output("comb_mix_out", "M, 4, 4", kFp32),
    output("layer_input", "M, H", kBf16),
    output("streams_mean", "M, H", kBf16, kOptional),
    output("mixes", "M, 24", kFp32, kOptional),
    output("square_sum", "M", kFp32, kOptional),
};
const bp_dtype kDelayedDtypes[] = {BP_BF16, BP_BF16, BP_FP32, BP_FP32, BP_FP32, BP_FP32, BP_FP32, BP_FP32, BP_BF16,
                                   BP_BF16, BP_FP32, BP_FP32, BP_FP32, BP_BF16, BP_BF16, BP_FP32, BP_FP32};
const bp_dtype_mode kDelayedMode[] = {{"bf16", kDelayedDtypes}};

const bp_implementation kImplementations[] = {
    invariant("cpu-bf16res-tf32fn-chain256", "recipe A: stored BF16 streams, weights in TF32, segments of 256 columns",
              "cpu-bf16res-tf32fn-descending", kChain),
    invariant("cpu-fp32res-fp32fma-chain256", "recipe B: unrounded FP32 streams and weights, segments of 256 columns",
              "cpu-fp32res-fp32fma-descending", kChainUnrounded),
    invariant("cpu-bf16res-tf32fn-split32", "recipe A in 32 splits of whole K blocks, serial merge",
              "cpu-bf16res-tf32fn-descending", kPin),
    invariant("external-split32", "recipe A with the registered external product in 32 splits",
              "cpu-bf16res-tf32fn-descending", kExternal),
    fast("cpu-fast-occupancy", "the small kernel up to 16 tokens, then splits from processors and tokens",
         "cpu-bf16res-tf32fn-descending", kOccupancy),
    fast("cpu-fast-fallback", "the small kernel up to 16 tokens, then the fallback product",
         "cpu-bf16res-tf32fn-descending", kFallback),
    witness("cpu-bf16res-tf32fn-descending", "recipe A, streams 3 to 0, one chain from the last column", kDescending),
    witness("cpu-fp32res-fp32fma-descending", "recipe B, streams 3 to 0, one chain from the last column",
            kDescendingUnrounded),
    control("control-occupancy-splits", "the default dispatch",
            "kernel, precision and split count follow processors and tokens", "cpu-bf16res-tf32fn-descending",
            kControlOccupancy),
    control("control-small-kernel", "recipe A above 16 tokens",
            "up to 16 tokens the small kernel of the default dispatch", "cpu-bf16res-tf32fn-descending",
            kControlSmallKernel),
    control("control-tail-dropped", "the small kernel's floor division",
            "columns beyond a multiple of 256 per split are not summed", "cpu-bf16res-tf32fn-descending",
            kControlTailDropped),
    control("control-stale-memo", "32 splits behind a memo", "the memo's key lacks the mode",
            "cpu-bf16res-tf32fn-descending", kControlStaleMemo),
    control("control-comb-transposed", "comb contracted on its second index", "wrong, and invariant",
            "cpu-bf16res-tf32fn-descending", kControlCombTransposed),
    kCudaInvariant,
    kCudaInvariantPortable,
    kCudaInvariantOlder,
    kCudaFast,
    kCudaWitness,
    kCudaOlderWitness,
    kCudaOccupancyControl,
    kCudaRowsControl,
};

}  // namespace

template <>
const bp_operator& table<Form::fused>() {
  static const bp_operator one = make_table<Form::fused>(
      "mhc_fused_post_pre", "mhc_post, then mhc_pre of the new streams", kPorts, kImplementations, kAttrs, kMode);
  return one;
}

template <>
const bp_operator& table<Form::fused_delayed>() {
  static const bp_operator one = make_table<Form::fused_delayed>(
      "mhc_fused_post_pre_delayed", "mhc_fused_post_pre whose collapse uses the carried coefficients", kDelayedPorts,
      kImplementations, kAttrs, kDelayedMode);
  return one;
}

static const Registration kRegistration(&table<Form::fused>());
static const Registration kDelayedRegistration(&table<Form::fused_delayed>());

}  // namespace batchproof::mhc
