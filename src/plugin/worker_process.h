// SPDX-License-Identifier: Apache-2.0
//
// A worker process as the program sees it: started, asked, listened to, and buried with a cause of death.
#ifndef BATCHPROOF_SRC_PLUGIN_WORKER_PROCESS_H_
#define BATCHPROOF_SRC_PLUGIN_WORKER_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/plugin/arena.h"
#include "src/plugin/channel.h"
#include "src/plugin/signals.h"

namespace batchproof {

// How a worker ended.
struct Death {
  enum class Kind { signal, exit, closed_channel, damaged_message } kind = Kind::exit;
  int value = 0;  // signal or exit status
  // What the crash handler saw, where it ran.
  struct Fault {
    int rank = -1;
    int write = -1;
    bool has_address = false;
    std::uint64_t address = 0;
    std::uint64_t arena_base = 0;
  };
  std::optional<Fault> fault;
  std::vector<CrashRecord::Workspace> workspaces;  // by rank

  // "crashed with SIGSEGV", "exited with status 3", "was killed by SIGKILL", "closed its channel to the program".
  std::string text() const;
};

// The end of what a worker wrote to one of its standard streams.
class LineTail {
 public:
  bool read(int fd);  // what is there now; does not block; false where nothing more will come
  void clear() { text_.clear(); }
  std::string last_line() const;  // the last one that is not blank

 private:
  std::string text_;
};

class WorkerProcess {
 public:
  // `program`: what is started with the worker verb. Error::Kind::environment where it cannot be.
  static Result<std::unique_ptr<WorkerProcess>> start(const std::string& program, Arena& arena);
  // Asks it to leave, and kills it where it does not.
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  // Forgets earlier output, then sends. A failure shows as a death when the answer is waited for.
  void send(const Message& message);
  pid_t pid() const { return pid_; }
  // SIGKILL for the worker and whatever it started.
  void kill();
  // "its last line on stderr: ..." (or stdout), cleaned; empty where it said nothing.
  std::string last_words();

 private:
  friend class Exchange;
  WorkerProcess() = default;
  bool ended_within(std::chrono::milliseconds time);
  Death bury();
  void drain();

  pid_t pid_ = -1;
  int channel_ = -1;
  int out_ = -1;
  int err_ = -1;
  int status_ = 0;
  bool reaped_ = false;
  Inbox inbox_;
  LineTail out_tail_;
  LineTail err_tail_;
  Memory record_memory_;
  CrashRecord* record_ = nullptr;
};

// Waits for the answers of workers that were asked at the same time.
class Exchange {
 public:
  struct Answer {
    std::optional<Message> reply;
    std::optional<Death> death;  // neither: it had not answered in time and was killed
  };
  // Until all have answered or died, or the deadline has passed (then the rest is killed). `lost(i, cause)` is called
  // at once for each death, after which the others have little time left.
  static std::vector<Answer> wait(const std::vector<WorkerProcess*>& workers, std::chrono::duration<double> limit,
                                  const std::function<void(std::size_t index, const Death& death)>& lost);
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_PLUGIN_WORKER_PROCESS_H_
