// SPDX-License-Identifier: Apache-2.0
#include "src/plugin/worker_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <thread>

#include "src/plugin/worker.h"

namespace batchproof {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kTailBytes = 4096;
constexpr auto kLook = std::chrono::milliseconds(50);  // how often deaths are looked for that no descriptor tells
constexpr auto kGrace = std::chrono::seconds(2);       // for the other ranks after a death, and for leaving
constexpr auto kChannelGrace = std::chrono::milliseconds(500);

std::string reason() { return std::strerror(errno); }

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&&) = delete;
  int get() const { return fd_; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_ = -1;
};

// The worker's channel gets a number that nobody closes by the way.
int high_descriptor() {
  rlimit limit{};
  int top = 1024;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 1024) top = static_cast<int>(limit.rlim_cur);
  return std::max(top - 8, 16);
}

}  // namespace

// ---- what a worker leaves behind ---------------------------------------------------------------------------------

std::string Death::text() const {
  switch (kind) {
    case Kind::signal:
      return fmt::format("{} {}", fault ? "crashed with" : "was killed by", signal_name(value));
    case Kind::exit:
      return fmt::format("exited with status {}", value);
    case Kind::closed_channel:
      return "closed its channel to the program";
    case Kind::damaged_message:
      return "wrote into its channel to the program";
  }
  return "ended";
}

bool LineTail::read(int fd) {
  char chunk[kTailBytes];
  // A bound, so that a stream that never ends does not hold the program.
  for (int round = 0; round < 256; ++round) {
    const ssize_t got = ::read(fd, chunk, sizeof(chunk));
    if (got == 0) return false;
    if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    text_.append(chunk, static_cast<std::size_t>(got));
    if (text_.size() > kTailBytes) text_.erase(0, text_.size() - kTailBytes);
  }
  return true;
}

std::string LineTail::last_line() const {
  const std::size_t end = text_.find_last_not_of(" \t\r\n");
  if (end == std::string::npos) return {};
  const std::size_t begin = text_.find_last_of('\n', end);
  return text_.substr(begin == std::string::npos ? 0 : begin + 1,
                      end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

// ---- the process -------------------------------------------------------------------------------------------------

Result<std::unique_ptr<WorkerProcess>> WorkerProcess::start(const std::string& program, Arena& arena) {
  auto worker = std::unique_ptr<WorkerProcess>(new WorkerProcess);
  auto memory = arena.allocate(sizeof(CrashRecord));
  if (!memory) return tl::unexpected(memory.error());
  worker->record_memory_ = *std::move(memory);
  worker->record_ = new (worker->record_memory_.data) CrashRecord{};

  int channel[2];
  int out[2];
  int err[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) != 0)
    return fail(Error::Kind::environment, fmt::format("no channel to a plug-in's worker: {}", reason()));
  worker->channel_ = channel[0];
  Fd theirs(channel[1]);
  if (pipe2(out, O_CLOEXEC) != 0)
    return fail(Error::Kind::environment, fmt::format("no pipe to a plug-in's worker: {}", reason()));
  worker->out_ = out[0];
  Fd their_out(out[1]);
  if (pipe2(err, O_CLOEXEC) != 0)
    return fail(Error::Kind::environment, fmt::format("no pipe to a plug-in's worker: {}", reason()));
  worker->err_ = err[0];
  Fd their_err(err[1]);
  fcntl(worker->out_, F_SETFL, O_NONBLOCK);
  fcntl(worker->err_, F_SETFL, O_NONBLOCK);

  const int high = high_descriptor();
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, theirs.get(), high);
  posix_spawn_file_actions_adddup2(&files, arena.fd(), high + 1);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, their_out.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, their_err.get(), STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  // A group of its own: what it starts dies with it, and an interrupt at the terminal is the program's to handle.
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::vector<std::string> words = {program,
                                    kWorkerVerb,
                                    std::to_string(high),
                                    std::to_string(high + 1),
                                    std::to_string(arena.size()),
                                    std::to_string(arena.offset_of(worker->record_)),
                                    std::to_string(getpid())};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const int failed = posix_spawn(&worker->pid_, program.c_str(), &files, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (failed != 0) {
    worker->pid_ = -1;
    return fail(Error::Kind::environment,
                fmt::format("the worker program {} cannot be started: {}", program, std::strerror(failed)));
  }
  return worker;
}

WorkerProcess::~WorkerProcess() {
  if (pid_ > 0 && !reaped_) {
    Message quit;
    quit.body["kind"] = "quit";
    // It says good-bye by ending; a full or closed channel ends below.
    if (send_message(channel_, quit)) {
      drain();
      ended_within(kGrace);
    }
    if (!reaped_) {
      kill();
      ended_within(kGrace);
    }
  }
  for (const int fd : {channel_, out_, err_}) {
    if (fd >= 0) close(fd);
  }
}

void WorkerProcess::send(const Message& message) {
  drain();
  out_tail_.clear();
  err_tail_.clear();
  if (!send_message(channel_, message)) shutdown(channel_, SHUT_RDWR);
}

void WorkerProcess::kill() {
  if (pid_ <= 0 || reaped_) return;
  ::kill(-pid_, SIGKILL);
  ::kill(pid_, SIGKILL);
}

void WorkerProcess::drain() {
  const auto read = [](LineTail& tail, int& fd) {
    if (fd < 0 || tail.read(fd)) return;
    close(fd);  // poll must not wake for it any more
    fd = -1;
  };
  read(out_tail_, out_);
  read(err_tail_, err_);
}

bool WorkerProcess::ended_within(std::chrono::milliseconds time) {
  const auto end = Clock::now() + time;
  auto pause = std::chrono::microseconds(100);
  while (!reaped_) {
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == pid_) {
      ::kill(-pid_, SIGKILL);  // what it left running; as long as it is a zombie the number is its own
      waitpid(pid_, &status_, 0);
      reaped_ = true;
      break;
    }
    if (Clock::now() >= end) return false;
    drain();
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(10000));
  }
  return true;
}

