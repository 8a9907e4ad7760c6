// SPDX-License-Identifier: Apache-2.0
//
// Which expert each logical row meets, and where the row lies before and after the exchange. Integers only: the same
// answer on every rank and on every device. Shared by the operators whose rows choose experts.
#ifndef BATCHPROOF_SRC_KERNELS_ROUTING_H_
#define BATCHPROOF_SRC_KERNELS_ROUTING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "batchproof/operator.h"
#include "src/runtime/error.h"

namespace batchproof {

// Rank r has the logical rows [r * rows, (r + 1) * rows) and the experts [r * experts, (r + 1) * experts).
struct RoutingRequest {
  std::int64_t world = 1;
  std::int64_t rows = 0;     // of one rank
  std::int64_t experts = 1;  // of one rank
  // balanced, skewed, all_to_one, random; or a list: the expert of logical row 0, 1, ..., -1 for a row that is not
  // sent. A list wins over `counts`, counts over a word.
  std::string word;
  std::int64_t seed = 0;      // of skewed and random
  std::int64_t capacity = 0;  // rows that an expert takes from a word's routing, the first ones; 0: all
  // Rows that a rank sends to expert 0, 1, ...: world * experts numbers that hold on every rank, or that many for each
  // rank in turn; all rows of a rank are sent, and lie in this order.
  std::string counts;
  std::string counts_name;  // of the attribute, for messages

  bool operator==(const RoutingRequest&) const = default;
};

// W, M, E and the attributes `routing`, `routing_seed`, `capacity`, and of `counts_attr` of a problem.
RoutingRequest routing_request(const bp_problem* problem, const char* counts_attr);

// Whether the text is a list, not a word.
bool is_routing_list(const std::string& text);

// A comma list of integers: one sentence with `name` where it is none.
Result<std::vector<std::int64_t>> integer_list(const std::string& name, const std::string& text);

class Routing {
 public:
  // Where a logical row lies. Its rank holds its rows by ascending expert, rows of one expert by ascending row, rows
  // that are not sent last. The expert's rank holds them by expert, then by rank, then by row.
  struct Row {
    std::int64_t rank = 0;     // whose row it is
    std::int64_t place = 0;    // there
    std::int64_t owner = -1;   // the expert's rank; -1: not sent
    std::int64_t expert = -1;  // on the owner
    std::int64_t landing = -1;
  };

  // Fails, kind usage, where the request is not consistent.
  static Result<Routing> make(const RoutingRequest& request);

  std::int64_t world() const { return world_; }
  std::int64_t experts() const { return experts_; }  // of one rank
  const Row& row(std::int64_t logical) const { return rows_[static_cast<std::size_t>(logical)]; }
  std::int64_t row_count() const { return static_cast<std::int64_t>(rows_.size()); }
  // Rows that `rank` sends to expert `expert` of `owner`.
  std::int64_t count(std::int64_t rank, std::int64_t owner, std::int64_t expert) const {
    return counts_[static_cast<std::size_t>((rank * world_ + owner) * experts_ + expert)];
  }
  std::int64_t sent(std::int64_t rank) const;                         // rows that the rank sends
  std::int64_t received(std::int64_t owner) const;                    // rows that its experts get
  std::int64_t load(std::int64_t owner, std::int64_t expert) const;   // rows that this expert gets
  std::int64_t between(std::int64_t rank, std::int64_t owner) const;  // rows from rank to owner
  std::int64_t most_received() const;                                 // by any rank

 private:
  std::int64_t world_ = 1;
  std::int64_t experts_ = 1;
  std::vector<Row> rows_;
  std::vector<std::int64_t> counts_;  // [rank][owner][expert]
};

// Routing::make with a memory of the last answer of this thread: an operator is asked for the place of every row.
const Result<Routing>& routing_of(const RoutingRequest& request);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_ROUTING_H_
