// SPDX-License-Identifier: Apache-2.0
#include "src/comm/collective.h"

#include <cstddef>
#include <iterator>

#include "src/numeric/dtype.h"

namespace batchproof {

// A name may come from memory that another process wrote.
const char* op_name(Collective op) {
  constexpr const char* kNames[] = {"",           "barrier",      "all_gather", "reduce_scatter", "all_reduce",
                                    "all_to_all", "all_to_all_v", "the end",    "an invalid call"};
  const auto index = static_cast<std::size_t>(op);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

std::string call_text(Collective op, std::uint64_t count, bp_dtype dtype, bp_reduce_order order) {
  switch (op) {
    case Collective::all_gather:
      return fmt::format("all_gather of {} bytes per rank", count);
    case Collective::all_to_all:
      return fmt::format("all_to_all of {} bytes per peer", count);
    case Collective::reduce_scatter:
    case Collective::all_reduce:
      return fmt::format("{} of {} {} elements in {} order", op_name(op), count, dtype_name(dtype),
                         order == BP_REDUCE_TREE ? "tree" : "rank");
    default:
      return op_name(op);
  }
}

}  // namespace batchproof
