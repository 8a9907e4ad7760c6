// SPDX-License-Identifier: Apache-2.0
//
// alignment: base addresses leave their 64-byte boundary by whole elements, and leading dimensions grow where the
// operator accepts that.
#include <fmt/format.h>

#include "src/check/relation.h"

namespace batchproof {

Result<RelationFinding> check_alignment(CellSession& session) {
  RelationFinding finding;
  if (session.rows() == 0) {
    finding.void_reason = "no rows";
    return finding;
  }
  for (const auto& [offset, padding] : {std::pair<int, int>{1, 0}, {2, 1}, {5, 8}, {8, 3}}) {
    Variant variant = session.same();
    // Packed dtypes begin at whole bytes.
    variant.placement.offset = offset * 2;
    variant.placement.padding = padding;
    auto moved = session.run(variant);
    if (!moved) return tl::unexpected(moved.error());
    for (std::int64_t row = 0; row < session.rows(); ++row)
      session.compare_row(
          session.base(), row, *moved, row, static_cast<std::uint64_t>(row),
          fmt::format("base addresses moved by {} elements, leading dimensions longer by {}", offset * 2, padding),
          &finding.comparison);
  }
  return finding;
}

}  // namespace batchproof
