// SPDX-License-Identifier: Apache-2.0
//
// Shapes of the mHC cluster kernel for a device like an H200: they cover all tokens and columns, fit shared memory, use
// no more clusters than there are, and have room for everything that may be under way.
#include "src/kernels/cuda/mhc_shape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

namespace batchproof::cuda {
namespace {

constexpr int kBlockShared = 232448;

// As many clusters as eight groups of 16 processors hold, with one thread block each.
MhcShapeRequest request(MhcKernelForm form, std::int64_t rows, int blocks) {
  MhcShapeRequest r;
  r.form = form;
  r.rows = rows;
  r.blocks = blocks;
  r.block_shared_bytes = kBlockShared;
  r.capacity = [form, blocks](const MhcShape& s) {
    return mhc_layout(form, s, blocks).total > kBlockShared ? 0 : 8 * (16 / s.cluster);
  };
  return r;
}

void expect_covers(const MhcShapeRequest& r, const MhcShape& s) {
  EXPECT_GE(s.cluster, 2);
  EXPECT_LE(s.cluster, kMhcClusterMost);
  EXPECT_LE(s.local_blocks, kMhcLocalMost);
  EXPECT_GE(s.cluster * s.local_blocks, r.blocks);
  EXPECT_LE(s.cluster, r.blocks) << "a thread block without columns";
  EXPECT_GE(static_cast<std::int64_t>(s.tiles) * kMhcTokens, r.rows);
  EXPECT_LT(static_cast<std::int64_t>(s.tiles - 1) * kMhcTokens, r.rows) << "an empty tile";
  EXPECT_GE(s.clusters, 1);
  EXPECT_LE(s.clusters, s.tiles) << "a cluster without a tile";
  EXPECT_LE(s.clusters, r.capacity(s));
  EXPECT_LE(mhc_layout(r.form, s, r.blocks).total, kBlockShared);
  EXPECT_GE(s.slots, 1);
  EXPECT_LE(s.slots, kMhcSlotsMost);
  EXPECT_LT(s.lag, s.slots) << "a tile would wait for the slot that it holds";
  EXPECT_GT(s.ring, s.slots) << "the norm of a tile follows its collapse";
  EXPECT_GE(s.owned_most * s.cluster, s.slots * kMhcTokens) << "no place for a token's sums";
  EXPECT_GE(s.owned_barriers, s.owned_most);
  EXPECT_EQ(s.owned_barriers % (kMhcOwnerWarps * kMhcBatch), 0) << "two warps would share a barrier";
}

constexpr MhcKernelForm kForms[] = {MhcKernelForm::pre, MhcKernelForm::broadcast, MhcKernelForm::fused,
                                    MhcKernelForm::head};

TEST(MhcShape, CoversEveryTokenAndColumnWithinTheDevice) {
  for (const MhcKernelForm form : kForms) {
    for (const int blocks : {2, 3, 15, 16, 17, 20, 28, 31, 32}) {
      for (const std::int64_t rows : {1, 7, 8, 9, 16, 17, 64, 128, 129, 257, 1000, 4096, 16384, 65536}) {
        for (const int processors : {0, 1, 20, 132}) {
          MhcShapeRequest r = request(form, rows, blocks);
          r.processors = processors;
          const auto shape = choose_mhc_shape(r);
          ASSERT_TRUE(shape) << blocks << " blocks, " << rows << " rows";
          SCOPED_TRACE(testing::Message() << blocks << " blocks, " << rows << " rows, " << processors << " processors");
          expect_covers(r, *shape);
        }
      }
    }
  }
}

TEST(MhcShape, FewTokensHaveOneBlockOfTheReductionPerThreadBlockWhereAClusterAllows) {
  EXPECT_EQ(choose_mhc_shape(request(MhcKernelForm::fused, 1, 16))->cluster, 16);  // H = 4096
  EXPECT_EQ(choose_mhc_shape(request(MhcKernelForm::fused, 1, 20))->cluster, 10);  // 5120: two each
  EXPECT_EQ(choose_mhc_shape(request(MhcKernelForm::fused, 1, 28))->cluster, 14);  // 7168: two each
  EXPECT_EQ(choose_mhc_shape(request(MhcKernelForm::fused, 8192, 16))->cluster, 8);
}

TEST(MhcShape, NoTileWaitsForACollapseWhereAllHaveASlot) {
  const auto few = choose_mhc_shape(request(MhcKernelForm::fused, 64, 16));
  EXPECT_EQ(few->lag, few->slots - 1);
  const auto many = choose_mhc_shape(request(MhcKernelForm::fused, 8192, 28));
  EXPECT_GT(many->tiles, many->clusters * many->slots);
  EXPECT_LT(many->lag, many->slots - 1);
}

TEST(MhcShape, NothingWhereColumnsDoNotFit) {
  EXPECT_FALSE(choose_mhc_shape(request(MhcKernelForm::fused, 8, 1))) << "a cluster of one";
  EXPECT_FALSE(choose_mhc_shape(request(MhcKernelForm::fused, 8, 33)));
  EXPECT_FALSE(choose_mhc_shape(request(MhcKernelForm::fused, 8, 4096)));
  MhcShapeRequest small = request(MhcKernelForm::fused, 8, 16);
  small.block_shared_bytes = 100000;
  EXPECT_FALSE(choose_mhc_shape(small));
  MhcShapeRequest none = request(MhcKernelForm::pre, 8, 16);
  none.capacity = [](const MhcShape&) { return 0; };
  EXPECT_FALSE(choose_mhc_shape(none));
}

TEST(MhcShape, AMeasurementGetsWhatItAsksFor) {
  MhcShapeRequest r = request(MhcKernelForm::pre, 4096, 16);
  r.cluster = 16;
  r.slots = 2;
  r.lag = 1;
  const auto shape = choose_mhc_shape(r);
  ASSERT_TRUE(shape);
  EXPECT_EQ(shape->cluster, 16);
  EXPECT_EQ(shape->slots, 2);
  EXPECT_EQ(shape->lag, 1);
  expect_covers(r, *shape);
}

// The parts of shared memory follow one another, at the alignment that the kernel's accesses need.
TEST(MhcLayout, PartsAreAlignedAndInOrder) {
  for (const MhcKernelForm form : kForms) {
    for (const int blocks : {2, 3, 16, 28}) {
      MhcShapeRequest r = request(form, 1000, blocks);
      const auto shape = choose_mhc_shape(r);
      ASSERT_TRUE(shape);
      const MhcLayout l = mhc_layout(form, *shape, blocks);
      const int ends[] = {0,         l.slots,        l.parts,       l.exchange, l.pre,  l.norm_out,
                          l.norm_in, l.coefficients, l.norm_weight, l.barriers, l.total};
      for (std::size_t i = 1; i < std::size(ends); ++i) EXPECT_LT(ends[i - 1], ends[i]) << i;
      for (const int at : {l.slots, l.parts, l.exchange, l.pre, l.norm_out, l.norm_in, l.coefficients, l.norm_weight})
        EXPECT_EQ(at % 16, 0) << blocks << " blocks";
      EXPECT_EQ(l.barriers % 8, 0);
    }
  }
}

}  // namespace
}  // namespace batchproof::cuda
