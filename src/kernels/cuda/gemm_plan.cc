// SPDX-License-Identifier: Apache-2.0
//
// Plans of the matrix product and a small cost model that chooses between them.
#include "src/kernels/cuda/gemm_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace batchproof::cuda {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Clusters that run at once.
std::int64_t capacity(const GemmDevice& device, int cluster, int blocks) {
  const int at_once = std::min(device.clusters[cluster], std::max(1, device.processors / cluster));
  return std::max(1, at_once * blocks);
}

// Segment sums that part `part` hands over.
int sums_of(const GemmPlan& plan, const KAxis& axis, int part) {
  if (plan.tile.tree || part == 0) return 1;
  return axis.part_begin(part + 1, plan.cluster_k) - axis.part_begin(part, plan.cluster_k);
}

// Fills in stages and buffers; false where the plan does not fit.
bool complete(GemmPlan* plan, const GemmShape& shape, const GemmDevice& device) {
  const KAxis& axis = shape.axis;
  const GemmTile& tile = plan->tile;
  if (plan->cluster_n * plan->cluster_k > 8) return false;
  if (plan->cluster_k > 1 && tile.rows > kMostMergedRows) return false;
  if (plan->cluster_n > 1 && tile.rows / plan->cluster_n % 8 != 0) return false;
  if (tile.tree ? axis.slices % plan->cluster_k != 0 : plan->cluster_k > axis.segments()) return false;
  if (tile.tree != (axis.slices > 1) || (tile.tree && axis.slices > 16)) return false;
  if (tile.one && axis.segments() > 1) return false;
  int sources = 0, most = 0;
  for (int part = 0; part < plan->cluster_k; ++part) {
    sources += sums_of(*plan, axis, part);
    most = std::max(most, sums_of(*plan, axis, part));
  }
  if (plan->cluster_k > 1 && sources > kMaxSources) return false;
  plan->extra_sums = plan->cluster_k > 1 ? std::max(0, most - 2) : 0;
  const int budget =
      std::min(device.block_shared_bytes, device.processor_shared_bytes / plan->blocks - 1024) - 1024;  // alignment
  const GemmLayout one = gemm_layout(plan->step, tile.rows, tile.groups, 1, plan->extra_sums);
  const std::int64_t fixed = one.total - one.stage_bytes - 16;
  if (fixed >= budget) return false;
  plan->stages = static_cast<int>(std::min<std::int64_t>(32, (budget - fixed) / (one.stage_bytes + 16)));
  const int over = plan->cluster_k > 1 ? std::min(most, 2) : 0;
  return plan->stages >= 3 && plan->stages * one.stage_bytes >= over * one.sum_bytes;
}

}  // namespace

std::string GemmPlan::name() const {
  const char* kind = tile.tree ? "tree" : tile.one ? "one" : "";
  return fmt::format("r{}g{}{} c{} n{}k{} b{}s{}", tile.rows, tile.groups, kind, step, cluster_n, cluster_k, blocks,
                     stages);
}

Result<KAxis> kernel_axis(const Schedule& schedule) {
  KAxis axis;
  if (schedule.reduction_length() > INT32_MAX / 4)
    return fail(Error::Kind::operation,
                fmt::format("reduction length {} is more than the CUDA matrix product takes ({})",
                            schedule.reduction_length(), INT32_MAX / 4));
  axis.length = static_cast<std::int32_t>(schedule.reduction_length());
  if (axis.length == 0) {
    axis.slices = 0;
    axis.per_slice = 1;
    return axis;
  }
  const Segment& first = schedule.segments().front();
  axis.slices = static_cast<std::int32_t>(schedule.slices());
  axis.slice = axis.length / axis.slices;
  axis.segment = static_cast<std::int32_t>(first.end - first.begin);
  axis.per_slice = static_cast<std::int32_t>(ceil_div(axis.slice, axis.segment));
  if ((axis.segments() > 1 && axis.segment % 16 != 0) || (axis.slices > 1 && axis.slice % 16 != 0))
    return fail(Error::Kind::operation,
                fmt::format("schedule {} cuts inside a tensor-core step of 16 columns", schedule.name()));
  if (axis.segments() != static_cast<std::int32_t>(schedule.segments().size()))
    return fail(Error::Kind::internal,
                fmt::format("schedule {} is not equal slices of equal segments", schedule.name()));
  for (std::int32_t s = 0; s < axis.segments(); ++s) {
    const Segment& segment = schedule.segments()[static_cast<std::size_t>(s)];
    if (axis.begin(s) != segment.begin || axis.end(s) != segment.end)
      return fail(Error::Kind::internal,
                  fmt::format("schedule {} is not equal slices of equal segments", schedule.name()));
  }
  return axis;
}

