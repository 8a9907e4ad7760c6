// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/cuda/mhc_shape.h"

#include <algorithm>

#include "src/numeric/divide.h"

namespace batchproof::cuda {
namespace {

constexpr std::int64_t kManyRows = 768;  // measured (bench/records/README.md)

void finish(MhcShape* s) {
  s->owned_most = static_cast<int>(ceil_div(s->slots * kMhcTokens, s->cluster));
  // A barrier tells its current phase from the one before, so nobody may wait for a token before the one that had its
  // barrier is over: that one was the same warp's.
  constexpr int kRound = kMhcOwnerWarps * kMhcBatch;
  s->owned_barriers = static_cast<int>(round_up(s->owned_most, kRound));
  s->ring = s->slots + 1;
}

}  // namespace

MhcLayout mhc_layout(MhcKernelForm form, const MhcShape& s, int blocks) {
  const int streams = form == MhcKernelForm::broadcast ? 1 : 4, mix_tiles = form == MhcKernelForm::head ? 1 : 3;
  MhcLayout l;
  l.slots = mhc_weight_bytes(streams, mix_tiles);
  l.parts = l.slots + s.slots * kMhcTokens * mhc_token_bytes(streams, s.local_blocks);
  l.exchange = l.parts + 2 * 2 * streams * kMhcTokens * kMhcSumStride * 4;
  l.pre = l.exchange + s.owned_most * blocks * kMhcSumStride * 4;
  l.norm_out = l.pre + s.ring * kMhcTokens * 16;
  l.norm_in = l.norm_out + s.slots * s.local_blocks * kMhcTokens * 4;
  l.coefficients = l.norm_in + s.ring * blocks * kMhcTokens * 4;
  l.norm_weight = l.coefficients + s.ring * kMhcTokens * 96;
  l.barriers = l.norm_weight + s.local_blocks * 512;
  l.total = l.barriers + (3 * s.slots + 2 * s.ring + 3 + s.owned_barriers) * 8;
  return l;
}

std::optional<MhcShape> choose_mhc_shape(const MhcShapeRequest& r) {
  // Few rows: as many thread blocks for a token as a cluster allows. Many: two blocks of the reduction each, since less
  // crosses between fewer thread blocks.
  const bool many = r.rows >= kManyRows && r.blocks > 2;
  const std::int64_t busiest = r.cluster > 0
                                   ? ceil_div(r.blocks, r.cluster)
                                   : std::max<std::int64_t>(many ? 2 : 1, ceil_div(r.blocks, kMhcClusterMost));
  if (busiest > kMhcLocalMost) return std::nullopt;
  MhcShape s{};
  s.cluster = static_cast<int>(ceil_div(r.blocks, busiest));
  s.local_blocks = static_cast<int>(busiest);
  if (s.cluster < 2) return std::nullopt;  // what thread blocks send one another has a cluster for its condition
  s.tiles = static_cast<int>(ceil_div(r.rows, kMhcTokens));
  s.slots = r.slots > 0 ? std::min(r.slots, kMhcSlotsMost) : kMhcSlotsMost;
  const auto fits = [&] {
    finish(&s);
    return mhc_layout(r.form, s, r.blocks).total <= r.block_shared_bytes;
  };
  while (!fits()) {
    if (--s.slots == 0) return std::nullopt;
  }
  s.clusters = r.capacity(s);
  if (r.processors > 0) s.clusters = std::min(s.clusters, std::max(1, r.processors / s.cluster));
  if (s.clusters <= 0) return std::nullopt;
  s.clusters = std::min(s.clusters, s.tiles);
  // Where a cluster's tiles all have a slot, none waits for another one's collapse. Else one slot is for the tile that
  // is on its way, and with three slots that leaves one tile between.
  const std::int64_t rounds = ceil_div(s.tiles, s.clusters);
  s.lag = r.lag > 0 ? r.lag : rounds <= s.slots ? s.slots - 1 : std::max(1, s.slots - 2);
  s.lag = std::min(s.lag, s.slots - 1);
  return s;
}

}  // namespace batchproof::cuda
