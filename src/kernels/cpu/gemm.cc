// SPDX-License-Identifier: Apache-2.0
//
// Driver of the GEMM kernels: checks, blocking, partition over threads, scratch memory. Nothing here computes.
#include "src/kernels/cpu/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <vector>

#include "src/kernels/cpu/gemm_region.h"
#include "src/numeric/bf16.h"
#include "src/numeric/divide.h"
#include "src/numeric/fp16.h"
#include "src/runtime/thread_pool.h"

namespace batchproof {
namespace {

// Sizes in floats, for caches of 512 KiB (level 2) and a share of level 3.
constexpr std::int64_t kBlockA = 72 * 1024;     // packed rows of A
constexpr std::int64_t kBlockB = 512 * 1024;    // packed columns of B that several blocks of A use
constexpr std::int64_t kPanelB = 32 * 1024;     // the same where there is one block of A
constexpr std::int64_t kPassRows = 1008;        // half of it is a multiple of every row tile (4, 6, 14)
constexpr std::int64_t kSkinnyRows = 12;        // up to here B is read in place
constexpr std::int64_t kSkinnyFloats = 4096;    // accumulators of a column block: half of level 1
constexpr std::int64_t kSkinnyColumns = 64;     // granule of the partition over threads
constexpr std::int64_t kSmallWork = 64 * 1024;  // multiplications below which one thread does all

std::optional<GemmType> gemm_type(bp_dtype dtype) {
  if (dtype == BP_FP32) return GemmType::fp32;
  if (dtype == BP_BF16) return GemmType::bf16;
  if (dtype == BP_FP16) return GemmType::fp16;
  return std::nullopt;
}

const char* type_bytes(const void* data, std::int64_t elements, GemmType type) {
  return static_cast<const char*>(data) + elements * (type == GemmType::fp32 ? 4 : 2);
}

// Grows, never shrinks; one per thread. What a call left in it does not reach the next call's results.
float* scratch(std::int64_t floats) {
  struct Free {
    void operator()(float* at) const { std::free(at); }
  };
  thread_local std::unique_ptr<float, Free> memory;
  thread_local std::int64_t capacity = 0;
  if (floats > capacity) {
    memory.reset();
    capacity = 0;
    void* at = std::aligned_alloc(64, static_cast<std::size_t>(round_up(floats * 4, 64)));
    if (at == nullptr) return nullptr;
    memory.reset(static_cast<float*>(at));
    capacity = floats;
  }
  return memory.get();
}

struct Grid {
  std::int64_t rows = 1;     // parts along m
  std::int64_t columns = 1;  // parts along n
};

// The split into at most `threads` rectangles with the shortest longest part: multiplications, and packing, of which an
// element costs about as much as 12 multiplications.
Grid choose_grid(std::int64_t m, std::int64_t n, std::int64_t row_tile, std::int64_t column_tile, int threads) {
  constexpr std::int64_t kPackCost = 12;
  const std::int64_t row_units = ceil_div(m, row_tile);
  const std::int64_t column_units = ceil_div(n, column_tile);
  Grid best;
  std::int64_t best_cost = -1;
  for (std::int64_t rows = 1; rows <= std::min<std::int64_t>(threads, row_units); ++rows) {
    const std::int64_t columns = std::clamp<std::int64_t>(threads / rows, 1, column_units);
    const std::int64_t high = ceil_div(row_units, rows) * row_tile;
    const std::int64_t wide = ceil_div(column_units, columns) * column_tile;
    const std::int64_t cost = high * wide + kPackCost * (high + wide);
    if (best_cost < 0 || cost < best_cost) {
      best_cost = cost;
      best = {rows, columns};
    }
  }
  return best;
}

Result<const GemmKernel*> kernel_of(Isa isa) {
  const std::vector<Isa> available = available_isas();
  if (std::find(available.begin(), available.end(), isa) == available.end()) {
    return fail(Error::Kind::environment, fmt::format("this processor has no {}", isa_name(isa)));
  }
#if defined(__x86_64__)
  if (isa == Isa::avx512) return &kGemmAvx512;
  if (isa == Isa::avx2) return &kGemmAvx2;
#endif
  return &kGemmPlain;
}

Result<void> check(const GemmCall& call, const Schedule& schedule) {
  if (call.m < 0 || call.n < 0 || call.k < 0) {
    return fail(Error::Kind::usage,
                fmt::format("gemm: extents m = {}, n = {}, k = {} must not be negative", call.m, call.n, call.k));
  }
  if (!gemm_type(call.a.dtype) || call.b.dtype != call.a.dtype) {
    return fail(Error::Kind::usage, "gemm: a and b must both be FP32, BF16 or FP16");
  }
  if (!gemm_type(call.c.dtype)) return fail(Error::Kind::usage, "gemm: c must be FP32, BF16 or FP16");
  if (call.bias.dtype != BP_NONE && !gemm_type(call.bias.dtype)) {
    return fail(Error::Kind::usage, "gemm: bias must be FP32, BF16 or FP16");
  }
  if (schedule.reduction_length() != call.k) {
    return fail(Error::Kind::usage, fmt::format("gemm: k = {}, but the schedule is for a reduction of length {}",
                                                call.k, schedule.reduction_length()));
  }
  return {};
}

std::vector<float> widened_bias(const GemmBias& bias, std::int64_t n) {
  std::vector<float> out;
  if (bias.dtype == BP_NONE) return out;
  out.resize(static_cast<std::size_t>(n));
  const float* single = static_cast<const float*>(bias.data);
  const std::uint16_t* half = static_cast<const std::uint16_t*>(bias.data);
  for (std::int64_t j = 0; j < n; ++j) {
    const std::int64_t at = j * bias.stride;
    out[static_cast<std::size_t>(j)] = bias.dtype == BP_FP32   ? single[at]
                                       : bias.dtype == BP_BF16 ? bf16_to_float(half[at])
                                                               : fp16_to_float(half[at]);
  }
  return out;
}

// Floats of the three scratch areas of a region.
struct ScratchSize {
  std::int64_t a = 0;
  std::int64_t b = 0;
  std::int64_t sums = 0;
  std::int64_t total() const { return a + b + sums; }
};

ScratchSize set_blocks(GemmRegion& region, const GemmKernel& kernel, std::int64_t longest) {
  const std::int64_t length = std::max<std::int64_t>(longest, 1);
  const std::int64_t row_tile = kernel.row_tile;
  const std::int64_t column_tile = kernel.column_tile;
  ScratchSize size;
  if (region.skinny) {
    region.block_n = round_up(std::min(region.n, kSkinnyFloats / std::max<std::int64_t>(region.m, 1)), column_tile);
    region.block_m = region.m;
    region.pass_m = region.m;
    size.a = region.m * length + kGemmSlack;
    size.b = region.m * region.block_n + kGemmSlack;
  } else {
    // Blocks of about equal height: a last block of few rows would read all of B for them.
    const std::int64_t highest = std::clamp(kBlockA / length / row_tile * row_tile, row_tile, kPassRows / 2);
    region.block_m = round_up(ceil_div(region.m, ceil_div(region.m, highest)), row_tile);
    region.block_n = std::clamp(kBlockB / length / column_tile * column_tile, column_tile, std::int64_t{2048});
    region.block_n = std::min(region.block_n, round_up(region.n, column_tile));
    region.panel_n = std::clamp(kPanelB / length / column_tile * column_tile, column_tile, region.block_n);
    region.pass_m = std::max(kPassRows / region.block_m, std::int64_t{1}) * region.block_m;
    size.a = region.block_m * length + kGemmSlack;
    size.b = (region.m <= region.block_m ? region.panel_n : region.block_n) * length + kGemmSlack;
  }
  if (region.slices > 1 || region.c_type != GemmType::fp32) {
    std::int64_t levels = 1;
    for (std::int64_t slices = region.slices; slices > 1; slices /= 2) ++levels;
    size.sums = levels * std::min(region.pass_m, region.m) * std::min(region.block_n, region.n);
  }
  size.a = round_up(size.a, 16);
  size.b = round_up(size.b, 16);
  return size;
}

}  // namespace

Result<void> gemm(const GemmCall& call, const Schedule& schedule, const GemmOptions& options) {
  if (Result<void> checked = check(call, schedule); !checked) return checked;
  const Result<Isa> isa = options.isa ? Result<Isa>(*options.isa) : selected_isa();
  if (!isa) return tl::unexpected<Error>(isa.error());
  const Result<const GemmKernel*> found = kernel_of(*isa);
  if (!found) return tl::unexpected<Error>(found.error());
  if (call.m == 0 || call.n == 0) return {};
  const GemmKernel& kernel = **found;

  std::vector<std::int64_t> bounds = {0};
  std::int64_t longest = 0;
  for (const Segment& segment : schedule.segments()) {
    bounds.push_back(segment.end);
    longest = std::max(longest, segment.end - segment.begin);
  }
  std::vector<std::int64_t> slice_begin;
  for (std::int64_t i = 0; i < schedule.slices(); ++i) slice_begin.push_back(schedule.slice_begin(i));
  slice_begin.push_back(static_cast<std::int64_t>(schedule.segments().size()));
  const std::vector<float> bias = widened_bias(call.bias, call.n);

  GemmRegion whole = {};
  whole.m = call.m;
  whole.n = call.n;
  whole.ab_type = *gemm_type(call.a.dtype);
  whole.a = call.a.data;
  whole.a_row = call.a.row_stride;
  whole.a_column = call.a.column_stride;
  whole.b = call.b.data;
  whole.b_row = call.b.row_stride;
  whole.b_column = call.b.column_stride;
  whole.bias = bias.empty() ? nullptr : bias.data();
  whole.c = call.c.data;
  whole.c_type = *gemm_type(call.c.dtype);
  whole.c_row = call.c.row_stride;
  whole.bounds = bounds.data();
  whole.segments = static_cast<std::int64_t>(schedule.segments().size());
  whole.slice_begin = slice_begin.data();
  whole.slices = schedule.slices();
  whole.skinny = call.m <= kSkinnyRows && call.b.column_stride == 1;

  const std::int64_t row_tile = whole.skinny ? call.m : kernel.row_tile;
  const std::int64_t column_tile = whole.skinny ? kSkinnyColumns : kernel.column_tile;
  const bool small = call.m * call.n <= kSmallWork / std::max<std::int64_t>(call.k, 1);
  const Grid grid = choose_grid(call.m, call.n, row_tile, column_tile, small ? 1 : std::max(options.threads, 1));
  const std::int64_t row_units = ceil_div(call.m, row_tile);
  const std::int64_t column_units = ceil_div(call.n, column_tile);

  // One flag per part: a part that gets no scratch memory writes nothing.
  std::vector<char> failed(static_cast<std::size_t>(grid.rows * grid.columns), 0);
  parallel_for(static_cast<int>(grid.rows * grid.columns), grid.rows * grid.columns, [&](std::int64_t part) {
    const std::int64_t r = part / grid.columns;
    const std::int64_t c = part % grid.columns;
    const std::int64_t i0 = row_units * r / grid.rows * row_tile;
    const std::int64_t i1 = std::min(row_units * (r + 1) / grid.rows * row_tile, call.m);
    const std::int64_t j0 = column_units * c / grid.columns * column_tile;
    const std::int64_t j1 = std::min(column_units * (c + 1) / grid.columns * column_tile, call.n);
    if (i0 >= i1 || j0 >= j1) return;
    GemmRegion region = whole;
    region.m = i1 - i0;
    region.n = j1 - j0;
    region.a = type_bytes(whole.a, i0 * whole.a_row, whole.ab_type);
    region.b = type_bytes(whole.b, j0 * whole.b_column, whole.ab_type);
    region.bias = whole.bias == nullptr ? nullptr : whole.bias + j0;
    region.c = const_cast<char*>(type_bytes(whole.c, i0 * whole.c_row + j0, whole.c_type));
    const ScratchSize size = set_blocks(region, kernel, longest);
    float* memory = scratch(size.total());
    if (memory == nullptr) {
      failed[static_cast<std::size_t>(part)] = 1;
      return;
    }
    region.pack_a = memory;
    region.pack_b = memory + size.a;
    region.sums = size.sums > 0 ? memory + size.a + size.b : nullptr;
    kernel.run(region);
  });
  if (std::find(failed.begin(), failed.end(), 1) != failed.end()) {
    return fail(Error::Kind::operation, "gemm: no memory for packed blocks");
  }
  return {};
}

}  // namespace batchproof