// The process has ended.
Death WorkerProcess::bury() {
  drain();
  Death death;
  if (record_->channel_lost.load() != 0) {
    death.kind = Death::Kind::closed_channel;
  } else if (WIFSIGNALED(status_)) {
    death.kind = Death::Kind::signal;
    death.value = WTERMSIG(status_);
  } else {
    death.kind = Death::Kind::exit;
    death.value = WEXITSTATUS(status_);
  }
  if (record_->crashed.load() == 1 && death.kind == Death::Kind::signal && record_->signal == death.value) {
    Death::Fault fault;
    fault.rank = record_->rank;
    fault.write = record_->write;
    fault.has_address = record_->by_process == 0 && (death.value == SIGSEGV || death.value == SIGBUS);
    fault.address = record_->address;
    fault.arena_base = record_->arena_base;
    death.fault = fault;
  }
  death.workspaces.assign(record_->workspaces, record_->workspaces + kRecordedRanks);
  return death;
}

std::string WorkerProcess::last_words() {
  drain();
  std::string line = clean_text(err_tail_.last_line(), 400);
  if (!line.empty()) return "its last line on stderr: " + line;
  line = clean_text(out_tail_.last_line(), 400);
  return line.empty() ? "" : "its last line on stdout: " + line;
}

// ---- answers -----------------------------------------------------------------------------------------------------

std::vector<Exchange::Answer> Exchange::wait(const std::vector<WorkerProcess*>& workers,
                                             std::chrono::duration<double> limit,
                                             const std::function<void(std::size_t index, const Death& death)>& lost) {
  std::vector<Answer> answers(workers.size());
  // Durations beyond a clock's range would wrap.
  const auto allowed = std::chrono::duration<double>(std::min(limit.count(), 1e9));
  auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(allowed);
  const auto died = [&](std::size_t i, const Death& death) {
    answers[i].death = death;
    deadline = std::min(deadline, Clock::now() + kGrace);
    if (lost) lost(i, death);
  };
  // The channel is closed or damaged: either the process is ending, or it did that to us.
  const auto bury = [&](std::size_t i, Death::Kind kind) {
    WorkerProcess& worker = *workers[i];
    if (kind == Death::Kind::closed_channel && worker.ended_within(kChannelGrace)) {
      died(i, worker.bury());
      return;
    }
    worker.kill();
    worker.ended_within(kGrace);
    Death death = worker.bury();
    death.kind = kind;
    death.fault.reset();
    died(i, death);
  };
  for (;;) {
    std::vector<pollfd> polls;
    std::vector<std::size_t> owners;
    for (std::size_t i = 0; i < workers.size(); ++i) {
      if (answers[i].reply || answers[i].death) continue;
      for (const int fd : {workers[i]->channel_, workers[i]->out_, workers[i]->err_}) {
        polls.push_back({fd, POLLIN, 0});
        owners.push_back(i);
      }
    }
    if (polls.empty()) return answers;
    const auto now = Clock::now();
    if (now >= deadline) break;
    const auto rest = std::chrono::ceil<std::chrono::milliseconds>(deadline - now);
    const int ready =
        poll(polls.data(), polls.size(), static_cast<int>(std::min(rest, std::chrono::milliseconds(kLook)).count()));
    for (std::size_t p = 0; p < polls.size(); p += 3) {
      const std::size_t i = owners[p];
      WorkerProcess& worker = *workers[i];
      if (ready > 0 && (polls[p + 1].revents | polls[p + 2].revents) != 0) worker.drain();
      if (ready > 0 && polls[p].revents != 0) {
        Message message;
        switch (worker.inbox_.read(worker.channel_, &message)) {
          case Inbox::Status::message:
            answers[i].reply = std::move(message);
            break;
          case Inbox::Status::incomplete:
            break;
          case Inbox::Status::closed:
            bury(i, Death::Kind::closed_channel);
            break;
          case Inbox::Status::damaged:
            bury(i, Death::Kind::damaged_message);
            break;
        }
      } else if (ready == 0 && worker.ended_within(std::chrono::milliseconds(0))) {
        // It left a descendant that keeps the channel open.
        died(i, worker.bury());
      }
    }
  }
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (answers[i].reply || answers[i].death) continue;
    workers[i]->kill();
    workers[i]->ended_within(kGrace);
    workers[i]->drain();
  }
  return answers;
}

}  // namespace batchproof
