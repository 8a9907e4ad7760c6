// SPDX-License-Identifier: Apache-2.0
//
// The tiling rule of control-a-tiling-rule: known chunks, and at which points of request A's matrix its paths differ.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <utility>

#include "ops/all_gather_matmul/all_gather_matmul.h"

namespace batchproof {
namespace {

// The chunk shrinks with the rows, and where the two paths of a rank differ.
TEST(AllGatherMatmulControls, AdaptiveChunk) {
  struct Known {
    std::int64_t m, n, chunk;
  };
  for (const Known& known : {Known{1, 256, 2048}, Known{4, 512, 2048}, Known{16, 4096, 256}, Known{64, 256, 1024},
                             Known{64, 512, 1024}, Known{64, 4096, 256}, Known{128, 256, 1024}, Known{128, 512, 512},
                             Known{128, 4096, 256}, Known{256, 256, 512}, Known{256, 512, 512}, Known{256, 4096, 128},
                             Known{1024, 256, 256}, Known{1024, 512, 256}, Known{4096, 512, 128}}) {
    EXPECT_EQ(adaptive_chunk(known.m, known.n, 2048), known.chunk) << known.m << ", " << known.n;
  }
  std::map<std::pair<int, std::int64_t>, int> differing;
  int total = 0;
  for (const int world : {2, 4, 8}) {
    for (const std::int64_t m : {1, 4, 8, 16, 32, 64}) {
      for (const std::int64_t k : {128, 256, 512, 1024, 2048}) {
        for (const std::int64_t n : {64, 128, 256, 512}) {
          if (adaptive_chunk(m, n, k) == adaptive_chunk(m * (world - 1), n, k)) continue;
          ++differing[{world, m}];
          ++total;
        }
      }
    }
  }
  const std::map<std::pair<int, std::int64_t>, int> expected = {{{8, 64}, 8}, {{8, 32}, 6}, {{8, 16}, 4},
                                                                {{8, 8}, 2},  {{8, 4}, 1},  {{4, 64}, 6},
                                                                {{4, 32}, 4}, {{4, 16}, 2}, {{4, 8}, 1}};
  EXPECT_EQ(differing, expected);
  EXPECT_EQ(total, 34);
}

}  // namespace
}  // namespace batchproof