const std::vector<GemmTile>& gemm_tiles(bool weight_mn) {
  static const std::vector<GemmTile> k_major = {{16, 1, false},        {32, 1, false},  {64, 1, false},
                                                {128, 1, false},       {128, 2, false}, {192, 2, false},
                                                {256, 2, false, true}, {16, 1, true},   {64, 1, true}};
  static const std::vector<GemmTile> mn_major = {{16, 1, false},  {64, 1, false},        {128, 2, false},
                                                 {192, 2, false}, {256, 2, false, true}, {64, 1, true}};
  return weight_mn ? mn_major : k_major;
}

std::vector<GemmPlan> gemm_plans(const GemmShape& shape, const GemmDevice& device) {
  std::vector<GemmPlan> plans;
  for (const GemmTile& tile : gemm_tiles(shape.weight_mn)) {
    const int least = gemm_blocks_per_sm(tile.rows, tile.groups, tile.tree);
    for (const int blocks : {1, 2, 4}) {
      // Registers: two blocks of what the launch bounds promise, four of the two narrowest kernels.
      if (blocks > least && !(blocks == 4 && tile.rows <= 32 && tile.groups == 1 && !tile.tree)) continue;
      for (const int cluster_n : {1, 2, 4}) {
        for (int cluster_k = 1; cluster_k <= 8; ++cluster_k) {
          std::vector<int> steps = {64 * tile.groups};
          if (!shape.weight_mn) {
            // The smallest tile that still needs no more rounds of blocks.
            const std::int64_t tiles_m = ceil_div(shape.m, tile.rows),
                               slots = capacity(device, cluster_n * cluster_k, blocks);
            const std::int64_t rounds = ceil_div(tiles_m * ceil_div(shape.n, 64 * tile.groups * cluster_n), slots);
            const std::int64_t groups = std::max<std::int64_t>(1, rounds * slots / tiles_m);
            const std::int64_t even = ceil_div(ceil_div(shape.n, groups * cluster_n), 8) * 8;
            if (even < 64 * tile.groups && even > 64 * (tile.groups - 1)) steps.push_back(static_cast<int>(even));
          }
          for (const int step : steps) {
            GemmPlan plan{.tile = tile, .cluster_n = cluster_n, .cluster_k = cluster_k, .step = step, .blocks = blocks};
            if (complete(&plan, shape, device)) plans.push_back(plan);
          }
        }
      }
    }
  }
  return plans;
}

// Fitted to 2,800 plans timed on an H200, before the loops over stages were shortened; what that changed is in the two
// constants at the end. Over the benchmark's shapes the chosen plan takes 2.4 % longer than the best that was timed.
double gemm_plan_cost(const GemmPlan& plan, const GemmShape& shape, const GemmDevice& device) {
  constexpr double kClock = 1650;       // cycles per microsecond
  constexpr double kStepCycles = 89.7;  // one tensor-core step that waits for the one before
  constexpr double kMmaFactor = 2.25;   // of the tensor core's own time, all that surrounds it included
  constexpr double kFillBytes = 76.9;   // per cycle into one processor's shared memory
  constexpr double kLatency = 2.64;     // microseconds from request to arrival under load
  constexpr double kMemoryBytes = 3.39e6, kCacheBytes = 9.61e6;  // per microsecond
  constexpr double kLaunch = 1.43, kRound = 0.63, kMerge = 2.03, kMergeSum = 0.0005, kMulticast = 0.035;
  constexpr double kWideMerge = 1.2, kOverlap = 0.9;

  const GemmTile& tile = plan.tile;
  const double columns = plan.step;
  const double k = shape.axis.length;
  const auto m = static_cast<double>(shape.m), n = static_cast<double>(shape.n);
  const double rows = std::min<double>(tile.rows, m);
  const int cluster = plan.cluster_n * plan.cluster_k;
  const auto clusters = static_cast<double>(ceil_div(shape.m, tile.rows) *
                                            ceil_div(shape.n, static_cast<std::int64_t>(plan.step) * plan.cluster_n));
  const double rounds = std::ceil(clusters / static_cast<double>(capacity(device, cluster, plan.blocks)));
  double longest = 0, sums = 0;  // columns of K of the busiest part; segment sums of the merge
  for (int part = 0; part < plan.cluster_k; ++part) {
    const int first = shape.axis.part_begin(part, plan.cluster_k),
              end = shape.axis.part_begin(part + 1, plan.cluster_k);
    if (end > first) longest = std::max<double>(longest, shape.axis.end(end - 1) - shape.axis.begin(first));
    sums += sums_of(plan, shape.axis, part);
  }
  // Blocks that run at once on the busiest processor.
  const double sharing =
      std::clamp(std::ceil(std::ceil(clusters * cluster / rounds) / device.processors), 1.0, double{1} * plan.blocks);
  const double work = longest / 16 * tile.rows / 2 * tile.groups * kMmaFactor;
  const double mma = std::max({work, longest / 16 * kStepCycles, work * sharing}) / kClock;
  const double fill =
      longest * 2 * (columns + rows) * sharing / kFillBytes / kClock * (plan.cluster_n > 1 ? 1 + kMulticast : 1);
  const double latency = longest / kBlockK / plan.stages * kLatency;
  const double memory = ((n + m) * k + m * n) * 2 / kMemoryBytes;
  const double cache = clusters * k * 2 * (columns * plan.cluster_n + rows) / kCacheBytes;
  const double merge = plan.cluster_k > 1 ? kMerge + kMergeSum * sums * rows * tile.groups / plan.cluster_k : 0;
  const double body = rounds * std::max({mma, fill, latency});
  const double wide_merge = plan.cluster_k > 1 && tile.groups > 1 ? kWideMerge : 0;
  // Where a processor has room for a second block, the next kernel of the stream starts while this one ends.
  const double overlap = plan.blocks > 1 && plan.cluster_k == 2 && rounds * sharing <= 1 ? kOverlap : 0;
  return std::pow(std::pow(body, 4) + std::pow(memory, 4) + std::pow(cache, 4), 0.25) + kLaunch +
         kRound * (rounds - 1) + merge + wide_merge - overlap;
}

