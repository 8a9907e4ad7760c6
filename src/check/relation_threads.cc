// SPDX-License-Identifier: Apache-2.0
//
// threads: the number of CPU threads that a rank may use.
#include <fmt/format.h>

#include "src/check/relation.h"

namespace batchproof {

Result<RelationFinding> check_threads(CellSession& session) {
  RelationFinding finding;
  if (session.rows() == 0) {
    finding.void_reason = "no rows";
    return finding;
  }
  const int base = session.base_threads(session.cell().problem.world);
  for (const int threads : {1, 2, 3, 4, 7}) {
    if (threads == base) continue;
    Variant variant = session.same();
    variant.threads = threads;
    auto run = session.run(variant);
    if (!run) return tl::unexpected(run.error());
    for (std::int64_t row = 0; row < session.rows(); ++row)
      session.compare_row(session.base(), row, *run, row, static_cast<std::uint64_t>(row),
                          fmt::format("{} threads instead of {}", threads, base), &finding.comparison);
  }
  return finding;
}

}  // namespace batchproof
