// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/cuda/mhc_product_plan.h"

#include <algorithm>

#include "src/numeric/divide.h"

namespace batchproof::cuda {
namespace {

// Measured (bench/records/README.md): rows times blocks of the reduction.
constexpr std::int64_t kOneTileSums = 1280, kFewSums = 16384;
constexpr int kFewTokensMost = 256;

}  // namespace

std::optional<MhcProductPlan> choose_mhc_product(const MhcProductRequest& r) {
  constexpr int kTile = kFewWarps * kMhcTokens;  // of the kernel for few rows: a tile of eight tokens a warp
  if (r.few_tokens > 0 || (r.many_shares == 0 && r.rows <= kFewRowsMost && r.rows * r.blocks <= kFewSums)) {
    // Few enough that all thread blocks run at once, four on a processor.
    const auto all_at_once = [&](int tokens) {
      return kProductParts * r.blocks * ceil_div(r.rows, tokens) <= 4 * std::int64_t{r.processors};
    };
    int tokens = r.rows * r.blocks <= kOneTileSums ? kTile : 2 * kTile;
    // Not where the last of larger tiles would be half empty: that costs more than a second round.
    const auto fills = [&](int tile) { return ceil_div(r.rows, tile) * tile - r.rows < r.rows / 4; };
    while (tokens < kFewTokensMost && !all_at_once(tokens) && fills(2 * tokens)) tokens *= 2;
    if (r.few_tokens > 0) tokens = r.few_tokens;
    if (r.rows > kFewRowsMost || (tokens != kTile && tokens % (2 * kTile) != 0)) return std::nullopt;
    return MhcProductPlan{true, tokens, 0};
  }
  // As many thread blocks as run at once: each takes its weights once.
  const std::int64_t shares = r.many_shares > 0 ? r.many_shares : std::max(1, r.processors / r.blocks);
  return MhcProductPlan{false, 0, static_cast<int>(std::min(shares, ceil_div(r.rows, kStageTokens)))};
}

}  // namespace batchproof::cuda
