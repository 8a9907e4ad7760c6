// SPDX-License-Identifier: Apache-2.0
//
// The two-path controls: what request A describes. Where neither path looks at other rows, no test at equal shape and
// position can see them; the same slot on another rank, another owner and another world size do.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "ops/all_gather_matmul/all_gather_matmul.h"
#include "src/kernels/cpu/linear_controls.h"
#include "src/kernels/cpu/scaled_operand.h"
#include "src/numeric/divide.h"
#include "src/numeric/dtype.h"

namespace batchproof {
namespace {

constexpr std::int64_t kLocalChunk = 128;
constexpr std::int64_t kGatherChunk = 256;

Result<void> run_descending(const GemmCall& call, int threads) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(segment_count(call.k, kLocalChunk)));
  std::iota(order.rbegin(), order.rend(), 0);
  return gemm_in_order(call, kLocalChunk, order, threads);
}

// ---- aligned_sums ----

// An accumulator of fixed point: bits below the largest exponent of the tile by more than this are lost. Plain FP32
// sums of unscaled codes fit, sums under scales over 24 binades do not.
constexpr int kAlignedBits = 36;
constexpr std::int64_t kAlignedRows = 16;

void align(float* sums, std::int64_t count) {
  int largest = -1000;
  for (std::int64_t e = 0; e < count; ++e) {
    if (sums[e] == 0.0f) continue;
    largest = std::max(largest, std::isfinite(sums[e]) ? std::ilogb(sums[e]) : 128);
  }
  for (std::int64_t e = 0; e < count; ++e) {
    if (!std::isfinite(sums[e])) continue;
    const double units = std::nearbyint(std::ldexp(static_cast<double>(sums[e]), kAlignedBits - largest));
    sums[e] = static_cast<float>(std::ldexp(units, largest - kAlignedBits));
  }
}

// Chunks of 128 in order; `align_tiles`: the partial sums of every 16 rows are aligned before they are added.
Result<void> run_aligned(const GemmCall& call, bool align_tiles, int threads) {
  return gemm_with_parts(call, kLocalChunk, threads, [&](float* part) {
    for (std::int64_t i = 0; align_tiles && i < call.m; i += kAlignedRows)
      align(part + i * call.n, std::min(kAlignedRows, call.m - i) * call.n);
  });
}

// One product in which own and gathered rows take their paths.
Result<void> run_paths(TwoPathDefect defect, const GemmCall& all, const TwoPathCall& of) {
  const std::int64_t others = all.m - of.m;
  const auto path = [&](const GemmCall& call, bool own) -> Result<void> {
    if (call.m == 0) return {};
    switch (defect) {
      case TwoPathDefect::chunk_pair:
        return run_scheduled(call, {own ? kLocalChunk : kGatherChunk, 0}, of.threads);
      case TwoPathDefect::tiling_rule:
        return run_scheduled(call, {adaptive_chunk(own ? of.m : others, call.n, call.k), 0}, of.threads);
      case TwoPathDefect::aligned_sums:
        return run_aligned(call, !own, of.threads);
      default:
        return own ? run_scheduled(call, {kLocalChunk, 0}, of.threads) : run_descending(call, of.threads);
    }
  };
  const std::int64_t begin = of.rank * of.m;
  const std::int64_t end = begin + of.m;
  Result<void> done = path(rows_of(all, begin, of.m), true);
  if (done) done = path(rows_of(all, 0, begin), false);
  return done ? path(rows_of(all, end, all.m - end), false) : done;
}

// ---- scale_address, neighbour_scale ----

// The scales of x2 as GATHER reads them where x2 is not transposed: the offset of a block of 64 columns counts columns,
// not the two entries that each column has.
std::vector<std::uint8_t> misread_scales(const bp_tensor& scale) {
  constexpr std::int64_t kColumnBlock = 64;
  const std::int64_t pairs = scale.shape[0];
  const std::int64_t n = scale.shape[1];
  const auto* codes = static_cast<const std::uint8_t*>(scale.data);
  std::vector<std::uint8_t> out(static_cast<std::size_t>(pairs * n * 2));
  for (std::int64_t p = 0; p < pairs; ++p) {
    for (std::int64_t j = 0; j < n; ++j) {
      const std::int64_t j0 = j / kColumnBlock * kColumnBlock;
      for (std::int64_t b = 0; b < 2; ++b)
        out[static_cast<std::size_t>((p * n + j) * 2 + b)] = codes[p * n * 2 + j0 + 2 * (j - j0) + b];
    }
  }
  return out;
}

// The scales of x1 with those of the next row of the same owner in every row.
std::vector<std::uint8_t> shifted_scales(const bp_tensor& scale, std::int64_t m) {
  const std::size_t row = dtype_bytes(scale.dtype, scale.stride[0]);
  const auto* bytes = static_cast<const std::uint8_t*>(scale.data);
  std::vector<std::uint8_t> out(row * static_cast<std::size_t>(scale.shape[0]));
  for (std::int64_t i = 0; i < scale.shape[0]; ++i) {
    const std::int64_t from = i / m * m + (i + 1) % m;
    std::memcpy(out.data() + static_cast<std::size_t>(i) * row, bytes + static_cast<std::size_t>(from) * row, row);
  }
  return out;
}

