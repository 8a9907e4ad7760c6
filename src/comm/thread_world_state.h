// SPDX-License-Identifier: Apache-2.0
//
// What the ranks of a ThreadWorld share: the posted calls, the two barriers, the abort.
#ifndef BATCHPROOF_SRC_COMM_THREAD_WORLD_STATE_H_
#define BATCHPROOF_SRC_COMM_THREAD_WORLD_STATE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "batchproof/operator.h"
#include "src/comm/collective.h"
#include "src/comm/rank_memory.h"

namespace batchproof {

// What one rank called. Written by that rank before it enters, read by the others until it leaves.
struct WorldCall {
  Collective op = Collective::barrier;
  const void* send = nullptr;
  const void* result = nullptr;  // all_reduce: where the rank's own slice will be
  std::size_t count = 0;         // elements of a reduction, else bytes
  bp_dtype dtype = BP_NONE;
  bp_reduce_order order = BP_REDUCE_RANK_ORDER;
  const std::size_t* send_bytes = nullptr;
  const std::size_t* send_offsets = nullptr;
  const std::size_t* recv_bytes = nullptr;
};

class WorldCore {
 public:
  explicit WorldCore(int world, RankMemory& memory);

  // Waits until every rank has entered with a matching call. False: aborted, and the call will not happen on any rank.
  bool enter(int rank, const WorldCall& call);
  // Waits until every rank has come here. Cannot fail: only ranks that entered come here, and all of them do.
  void leave();

  // Releases every rank that waits in enter. Only the first text is kept; returns whether this was it.
  bool abort(const std::string& text);
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  std::string error() const;
  void reset();
  // The rank will not call anything until reset: whoever waits for it has an error.
  void finished(int rank);

  const int world;
  RankMemory& memory;
  std::vector<WorldCall> calls;  // by rank
  struct alignas(64) Rank {
    std::vector<const void*> sources;  // of a reduction, one per rank; here so that a call allocates nothing
    // Under the mutex.
    bool arrived = false;
    bool finished = false;
  };
  std::vector<Rank> ranks;

 private:
  bool abort_locked(const std::string& text);
  std::string mismatch() const;

  mutable std::mutex mutex_;
  std::string error_;  // under the mutex
  int arrived_ = 0;    // under the mutex
  std::atomic<bool> aborted_{false};
  std::atomic<std::uint64_t> entered_{0};      // calls that all ranks have entered
  std::atomic<std::uint32_t> enter_epoch_{0};  // counts entered calls and aborts: what waiters sleep on
  std::atomic<int> leaving_;                   // ranks that the current leave waits for
  std::atomic<std::uint32_t> leave_epoch_{0};
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_COMM_THREAD_WORLD_STATE_H_
