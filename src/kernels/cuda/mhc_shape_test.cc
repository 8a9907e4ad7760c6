// SPDX-License-Identifier: Apache-2.0
//
// Shapes of the mHC cluster kernel for a device like an H200: they cover all tokens and columns, fit shared memory and
// use no more clusters than there are.
#include "src/kernels/cuda/mhc_shape.h"

#include <gtest/gtest.h>

namespace batchproof::cuda {
namespace {

constexpr int kBlockShared = 232448, kProcessorShared = 233472;

// As many clusters as shared memory lets eight groups of 16 processors hold.
MhcShapeRequest request(MhcKernelForm form, std::int64_t rows, int blocks) {
  MhcShapeRequest r;
  r.form = form;
  r.rows = rows;
  r.blocks = blocks;
  r.block_shared_bytes = kBlockShared;
  r.processor_shared_bytes = kProcessorShared;
  r.capacity = [form, blocks](const MhcShape& s) {
    const int bytes = mhc_cluster_shared(form, s, blocks);
    if (bytes > kBlockShared) return 0;
    const int per_processor = s.few ? 1 : std::min(2, kProcessorShared / (bytes + 1024));
    return 8 * (16 * per_processor / s.cluster);
  };
  return r;
}

void expect_covers(const MhcShapeRequest& r, const MhcShape& s) {
  EXPECT_GE(s.cluster, 1);
  EXPECT_LE(s.cluster, kMhcClusterMost);
  EXPECT_GE(s.cluster * s.local_blocks, r.blocks);
  EXPECT_LE(s.cluster, r.blocks) << "a thread block without columns";
  EXPECT_EQ(s.tile_tokens % kMhcTokenGroup, 0);
  EXPECT_GE(s.tile_tokens, kMhcTokenGroup);
  EXPECT_LE(s.tile_tokens, s.few ? kMhcFewTokens : kMhcMostTokens);
  EXPECT_GE(static_cast<std::int64_t>(s.tiles) * s.tile_tokens, r.rows);
  EXPECT_LT(static_cast<std::int64_t>(s.tiles - 1) * s.tile_tokens, r.rows) << "an empty tile";
  EXPECT_GE(s.clusters, 1);
  EXPECT_LE(s.clusters, s.tiles);
  EXPECT_LE(s.clusters, r.capacity(s));
  EXPECT_LE(mhc_cluster_shared(r.form, s, r.blocks), kBlockShared);
}

TEST(MhcShape, CoversEveryTokenAndColumnWithinTheDevice) {
  for (const MhcKernelForm form :
       {MhcKernelForm::pre, MhcKernelForm::broadcast, MhcKernelForm::fused, MhcKernelForm::head}) {
    for (const int blocks : {1, 2, 3, 15, 16, 17, 20, 28, 32, 33}) {
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

TEST(MhcShape, OneBlockOfTheReductionPerThreadBlockAtTheUsualSizes) {
  EXPECT_EQ(choose_mhc_shape(request(MhcKernelForm::fused, 1, 16))->cluster, 16);  // H = 4096
  EXPECT_EQ(choose_mhc_shape(request(MhcKernelForm::fused, 1, 20))->cluster, 10);  // 5120: two each
  EXPECT_EQ(choose_mhc_shape(request(MhcKernelForm::fused, 1, 28))->cluster, 14);  // 7168: two each
}

TEST(MhcShape, FewTokensHaveAClusterPerTile) {
  const auto one = choose_mhc_shape(request(MhcKernelForm::fused, 1, 16));
  EXPECT_TRUE(one->few);
  EXPECT_EQ(one->clusters, 1);
  const auto many = choose_mhc_shape(request(MhcKernelForm::fused, 8192, 16));
  EXPECT_FALSE(many->few);
  EXPECT_GT(many->tiles, many->clusters);
}

TEST(MhcShape, TilesAreAsEqualAsGroupsOfEightAllow) {
  const auto shape = choose_mhc_shape(request(MhcKernelForm::fused, 1040, 16));
  const std::int64_t rounds = (shape->tiles + shape->clusters - 1) / shape->clusters;
  EXPECT_LE(rounds * shape->clusters * (shape->tile_tokens - kMhcTokenGroup), 1040);
}

TEST(MhcShape, NothingWhereColumnsDoNotFit) {
  EXPECT_FALSE(choose_mhc_shape(request(MhcKernelForm::fused, 8, 4096)));
  MhcShapeRequest none = request(MhcKernelForm::pre, 8, 16);
  none.capacity = [](const MhcShape&) { return 0; };
  EXPECT_FALSE(choose_mhc_shape(none));
}

TEST(MhcShape, AMeasurementGetsTheTileItAsksFor) {
  MhcShapeRequest r = request(MhcKernelForm::pre, 4096, 16);
  r.tile_tokens = 16;
  r.cluster = 8;
  const auto shape = choose_mhc_shape(r);
  ASSERT_TRUE(shape);
  EXPECT_EQ(shape->cluster, 8);
  EXPECT_LE(shape->tile_tokens, 16);
  expect_covers(r, *shape);
}

// The parts of shared memory follow one another, at the alignment that the kernel's accesses need.
TEST(MhcLayout, PartsAreAlignedAndInOrder) {
  for (const int tokens : {8, 16, 24, 32}) {
    for (const int blocks : {1, 3, 16, 28}) {
      MhcShape s{};
      s.tile_tokens = tokens;
      s.cluster = std::min(blocks, 14);
      s.local_blocks = (blocks + s.cluster - 1) / s.cluster;
      const MhcLayout l = mhc_layout(4, true, s, blocks);
      const int ends[] = {0,          l.x,       l.parts,         l.outbox,  l.places, l.exchange,
                          l.pre,      l.carried, l.block_squares, l.squares, l.comb,   l.coefficients,
                          l.barriers, l.total};
      for (std::size_t i = 1; i < std::size(ends); ++i) EXPECT_LE(ends[i - 1], ends[i]) << i;
      for (const int at : {l.x, l.parts, l.outbox, l.exchange, l.pre, l.carried, l.squares, l.coefficients})
        EXPECT_EQ(at % 16, 0) << tokens << " tokens, " << blocks << " blocks";
      EXPECT_EQ(l.barriers % 8, 0);
    }
  }
}

}  // namespace
}  // namespace batchproof::cuda
