// SPDX-License-Identifier: Apache-2.0
#include "src/runtime/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "src/runtime/fp_env.h"

// The child of a fork makes threads on purpose.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace batchproof {
namespace {

// Opens when `count` threads have arrived at once; false where that takes longer than a loaded machine needs.
class Rendezvous {
 public:
  explicit Rendezvous(int count) : missing_(count) {}
  bool arrive() {
    std::unique_lock lock(mutex_);
    if (--missing_ <= 0) all_.notify_all();
    return all_.wait_for(lock, std::chrono::seconds(60), [this] { return missing_ <= 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_;
  int missing_;
};

TEST(ThreadPoolTest, EveryPartRunsExactlyOnce) {
  for (const int threads : {-1, 0, 1, 2, 3, 8, 33}) {
    for (const std::int64_t parts : {-5, 0, 1, 2, 7, 64, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(std::max<std::int64_t>(parts, 0)));
      parallel_for(threads, parts, [&](std::int64_t part) { ++runs[static_cast<std::size_t>(part)]; });
      for (const std::atomic<int>& count : runs) ASSERT_EQ(count, 1) << threads << " threads, " << parts << " parts";
    }
  }
}

TEST(ThreadPoolTest, TheCallWaitsForAllParts) {
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::vector<int> plain(16, 0);  // no atomics: the end of the call must order these writes
    parallel_for(4, 16, [&](std::int64_t part) {
      if (part % 5 == 0) std::this_thread::yield();
      plain[static_cast<std::size_t>(part)] = static_cast<int>(part) + repeat;
    });
    for (int part = 0; part < 16; ++part) ASSERT_EQ(plain[static_cast<std::size_t>(part)], part + repeat);
  }
}

TEST(ThreadPoolTest, ThreadsReallyRunAtOnce) {
  for (const int threads : {2, 5, 16}) {
    Rendezvous all(threads);
    std::atomic<bool> met{true};
    parallel_for(threads, threads, [&](std::int64_t) {
      if (!all.arrive()) met = false;
    });
    EXPECT_TRUE(met) << threads;
  }
}

TEST(ThreadPoolTest, NeverMoreThreadsThanAsked) {
  parallel_for(16, 64, [](std::int64_t) { std::this_thread::yield(); });  // more workers exist than the next call asks
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  parallel_for(3, 200, [&](std::int64_t) {
    const int now = ++inside;
    int seen = most;
    while (seen < now && !most.compare_exchange_weak(seen, now)) {
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    --inside;
  });
  EXPECT_LE(most, 3);
  EXPECT_GE(most, 2);
}

TEST(ThreadPoolTest, PartsAreClaimedInAscendingOrder) {
  std::mutex mutex;
  std::vector<std::pair<std::thread::id, std::int64_t>> order;
  parallel_for(4, 500, [&](std::int64_t part) {
    std::lock_guard lock(mutex);
    order.emplace_back(std::this_thread::get_id(), part);
  });
  // A thread sees ascending parts; inline, all of them in order.
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (std::size_t j = i + 1; j < order.size(); ++j) {
      if (order[i].first == order[j].first) {
        ASSERT_LT(order[i].second, order[j].second);
        break;
      }
    }
  }
  std::vector<std::int64_t> one_thread;
  parallel_for(1, 10, [&](std::int64_t part) { one_thread.push_back(part); });
  EXPECT_EQ(one_thread, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(ThreadPoolTest, NestedCallsRunOnTheCallingThread) {
  std::atomic<int> elsewhere{0};
  std::atomic<int> runs{0};
  parallel_for(4, 8, [&](std::int64_t) {
    const std::thread::id outer = std::this_thread::get_id();
    parallel_for(4, 8, [&](std::int64_t) {
      if (std::this_thread::get_id() != outer) ++elsewhere;
      parallel_for(2, 2, [&](std::int64_t) {
        if (std::this_thread::get_id() != outer) ++elsewhere;
        ++runs;
      });
    });
  });
  EXPECT_EQ(elsewhere, 0);
  EXPECT_EQ(runs, 8 * 8 * 2);
  // After a nested call the next call is parallel again.
  Rendezvous two(2);
  std::atomic<bool> met{true};
  parallel_for(2, 2, [&](std::int64_t) {
    if (!two.arrive()) met = false;
  });
  EXPECT_TRUE(met);
}

TEST(ThreadPoolTest, SeveralCallersAtOnce) {
  std::vector<std::thread> callers;
  std::vector<std::int64_t> sums(12, 0);
  for (std::size_t caller = 0; caller < sums.size(); ++caller) {
    callers.emplace_back([&, caller] {
      for (int repeat = 0; repeat < 50; ++repeat) {
        std::atomic<std::int64_t> sum{0};
        parallel_for(1 + static_cast<int>(caller % 5), 40, [&](std::int64_t part) { sum += part; });
        sums[caller] += sum;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const std::int64_t sum : sums) EXPECT_EQ(sum, 50 * 780);
}

TEST(ThreadPoolTest, ACallEndsThoughNoWorkerIsFree) {
  std::mutex mutex;
  std::condition_variable change;
  int blocked = 0;
  bool released = false;
  // One job takes every worker that the pool may have (256) and its own caller.
  std::thread hog([&] {
    parallel_for(1000, 257, [&](std::int64_t) {
      std::unique_lock lock(mutex);
      ++blocked;
      change.notify_all();
      change.wait(lock, [&] { return released; });
    });
  });
  {
    std::unique_lock lock(mutex);
    EXPECT_TRUE(change.wait_for(lock, std::chrono::seconds(60), [&] { return blocked == 257; })) << blocked;
  }
  const std::thread::id caller = std::this_thread::get_id();
  int mine = 0;
  parallel_for(4, 100, [&](std::int64_t) { mine += std::this_thread::get_id() == caller ? 1 : 1000; });
  EXPECT_EQ(mine, 100);
  {
    std::lock_guard lock(mutex);
    released = true;
    change.notify_all();
  }
  hog.join();
}

TEST(ThreadPoolTest, BodiesHaveTheDefaultFpEnvironmentOnEveryThread) {
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  const std::uint64_t before = fp_control();
  for (const int threads : {1, 4}) {
    Rendezvous all(threads);
    std::atomic<int> other{0};
    parallel_for(threads, threads, [&](std::int64_t) {
      all.arrive();
      if (fp_control() != default_fp_control()) ++other;
    });
    EXPECT_EQ(other, 0) << threads;
    EXPECT_EQ(fp_control(), before) << "the caller's own environment comes back";
  }
  set_fp_control(default_fp_control());
}

TEST(ThreadPoolTest, WhatABodyChangesIsSeenAfterTheCallAndNotByTheNextJob) {
  for (const int threads : {1, 4}) {
    FpEnvGuard guard;
    Rendezvous all(threads);
    const std::thread::id caller = std::this_thread::get_id();
    parallel_for(threads, threads, [&](std::int64_t) {
      all.arrive();
      if (threads == 1 || std::this_thread::get_id() != caller) std::fesetround(FE_TOWARDZERO);
    });
    EXPECT_EQ(guard.check(), "rounding toward zero") << threads;
    Rendezvous again(threads);
    std::atomic<int> other{0};
    parallel_for(threads, threads, [&](std::int64_t) {
      again.arrive();
      if (fp_control() != default_fp_control()) ++other;
    });
    EXPECT_EQ(other, 0);
    EXPECT_EQ(guard.check(), "");
  }
}

TEST(ThreadPoolTest, AForkedChildHasAPoolOfItsOwn) {
  // The parent has workers, and they and the busy thread have long begun: a thread's first allocations take locks that
  // AddressSanitizer's allocator (GCC 12) does not release in the child of a fork.
  Rendezvous all(4);
  parallel_for(4, 4, [&](std::int64_t) { all.arrive(); });
  std::atomic<bool> stop{false};
  std::atomic<int> rounds{0};
  std::thread busy([&] {
    while (!stop) {
      parallel_for(3, 10, [](std::int64_t) {});
      ++rounds;
    }
  });
  while (rounds < 1000) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (int repeat = 0; repeat < 5; ++repeat) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(60);  // a deadlock ends by a signal
      Rendezvous two(2);
      std::atomic<bool> met{true};
      parallel_for(2, 2, [&](std::int64_t) {
        if (!two.arrive()) met = false;
      });
      _exit(met ? 7 : 8);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 7);
  }
  stop = true;
  busy.join();
  parallel_for(4, 16, [](std::int64_t) {});  // the parent's pool is untouched
}

class ThreadPoolExitTest : public testing::Test {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

std::atomic<int> late_parts{0};

TEST_F(ThreadPoolExitTest, ACallAfterTheEndOfThePoolRunsInline) {
  const auto exit_with_late_call = [] {
    alarm(60);
    // Registered before the pool exists, so it runs after the pool has stopped.
    std::atexit([] {
      parallel_for(4, 16, [](std::int64_t) { ++late_parts; });
      _exit(late_parts == 16 ? 5 : 6);
    });
    parallel_for(4, 16, [](std::int64_t) {});
    std::exit(0);
  };
  EXPECT_EXIT(exit_with_late_call(), testing::ExitedWithCode(5), "");
}

TEST_F(ThreadPoolExitTest, ABodyMayExit) {
  const auto exit_in_body = [](bool on_worker) {
    alarm(60);
    const std::thread::id caller = std::this_thread::get_id();
    Rendezvous two(2);
    parallel_for(2, 2, [&](std::int64_t) {
      two.arrive();
      if ((std::this_thread::get_id() != caller) == on_worker) std::exit(3);
    });
  };
  EXPECT_EXIT(exit_in_body(true), testing::ExitedWithCode(3), "");
  EXPECT_EXIT(exit_in_body(false), testing::ExitedWithCode(3), "");
}

TEST(ThreadPoolTest, HardwareThreads) {
  EXPECT_GE(hardware_threads(), 1);
  EXPECT_LE(hardware_threads(), static_cast<int>(sysconf(_SC_NPROCESSORS_CONF)));
}

}  // namespace
}  // namespace batchproof
