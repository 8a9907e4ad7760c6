// SPDX-License-Identifier: Apache-2.0
//
// Plans of the kernel for many rows, for a device like an H200: every thread block has a processor and tokens, none can
// wait for one that waits for it, and the rows from which it is chosen are those from which it was measured faster.
#include "src/kernels/cuda/mhc_relay_plan.h"

#include <gtest/gtest.h>

#include <vector>

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

// What each step of a thread block waits for (mhc_relay_sums.cuh, mhc_relay_finish.cuh), stage by stage, with post.
class Waits {
 public:
  Waits(int thread_blocks, int stages, int ahead) : thread_blocks_(thread_blocks), stages_(stages), ahead_(ahead) {
    seen_.assign(static_cast<std::size_t>(kSteps * thread_blocks * stages), Seen::no);
  }
  // Whether every step of every thread block can be reached, whatever runs first.
  bool all_reached() {
    for (int block = 0; block < thread_blocks_; ++block) {
      for (int i = 0; i < stages_; ++i) {
        for (int step = 0; step < kSteps; ++step)
          if (!reached(static_cast<Step>(step), block, i)) return false;
      }
    }
    return true;
  }

 private:
  enum Step { load, posted, multiplied, written, said, finished, kSteps };
  enum class Seen { no, under_way, yes };

  bool reached(Step step, int block, int i) {
    if (i < 0 || i >= stages_) return true;
    Seen& seen = seen_[static_cast<std::size_t>((step * thread_blocks_ + block) * stages_ + i)];
    if (seen != Seen::no) return seen == Seen::yes;  // under way: it waits for itself
    seen = Seen::under_way;
    const bool ok = waits_of(step, block, i);
    if (ok) seen = Seen::yes;
    return ok;
  }
  bool waits_of(Step step, int block, int i) {
    switch (step) {
      case load:  // into the slot of a stage that is posted, stored and multiplied
        return reached(posted, block, i - kRelaySlots) && reached(multiplied, block, i - kRelaySlots) &&
               reached(load, block, i - 1) && reached(finished, block, i - ahead_);
      case posted:
        return reached(load, block, i) && reached(posted, block, i - 1);
      case multiplied:  // the sums of the stage before are merged, for which there is a place
        return reached(posted, block, i) && reached(multiplied, block, i - 1) &&
               reached(said, block, i - 1 - kRelayStored);
      case written:  // by the warp that has started the load of the slot's next stage
        return reached(posted, block, i) && reached(load, block, i + kRelaySlots) &&
               reached(said, block, i - kRelayStored);
      case said:
        return reached(multiplied, block, i) && reached(written, block, i) && reached(said, block, i - kRelayStored) &&
               reached(said, block, i - 1);
      case finished:
        for (int other = 0; other < thread_blocks_; ++other)
          if (!reached(said, other, i)) return false;
        return reached(finished, block, i - 1);
      case kSteps:
        break;
    }
    return false;
  }

  int thread_blocks_, stages_, ahead_;
  std::vector<Seen> seen_;
};

TEST(MhcRelayPlan, NoThreadBlockWaitsForOneThatWaitsForIt) {
  for (const int ahead : {kRelayAheadLeast, kRelayAheadLeast + 1, 6, 100})
    EXPECT_TRUE(Waits(3, 20, ahead).all_reached()) << ahead << " stages ahead";
  EXPECT_FALSE(Waits(3, 20, kRelayAheadLeast - 1).all_reached()) << "the control: a stage ahead too few";
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
