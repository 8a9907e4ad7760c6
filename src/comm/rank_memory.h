// SPDX-License-Identifier: Apache-2.0
//
// How the ranks of one process move and sum bytes: at once in host memory, or in the order of device streams. What a
// collective moves and when ranks meet is written once, in thread_world.cc.
#ifndef BATCHPROOF_SRC_COMM_RANK_MEMORY_H_
#define BATCHPROOF_SRC_COMM_RANK_MEMORY_H_

#include <cstddef>
#include <vector>

#include "batchproof/operator.h"
#include "src/runtime/error.h"

namespace batchproof {

// Each function is called by a rank's own thread. Between begin and opened, and between end and left, all ranks meet.
// Errors are of kind operation or environment.
class RankMemory {
 public:
  virtual ~RankMemory() = default;
  // What the rank enqueued before is what the others may read. An error: the call happens on no rank.
  virtual Result<void> begin(int rank, void* stream) = 0;
  virtual Result<void> opened(int rank, void* stream) = 0;
  virtual Result<void> move(void* to, const void* from, std::size_t bytes, void* stream) = 0;
  // As reduce() of reduce.h: the same bytes.
  virtual Result<void> sum(bp_dtype dtype, bp_reduce_order order, const std::vector<const void*>& sources,
                           std::size_t count, void* out, void* stream) = 0;
  // What the rank read and wrote for the others lies behind `end`; what it enqueues after `left` comes after all that
  // the others read and wrote.
  virtual Result<void> end(int rank, void* stream) = 0;
  virtual Result<void> left(int rank, void* stream) = 0;
  // After all ranks have returned, before the next calls.
  virtual void reset() {}
};

// Host memory: done when the function returns. One object serves all worlds.
RankMemory& host_rank_memory();

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_COMM_RANK_MEMORY_H_
