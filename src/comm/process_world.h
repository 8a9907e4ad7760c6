// SPDX-License-Identifier: Apache-2.0
//
// Ranks as processes of one host: a bp_comm over memory that the processes share. For operators that must not be run by
// several threads of one process.
#ifndef BATCHPROOF_SRC_COMM_PROCESS_WORLD_H_
#define BATCHPROOF_SRC_COMM_PROCESS_WORLD_H_

#include <cstddef>
#include <memory>
#include <string>

#include "batchproof/operator.h"

namespace batchproof {

constexpr int kMaxProcessWorld = 256;

// One process's door to the world. The shared memory holds no addresses, so every process may map it elsewhere.
//
// Semantics, argument checks and result bytes are those of ThreadWorld. Buffers stay private: data goes through a slot
// per rank in the shared memory, piece by piece. A rank that aborts, returns while others wait for it, or dies (by
// whatever signal) releases the others with BP_COMM, and error() names it; a death in the middle of a collective may
// leave recv partly written.
class ProcessWorld {
 public:
  // Size of the shared memory, a multiple of the page size. `slot_bytes`: staging memory per rank, a multiple of 4096
  // and at least 64 * world; touched only as far as messages are long.
  static std::size_t bytes(int world, std::size_t slot_bytes = kDefaultSlot);
  // Lays an empty world out in page-aligned memory of that size. Before anybody attaches.
  static void create(void* memory, int world, std::size_t slot_bytes = kDefaultSlot);

  // Rank `rank` of the world in `memory`; -1: an observer, who may abort and reset but has no communicator.
  ProcessWorld(void* memory, int rank);
  ~ProcessWorld();
  ProcessWorld(const ProcessWorld&) = delete;
  ProcessWorld& operator=(const ProcessWorld&) = delete;

  int world() const;
  const bp_comm* comm() const;
  // The first abort wins; everybody who waits, now or later, returns BP_COMM.
  void abort(int rank, const std::string& message);
  bool aborted() const;
  std::string error() const;  // "rank 3: ..." of the first abort; empty where none
  // This rank will call nothing more until reset: whoever waits for it has an error.
  void finished();
  // The name of the collective in which a rank waits for others, or an empty text.
  std::string waits_in(int rank) const;
  // Usable again, after every rank has returned or died. Ranks attach anew.
  void reset();

  static constexpr std::size_t kDefaultSlot = std::size_t{1} << 18;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_COMM_PROCESS_WORLD_H_
