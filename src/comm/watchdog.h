// SPDX-License-Identifier: Apache-2.0
//
// For tests of code that could deadlock: ends the process, as a failure, where a test takes too long.
#ifndef BATCHPROOF_SRC_COMM_WATCHDOG_H_
#define BATCHPROOF_SRC_COMM_WATCHDOG_H_

#include <unistd.h>

#include <csignal>

namespace batchproof {

// Lives as long as the test does. Uses alarm(), so one per process at a time.
class Watchdog {
 public:
  explicit Watchdog(unsigned seconds = 240) {
    std::signal(SIGALRM, [](int) {
      constexpr char kText[] = "the watchdog ends this test: deadlock\n";
      static_cast<void>(!write(STDERR_FILENO, kText, sizeof(kText) - 1));
      _exit(1);
    });
    alarm(seconds);
  }
  ~Watchdog() { alarm(0); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_COMM_WATCHDOG_H_
