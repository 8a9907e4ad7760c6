// SPDX-License-Identifier: Apache-2.0
//
// Plans of the product alone for a device like an H200: they cover all tokens, stay within what the workspace and the
// kernels allow, and follow what was measured.
#include "src/kernels/cuda/mhc_product_plan.h"

#include <gtest/gtest.h>

#include "src/numeric/divide.h"

namespace batchproof::cuda {
namespace {

MhcProductRequest request(std::int64_t rows, int blocks) {
  MhcProductRequest r;
  r.rows = rows;
  r.blocks = blocks;
  r.processors = 132;
  return r;
}

void expect_sound(const MhcProductRequest& r, const MhcProductPlan& p) {
  const auto text = ::testing::Message() << r.rows << " rows, " << r.blocks << " blocks";
  if (p.few) {
    EXPECT_LE(r.rows, kFewRowsMost) << text;
    EXPECT_EQ(p.tokens % (kFewWarps * kMhcTokens), 0) << text;
    EXPECT_EQ(p.partials(r.blocks), p.group() * r.blocks) << text;
  } else {
    EXPECT_GE(p.shares, 1) << text;
    EXPECT_LE(p.shares, ceil_div(r.rows, kStageTokens)) << text << ": a thread block without tokens";
    EXPECT_EQ(p.partials(r.blocks), r.blocks) << text;
    EXPECT_EQ(p.group(), 1) << text;
  }
  EXPECT_LE(r.rows * p.partials(r.blocks), mhc_product_sums(r.rows, r.blocks)) << text;
}

TEST(MhcProductPlan, CoversEveryTokenWithinTheWorkspace) {
  for (const int blocks : {1, 3, 16, 20, 28, 64, 200}) {
    for (const std::int64_t rows : {1, 7, 8, 9, 17, 64, 65, 129, 256, 257, 512, 513, 1024, 1025, 4096, 16384, 100000}) {
      const auto plan = choose_mhc_product(request(rows, blocks));
      ASSERT_TRUE(plan);
      expect_sound(request(rows, blocks), *plan);
    }
  }
}

TEST(MhcProductPlan, FewRowsLeavePartsAndManyLeaveBlocks) {
  EXPECT_TRUE(choose_mhc_product(request(1, 16))->few);
  EXPECT_EQ(choose_mhc_product(request(64, 16))->tokens, 32);
  EXPECT_EQ(choose_mhc_product(request(128, 16))->tokens, 64);
  EXPECT_EQ(choose_mhc_product(request(256, 16))->tokens, 64);
  EXPECT_EQ(choose_mhc_product(request(256, 28))->tokens, 128);
  EXPECT_EQ(choose_mhc_product(request(512, 28))->tokens, 256);
  EXPECT_EQ(choose_mhc_product(request(129, 28))->tokens, 64) << "a tile of 128 with one token";
  EXPECT_EQ(choose_mhc_product(request(192, 28))->tokens, 64);
  EXPECT_TRUE(choose_mhc_product(request(1024, 16))->few);
  EXPECT_FALSE(choose_mhc_product(request(1025, 16))->few);
  EXPECT_FALSE(choose_mhc_product(request(1024, 28))->few);
  // Eight shares of sixteen blocks: 128 of 132 processors.
  EXPECT_EQ(choose_mhc_product(request(8192, 16))->shares, 8);
  EXPECT_EQ(choose_mhc_product(request(8192, 28))->shares, 4);
}

TEST(MhcProductPlan, AMeasurementGetsWhatItAsksForOrNothing) {
  MhcProductRequest r = request(200, 16);
  r.few_tokens = 128;
  EXPECT_EQ(choose_mhc_product(r)->tokens, 128);
  r.few_tokens = 48;
  EXPECT_FALSE(choose_mhc_product(r)) << "half a round";
  r = request(kFewRowsMost + 1, 16);
  r.few_tokens = 64;
  EXPECT_FALSE(choose_mhc_product(r)) << "sums that the workspace has no place for";
  r = request(50, 16);
  r.many_shares = 100;
  EXPECT_EQ(choose_mhc_product(r)->shares, 4) << "as many as there are stages";
}

}  // namespace
}  // namespace batchproof::cuda
