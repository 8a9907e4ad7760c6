// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/cpu/mhc_plan.h"

#include <algorithm>

#include "src/numeric/divide.h"

namespace batchproof {
namespace {

constexpr int kSmallThreads = 256;

}  // namespace

std::int64_t occupancy_splits(std::int64_t processors, std::int64_t columns, std::int64_t rows) {
  const std::int64_t tiles = std::max<std::int64_t>(ceil_div(rows, kMhcBlockRows), 1);
  return std::max<std::int64_t>(std::min(processors / tiles, ceil_div(columns, kMhcBlockColumns) / 4), 1);
}

std::int64_t small_kernel_splits(std::int64_t rows, std::int64_t hidden) { return rows < 8 && hidden <= 4096 ? 8 : 4; }

bool small_kernel_fits(std::int64_t hidden, std::int64_t splits) { return hidden % (splits * kSmallThreads) == 0; }

int fallback_threads(std::int64_t columns, std::int64_t rows) {
  return rows < kMhcFallbackFew && columns % 1024 == 0 ? 1024 : 512;
}

MhcPath default_dispatch(const MhcDispatch& dispatch) {
  MhcPath path;
  const std::int64_t small = small_kernel_splits(dispatch.rows, dispatch.hidden);
  if (dispatch.fused && dispatch.rows <= kMhcSmallRows && small_kernel_fits(dispatch.hidden, small)) {
    path.kind = MhcPath::Kind::threads;
    path.splits = small;
    path.threads = kSmallThreads;
    path.tf32 = false;
    path.unrounded = true;
    path.name = "the small kernel for few rows";
  } else if (dispatch.fallback) {
    path.kind = MhcPath::Kind::threads;
    path.threads = fallback_threads(dispatch.columns, dispatch.rows);
    path.pairs = dispatch.rows >= kMhcFallbackPairs;
    path.tf32 = false;
    path.name = "the fallback product, which changes kernels with the rows";
  } else {
    path.kind = MhcPath::Kind::splits;
    path.splits = occupancy_splits(dispatch.processors, dispatch.columns, dispatch.rows);
    path.name = "splits from occupancy";
  }
  return path;
}

std::vector<std::int64_t> expected_flips(MhcDispatch dispatch, std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> flips;
  const auto order = [&](std::int64_t rows) {
    dispatch.rows = rows;
    MhcPath path = default_dispatch(dispatch);
    path.pairs = false;
    return path;
  };
  for (std::int64_t rows = first + 1; rows <= last; ++rows) {
    if (!(order(rows) == order(rows - 1))) flips.push_back(rows);
  }
  return flips;
}

std::vector<std::int64_t> product_bounds(const MhcPath& path, std::int64_t columns) {
  std::vector<std::int64_t> bounds = {0};
  if (path.kind == MhcPath::Kind::chain) {
    for (std::int64_t end = kMhcSegment; end < columns; end += kMhcSegment) bounds.push_back(end);
  } else if (path.kind == MhcPath::Kind::splits) {
    const std::int64_t blocks = ceil_div(columns, kMhcBlockColumns);
    const std::int64_t each = blocks / path.splits;
    const std::int64_t longer = blocks % path.splits;
    for (std::int64_t s = 1; s < path.splits; ++s)
      bounds.push_back((s * each + std::min(s, longer)) * kMhcBlockColumns);
  }
  bounds.push_back(columns);
  return bounds;
}

std::vector<MhcProductChunk> product_chunks(const std::vector<std::int64_t>& bounds) {
  std::vector<MhcProductChunk> chunks;
  for (std::size_t s = 0; s + 1 < bounds.size(); ++s) {
    for (std::int64_t begin = bounds[s]; begin < bounds[s + 1]; begin += kMhcChunk) {
      const std::int64_t end = std::min(begin + kMhcChunk, bounds[s + 1]);
      chunks.push_back({begin, end, static_cast<std::int64_t>(s), begin == bounds[s], end == bounds[s + 1]});
    }
  }
  return chunks;
}

std::vector<std::int64_t> thread_steps(const MhcPath& path, std::int64_t hidden, std::int64_t columns) {
  std::vector<std::int64_t> steps;
  if (path.unrounded) {
    // The small kernel splits every stream, not the flattened axis.
    const std::int64_t part = hidden / path.splits;
    for (std::int64_t s = 0; s < path.splits; ++s) {
      for (std::int64_t i = 0; i < part / path.threads; ++i) {
        for (std::int64_t j = 0; j < kMhcStreams; ++j) steps.push_back(j * hidden + s * part + i * path.threads);
      }
    }
    return steps;
  }
  for (std::int64_t begin = 0; begin + path.threads <= columns; begin += path.threads) steps.push_back(begin);
  return steps;
}

}  // namespace batchproof
