// SPDX-License-Identifier: Apache-2.0
//
// The recipes that the tables point to, by name.
#ifndef BATCHPROOF_OPS_MHC_RECIPES_H_
#define BATCHPROOF_OPS_MHC_RECIPES_H_

#include "ops/mhc/form.h"

namespace batchproof::mhc {

using Plan = Recipe::Plan;
using Defect = Recipe::Defect;

inline constexpr Recipe kChain{Plan::chain, true, false, Defect::none};
inline constexpr Recipe kDescending{Plan::descending, true, false, Defect::none};
inline constexpr Recipe kChainFp32{Plan::chain, false, false, Defect::none};
inline constexpr Recipe kDescendingFp32{Plan::descending, false, false, Defect::none};
inline constexpr Recipe kChainUnrounded{Plan::chain, false, true, Defect::none};
inline constexpr Recipe kDescendingUnrounded{Plan::descending, false, true, Defect::none};
inline constexpr Recipe kPin{Plan::pin, true, false, Defect::none};
inline constexpr Recipe kThreads512{Plan::threads512, false, false, Defect::none};
inline constexpr Recipe kExternal{Plan::external, true, false, Defect::none};
inline constexpr Recipe kOccupancy{Plan::occupancy, true, false, Defect::none};
inline constexpr Recipe kFallback{Plan::fallback, false, false, Defect::none};

inline constexpr Recipe kControlOccupancy{Plan::chain, true, false, Defect::occupancy};
inline constexpr Recipe kControlSmallKernel{Plan::chain, true, false, Defect::small_kernel};
inline constexpr Recipe kControlFallback{Plan::threads512, false, false, Defect::fallback};
inline constexpr Recipe kControlTailDropped{Plan::chain, true, false, Defect::tail_dropped};
inline constexpr Recipe kControlOddRows{Plan::chain, true, false, Defect::odd_rows};
inline constexpr Recipe kControlFp16Squares{Plan::chain, true, false, Defect::fp16_squares};
inline constexpr Recipe kControlArrival{Plan::chain, true, false, Defect::arrival_squares};
inline constexpr Recipe kControlStaleMemo{Plan::pin, true, false, Defect::stale_memo};
inline constexpr Recipe kControlOneEps{Plan::chain, true, false, Defect::one_eps};
inline constexpr Recipe kControlCombTransposed{Plan::chain, true, false, Defect::comb_transposed};
inline constexpr Recipe kControlOrderByRows{Plan::chain, true, false, Defect::order_by_rows};

using Cuda = Recipe::Cuda;
inline constexpr Recipe kCuda{Plan::chain, false, false, Defect::none, Cuda::sm90};
inline constexpr Recipe kCudaPortable{Plan::chain, false, false, Defect::none, Cuda::portable};
inline constexpr Recipe kCudaOlder{Plan::chain, false, false, Defect::none, Cuda::sm80};
inline constexpr Recipe kCudaReversed{Plan::descending, false, false, Defect::none, Cuda::sm90};
inline constexpr Recipe kCudaOlderReversed{Plan::descending, false, false, Defect::none, Cuda::sm80};
inline constexpr Recipe kCudaOccupancy{Plan::occupancy, false, false, Defect::none, Cuda::sm90};
inline constexpr Recipe kCudaControlOccupancy{Plan::chain, false, false, Defect::occupancy, Cuda::sm90};
inline constexpr Recipe kCudaControlRows{Plan::chain, false, false, Defect::order_by_rows, Cuda::sm90};
inline constexpr Recipe kCudaControlOddRows{Plan::chain, false, false, Defect::odd_rows_order, Cuda::sm90};
inline constexpr Recipe kCudaControlProcessors{Plan::chain, false, false, Defect::processors_order, Cuda::sm90};
inline constexpr Recipe kCudaControlCalls{Plan::chain, false, false, Defect::calls_order, Cuda::sm90};
inline constexpr Recipe kCudaControlLeak{Plan::chain, false, false, Defect::nan_leak, Cuda::sm90};

// Implementation entries.
constexpr bp_implementation invariant(const char* id, const char* summary, const char* witness, const Recipe& recipe) {
  return {id, summary, nullptr, BP_MODE_INVARIANT, 0, witness, &recipe};
}
constexpr bp_implementation witness(const char* id, const char* summary, const Recipe& recipe) {
  return {id, summary, nullptr, BP_MODE_INVARIANT, BP_IMPL_WITNESS, nullptr, &recipe};
}
constexpr bp_implementation fast(const char* id, const char* summary, const char* witness, const Recipe& recipe) {
  return {id, summary, nullptr, BP_MODE_FAST, 0, witness, &recipe};
}
constexpr bp_implementation control(const char* id, const char* summary, const char* defect, const char* witness,
                                    const Recipe& recipe) {
  return {id, summary, defect, BP_MODE_INVARIANT, 0, witness, &recipe};
}

constexpr bp_implementation on_cuda(bp_implementation one) {
  one.flags |= BP_IMPL_CUDA;
  return one;
}

inline constexpr char kCudaReversedId[] = "cuda-sm90-bf16x2fn-v2-reversed";

// What every form has on a device; hc_head and mhc_post have nothing else there.
inline constexpr bp_implementation kCudaInvariant = on_cuda(
    invariant("cuda-sm90-bf16x2fn-v2-block256",
              "weights as two BF16 parts on tensor cores, blocks of 256 columns of all streams; one launch where its "
              "clusters fit",
              kCudaReversedId, kCuda));
inline constexpr bp_implementation kCudaInvariantPortable =
    on_cuda(invariant("cuda-sm90-portable-bf16x2fn-v2-block256",
                      "the same in two launches without clusters: the same bytes", kCudaReversedId, kCudaPortable));
inline constexpr bp_implementation kCudaInvariantOlder =
    on_cuda(invariant("cuda-sm80-bf16x2fn-v2-block256", "the same on compute capability 8.x: other bytes",
                      "cuda-sm80-bf16x2fn-v2-reversed", kCudaOlder));
inline constexpr bp_implementation kCudaWitness =
    on_cuda(witness(kCudaReversedId, "every chain from its last part to its first", kCudaReversed));
inline constexpr bp_implementation kCudaOlderWitness = on_cuda(
    witness("cuda-sm80-bf16x2fn-v2-reversed", "every chain from its last part to its first", kCudaOlderReversed));
inline constexpr bp_implementation kCudaRowsControl =
    on_cuda(control("cuda-control-order-by-rows", "the reversed order above 16 tokens",
                    "the order of the sums follows the tokens", kCudaReversedId, kCudaControlRows));
inline constexpr bp_implementation kCudaOddRowsControl =
    on_cuda(control("cuda-control-odd-rows", "the reversed order in odd rows",
                    "the order of the sums follows the position", kCudaReversedId, kCudaControlOddRows));
inline constexpr bp_implementation kCudaProcessorsControl =
    on_cuda(control("cuda-control-processors", "the reversed order where fewer than 100 processors may be used",
                    "the order of the sums follows the processors", kCudaReversedId, kCudaControlProcessors));
inline constexpr bp_implementation kCudaCallsControl =
    on_cuda(control("cuda-control-calls", "the reversed order in every second call",
                    "the order of the sums follows the calls", kCudaReversedId, kCudaControlCalls));
inline constexpr bp_implementation kCudaLeakControl =
    on_cuda(control("cuda-control-nan-leak", "0 * (first element of the next row) is added to the layer input",
                    "a row reads its neighbour", kCudaReversedId, kCudaControlLeak));
inline constexpr bp_implementation kCudaFast =
    on_cuda(fast("cuda-fast-occupancy", "splits from processors and tokens, a small FP32 kernel for few tokens",
                 kCudaReversedId, kCudaOccupancy));
inline constexpr bp_implementation kCudaOccupancyControl = on_cuda(
    control("cuda-control-occupancy-splits", "the default dispatch",
            "kernel, precision and split count follow processors and tokens", kCudaReversedId, kCudaControlOccupancy));

}  // namespace batchproof::mhc

#endif  // BATCHPROOF_OPS_MHC_RECIPES_H_
