// SPDX-License-Identifier: Apache-2.0
//
// Ranks as threads of one process: a bp_comm per rank over memory that all of them reach. Results do not depend on
// arrival order.
#ifndef BATCHPROOF_SRC_COMM_THREAD_WORLD_H_
#define BATCHPROOF_SRC_COMM_THREAD_WORLD_H_

#include <functional>
#include <memory>
#include <string>

#include "batchproof/operator.h"
#include "src/comm/rank_memory.h"
#include "src/runtime/error.h"

namespace batchproof {

// One communicator per rank, valid as long as the world. A rank that fails calls abort(): every rank that waits, now or
// later, returns BP_COMM at once, and error() names the first rank that failed and why.
//
// Arguments are checked before anything is copied: what one rank can see by itself (a dtype without sums, a NULL, send
// and recv that overlap) gives BP_INVALID on that rank and aborts; calls that do not match between ranks abort with an
// error that names both ranks and both calls. In place are allowed: all_gather with send = recv + rank *
// bytes_per_rank, reduce_scatter with recv = send + rank * count elements, all_reduce with recv = send.
class ThreadWorld {
 public:
  // `memory`: where buffers lie; it outlives the world.
  explicit ThreadWorld(int world, RankMemory& memory = host_rank_memory());
  ~ThreadWorld();
  ThreadWorld(const ThreadWorld&) = delete;
  ThreadWorld& operator=(const ThreadWorld&) = delete;

  int world() const;
  const bp_comm* comm(int rank) const;
  void abort(int rank, const std::string& message);
  bool aborted() const;
  std::string error() const;  // "rank 3: ..." of the first abort; empty where none
  void reset();               // after all ranks have returned: usable again

 private:
  friend class RankTeam;
  struct State;
  std::unique_ptr<State> state_;
};

// Calls body(rank, comm) on every rank at once and waits for all. Threads are kept between calls; rank 0 runs in the
// calling thread. A rank whose body returns an error or throws aborts the world, and so does a rank that returns while
// another one waits for it in a collective; the first error is returned. Bodies begin with the default FP environment.
// Calls from several threads take turns. A forked child may use the team: it gets threads of its own.
class RankTeam {
 public:
  explicit RankTeam(int world, RankMemory& memory = host_rank_memory());
  ~RankTeam();
  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;

  int world() const;
  Result<void> run(const std::function<Result<void>(int rank, const bp_comm& comm)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_COMM_THREAD_WORLD_H_
