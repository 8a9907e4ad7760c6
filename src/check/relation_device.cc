// SPDX-License-Identifier: Apache-2.0
//
// What changes on a device alone. stream: the call runs on another stream while the usual one is busy. graph: the call
// is captured and replayed, first on stale tensors, then on its own. processors: a limit on the streaming
// multiprocessors, which the operator is told.
#include <fmt/format.h>

#include "src/check/relation.h"

namespace batchproof {
namespace {

constexpr int kRuns = 3;
// Of few processors, of an odd count, and of a part of any device there is.
constexpr int kLimits[] = {1, 3, 16, 61, 120};

// Whether there is something to run; else the finding says why not.
bool applies(const CellSession& session, const char* what, RelationFinding* finding) {
  if (!runs_on_cuda(*session.cell().impl)) {
    finding->skip_reason = fmt::format("{} does not run on a CUDA device: {}", session.cell().impl->id, what);
    return false;
  }
  if (session.rows() == 0) finding->void_reason = "no rows";
  return session.rows() != 0;
}

Result<void> compare_all(CellSession& session, const Variant& variant, const std::string& what,
                         RelationFinding* finding) {
  auto run = session.run(variant);
  if (!run) return tl::unexpected(run.error());
  for (std::int64_t row = 0; row < session.rows(); ++row)
    session.compare_row(session.base(), row, *run, row, static_cast<std::uint64_t>(row), what, &finding->comparison);
  return {};
}

}  // namespace

Result<RelationFinding> check_stream(CellSession& session) {
  RelationFinding finding;
  if (!applies(session, "it has no streams", &finding)) return finding;
  Variant variant = session.same();
  variant.stream = 1;
  for (int i = 0; i < kRuns; ++i) {
    auto done = compare_all(session, variant, "a second stream while the first is busy", &finding);
    if (!done) return tl::unexpected(done.error());
  }
  return finding;
}

Result<RelationFinding> check_graph(CellSession& session) {
  RelationFinding finding;
  if (!applies(session, "it has no graphs", &finding)) return finding;
  if ((session.host().table().flags & BP_OP_GRAPH_SAFE) == 0) {
    finding.skip_reason = fmt::format("{} does not say that its calls may be captured", session.host().table().name);
    return finding;
  }
  Variant variant = session.same();
  variant.captured = true;
  auto done = compare_all(session, variant, "captured, replayed on stale tensors, then on its own", &finding);
  if (!done) return tl::unexpected(done.error());
  return finding;
}

Result<RelationFinding> check_processors(CellSession& session) {
  RelationFinding finding;
  if (!applies(session, "it has no streaming multiprocessors", &finding)) return finding;
  for (const int limit : kLimits) {
    Variant variant = session.same();
    variant.processors = limit;
    auto done = compare_all(session, variant, fmt::format("at most {} streaming multiprocessors", limit), &finding);
    if (!done) return tl::unexpected(done.error());
  }
  return finding;
}

}  // namespace batchproof