namespace {

// Microseconds of one stage of 64 columns of K on one processor, multiplied and filled at once: measured on an H200 for
// every tile (bench/records/README.md).
double stage_us(const GemmTile& tile) {
  if (tile.rows <= 64) return 0.192;
  if (tile.rows <= 128 && tile.groups == 1) return 0.290;
  if (tile.rows <= 128) return 0.310;
  return tile.rows <= 192 ? 0.455 : 0.600;
}

// Many rows: one block walks all of K, and what counts is how many rounds of tiles there are and how long each takes.
GemmPlan choose_for_many_rows(const std::vector<GemmPlan>& plans, const GemmShape& shape, const GemmDevice& device) {
  const GemmPlan* best = nullptr;
  double least = 0;
  for (const GemmPlan& plan : plans) {
    if (plan.cluster_k != 1 || plan.blocks != 1 || plan.tile.rows < 64) continue;
    if (plan.cluster_n != 1) continue;  // sharing rows by multicast lost at 19 of 20 points
    const std::int64_t clusters = ceil_div(shape.m, plan.tile.rows) * ceil_div(shape.n, plan.step * plan.cluster_n);
    const auto rounds = static_cast<double>(ceil_div(clusters, capacity(device, plan.cluster_n, 1)));
    const double stages = static_cast<double>(ceil_div(shape.axis.length, kBlockK));
    // Few rows are bound by the weight's bytes: tiles of fewer columns spread them over more processors.
    const double width = shape.m >= 512 ? 1 : 0.75 + 0.25 * plan.step / (64.0 * plan.tile.groups);
    const double cost = rounds * (stages * stage_us(plan.tile) * width + 0.003 * plan.tile.rows);
    if (best == nullptr || cost < least) {
      least = cost;
      best = &plan;
    }
  }
  return best != nullptr ? *best : plans.front();
}

}  // namespace

GemmPlan choose_gemm_plan(const GemmShape& shape, const GemmDevice& device) {
  const std::vector<GemmPlan> plans = gemm_plans(shape, device);
  if (shape.axis.slices == 1 && (shape.m >= 512 || (shape.m >= 192 && shape.n >= 12000)))
    return choose_for_many_rows(plans, shape, device);
  // What lost everywhere it was timed, or what the model has no say on: multicast of narrow tiles, four blocks of one
  // processor, wide tiles of few rows, a merge in a grid of more than one round.
  const auto in_the_running = [&](const GemmPlan& plan) {
    const bool wide = plan.tile.rows > 128;
    if (plan.blocks > 2 || plan.cluster_n > 1 || (wide && shape.m < 512)) return false;
    const std::int64_t clusters = ceil_div(shape.m, plan.tile.rows) * ceil_div(shape.n, plan.step * plan.cluster_n);
    return plan.cluster_k == 1 || clusters <= capacity(device, plan.cluster_n * plan.cluster_k, plan.blocks);
  };
  const GemmPlan* best = nullptr;
  double least = 0;
  for (const GemmPlan& plan : plans) {
    if (!in_the_running(plan)) continue;
    const double cost = gemm_plan_cost(plan, shape, device);
    if (best == nullptr || cost < least) {
      least = cost;
      best = &plan;
    }
  }
  return best != nullptr ? *best : plans.front();
}

}  // namespace batchproof::cuda
