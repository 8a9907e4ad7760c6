// SPDX-License-Identifier: Apache-2.0
//
// batch_size: the number of rows changes, the row stays. Rows keep their logical position where it exists; where a
// smaller batch has no room for a target, a run of its own starts the batch at that target's neighbourhood.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "src/check/relation.h"
#include "src/suite/case_plan.h"

namespace batchproof {
namespace {

// Thresholds far above the cell's own size are for suites that name them in batch_sizes.
constexpr std::int64_t kThresholdLimit = 1024;

}  // namespace

std::vector<std::int64_t> default_batch_sizes(const bp_operator& table, const Problem& problem, std::int64_t own) {
  std::set<std::int64_t> sizes;
  for (std::int64_t size = 1; size <= 17; ++size) sizes.insert(size);
  for (std::int64_t power = 32; power <= 2 * own; power *= 2) sizes.insert({power - 1, power, power + 1});
  const bool rows_over_ranks = is_distributed(table);
  for (std::uint32_t i = 0; i < table.threshold_count; ++i) {
    const std::int64_t threshold = table.thresholds[i];
    if (threshold > std::max(kThresholdLimit, 2 * own)) continue;
    const std::int64_t size = rows_over_ranks ? (threshold + problem.world - 1) / problem.world : threshold;
    sizes.insert({size - 1, size, size + 1});
  }
  sizes.erase(own);
  return {sizes.lower_bound(1), sizes.end()};
}

Result<RelationFinding> check_batch_size(CellSession& session) {
  RelationFinding finding;
  const bp_operator& table = session.host().table();
  const Problem& problem = session.cell().problem;
  const std::int64_t own = problem.axis(table.row_count_axis);
  if (session.rows() == 0) {
    finding.void_reason = "no rows";
    return finding;
  }
  const auto targets = session.targets();
  if (!targets) return tl::unexpected(targets.error());
  std::vector<std::int64_t> sizes;
  if (session.cell().standard.bi && !session.cell().standard.bi->batch_sizes.empty()) {
    sizes = session.cell().standard.bi->batch_sizes;
    sizes.erase(std::remove(sizes.begin(), sizes.end(), own), sizes.end());
  } else {
    sizes = default_batch_sizes(table, problem, own);
  }
  int sizes_run = 0;
  for (const std::int64_t size : sizes) {
    Variant variant = session.same();
    variant.problem.axes[table.row_count_axis] = size;
    variant.problem = session.routed(variant.problem);
    // A size that the operator does not accept (a multiple of 128, say) is no size of it.
    if (!session.host().validate(variant.problem)) continue;
    auto layout = make_layout(session.host(), variant.problem);
    if (!layout) return tl::unexpected(layout.error());
    const std::int64_t rows = layout->rows;
    if (rows == 0 || rows == session.rows()) continue;
    ++sizes_run;
    // First row of each batch: 0, and one more for every target that does not fit.
    std::set<std::int64_t> starts = {0};
    for (const std::int64_t target : *targets) {
      const bool seen = std::any_of(starts.begin(), starts.end(),
                                    [&](std::int64_t start) { return target >= start && target < start + rows; });
      // Rows that share a scale stay together.
      const std::int64_t block = session.base().layout.row_block();
      if (!seen) starts.insert(std::min(target, std::max<std::int64_t>(session.rows() - rows, 0)) / block * block);
    }
    for (const std::int64_t start : starts) {
      variant.rows.clear();
      for (std::int64_t position = 0; position < rows; ++position)
        variant.rows.push_back(session.identity(static_cast<std::uint64_t>(start + position)));
      auto resized = session.run(variant);
      if (!resized) return tl::unexpected(resized.error());
      const std::string what = fmt::format("{} = {} instead of {}", table.row_count_axis, size, own);
      for (std::int64_t position = 0; position < rows && start + position < session.rows(); ++position)
        session.compare_row(session.base(), start + position, *resized, position,
                            static_cast<std::uint64_t>(start + position), what, &finding.comparison);
    }
  }
  if (sizes_run == 0) finding.void_reason = "no other batch size is possible";
  return finding;
}

}  // namespace batchproof
