// SPDX-License-Identifier: Apache-2.0
//
// mhc_pre: mixes of the residual streams, Sinkhorn, and the collapse into the sublayer's input, with or without
// RMSNorm.
#include "batchproof/registry.h"
#include "ops/mhc/recipes.h"

namespace batchproof::mhc {
namespace {

const bp_port kPorts[] = {
    along_k(row_input("residual", "M, 4, H", kBf16), 1u << 1 | 1u << 2),
    along_k(weight("fn", "24, 4 * H", kFp32, BP_PORT_PADDED), 1u << 1),
    weight("hc_scale", "3", kFp32),
    weight("hc_base", "24", kFp32),
    weight("norm_weight", "H", kBf16, kOptional),
    output("post_mix", "M, 4, 1", kFp32),
    dense_output("comb_mix", "M, 4, 4", kFp32),
    output("layer_input", "M, H", kBf16),
    output("mixes", "M, 24", kFp32, kOptional),
    output("square_sum", "M", kFp32, kOptional),
};
const bp_dtype kDtypes[] = {BP_BF16, BP_FP32, BP_FP32, BP_FP32, BP_BF16, BP_FP32, BP_FP32, BP_BF16, BP_FP32, BP_FP32};
const bp_dtype_mode kMode[] = {{"bf16", kDtypes}};

const bp_implementation kImplementations[] = {
    invariant("cpu-tf32fn-chain256", "weights rounded to TF32, FP32 FMA, segments of 256 columns",
              "cpu-tf32fn-descending", kChain),
    invariant("cpu-fp32fma-chain256", "weights in FP32, FP32 FMA, segments of 256 columns", "cpu-fp32fma-descending",
              kChainFp32),
    invariant("cpu-tf32fn-split32", "weights rounded to TF32, 32 splits of whole K blocks, serial merge",
              "cpu-tf32fn-descending", kPin),
    invariant("cpu-fp32fma-threads512", "weights in FP32, 512 interleaved sums, butterfly and serial merge",
              "cpu-fp32fma-descending", kThreads512),
    invariant("external-split32", "the registered external product in 32 splits", "cpu-tf32fn-descending", kExternal),
    fast("cpu-fast-occupancy", "splits from processors and tokens", "cpu-tf32fn-descending", kOccupancy),
    fast("cpu-fast-fallback", "1024 interleaved sums below 128 tokens, else 512; two tokens per pass from 1024 on",
         "cpu-fp32fma-descending", kFallback),
    witness("cpu-tf32fn-descending", "weights rounded to TF32, one chain from the last column to the first",
            kDescending),
    witness("cpu-fp32fma-descending", "weights in FP32, one chain from the last column to the first", kDescendingFp32),
    control("control-occupancy-splits", "the default dispatch", "the split count follows processors and tokens",
            "cpu-tf32fn-descending", kControlOccupancy),
    control("control-fallback-kernels", "the fallback product's dispatch", "fewer than 128 tokens take another kernel",
            "cpu-fp32fma-descending", kControlFallback),
    control("control-odd-rows", "two tokens per pass from 1024 on", "an odd token's sums hold its neighbour's as well",
            "cpu-tf32fn-descending", kControlOddRows),
    control("control-fp16-squares", "squares in FP16 above 16 tokens", "the square sum's precision follows the tokens",
            "cpu-tf32fn-descending", kControlFp16Squares),
    control("control-arrival-squares", "square sum by atomics", "segments of the square sum merge as they arrive",
            "cpu-tf32fn-descending", kControlArrival),
    control("control-stale-memo", "32 splits behind a memo", "the memo's key lacks the mode", "cpu-tf32fn-descending",
            kControlStaleMemo),
    control("control-one-eps", "one eps for two", "hc_pre_eps stands in for rms_eps: wrong, and invariant",
            "cpu-tf32fn-descending", kControlOneEps),
    kCudaInvariant,
    kCudaInvariantPortable,
    kCudaInvariantOlder,
    kCudaFast,
    kCudaWitness,
    kCudaOlderWitness,
    kCudaOccupancyControl,
    kCudaRowsControl,
    kCudaOddRowsControl,
    kCudaProcessorsControl,
    kCudaCallsControl,
    kCudaLeakControl,
};

}  // namespace

template <>
const bp_operator& table<Form::pre>() {
  static const bp_operator one =
      make_table<Form::pre>("mhc_pre", "mixes of the residual streams and their collapse into a sublayer's input",
                            kPorts, kImplementations, kAttrs, kMode);
  return one;
}

static const Registration kRegistration(&table<Form::pre>());

}  // namespace batchproof::mhc
