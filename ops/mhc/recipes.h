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

}  // namespace batchproof::mhc

#endif  // BATCHPROOF_OPS_MHC_RECIPES_H_
