// SPDX-License-Identifier: Apache-2.0
//
// A relation: a change of everything but the row, under which the row's bytes must not move. One file per relation,
// relation_<name>.cc; the list is in relation.cc.
#ifndef BATCHPROOF_SRC_CHECK_RELATION_H_
#define BATCHPROOF_SRC_CHECK_RELATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "src/check/session.h"

namespace batchproof {

// What a relation's runs showed, before the witness is judged.
struct RelationFinding {
  Comparison comparison;
  // Leak relations: how often a neighbour's output moved, per port; empty for order relations.
  std::map<std::uint32_t, Witness> leak;
  // Not empty: the relation has nothing to change here ("one row: no neighbour") and is vacuous.
  std::string void_reason;
  // Not empty: the relation does not apply to this problem and is skipped.
  std::string skip_reason;
};

struct Relation {
  std::uint32_t bit;
  Witness::Kind witness;
  bool order_too;  // a leak relation that finds faults of order as well: both must be able to show
  Result<RelationFinding> (*check)(CellSession& session);
};

// The relations that this build can run, in the order in which they run.
const std::vector<Relation>& runnable_relations();

Result<RelationFinding> check_repeat(CellSession& session);
Result<RelationFinding> check_neighbours(CellSession& session);
Result<RelationFinding> check_position(CellSession& session);
Result<RelationFinding> check_cross_rank(CellSession& session);
Result<RelationFinding> check_batch_size(CellSession& session);
Result<RelationFinding> check_world_size(CellSession& session);
Result<RelationFinding> check_comm_mode(CellSession& session);
Result<RelationFinding> check_poison(CellSession& session);
Result<RelationFinding> check_routing(CellSession& session);
Result<RelationFinding> check_alignment(CellSession& session);
Result<RelationFinding> check_threads(CellSession& session);
Result<RelationFinding> check_history(CellSession& session);
// These three are for implementations with BP_IMPL_CUDA; others are skipped.
Result<RelationFinding> check_processors(CellSession& session);
Result<RelationFinding> check_stream(CellSession& session);
Result<RelationFinding> check_graph(CellSession& session);

// The default sweep of batch_size: values of the row-count axis for a cell whose value is `own`.
std::vector<std::int64_t> default_batch_sizes(const bp_operator& table, const Problem& problem, std::int64_t own);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_CHECK_RELATION_H_