// Own rows from `right`, the others from `wrong`.
Result<void> run_two_scales(const ScaledLinear& right, ScaledLinear wrong, const TwoPathCall& of) {
  const LinearSchedule order;
  const Product product = [&](const GemmCall& call, const LinearSchedule& schedule) {
    return run_scheduled(call, schedule, of.threads);
  };
  const bp_tensor& y = *right.y;
  const std::size_t row = dtype_bytes(y.dtype, y.shape[1]);
  std::vector<std::uint8_t> memory(row * static_cast<std::size_t>(y.shape[0]));
  bp_tensor other = y;
  other.data = memory.data();
  other.stride[0] = y.shape[1];
  wrong.y = &other;
  if (const Result<void> done = scaled_linear(right, order, of.threads, product); !done) return done;
  if (const Result<void> done = scaled_linear(wrong, order, of.threads, product); !done) return done;
  for (std::int64_t i = 0; i < y.shape[0]; ++i) {
    if (i / of.m == of.rank) continue;
    std::memcpy(static_cast<std::uint8_t*>(y.data) + dtype_bytes(y.dtype, i * y.stride[0]),
                memory.data() + static_cast<std::size_t>(i) * row, row);
  }
  return {};
}

Result<void> run_scale_defect(TwoPathDefect defect, const ScaledLinear& gathered, const TwoPathCall& of) {
  ScaledLinear wrong = gathered;
  std::vector<std::uint8_t> memory;
  bp_tensor scale = {};
  if (defect == TwoPathDefect::scale_address && gathered.scaling == Scaling::mx && gathered.w->stride[1] == 1) {
    memory = misread_scales(*gathered.w_scale);
    scale = *gathered.w_scale;
    wrong.w_scale = &scale;
  }
  const bool by_row = gathered.scaling == Scaling::mx || gathered.scaling == Scaling::token_channel;
  if (defect == TwoPathDefect::neighbour_scale && by_row && gathered.x_scale != nullptr) {
    memory = shifted_scales(*gathered.x_scale, of.m);
    scale = *gathered.x_scale;
    wrong.x_scale = &scale;
  }
  scale.data = memory.data();
  return run_two_scales(gathered, wrong, of);
}

}  // namespace

std::int64_t adaptive_chunk(std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kCores = 32;
  constexpr std::int64_t kUnit = 16;
  constexpr std::int64_t kLargest = 256;
  constexpr std::int64_t kBufferRows = 32768;  // block side times chunk that half of an operand buffer holds
  std::int64_t high = round_up(std::min(m, kLargest), kUnit);
  std::int64_t wide = round_up(std::min(n, kLargest), kUnit);
  std::int64_t m_cores = blocks_of(m, high);
  if (m_cores * blocks_of(n, wide) >= kCores) return round_up(std::min<std::int64_t>(128, k), 64);
  // Too few blocks: spread the cores over the columns, then move them to the longer side while it is twice the other.
  std::int64_t n_cores = kCores / m_cores;
  const auto side = [](std::int64_t length, std::int64_t cores) {
    return round_up(blocks_of(length, std::max<std::int64_t>(cores, 1)), kUnit);
  };
  high = side(m, m_cores);
  wide = side(n, n_cores);
  const bool rows_are_long = high > wide;
  std::int64_t& long_cores = rows_are_long ? m_cores : n_cores;
  std::int64_t& short_cores = rows_are_long ? n_cores : m_cores;
  const std::int64_t& longer = rows_are_long ? high : wide;
  const std::int64_t& shorter = rows_are_long ? wide : high;
  while (longer >= 2 * shorter && long_cores < kCores / 2 && longer > kUnit) {
    long_cores *= 2;
    short_cores /= 2;
    high = side(m, m_cores);
    wide = side(n, n_cores);
  }
  const std::int64_t fitting = kBufferRows / std::max(high, wide) / 128 * 128;
  const std::int64_t chunk = std::min(round_up(k, 128), fitting);
  return chunk > 4095 ? chunk / 2 : chunk;
}

Result<void> run_two_path_control(TwoPathDefect defect, const ScaledLinear& gathered, const TwoPathCall& call) {
  if (call.m == 0) return {};
  if (defect == TwoPathDefect::scale_address || defect == TwoPathDefect::neighbour_scale) {
    return run_scale_defect(defect, gathered, call);
  }
  return scaled_linear(gathered, LinearSchedule{}, call.threads, [&](const GemmCall& product, const LinearSchedule&) {
    return run_paths(defect, product, call);
  });
}

}  // namespace batchproof
