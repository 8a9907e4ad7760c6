// SPDX-License-Identifier: Apache-2.0
//
// Ranks as forked processes: the bytes of ThreadWorld, and what happens when one of them fails, leaves or dies.
#include "src/comm/process_world.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "src/comm/exercise.h"
#include "src/comm/thread_world.h"

namespace batchproof {
namespace {

constexpr std::size_t kSmallSlot = 4096;  // so that messages of a few KiB take several pieces

class SharedMemory {
 public:
  explicit SharedMemory(std::size_t bytes)
      : bytes_(bytes),
        data_(
            static_cast<std::byte*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedMemory() { munmap(data_, bytes_); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::size_t bytes_;
  std::byte* data_;
};

struct Ended {
  bool killed = false;
  int status = 0;  // exit status or signal
};

// Forks a process per rank; each runs the body and exits with what it returns.
class Processes {
 public:
  Processes(int world, std::size_t slot) : memory_(ProcessWorld::bytes(world, slot)), world_size_(world) {
    ProcessWorld::create(memory_.data(), world, slot);
    observer_ = std::make_unique<ProcessWorld>(memory_.data(), -1);
  }

  void start(const std::function<int(int rank, ProcessWorld& world)>& body) {
    for (int rank = 0; rank < world_size_; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) {
        alarm(60);  // a rank that hangs fails the test instead of stopping it
        ProcessWorld world(memory_.data(), rank);
        _exit(body(rank, world));
      }
      pids_.push_back(pid);
    }
  }

  pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }
  ProcessWorld& observer() { return *observer_; }

  std::vector<Ended> wait() {
    std::vector<Ended> ends;
    for (const pid_t pid : pids_) {
      int status = 0;
      waitpid(pid, &status, 0);
      ends.push_back(WIFSIGNALED(status) ? Ended{true, WTERMSIG(status)} : Ended{false, WEXITSTATUS(status)});
    }
    pids_.clear();
    return ends;
  }

