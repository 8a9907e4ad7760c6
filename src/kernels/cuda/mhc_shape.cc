// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/cuda/mhc_shape.h"

#include <algorithm>

namespace batchproof::cuda {
namespace {

constexpr int kReservedShared = 1024;  // bytes that each thread block takes of a processor's besides its own

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

MhcShape cut(int cluster, int tokens, bool few, int blocks) {
  MhcShape s{};
  s.cluster = cluster;
  s.tile_tokens = tokens;
  s.few = few;
  s.local_blocks = static_cast<int>(ceil_div(blocks, cluster));
  return s;
}

// Most tokens of a tile, a multiple of 8, that leave a thread block within `bytes` of shared memory; 0: none.
int most_tokens(MhcKernelForm form, int cluster, int blocks, int bytes) {
  for (int tokens = kMhcMostTokens; tokens > 0; tokens -= kMhcTokenGroup) {
    if (mhc_cluster_shared(form, cut(cluster, tokens, false, blocks), blocks) <= bytes) return tokens;
  }
  return 0;
}

}  // namespace

int mhc_cluster_shared(MhcKernelForm form, const MhcShape& shape, int blocks) {
  return mhc_layout(form == MhcKernelForm::broadcast ? 1 : 4, form == MhcKernelForm::fused, shape, blocks).total;
}

std::optional<MhcShape> choose_mhc_shape(const MhcShapeRequest& r) {
  // As few blocks of the reduction for the busiest thread block as a cluster allows, and no more thread blocks than
  // that.
  const auto busiest = ceil_div(r.blocks, kMhcClusterMost);
  const int cluster = r.cluster > 0 ? std::min(r.cluster, r.blocks) : static_cast<int>(ceil_div(r.blocks, busiest));
  const auto clusters_of = [&](const MhcShape& s) {
    const int clusters = r.capacity(s);
    return r.processors > 0 ? std::min(clusters, std::max(1, r.processors / cluster)) : clusters;
  };
  const auto finish = [&](MhcShape s, int clusters) {
    s.tiles = static_cast<int>(ceil_div(r.rows, s.tile_tokens));
    s.clusters = std::min(clusters, s.tiles);
    return s;
  };
  // Few rows: one tile per cluster, one thread block per processor.
  for (const int tokens : {kMhcTokenGroup, kMhcFewTokens}) {
    if (r.tile_tokens > 0 && (r.tile_tokens != tokens || !r.one_per_processor)) continue;
    const MhcShape s = cut(cluster, tokens, true, r.blocks);
    if (mhc_cluster_shared(r.form, s, r.blocks) > r.block_shared_bytes) continue;
    const int clusters = clusters_of(s);
    if (clusters > 0 && (r.tile_tokens > 0 || ceil_div(r.rows, tokens) <= clusters)) return finish(s, clusters);
  }
  // Many rows: two thread blocks per processor where that fits, so that one computes while the other waits.
  const int half = r.processor_shared_bytes / 2 - kReservedShared;
  const int bytes = r.one_per_processor ? r.block_shared_bytes : std::min(half, r.block_shared_bytes);
  int most = most_tokens(r.form, cluster, r.blocks, bytes);
  if (most == 0) most = most_tokens(r.form, cluster, r.blocks, r.block_shared_bytes);
  if (r.tile_tokens > 0) most = std::min(most, r.tile_tokens);
  if (most == 0) return std::nullopt;
  MhcShape s = cut(cluster, most, false, r.blocks);
  const int clusters = clusters_of(s);
  if (clusters <= 0) return std::nullopt;
  // Tiles of one size, so that all clusters end together.
  const std::int64_t rounds = ceil_div(r.rows, static_cast<std::int64_t>(clusters) * most);
  s.tile_tokens = static_cast<int>(ceil_div(ceil_div(r.rows, clusters * rounds), kMhcTokenGroup)) * kMhcTokenGroup;
  return finish(s, clusters);
}

bool mhc_two_launches_pay(MhcKernelForm form, std::int64_t rows, int blocks) {
  if (blocks <= kMhcClusterMost) return rows > 224 && rows < 900;
  return rows > 96 && (form != MhcKernelForm::fused || rows < 3000);
}

}  // namespace batchproof::cuda
