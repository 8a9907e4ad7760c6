// SPDX-License-Identifier: Apache-2.0
//
// A process of an MPI launch. A thread watches the clock, and on rank 0 SIGTERM, since the thread that runs the cells
// may be inside an operator or wait for a rank that is gone.
#include "src/cli/launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <iostream>
#include <map>
#include <mutex>
#include <thread>

#include "src/check/mpi_host.h"
#include "src/cli/exit.h"
#include "src/cli/print.h"
#include "src/comm/mpi_world.h"
#include "src/runtime/thread_pool.h"

namespace batchproof::cli {
namespace {

constexpr int kLookMilliseconds = 50;
// How long ranks may keep rank 0 waiting where no operator runs.
constexpr double kAgreementSeconds = 60.0;

// Written by the handler of SIGTERM, and with 'q' to end the watch.
int alarm_pipe[2] = {-1, -1};

void ring(int) {
  const int error = errno;
  static_cast<void>(!write(alarm_pipe[1], "t", 1));
  errno = error;
}

class MpiLaunch final : public Launch {
 public:
  explicit MpiLaunch(std::unique_ptr<MpiProcesses> processes) : processes_(std::move(processes)) {
    processes_->on_failure([this](const std::string& what) { end(what); });
    for (const std::string& text : gather(std::to_string(hardware_threads()))) {
      const int threads = std::max(1, std::atoi(text.c_str()));
      processors_ = processors_ == 0 ? threads : std::min(processors_, threads);
    }
    watch();
  }

  bool mpi() const override { return true; }
  int rank() const override { return processes_->rank(); }
  int size() const override { return processes_->size(); }
  std::string communicator() const override {
    return fmt::format("mpi: {} process{}, {}", size(), size() == 1 ? "" : "es", processes_->library());
  }
  std::vector<std::string> gather(const std::string& text) override {
    const Limit limit(*this, "the processes");
    return processes_->gather(text);
  }
  std::string broadcast(const std::string& text) override {
    const Limit limit(*this, "the processes");
    return processes_->broadcast(text);
  }

  OperatorHost* host(const bp_operator* table, double seconds) override {
    auto& slot = hosts_[table];
    if (!slot) slot = std::make_unique<MpiHost>(*processes_, table, processors_, seconds);
    return slot.get();
  }

  void on_loss(const std::function<void()>& save) override {
    const std::lock_guard lock(mutex_);
    save_ = save;
  }

  void finish() {
    {
      const Limit limit(*this, "MPI_Finalize");
      processes_->finish();
    }
    if (!watcher_.joinable()) return;
    if (rank() == 0) signal(SIGTERM, SIG_DFL);
    static_cast<void>(!write(alarm_pipe[1], "q", 1));
    watcher_.join();
  }

 private:
  // Rank 0 waits for the others, which have nothing to do meanwhile; they may wait for rank 0 as long as it works.
  struct Limit {
    Limit(MpiLaunch& own, const char* what) : launch(own) {
      if (launch.rank() != 0) return;
      launch.in_operator_ = false;
      launch.processes_->begin_call(what, kAgreementSeconds);
    }
    ~Limit() {
      if (launch.rank() != 0) return;
      launch.processes_->end_call();
      launch.in_operator_ = true;
    }
    Limit(const Limit&) = delete;
    Limit& operator=(const Limit&) = delete;
    MpiLaunch& launch;
  };

  void watch() {
    if (pipe2(alarm_pipe, O_CLOEXEC | O_NONBLOCK) != 0) return;
    struct sigaction action = {};
    action.sa_handler = ring;
    action.sa_flags = SA_RESTART;
    if (rank() == 0) sigaction(SIGTERM, &action, nullptr);
    watcher_ = std::thread([this] {
      for (;;) {
        pollfd entry{alarm_pipe[0], POLLIN, 0};
        if (poll(&entry, 1, kLookMilliseconds) > 0) {
          char word = 'q';
          static_cast<void>(!read(alarm_pipe[0], &word, 1));
          if (word == 'q') return;
          end("the run was told to end (SIGTERM): mpirun does that when a rank is lost");
        }
        if (const auto late = processes_->overdue()) end(*late + (in_operator_ ? " (--timeout)" : ""));
      }
    });
  }

  // Does not come back. MPI is left as it is: mpirun ends the other ranks.
  [[noreturn]] void end(const std::string& what) {
    const std::lock_guard lock(mutex_);
    signal(SIGPIPE, SIG_IGN);  // the launcher may be gone
    if (save_) save_();
    std::cout.flush();
    const int code = report_error({Error::Kind::environment, what});
    std::fflush(nullptr);
    // A fresh process that is still at work; this one's handler only rings.
    if (rank() == 0) kill(0, SIGTERM);
    _exit(code);
  }

  std::unique_ptr<MpiProcesses> processes_;
  std::map<const bp_operator*, std::unique_ptr<MpiHost>> hosts_;
  int processors_ = 0;
  std::mutex mutex_;
  std::function<void()> save_;
  std::atomic<bool> in_operator_{true};
  std::thread watcher_;
};

}  // namespace

Result<std::unique_ptr<Launch>> start_mpi_launch() {
  auto processes = MpiProcesses::start();
  if (!processes) return tl::unexpected(processes.error());
  return std::make_unique<MpiLaunch>(*std::move(processes));
}

void finish_mpi_launch(Launch& launch) { static_cast<MpiLaunch&>(launch).finish(); }

}  // namespace batchproof::cli
