// SPDX-License-Identifier: Apache-2.0
//
// Plans of the matrix product and a small cost model that chooses between them.
#include "src/kernels/cuda/gemm_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <set>

#include "src/numeric/divide.h"

namespace batchproof::cuda {
namespace {

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

}  // namespace

std::string GemmPlan::name() const {
  const char* kind = tile.tree ? " tree" : tile.one ? "" : " merging";
  return fmt::format("{}x{}{}{} n{}k{} b{}s{}x{}", tile.rows(), step, tile.by_rows ? " by rows" : "", kind, cluster_n,
                     cluster_k, blocks, stages, deep);
}

Result<Schedule> cuda_gemm_schedule(std::int64_t k) {
  const std::int64_t segments = std::max<std::int64_t>(1, ceil_div(k, kCudaGemmSegment));
  const std::int64_t even = ceil_div(ceil_div(k, segments), kBlockK) * kBlockK;
  return Schedule::make(k, ChainPolicy{std::max<std::int64_t>(even, kBlockK)});
}

bool complete_gemm_plan(GemmPlan* plan, const GemmShape& shape, const GemmDevice& device) {
  const KAxis& axis = shape.axis;
  const GemmTile& tile = plan->tile;
  if (plan->cluster_n * plan->cluster_k > 8 || (tile.by_rows && (plan->cluster_n > 1 || plan->step != tile.n)))
    return false;
  if (plan->cluster_k > 1 && tile.rows() > kMostMergedRows) return false;
  if (plan->cluster_n > 1 && tile.rows() / plan->cluster_n % 8 != 0) return false;
  if (tile.tree ? axis.slices % plan->cluster_k != 0 : plan->cluster_k > axis.segments()) return false;
  if (tile.tree != (axis.slices > 1) || (tile.tree && axis.slices > 16)) return false;
  if (tile.one && (axis.segments() > 1 || plan->cluster_k > 1)) return false;
  // A share of several blocks would lie in shared memory share by share, not block by block.
  if (plan->deep > 1 && (!axis.whole_blocks() || plan->cluster_n > 1)) return false;
  int sources = 0, most = 0;
  for (int part = 0; part < plan->cluster_k; ++part) {
    sources += sums_of(*plan, axis, part);
    most = std::max(most, sums_of(*plan, axis, part));
  }
  if (plan->cluster_k > 1 && sources > kMaxSources) return false;
  plan->extra_sums = plan->cluster_k > 1 ? std::max(0, most - 2) : 0;
  const int budget =
      std::min(device.block_shared_bytes, device.processor_shared_bytes / plan->blocks - 1024) - 1024;  // alignment
  const GemmLayout one = gemm_layout(tile, plan->step, plan->deep, 1, plan->extra_sums);
  const std::int64_t fixed = one.total - one.stage_bytes - 16;
  if (fixed >= budget) return false;
  plan->stages = static_cast<int>(std::min<std::int64_t>(32, (budget - fixed) / (one.stage_bytes + 16)));
  const int over = plan->cluster_k > 1 ? std::min(most, 2) : 0;
  return plan->stages >= 3 && plan->stages * one.stage_bytes >= over * one.sum_bytes;
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
  // {n, groups, tree, one, by_rows}
  static const std::vector<GemmTile> k_major = {
      {16, 1, false, true},        {32, 1, false, true},        {64, 1, false, true},  {64, 2, false, true},
      {128, 1, false, true},       {128, 2, false, true},       {256, 2, false, true}, {64, 3, false, true},
      {96, 3, false, true},        {128, 3, false, true},       {176, 3, false, true}, {112, 2, false, true, true},
      {144, 2, false, true, true}, {192, 2, false, true, true}, {16, 1, false, false}, {64, 1, false, false},
      {128, 2, false, false},      {192, 2, false, false},      {16, 1, true, false},  {64, 1, true, false}};
  static const std::vector<GemmTile> mn_major = {{16, 1, false, true},   {64, 1, false, true},  {128, 2, false, true},
                                                 {256, 2, false, true},  {16, 1, false, false}, {64, 1, false, false},
                                                 {128, 2, false, false}, {64, 1, true, false}};
  return weight_mn ? mn_major : k_major;
}

std::vector<int> gemm_widths() {
  std::set<int> widths;
  for (const bool weight_mn : {false, true}) {
    for (const GemmTile& tile : gemm_tiles(weight_mn)) widths.insert(tile.n);
  }
  return {widths.begin(), widths.end()};
}

std::vector<GemmPlan> gemm_plans(const GemmShape& shape, const GemmDevice& device) {
  std::vector<GemmPlan> plans;
  const auto add = [&](GemmPlan plan) {
    for (const int deep : {1, 2, 4}) {
      plan.deep = deep;
      if (complete_gemm_plan(&plan, shape, device)) plans.push_back(plan);
    }
  };
  for (const GemmTile& tile : gemm_tiles(shape.weight_mn)) {
    const int most_blocks = tile.blocks_per_sm();
    for (int blocks = 1; blocks <= most_blocks; ++blocks) {
      for (const int cluster_n : {1, 2}) {
        for (int cluster_k = 1; cluster_k <= 8; ++cluster_k) {
          GemmPlan plan{
              .tile = tile, .cluster_n = cluster_n, .cluster_k = cluster_k, .step = tile.columns(), .blocks = blocks};
          add(plan);
          if (shape.weight_mn || tile.by_rows) continue;
          // The smallest tile that still needs no more rounds of blocks.
          const std::int64_t tiles_m = ceil_div(shape.m, tile.rows()),
                             slots = capacity(device, cluster_n * cluster_k, blocks);
          const std::int64_t rounds = ceil_div(tiles_m * ceil_div(shape.n, plan.step * cluster_n), slots);
          const std::int64_t groups = std::max<std::int64_t>(1, rounds * slots / tiles_m);
          const auto even = static_cast<int>(ceil_div(ceil_div(shape.n, groups * cluster_n), 8) * 8);
          if (even >= plan.step || even <= plan.step - 64) continue;
          plan.step = even;
          add(plan);
        }
      }
    }
  }
  return plans;
}

namespace {

// The slowest of several things that happen at once, a little more where others are nearly as slow.
double together(double power, std::initializer_list<double> times) {
  double sum = 0;
  for (const double time : times) sum += std::pow(time, power);
  return std::pow(sum, 1 / power);
}

}  // namespace

// A block of 64 columns of K takes as long as its products, its copies, the producer's instructions or its share of the
// latency take; all blocks together no less than memory and L2 need. The constants are fitted to 850 plans timed on an
// H200 (bench/records/README.md), for which of them is fastest rather than for their times.
double gemm_plan_cost(const GemmPlan& plan, const GemmShape& shape, const GemmDevice& device) {
  constexpr double kClock = 1481;                // cycles of a processor per microsecond under load
  constexpr double kStep = 33.1, kBlock = 15.3;  // cycles: the shortest tensor-core step; around a block's four
  constexpr double kCopies = 253;                // cycles of the producer per stage
  constexpr double kFill = 143e3;                // bytes per microsecond into one processor's shared memory
  constexpr double kLatency = 0.897;             // microseconds from request to arrival
  constexpr double kMemory = 4.49e6,
                   kAgain = 0.395;                   // bytes per microsecond; of a weight that further tiles read again
  constexpr double kCache = 19.5e6, kWeight = 1.16;  // bytes per microsecond out of the L2; a weight's are dearer
  constexpr double kLaunch = 1.26, kPlace = 0.005, kRound = 0.047, kStore = 0.006;
  constexpr double kOverlap = 0.31;  // where the next kernel's block finds room beside this one
  constexpr double kMerge = 2.0, kMergeSum = 0.0005;

  const GemmTile& tile = plan.tile;
  const double k = shape.axis.length;
  const auto m = static_cast<double>(shape.m), n = static_cast<double>(shape.n);
  const double rows = std::min<double>(tile.rows(), std::ceil(m / 8) * 8);
  const int cluster = plan.cluster_n * plan.cluster_k;
  const auto tiles_m = static_cast<double>(ceil_div(shape.m, tile.rows()));
  const auto tiles_n = static_cast<double>(ceil_div(shape.n, static_cast<std::int64_t>(plan.step) * plan.cluster_n));
  const double clusters = tiles_m * tiles_n;
  const auto at_once = static_cast<double>(capacity(device, cluster, plan.blocks));
  const double rounds = std::ceil(clusters / at_once);
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
  const double step = std::max(tile.n / 2.0, kStep);
  const double products = std::max(4 * step + kBlock, 4 * step * tile.groups * sharing) / kClock;
  const double fill = 2 * kBlockK * (plan.step + rows) * sharing / kFill;
  const double copies = kCopies / plan.deep / kClock;
  const double latency = kLatency / (plan.deep * std::max(1, plan.stages - 1));
  const double body = rounds * longest / kBlockK * together(5.24, {products, fill, copies, latency});
  const double memory = 2 * (n * k * (1 + kAgain * (tiles_m - 1) / rounds) + m * k + m * n) / kMemory;
  const double cache = 2 * k * (tiles_m * n * kWeight + tiles_n * m) / kCache;
  const double merge = plan.cluster_k > 1 ? kMerge + kMergeSum * sums * rows * tile.groups / plan.cluster_k : 0;
  return together(3.37, {body, memory, cache}) + kLaunch + kPlace * std::min(clusters, at_once) * cluster +
         kRound * (rounds - 1) + kStore * tile.n * rounds + merge - (plan.blocks > 1 && rounds <= 1 ? kOverlap : 0);
}

GemmPlan choose_gemm_plan(const GemmShape& shape, const GemmDevice& device) {
  const std::vector<GemmPlan> plans = gemm_plans(shape, device);
  // What lost everywhere it was timed: multicast of narrow tiles, a merge in a grid of more than one round.
  const auto in_the_running = [&](const GemmPlan& plan) {
    if (plan.cluster_n > 1) return false;
    const std::int64_t clusters = ceil_div(shape.m, plan.tile.rows()) * ceil_div(shape.n, plan.step * plan.cluster_n);
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
  GemmPlan chosen = best != nullptr ? *best : plans.front();
  // Few rows are bound by the weight: memory need not idle while the prior kernel ends. Many rows lose by it.
  chosen.prefetch = shape.m <= 64 ? 2 : 0;
  return chosen;
}

}  // namespace batchproof::cuda
