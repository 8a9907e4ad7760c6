// SPDX-License-Identifier: Apache-2.0
//
// Signals around a plug-in's calls: what a crash was, and what a call left changed.
#ifndef BATCHPROOF_SRC_PLUGIN_SIGNALS_H_
#define BATCHPROOF_SRC_PLUGIN_SIGNALS_H_

#include <signal.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace batchproof {

constexpr int kRecordedRanks = 256;

// What a worker leaves behind for the program when it dies; lies in shared memory. The program takes no field on trust.
struct CrashRecord {
  std::atomic<std::uint32_t> crashed;  // 1: the fields below hold
  std::int32_t signal;
  std::int32_t by_process;  // the signal was sent, not raised by a fault: there is no address
  std::int32_t rank;        // of the thread that crashed; -1: not a rank's own thread
  std::int32_t write;       // 0: read, 1: write, -1: unknown
  std::uint64_t address;
  std::uint64_t arena_base;                 // where the worker mapped the arena
  std::atomic<std::uint32_t> channel_lost;  // the worker ends because its channel was closed
  struct Workspace {
    std::uint64_t begin;
    std::uint64_t bytes;
  } workspaces[kRecordedRanks];  // of the call at hand, by rank
};

// "SIGSEGV"; "signal 40" for one without a name.
std::string signal_name(int signal);

// Records crashes (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGABRT, SIGSYS) in `record`, then lets them happen. An
// uncaught C++ exception writes its text to stderr first. Once per process.
void install_crash_handlers(CrashRecord* record);
// Lets the calling thread report a stack overflow; harmless to call again.
void ensure_signal_stack();
// The rank that the calling thread works for; -1: none.
void set_crash_rank(int rank);

// Handlers of all standard signals of this process.
class SignalHandlers {
 public:
  static SignalHandlers now();
  // The signals whose handler, flags or mask differ from `before`: "SIGUSR1, SIGSEGV"; empty: none.
  std::string changed_since(const SignalHandlers& before) const;
  // Puts these handlers back.
  void restore() const;

 private:
  static constexpr int kSignals = 32;
  std::array<struct sigaction, kSignals> actions_{};
};

// The calling thread's mask.
sigset_t signal_mask();
// "SIGUSR1 blocked, SIGINT unblocked"; empty: equal.
std::string mask_change(const sigset_t& before, const sigset_t& after);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_PLUGIN_SIGNALS_H_
