// SPDX-License-Identifier: Apache-2.0
#include "src/plugin/signals.h"

#include <cxxabi.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>

namespace batchproof {
namespace {

constexpr int kCrashSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGABRT, SIGSYS};
constexpr std::size_t kSignalStack = std::size_t{1} << 16;

struct Name {
  int signal;
  const char* name;
};
constexpr Name kNames[] = {
    {SIGHUP, "SIGHUP"},       {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"},   {SIGILL, "SIGILL"},
    {SIGTRAP, "SIGTRAP"},     {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},     {SIGFPE, "SIGFPE"},
    {SIGKILL, "SIGKILL"},     {SIGUSR1, "SIGUSR1"}, {SIGSEGV, "SIGSEGV"},   {SIGUSR2, "SIGUSR2"},
    {SIGPIPE, "SIGPIPE"},     {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"},   {SIGCHLD, "SIGCHLD"},
    {SIGCONT, "SIGCONT"},     {SIGSTOP, "SIGSTOP"}, {SIGTSTP, "SIGTSTP"},   {SIGTTIN, "SIGTTIN"},
    {SIGTTOU, "SIGTTOU"},     {SIGURG, "SIGURG"},   {SIGXCPU, "SIGXCPU"},   {SIGXFSZ, "SIGXFSZ"},
    {SIGVTALRM, "SIGVTALRM"}, {SIGPROF, "SIGPROF"}, {SIGWINCH, "SIGWINCH"}, {SIGIO, "SIGIO"},
    {SIGSYS, "SIGSYS"},
#ifdef SIGSTKFLT
    {SIGSTKFLT, "SIGSTKFLT"},
#endif
#ifdef SIGPWR
    {SIGPWR, "SIGPWR"},
#endif
};

CrashRecord* g_record = nullptr;
thread_local int g_rank = -1;

// Whether the faulting access was a write; -1 where the processor's context does not tell.
int fault_is_write([[maybe_unused]] const void* context) {
#if defined(__x86_64__)
  constexpr int kErrorRegister = 19;  // REG_ERR: the page-fault error code, bit 1 = write (Intel SDM volume 3, 4.7)
  return (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[kErrorRegister] & 2) != 0 ? 1 : 0;
#else
  return -1;
#endif
}

// Only what is safe in a signal handler: stores, sigaction, raise.
void on_crash(int signal, siginfo_t* info, void* context) {
  std::uint32_t none = 0;
  CrashRecord* record = g_record;
  if (record != nullptr && record->crashed.load() == 0) {
    record->signal = signal;
    record->by_process = info->si_code <= 0 ? 1 : 0;
    record->rank = g_rank;
    record->address = reinterpret_cast<std::uint64_t>(info->si_addr);
    record->write = signal == SIGSEGV || signal == SIGBUS ? fault_is_write(context) : -1;
    record->crashed.compare_exchange_strong(none, 1);
  }
  struct sigaction fallback{};
  fallback.sa_handler = SIG_DFL;
  sigaction(signal, &fallback, nullptr);
  raise(signal);  // blocked until this handler returns; then it ends the process
}

[[noreturn]] void on_terminate() {
  if (std::current_exception() != nullptr) {
    try {
      throw;
    } catch (const std::exception& exception) {
      std::fprintf(stderr, "uncaught C++ exception: %s\n", exception.what());
    } catch (...) {
      std::fputs("uncaught C++ exception that is not a std::exception\n", stderr);
    }
  } else {
    std::fputs("std::terminate was called\n", stderr);
  }
  std::abort();
}

class SignalStack {
 public:
  SignalStack() {
    stack_t current{};
    if (sigaltstack(nullptr, &current) == 0 && (current.ss_flags & SS_DISABLE) == 0) return;
    void* memory = mmap(nullptr, kSignalStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    stack_t own{};
    own.ss_sp = memory;
    own.ss_size = kSignalStack;
    if (sigaltstack(&own, nullptr) == 0) {
      memory_ = memory;
    } else {
      munmap(memory, kSignalStack);
    }
  }
  ~SignalStack() {
    if (memory_ == nullptr) return;
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
    munmap(memory_, kSignalStack);
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;
  void touch() const {}

 private:
  void* memory_ = nullptr;
};

}  // namespace

std::string signal_name(int signal) {
  for (const Name& each : kNames) {
    if (each.signal == signal) return each.name;
  }
  return fmt::format("signal {}", signal);
}

void install_crash_handlers(CrashRecord* record) {
  g_record = record;
  std::set_terminate(on_terminate);
  ensure_signal_stack();
  for (const int signal : kCrashSignals) {
    struct sigaction action{};
    action.sa_sigaction = on_crash;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(signal, &action, nullptr);
  }
}

void ensure_signal_stack() {
  thread_local const SignalStack stack;
  stack.touch();
}

void set_crash_rank(int rank) { g_rank = rank; }

namespace {

// The C library sets a flag of its own (SA_RESTORER) when it installs a handler.
constexpr int kOurFlags =
    SA_NOCLDSTOP | SA_NOCLDWAIT | SA_SIGINFO | SA_ONSTACK | SA_RESTART | SA_NODEFER | SA_RESETHAND;

// The handler is a union of two pointers.
bool same_action(const struct sigaction& a, const struct sigaction& b) {
  return a.sa_handler == b.sa_handler && (a.sa_flags & kOurFlags) == (b.sa_flags & kOurFlags) &&
         mask_change(a.sa_mask, b.sa_mask).empty();
}

}  // namespace

SignalHandlers SignalHandlers::now() {
  SignalHandlers handlers;
  for (int signal = 1; signal < kSignals; ++signal)
    sigaction(signal, nullptr, &handlers.actions_[static_cast<std::size_t>(signal)]);
  return handlers;
}

std::string SignalHandlers::changed_since(const SignalHandlers& before) const {
  std::string list;
  for (int signal = 1; signal < kSignals; ++signal) {
    const auto index = static_cast<std::size_t>(signal);
    if (same_action(before.actions_[index], actions_[index])) continue;
    list += (list.empty() ? "" : ", ") + signal_name(signal);
  }
  return list;
}

void SignalHandlers::restore() const {
  const SignalHandlers present = now();
  for (int signal = 1; signal < kSignals; ++signal) {
    const auto index = static_cast<std::size_t>(signal);
    if (!same_action(present.actions_[index], actions_[index])) sigaction(signal, &actions_[index], nullptr);
  }
}

sigset_t signal_mask() {
  sigset_t mask;
  sigemptyset(&mask);
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return mask;
}

std::string mask_change(const sigset_t& before, const sigset_t& after) {
  if (std::memcmp(&before, &after, sizeof(sigset_t)) == 0) return {};
  std::string list;
  for (int signal = 1; signal < NSIG; ++signal) {
    const int was = sigismember(&before, signal);
    const int is = sigismember(&after, signal);
    if (was == is) continue;
    list += fmt::format("{}{} {}", list.empty() ? "" : ", ", signal_name(signal), is == 1 ? "blocked" : "unblocked");
  }
  return list;
}

}  // namespace batchproof
