// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/cuda/mhc_relay_plan.h"

#include <algorithm>

#include "src/numeric/divide.h"

namespace batchproof::cuda {
namespace {

// Measured (bench/records/README.md). Fewer stages ahead and thread blocks wait for one another; more, and the L2 has
// lost what is read again.
constexpr int kAheadPre = 5, kAheadFused = 6;
// Rows times blocks of the reduction: about two and a half stages a thread block on 132 processors, and four, since a
// dependent launch of the cluster kernel starts before the kernel in front of it ends.
constexpr std::int64_t kSumsLeast = 5120, kSumsLeastDependent = 8192;
constexpr int kBlocksLeast = 16;  // fewer were not measured: finish warps without a block of a token have nothing to do

}  // namespace

std::optional<MhcRelayPlan> choose_mhc_relay(const MhcRelayRequest& r) {
  if (r.form != MhcKernelForm::pre && r.form != MhcKernelForm::fused) return std::nullopt;
  if (r.rows <= 0 || r.blocks > std::min(kRelayBlocksMost, r.processors)) return std::nullopt;
  const std::int64_t most = std::min<std::int64_t>(r.processors / r.blocks, ceil_div(r.rows, kStageTokens));
  const int ahead = r.ahead > 0 ? r.ahead : r.form == MhcKernelForm::pre ? kAheadPre : kAheadFused;
  return MhcRelayPlan{static_cast<int>(r.shares > 0 ? std::min<std::int64_t>(r.shares, most) : most),
                      std::max(ahead, kRelayAheadLeast)};
}

bool mhc_relay_pays(std::int64_t rows, int blocks, bool dependent) {
  return blocks >= kBlocksLeast && rows * blocks >= (dependent ? kSumsLeastDependent : kSumsLeast);
}

MhcRelayFloats mhc_relay_floats(std::int64_t rows, std::int64_t blocks) {
  return {rows * blocks * kRelaySumFloats, ceil_div(rows, kStageTokens)};
}

}  // namespace batchproof::cuda
