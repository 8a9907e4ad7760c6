// SPDX-License-Identifier: Apache-2.0
//
// The processes that run a command together: this one alone, or those that mpirun started.
#ifndef BATCHPROOF_SRC_CLI_LAUNCH_H_
#define BATCHPROOF_SRC_CLI_LAUNCH_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/check/host.h"
#include "src/runtime/error.h"

namespace batchproof::cli {

bool mpi_built_in();
// Whether mpirun (or another launcher that speaks PMIx) started this process.
bool started_by_mpirun();
// Of this process in its launch, before MPI has begun; 0 where there is none.
int rank_in_launch();

// One process of a launch. What is collective is called by all of them, in the same order.
class Launch {
 public:
  virtual ~Launch() = default;
  virtual bool mpi() const { return false; }
  virtual int rank() const { return 0; }
  virtual int size() const { return 1; }
  // Whether this process prints and writes; the others speak only errors.
  bool speaks() const { return rank() == 0; }
  virtual std::string communicator() const { return "threads"; }
  // Collective: every rank's text, and that of rank 0.
  virtual std::vector<std::string> gather(const std::string& text) { return {text}; }
  virtual std::string broadcast(const std::string& text) { return text; }
  // Runs operators over the launch; nullptr: in this process. `seconds`: how long a call may take.
  virtual OperatorHost* host(const bp_operator* /*table*/, double /*seconds*/) { return nullptr; }
  // What the speaking process does when a rank is lost, hangs, or the run is told to end: `save` keeps the results so
  // far, from another thread, and the process ends. None: it only ends.
  virtual void on_loss(const std::function<void()>& /*save*/) {}
};

// Calls body in this process, or in each process of the launch where `comm` is "mpi", this build has MPI and mpirun
// started it. Returns the exit code. Under MPI the body runs in a child, whose parent turns a death by a signal into
// an error and exit code 3: mpirun returns the first code that it sees.
int in_launch(const std::string& comm, const std::function<int(Launch&)>& body);

// Of launch.mpi.cc.
Result<std::unique_ptr<Launch>> start_mpi_launch();
void finish_mpi_launch(Launch& launch);

}  // namespace batchproof::cli

#endif  // BATCHPROOF_SRC_CLI_LAUNCH_H_
