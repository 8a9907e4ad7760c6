// SPDX-License-Identifier: Apache-2.0
#include "src/check/relation.h"

namespace batchproof {

const std::vector<Relation>& runnable_relations() {
  static const std::vector<Relation> list = {
      {BP_NEIGHBOURS, Witness::Kind::leak, false, check_neighbours},
      {BP_REPEAT, Witness::Kind::order, false, check_repeat},
      {BP_POSITION, Witness::Kind::order, false, check_position},
      {BP_CROSS_RANK, Witness::Kind::order, false, check_cross_rank},
      {BP_BATCH_SIZE, Witness::Kind::order, false, check_batch_size},
      {BP_WORLD_SIZE, Witness::Kind::order, false, check_world_size},
      {BP_COMM_MODE, Witness::Kind::order, false, check_comm_mode},
      {BP_POISON, Witness::Kind::leak, false, check_poison},
      {BP_ROUTING, Witness::Kind::leak, true, check_routing},
      {BP_ALIGNMENT, Witness::Kind::order, false, check_alignment},
      {BP_THREADS, Witness::Kind::order, false, check_threads},
      {BP_HISTORY, Witness::Kind::order, false, check_history},
      {BP_STREAM, Witness::Kind::order, false, check_stream},
      {BP_GRAPH, Witness::Kind::order, false, check_graph},
      {BP_PROCESSORS, Witness::Kind::order, false, check_processors},
  };
  return list;
}

}  // namespace batchproof
