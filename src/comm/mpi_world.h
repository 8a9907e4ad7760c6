// SPDX-License-Identifier: Apache-2.0
//
// Ranks as processes of an MPI launch: moving bytes between them, and a bp_comm on top. Only bytes travel; what sums is
// src/comm/reduce, so results are those of the other communicators. The declarations need no MPI; mpi_world.mpi.cc
// does.
#ifndef BATCHPROOF_SRC_COMM_MPI_WORLD_H_
#define BATCHPROOF_SRC_COMM_MPI_WORLD_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "batchproof/operator.h"
#include "src/runtime/error.h"

namespace batchproof {

// All processes of the launch. Everything but overdue() is for the thread that made the object.
class MpiProcesses {
 public:
  // Starts MPI, which a process can do once. Errors: environment.
  static Result<std::unique_ptr<MpiProcesses>> start();
  // Does not end MPI: after a failure that would wait for those who are lost.
  ~MpiProcesses();
  MpiProcesses(const MpiProcesses&) = delete;
  MpiProcesses& operator=(const MpiProcesses&) = delete;

  int rank() const;
  int size() const;
  std::string library() const;  // "Open MPI v4.1.4"
  // Ends MPI, together with all other processes.
  void finish();

  // Bytes to or from another process. Pieces between two processes pair up in order.
  struct Piece {
    int peer;
    void* data;  // only read where it is sent
    std::size_t bytes;
  };
  // Moves all pieces and waits without keeping the processor. `what` is a literal that names it for overdue(). False:
  // MPI failed; on_failure's function was called before.
  bool exchange(const char* what, const std::vector<Piece>& sends, const std::vector<Piece>& receives);
  // Collective over all processes. Empty where MPI failed.
  std::vector<std::string> gather(const std::string& text);
  std::string broadcast(const std::string& text);  // that of rank 0
  // Called with what MPI said. Other processes wait for this one then, so it should end the process.
  void on_failure(std::function<void(const std::string& what)> handler);

  // A call of an operator, named in `what`, should be over in that many seconds, on all its ranks.
  void begin_call(const std::string& what, double seconds);
  void end_call();
  // From any thread: which rank kept the call at hand from ending in time, as a sentence; nothing while there is time.
  // Rank 0 has the reports and sees it first; the others give it a while longer, in case that it is rank 0 that hangs.
  std::optional<std::string> overdue() const;

 private:
  friend class MpiWorld;
  struct State;
  explicit MpiProcesses(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The communicator of the first `world` processes; all processes make it, together. Semantics, argument checks and
// result bytes are those of ThreadWorld. Before each collective the ranks compare what they call, so a mismatch and a
// rank that returned early are errors on all of them and not a hang.
class MpiWorld {
 public:
  MpiWorld(MpiProcesses& processes, int world);
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  // Of this process, whose rank is below `world`. handle: MPI_Comm *, with no traffic of ours on it.
  const bp_comm* comm() const;
  // How the call went on this rank.
  struct Ending {
    bool aborted = false;
    bool while_running = false;  // before this rank's call was over
    // The reason lies in what the ranks called, or in this rank's arguments; else another rank knows it.
    bool known = false;
    std::string error;  // "rank 3: ..."
  };
  // Collective over the ranks of the world, after each call: this rank calls nothing more. `failed`: it had an error.
  // The world is usable again afterwards.
  Ending finished(bool failed);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_COMM_MPI_WORLD_H_
