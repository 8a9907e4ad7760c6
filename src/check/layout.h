// SPDX-License-Identifier: Apache-2.0
//
// Where a problem's tensors hold what: shapes, which axis counts rows, how a logical row is cut over ranks.
#ifndef BATCHPROOF_SRC_CHECK_LAYOUT_H_
#define BATCHPROOF_SRC_CHECK_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "batchproof/operator.h"
#include "src/check/host.h"
#include "src/runtime/error.h"
#include "src/runtime/problem.h"

namespace batchproof {

// One port of one problem. A row's elements are the other axes, flattened in axis order; over ranks a sharded axis
// among them makes the logical row longer: global index = [pre][rank * extent + e][post].
struct PortLayout {
  std::uint32_t index = 0;
  const bp_port* port = nullptr;
  bp_dtype dtype = BP_NONE;
  int ndim = 0;
  std::int64_t shape[BP_MAX_DIMS] = {};
  std::int64_t stride[BP_MAX_DIMS] = {};  // storage order; transposed views differ from row-major
  std::int64_t rows = -1;                 // entries along the row axis, per rank; -1: no row axis
  std::int64_t row_block = 1;             // rows that one of them covers
  bool rows_sharded = false;              // rank r holds rows [r * rows, (r + 1) * rows)
  std::int64_t inner = 0;                 // elements of a row on one rank (of the whole tensor where rows < 0)
  std::int64_t pre = 1;
  std::int64_t extent = 0;
  std::int64_t post = 1;
  int shards = 1;  // ranks over which a logical row is cut

  bool present() const { return dtype != BP_NONE; }
  bool is_output() const { return port->kind == BP_OUTPUT; }
  bool carries_rows() const { return present() && rows >= 0; }
  std::int64_t elements() const;
  std::size_t bytes() const;              // of the whole tensor on one rank
  std::size_t row_bytes() const;          // of a row on one rank
  std::size_t logical_row_bytes() const;  // of a row over all ranks
  bool rows_contiguous() const;           // a row on one rank is one piece of memory
  bool exact_inputs = false;              // an output of inputs that sum exactly in any order
  // Whether the output itself is declared exact: it holds integers or moved data.
  bool declared_exact() const { return (port->order_exact_dtypes & BP_DTYPE_BIT(dtype)) != 0; }
  // Whether a weight, or its scale, may hold one slice per expert.
  bool sharded_by_experts() const;
  bool holds_experts() const { return sharded_by_experts() && port->kind == BP_WEIGHT; }
  // Whether no reduction order can move bytes of this output.
  bool order_exact() const;
};

struct Layout {
  Problem problem;
  std::int64_t rows = 0;  // logical output rows over all ranks
  std::vector<PortLayout> ports;
  // Rows that share a scale: a row cannot leave its block without losing its scales. 1: none do.
  std::int64_t row_block() const;
  // Every place of logical position p: for all ports that carry rows.
  std::vector<bp_location> locations(OperatorHost& host, std::int64_t position) const;
  // Experts over all ranks among which a row of the operator chooses; 0: rows choose none.
  std::int64_t experts() const;
  // The expert that logical position p meets, counted over all ranks; -1: none.
  std::int64_t expert_of(OperatorHost& host, std::int64_t position) const;
  // Outputs that are present.
  std::vector<const PortLayout*> outputs() const;
};

// Logical output rows of a problem over all ranks.
Result<std::int64_t> logical_rows(const bp_operator& table, const Problem& problem);

Result<Layout> make_layout(OperatorHost& host, const Problem& problem);

// The attribute by which the harness tells an operator which experts its rows choose.
constexpr const char* kRoutingAttr = "routing";

// The same logical problem on another number of ranks: every axis along which a port is sharded is divided anew. Fails
// where it does not divide or the operator refuses the result.
Result<Problem> with_world(OperatorHost& host, const Problem& problem, int world);

// Length of a reduction group over all ranks and the block by which it may be permuted (the largest reduction_block of
// its ports). Length 0: no present port belongs to the group.
struct ReductionGroup {
  std::string name;
  std::int64_t length = 0;
  std::int64_t block = 1;
};
std::vector<ReductionGroup> reduction_groups(const Layout& layout);

// Where an element of a logical row (or of the logical tensor of a port without rows) lies: `entry` counts along the
// reduction axes (an entry of a block scale covers reduction_block indices), `other` along all other axes.
struct ElementPlace {
  std::int64_t entry = 0;
  std::int64_t other = 0;
};
std::vector<ElementPlace> element_places(const PortLayout& port);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_CHECK_LAYOUT_H_
