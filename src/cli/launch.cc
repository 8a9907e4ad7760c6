// SPDX-License-Identifier: Apache-2.0
//
// Without MPI there is nothing to launch; with it every rank gets a guard.
#include "src/cli/launch.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "src/cli/exit.h"
#include "src/cli/print.h"

namespace batchproof::cli {

bool mpi_built_in() {
#ifdef BATCHPROOF_HAVE_MPI
  return true;
#else
  return false;
#endif
}

bool started_by_mpirun() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMIX_RANK") != nullptr;
}

int rank_in_launch() {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr) rank = std::getenv("PMIX_RANK");
  return rank == nullptr ? 0 : std::atoi(rank);
}

#ifndef BATCHPROOF_HAVE_MPI

int in_launch(const std::string& /*comm*/, const std::function<int(Launch&)>& body) {
  Launch alone;
  return body(alone);
}

#else

namespace {

volatile sig_atomic_t guarded_pid = 0;
volatile sig_atomic_t told_to_end = 0;

void pass_on(int signal) {
  told_to_end = 1;
  if (guarded_pid <= 0) return;
  kill(guarded_pid, signal);
  kill(guarded_pid, SIGCONT);  // a rank that was stopped could not write its reports
}

// The launcher knows this process; the rank itself is the child.
int guard(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return report_error({Error::Kind::environment, std::strerror(errno)});
  }
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
  if (told_to_end == 0) {
    const int signal = WTERMSIG(status);
    report_error(
        {Error::Kind::environment, fmt::format("the process was ended by signal {} ({})", signal, strsignal(signal))});
  }
  return kExitEnvironment;
}

}  // namespace

int in_launch(const std::string& comm, const std::function<int(Launch&)>& body) {
  if (comm != "mpi" || !started_by_mpirun()) {
    Launch alone;
    return body(alone);
  }
  speak_as(rank_in_launch());
  // Before the child is there, so that no signal falls between.
  struct sigaction pass = {};
  struct sigaction before = {};
  pass.sa_handler = pass_on;
  sigaction(SIGTERM, &pass, &before);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0)
    return report_error({Error::Kind::environment, fmt::format("cannot start the rank: {}", std::strerror(errno))});
  if (child > 0) {
    guarded_pid = child;
    if (told_to_end != 0) pass_on(SIGTERM);
    return guard(child);
  }
  sigaction(SIGTERM, &before, nullptr);
  // The launcher kills its process groups a second after SIGTERM; writing the reports may take longer.
  const bool writes = rank_in_launch() == 0;
  if (writes) setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, writes ? SIGTERM : SIGKILL);
  if (getppid() != parent) return kExitEnvironment;
  auto launch = start_mpi_launch();
  if (!launch) return report_error(launch.error());
  const int code = body(**launch);
  finish_mpi_launch(**launch);
  return code;
}

#endif

}  // namespace batchproof::cli
