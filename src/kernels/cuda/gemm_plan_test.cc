// SPDX-License-Identifier: Apache-2.0
//
// Plans follow the batch; the segments of the schedule do not. Every plan fits the device and covers the reduction.
#include "src/kernels/cuda/gemm_plan.h"

#include <gtest/gtest.h>

#include <set>

namespace batchproof::cuda {
namespace {

KAxis chain(std::int64_t k) { return *kernel_axis(*cuda_gemm_schedule(k)); }
KAxis tree(std::int64_t k) { return *kernel_axis(*Schedule::make(k, TreePolicy{16, 16, kCudaTreeSegment})); }

TEST(KernelAxis, AgreesWithTheSchedule) {
  for (const std::int64_t k : {1, 15, 16, 1000, 1024, 1025, 7168, 65536}) {
    const Schedule schedule = *cuda_gemm_schedule(k);
    const KAxis axis = *kernel_axis(schedule);
    ASSERT_EQ(axis.segments(), static_cast<int>(schedule.segments().size()));
    for (int s = 0; s < axis.segments(); ++s) {
      EXPECT_EQ(axis.begin(s), schedule.segments()[static_cast<std::size_t>(s)].begin);
      EXPECT_EQ(axis.end(s), schedule.segments()[static_cast<std::size_t>(s)].end);
    }
  }
  const Schedule schedule = *Schedule::make(65536, TreePolicy{16, 16, kCudaTreeSegment});
  const KAxis axis = *kernel_axis(schedule);
  EXPECT_EQ(axis.slices, 16);
  EXPECT_EQ(axis.per_slice, 2);
  for (int s = 0; s < axis.segments(); ++s)
    EXPECT_EQ(axis.end(s), schedule.segments()[static_cast<std::size_t>(s)].end);
}

TEST(KernelAxis, RefusesCutsInsideAStep) {
  const auto axis = kernel_axis(*Schedule::make(100, ChainPolicy{24}));
  ASSERT_FALSE(axis);
  EXPECT_NE(axis.error().message.find("chain24"), std::string::npos);
  EXPECT_NE(axis.error().message.find("16"), std::string::npos);
  // One segment has no cut.
  EXPECT_TRUE(kernel_axis(*Schedule::make(20, ChainPolicy{24})));
}

TEST(KernelAxis, PartsCoverTheSegmentsInOrder) {
  for (const KAxis& axis : {chain(7168), chain(3000), tree(4096)}) {
    for (int parts = 1; parts <= 8; ++parts) {
      if (axis.slices > 1 && axis.slices % parts != 0) continue;
      EXPECT_EQ(axis.part_begin(0, parts), 0);
      EXPECT_EQ(axis.part_begin(parts, parts), axis.segments());
      for (int part = 0; part < parts; ++part) {
        EXPECT_LE(axis.part_begin(part, parts), axis.part_begin(part + 1, parts));
        if (axis.slices > 1) {
          EXPECT_EQ(axis.part_begin(part, parts) % axis.per_slice, 0);  // whole slices
        }
      }
    }
  }
}

TEST(GemmPlan, EveryPlanFitsTheDevice) {
  const GemmDevice device;
  for (const bool mn : {false, true}) {
    for (const KAxis& axis : {chain(64), chain(1024), chain(7168), chain(65536), tree(4096), tree(65536)}) {
      for (const std::int64_t m : {1, 17, 64, 129, 1000, 65536}) {
        for (const std::int64_t n : {1, 72, 512, 2112, 18432}) {
          const GemmShape shape{m, n, axis, mn};
          const auto plans = gemm_plans(shape, device);
          ASSERT_FALSE(plans.empty()) << m << " " << n << " " << axis.length;
          for (const GemmPlan& plan : plans) {
            const GemmLayout l = gemm_layout(plan.tile, plan.step, plan.deep, plan.stages, plan.extra_sums);
            EXPECT_LE(l.total + 1024, device.block_shared_bytes) << plan.name();
            EXPECT_LE(plan.blocks * (l.total + 2048), device.processor_shared_bytes) << plan.name();
            EXPECT_GE(plan.stages, 3) << plan.name();
            EXPECT_EQ(plan.step % 8, 0) << plan.name();
            EXPECT_LE(plan.step, plan.tile.columns()) << plan.name();
            EXPECT_GT(plan.step, plan.tile.columns() - 64) << plan.name();  // a whole warpgroup idle is a mistake
            EXPECT_LE(plan.cluster_n * plan.cluster_k, 8) << plan.name();
            EXPECT_EQ(plan.tile.tree, axis.slices > 1) << plan.name();
            EXPECT_GT(gemm_plan_cost(plan, shape, device), 0) << plan.name();
          }
        }
      }
    }
  }
}

TEST(GemmPlan, HasTheWidthsThatTheRulesProve) {
  // A case for each in tensor_core_products.cu, whole tiles in the columns of tensor_core_rules.cu.cc.
  EXPECT_EQ(gemm_widths(), (std::vector<int>{16, 32, 64, 96, 112, 128, 144, 176, 192, 256}));
}

TEST(GemmPlan, FollowsTheBatch) {
  std::set<std::string> names;
  for (const std::int64_t m : {1, 64, 128, 1024, 8192})
    names.insert(choose_gemm_plan({m, 4096, chain(4096), false}, {}).name());
  EXPECT_GE(names.size(), 3u);
}

std::int64_t blocks_of(const GemmPlan& plan, std::int64_t m, std::int64_t n) {
  return (m + plan.tile.rows() - 1) / plan.tile.rows() * ((n + plan.step - 1) / plan.step) * plan.cluster_k;
}

TEST(GemmPlan, UsesTheWholeDeviceForFewRows) {
  // Tiles of 64 columns would be 288: two rounds on every processor and a third on 24 of them.
  const GemmPlan plan = choose_gemm_plan({1, 18432, chain(7168), false}, {});
  const std::int64_t blocks = blocks_of(plan, 1, 18432);
  const std::int64_t rounds = (blocks + 131) / 132;
  EXPECT_GE(blocks, rounds * 125) << plan.name();
}

TEST(GemmPlan, DividesTheColumnsEvenly) {
  // One round of 128 tiles of 144 columns, in place of 144 tiles of 128.
  const GemmPlan plan = choose_gemm_plan({128, 18432, chain(7168), false}, {});
  EXPECT_EQ(blocks_of(plan, 128, 18432), 128) << plan.name();
  EXPECT_TRUE(plan.tile.by_rows) << plan.name();
}

TEST(GemmSchedule, HasAsFewEqualSegmentsAsItsLengthAllows) {
  EXPECT_EQ(cuda_gemm_schedule(0)->segments().size(), 0u);
  EXPECT_EQ(cuda_gemm_schedule(8192)->segments().size(), 1u);
  for (const std::int64_t k : {8193, 9000, 16384, 28672, 65536}) {
    const Schedule schedule = *cuda_gemm_schedule(k);
    EXPECT_EQ(static_cast<std::int64_t>(schedule.segments().size()), (k + kCudaGemmSegment - 1) / kCudaGemmSegment);
    for (const Segment& s : schedule.segments()) {
      EXPECT_LE(s.end - s.begin, kCudaGemmSegment);
      EXPECT_EQ(s.begin % kBlockK, 0);
      EXPECT_GE(s.end - s.begin, (schedule.segments().front().end - schedule.segments().front().begin) * 9 / 10);
    }
  }
}

TEST(GemmPlan, SumsOfAPartDoNotOverlap) {
  const GemmLayout l = gemm_layout({128, 2}, 128, 1, 6, 3);
  for (int count = 1; count <= 5; ++count) {
    std::set<int> offsets;
    for (int b = 0; b < count; ++b) {
      const int at = sum_offset(l, b, count);
      for (const int other : offsets) EXPECT_GE(std::abs(at - other), l.sum_bytes);
      offsets.insert(at);
      EXPECT_LE(at + l.sum_bytes, l.staging);
    }
  }
}

}  // namespace
}  // namespace batchproof::cuda
