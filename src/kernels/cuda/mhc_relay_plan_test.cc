// SPDX-License-Identifier: Apache-2.0
//
// Plans of the kernel for many rows, for a device like an H200: every thread block has a processor and tokens, none can
// wait for one that waits for it, and the rows from which it is chosen are those from which it was measured faster.
#include "src/kernels/cuda/mhc_relay_plan.h"

#include <gtest/gtest.h>

#include "src/numeric/divide.h"

namespace batchproof::cuda {
namespace {

MhcRelayRequest request(std::int64_t rows, int blocks) {
  MhcRelayRequest r;
  r.form = MhcKernelForm::fused;
  r.rows = rows;
  r.blocks = blocks;
  r.processors = 132;
  return r;
}

TEST(MhcRelayPlan, EveryThreadBlockHasAProcessorAndTokens) {
  for (const int blocks : {1, 3, 16, 20, 28, 32}) {
    for (const std::int64_t rows : {1, 15, 16, 17, 130, 777, 8192, 100000}) {
      for (const int shares : {0, 1, 7, 1000}) {
        MhcRelayRequest r = request(rows, blocks);
        r.shares = shares;
        const auto plan = choose_mhc_relay(r);
        ASSERT_TRUE(plan) << rows << " rows, " << blocks << " blocks";
        EXPECT_GE(plan->shares, 1);
        EXPECT_LE(plan->shares * blocks, r.processors) << "thread blocks that wait for one that does not run";
        EXPECT_LE(plan->shares, ceil_div(rows, kStageTokens)) << "a thread block without tokens";
      }
    }
  }
  EXPECT_EQ(choose_mhc_relay(request(8192, 16))->shares, 8);
  EXPECT_EQ(choose_mhc_relay(request(8192, 28))->shares, 4);
}

TEST(MhcRelayPlan, ThreadBlocksAreFarEnoughAhead) {
  for (const MhcKernelForm form : {MhcKernelForm::pre, MhcKernelForm::fused}) {
    for (const int ahead : {0, 1, 3, 4, 100}) {
      MhcRelayRequest r = request(8192, 16);
      r.form = form;
      r.ahead = ahead;
      EXPECT_GE(choose_mhc_relay(r)->ahead, kRelayAheadLeast) << "each would wait for the other's next stage";
    }
  }
}

TEST(MhcRelayPlan, NothingWhereItDoesNotFit) {
  EXPECT_FALSE(choose_mhc_relay(request(8192, kRelayBlocksMost + 1)));
  MhcRelayRequest r = request(8192, 16);
  r.processors = 15;
  EXPECT_FALSE(choose_mhc_relay(r)) << "fewer processors than thread blocks that wait for one another";
  for (const MhcKernelForm form : {MhcKernelForm::broadcast, MhcKernelForm::head}) {
    r = request(8192, 16);
    r.form = form;
    EXPECT_FALSE(choose_mhc_relay(r));
  }
  EXPECT_FALSE(choose_mhc_relay(request(0, 16)));
}

TEST(MhcRelayPlan, PaysFromAFewStagesAThreadBlockOn) {
  EXPECT_FALSE(mhc_relay_pays(256, 16, false));
  EXPECT_TRUE(mhc_relay_pays(512, 16, false));
  EXPECT_TRUE(mhc_relay_pays(256, 20, false));
  EXPECT_FALSE(mhc_relay_pays(128, 28, false));
  EXPECT_FALSE(mhc_relay_pays(256, 28, true)) << "a dependent launch of clusters was faster";
  EXPECT_TRUE(mhc_relay_pays(512, 28, true));
  EXPECT_FALSE(mhc_relay_pays(100000, 8, false)) << "not measured";
}

TEST(MhcRelayPlan, SumsOfATokenAreWholeLines) {
  EXPECT_EQ(kRelaySumFloats * sizeof(float) % 128, 0u);
  EXPECT_GE(kRelaySumFloats, kMhcSumStride);
  EXPECT_EQ(mhc_relay_floats(17, 20).sums, 17 * 20 * kRelaySumFloats);
  EXPECT_EQ(mhc_relay_floats(17, 20).complete, 2);
}

}  // namespace
}  // namespace batchproof::cuda
