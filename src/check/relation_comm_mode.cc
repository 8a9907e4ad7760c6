// SPDX-License-Identifier: Apache-2.0
//
// comm_mode: communication determinism off, on, strict. Inside each setting a row may depend on its own content only;
// between settings no equality is asked, since a setting may change the order of a reduction.
#include <fmt/format.h>

#include "src/check/relation.h"
#include "src/runtime/words.h"
#include "src/suite/case_plan.h"

namespace batchproof {

Result<RelationFinding> check_comm_mode(CellSession& session) {
  RelationFinding finding;
  if (!is_distributed(session.host().table())) {
    finding.skip_reason = "the operator runs on one rank";
    return finding;
  }
  const auto targets = session.targets();
  if (!targets) return tl::unexpected(targets.error());
  for (const bp_comm_mode mode : {BP_COMM_OFF, BP_COMM_ON, BP_COMM_STRICT}) {
    Variant first = session.same();
    first.comm_mode = mode;
    auto base = session.run(first);
    if (!base) return tl::unexpected(base.error());
    Variant same = first;
    auto again = session.run(same);
    if (!again) return tl::unexpected(again.error());
    for (std::int64_t row = 0; row < session.rows(); ++row)
      session.compare_row(*base, row, *again, row, static_cast<std::uint64_t>(row),
                          fmt::format("the same call under comm_mode {}", comm_mode_name(mode)), &finding.comparison);
    for (const std::int64_t target : *targets) {
      Variant changed = first;
      const std::uint64_t seed = session.variant_seed(1);
      for (std::size_t row = 0; row < changed.rows.size(); ++row) {
        if (static_cast<std::int64_t>(row) != target) changed.rows[row].seed = seed;
      }
      auto other = session.run(changed);
      if (!other) return tl::unexpected(other.error());
      session.compare_row(*base, target, *other, target, static_cast<std::uint64_t>(target),
                          fmt::format("other rows from seed {} under comm_mode {}", seed, comm_mode_name(mode)),
                          &finding.comparison);
    }
  }
  return finding;
}

}  // namespace batchproof