 private:
  SharedMemory memory_;
  int world_size_;
  std::unique_ptr<ProcessWorld> observer_;
  std::vector<pid_t> pids_;
};

// ---- every collective ---------------------------------------------------------------------------------------------

class ProcessWorldTest : public testing::TestWithParam<int> {};

TEST_P(ProcessWorldTest, GivesTheBytesOfThreads) {
  const int world = GetParam();
  std::vector<std::vector<std::byte>> wanted(static_cast<std::size_t>(world));
  {
    ThreadWorld threads(world);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < world; ++rank) {
      ranks.emplace_back(
          [&, rank] { wanted[static_cast<std::size_t>(rank)] = CollectiveExercise(*threads.comm(rank)).run(); });
    }
    for (std::thread& rank : ranks) rank.join();
  }
  const std::size_t bytes = wanted[0].size();
  for (const auto& each : wanted) ASSERT_LE(each.size(), bytes * static_cast<std::size_t>(world) + 1);
  const std::size_t room = std::size_t{16} << 20;
  SharedMemory results(room * static_cast<std::size_t>(world));
  Processes processes(world, kSmallSlot);
  processes.start([&](int rank, ProcessWorld& own) {
    const auto got = CollectiveExercise(*own.comm()).run();
    if (got.size() > room) return 3;
    std::memcpy(results.data() + room * static_cast<std::size_t>(rank), got.data(), got.size());
    own.finished();
    return got.size() == wanted[static_cast<std::size_t>(rank)].size() ? 0 : 4;
  });
  for (const Ended& end : processes.wait()) {
    EXPECT_FALSE(end.killed);
    EXPECT_EQ(end.status, 0);
  }
  EXPECT_EQ(processes.observer().error(), "");
  for (int rank = 0; rank < world; ++rank) {
    const auto& each = wanted[static_cast<std::size_t>(rank)];
    EXPECT_EQ(std::memcmp(results.data() + room * static_cast<std::size_t>(rank), each.data(), each.size()), 0)
        << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, ProcessWorldTest, testing::Values(1, 2, 3, 4, 8));

// ---- failures -----------------------------------------------------------------------------------------------------

TEST(ProcessWorldFailureTest, AKilledRankReleasesTheOthersAndIsNamed) {
  Processes processes(3, kSmallSlot);
  processes.start([](int rank, ProcessWorld& world) {
    if (rank == 1) {
      world.comm()->barrier(world.comm(), nullptr);
      kill(getpid(), SIGKILL);
    }
    world.comm()->barrier(world.comm(), nullptr);
    const auto begin = std::chrono::steady_clock::now();
    const bp_status status = world.comm()->barrier(world.comm(), nullptr);
    const auto took = std::chrono::steady_clock::now() - begin;
    return status == BP_COMM && took < std::chrono::seconds(10) ? 0 : 9;
  });
  // The dead rank is a zombie until all have ended: nobody waits for it before.
  const auto ends = processes.wait();
  EXPECT_TRUE(ends[1].killed);
  EXPECT_EQ(ends[1].status, SIGKILL);
  EXPECT_EQ(ends[0].status, 0);
  EXPECT_EQ(ends[2].status, 0);
  EXPECT_EQ(processes.observer().error().find("rank 1: its process ended while rank "), 0u)
      << processes.observer().error();
}

TEST(ProcessWorldFailureTest, ARankThatFailsOrReturnsIsNamed) {
  Processes processes(2, kSmallSlot);
  processes.start([](int rank, ProcessWorld& world) {
    if (rank == 1) {
      world.abort(1, "no memory");
      return 0;
    }
    return world.comm()->barrier(world.comm(), nullptr) == BP_COMM ? 0 : 9;
  });
  for (const Ended& end : processes.wait()) EXPECT_EQ(end.status, 0);
  EXPECT_EQ(processes.observer().error(), "rank 1: no memory");

  processes.observer().reset();
  EXPECT_FALSE(processes.observer().aborted());
  processes.start([](int rank, ProcessWorld& world) {
    if (rank == 1) {
      world.finished();
      return 0;
    }
    float value = 1.0f;
    return world.comm()->all_reduce(world.comm(), &value, &value, 1, BP_FP32, BP_REDUCE_RANK_ORDER, nullptr) == BP_COMM
               ? 0
               : 9;
  });
  for (const Ended& end : processes.wait()) EXPECT_EQ(end.status, 0);
  EXPECT_EQ(processes.observer().error(), "rank 1 returned while rank 0 waits in all_reduce");

  processes.observer().reset();
  processes.start(
      [](int, ProcessWorld& world) { return world.comm()->barrier(world.comm(), nullptr) == BP_OK ? 0 : 9; });
  for (const Ended& end : processes.wait()) EXPECT_EQ(end.status, 0);
}

TEST(ProcessWorldFailureTest, CallsThatDoNotMatchNameBoth) {
  Processes processes(2, kSmallSlot);
  processes.start([](int rank, ProcessWorld& world) {
    std::vector<float> send(8), recv(16);
    const std::size_t bytes = rank == 0 ? 16 : 32;
    return world.comm()->all_gather(world.comm(), send.data(), recv.data(), bytes, nullptr) == BP_COMM ? 0 : 9;
  });
  for (const Ended& end : processes.wait()) EXPECT_EQ(end.status, 0);
  EXPECT_EQ(processes.observer().error(),
            "rank 1: all_gather of 32 bytes per rank does not match all_gather of 16 bytes per rank of rank 0");

  processes.observer().reset();
  processes.start([](int rank, ProcessWorld& world) {
    const std::size_t sizes[] = {4, 4};
    const std::size_t wrong[] = {4, 8};
    const std::size_t offsets[] = {0, 16};
    std::vector<std::byte> send(64), recv(64);
    return world.comm()->all_to_all_v(world.comm(), send.data(), sizes, offsets, recv.data(), rank == 0 ? wrong : sizes,
                                      offsets, nullptr) == BP_COMM
               ? 0
               : 9;
  });
  for (const Ended& end : processes.wait()) EXPECT_EQ(end.status, 0);
  EXPECT_EQ(processes.observer().error(), "rank 0: all_to_all_v expects 8 bytes from rank 1, which sends 4");
}

TEST(ProcessWorldFailureTest, BadArgumentsAreInvalidOnTheirRank) {
  Processes processes(2, kSmallSlot);
  processes.start([](int rank, ProcessWorld& world) {
    float value = 1.0f;
    const bp_comm* comm = world.comm();
    if (rank == 0)
      return comm->all_reduce(comm, &value, &value, 1, BP_E4M3, BP_REDUCE_RANK_ORDER, nullptr) == BP_INVALID ? 0 : 9;
    return comm->barrier(comm, nullptr) == BP_COMM ? 0 : 9;
  });
  for (const Ended& end : processes.wait()) EXPECT_EQ(end.status, 0);
  EXPECT_EQ(processes.observer().error().find("rank 0: all_reduce: dtype e4m3 cannot be summed"), 0u);

  processes.observer().reset();
  processes.start([](int rank, ProcessWorld& world) {
    std::vector<std::byte> memory(64);
    const bp_comm* comm = world.comm();
    if (rank == 1) return comm->all_to_all(comm, memory.data(), memory.data() + 8, 16, nullptr) == BP_INVALID ? 0 : 9;
    return comm->barrier(comm, nullptr) == BP_COMM ? 0 : 9;
  });
  for (const Ended& end : processes.wait()) EXPECT_EQ(end.status, 0);
  EXPECT_EQ(processes.observer().error(), "rank 1: all_to_all: send and recv overlap");
}

TEST(ProcessWorldFailureTest, TheObserverSeesWhoWaits) {
  Processes processes(2, kSmallSlot);
  processes.start([](int rank, ProcessWorld& world) {
    if (rank == 1) raise(SIGSTOP);  // attached, and in no collective
    return world.comm()->barrier(world.comm(), nullptr) == BP_COMM ? 0 : 9;
  });
  for (int i = 0; i < 500 && processes.observer().waits_in(0).empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  int status = 0;
  ASSERT_EQ(waitpid(processes.pid(1), &status, WUNTRACED), processes.pid(1));
  ASSERT_TRUE(WIFSTOPPED(status));
  EXPECT_EQ(processes.observer().waits_in(0), "barrier");
  EXPECT_EQ(processes.observer().waits_in(1), "");
  kill(processes.pid(1), SIGKILL);
  const auto ends = processes.wait();
  EXPECT_EQ(ends[0].status, 0);
  EXPECT_TRUE(ends[1].killed);
}

}  // namespace
}  // namespace batchproof
