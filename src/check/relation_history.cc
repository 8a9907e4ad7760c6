// SPDX-License-Identifier: Apache-2.0
//
// history: what ran before. A warm call with the workspace as another shape left it, and a shape that fast mode saw
// first: a memo whose key lacks the mode hands fast mode's plan to invariant mode.
#include <fmt/format.h>

#include <algorithm>

#include "src/check/relation.h"

namespace batchproof {
namespace {

// A value of the row-count axis that no other relation has run: fast mode must be the first to see it.
std::int64_t unseen_size(CellSession& session, const Variant& like) {
  const bp_operator& table = session.host().table();
  const std::int64_t own = session.cell().problem.axis(table.row_count_axis);
  std::vector<std::int64_t> used = default_batch_sizes(table, session.cell().problem, own);
  if (session.cell().standard.bi) {
    const auto& named = session.cell().standard.bi->batch_sizes;
    used.insert(used.end(), named.begin(), named.end());
  }
  for (std::int64_t size = own + 18; size < 4 * own + 512; ++size) {
    if (std::find(used.begin(), used.end(), size) != used.end()) continue;
    Problem problem = like.problem;
    problem.axes[table.row_count_axis] = size;
    problem = session.routed(problem);
    if (session.host().validate(problem)) return size;
  }
  return -1;
}

Result<void> compare_rows_of_base(CellSession& session, const Run& run, const std::string& what,
                                  RelationFinding* finding) {
  const std::int64_t common = std::min(session.rows(), run.layout.rows);
  for (std::int64_t row = 0; row < common; ++row)
    session.compare_row(session.base(), row, run, row, static_cast<std::uint64_t>(row), what, &finding->comparison);
  return {};
}

}  // namespace

Result<RelationFinding> check_history(CellSession& session) {
  RelationFinding finding;
  if (session.rows() == 0) {
    finding.void_reason = "no rows";
    return finding;
  }
  const bp_operator& table = session.host().table();

  Variant other = session.same();
  const std::int64_t size = unseen_size(session, other);
  if (size > 0) {
    other.problem.axes[table.row_count_axis] = size;
    other.problem = session.routed(other.problem);
    auto layout = make_layout(session.host(), other.problem);
    if (!layout) return tl::unexpected(layout.error());
    other.rows = session.assignment(layout->rows);
    // Fast mode first: the operator's own fast implementation and this implementation under fast mode.
    if (const bp_implementation* fast =
            default_implementation(table, BP_MODE_FAST, runs_on_cuda(*session.cell().impl))) {
      Variant first = other;
      first.implementation = fast;
      first.mode = BP_MODE_FAST;
      auto ran = session.run(first);
      if (!ran) return tl::unexpected(ran.error());
    }
    if (session.cell().impl->mode == BP_MODE_INVARIANT) {
      Variant first = other;
      first.mode = BP_MODE_FAST;
      auto ran = session.run(first);
      if (!ran) return tl::unexpected(ran.error());
    }
    auto after_fast = session.run(other);
    if (!after_fast) return tl::unexpected(after_fast.error());
    (void)compare_rows_of_base(session, *after_fast,
                               fmt::format("{} = {}, which fast mode ran first", table.row_count_axis, size), &finding);
  }

  Variant warm = session.same();
  warm.workspace_fill = std::nullopt;
  auto again = session.run(warm);
  if (!again) return tl::unexpected(again.error());
  (void)compare_rows_of_base(session, *again, "a warm call with the workspace as another shape left it", &finding);
  return finding;
}

}  // namespace batchproof
