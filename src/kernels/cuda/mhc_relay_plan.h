// SPDX-License-Identifier: Apache-2.0
//
// When mhc_pre and the fused form go by the kernel whose thread blocks hand tokens to one another (mhc_relay_sm90.cu),
// how they share the tokens, and what they need of the workspace. Read by host and device code. A plan changes time
// only.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_MHC_RELAY_PLAN_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_MHC_RELAY_PLAN_H_

#include <cstdint>
#include <optional>

#include "src/kernels/cuda/mhc_shape.h"

namespace batchproof::cuda {

constexpr int kRelayBlocksMost = 32;  // of the reduction: 8192 columns
constexpr int kRelaySumFloats = 32;   // of a token and a block: 25 sums and padding to a whole line
// Stages in shared memory. Thread blocks may be so many stages apart that one waits for another's before its own next.
constexpr int kRelaySlots = 3;
constexpr int kRelayAheadLeast = kRelaySlots + 1;
constexpr int kRelayStored = 4;  // stages whose sums are stored and that are not said to be complete, most

struct MhcRelayPlan {
  int shares;  // of the tokens; each has a thread block for each block of the reduction, all of which run at once
  int ahead;   // stages that a thread block reads ahead of the tokens it finishes
};

struct MhcRelayRequest {
  MhcKernelForm form = MhcKernelForm::pre;
  std::int64_t rows = 0;
  int blocks = 0;      // of the reduction
  int processors = 0;  // of the device
  // For measurements; 0: chosen.
  int shares = 0, ahead = 0;
};

// Nothing where the form is neither mhc_pre nor fused, or where there are more blocks than the kernel has places for or
// than processors.
std::optional<MhcRelayPlan> choose_mhc_relay(const MhcRelayRequest& request);

// Whether there are rows enough for it to be faster than the cluster kernel, launched plainly or as a dependent one.
bool mhc_relay_pays(std::int64_t rows, int blocks, bool dependent);

// Floats of the workspace, in the order in which they lie there.
struct MhcRelayFloats {
  std::int64_t sums;      // [rows, blocks, kRelaySumFloats]
  std::int64_t complete;  // a counter of every stage
};
MhcRelayFloats mhc_relay_floats(std::int64_t rows, std::int64_t blocks);

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_MHC_RELAY_PLAN_H_
