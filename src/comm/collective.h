// SPDX-License-Identifier: Apache-2.0
//
// What the ranks of a world call and how errors name it, so that every communicator says the same of the same mistake.
#ifndef BATCHPROOF_SRC_COMM_COLLECTIVE_H_
#define BATCHPROOF_SRC_COMM_COLLECTIVE_H_

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "batchproof/operator.h"

namespace batchproof {

enum class Collective : std::uint32_t {
  none,
  barrier,
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  all_to_all_v,
  finished,  // not a call: the rank comes no more
  invalid    // not a call: the rank's arguments were refused
};

// "all_gather"; empty for none.
const char* op_name(Collective op);

// "all_reduce of 8 bf16 elements in tree order". `count`: elements of a reduction, else bytes.
std::string call_text(Collective op, std::uint64_t count, bp_dtype dtype, bp_reduce_order order);

// Empty where all ranks call the same; else which rank does not call what rank 0 calls. `call_of(rank)` has op, count,
// dtype and order.
template <class CallOf>
std::string different_calls(int world, const CallOf& call_of) {
  const auto& first = call_of(0);
  for (int q = 1; q < world; ++q) {
    const auto& call = call_of(q);
    if (call.op != first.op || call.count != first.count || call.dtype != first.dtype || call.order != first.order) {
      return fmt::format("rank {}: {} does not match {} of rank 0", q,
                         call_text(call.op, call.count, call.dtype, call.order),
                         call_text(first.op, first.count, first.dtype, first.order));
    }
  }
  return {};
}

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_COMM_COLLECTIVE_H_
