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
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "src/comm/thread_world.h"
#include "src/numeric/dtype.h"

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

std::vector<std::byte> content(std::size_t bytes, int rank, std::uint32_t seed) {
  std::mt19937 generator(seed * 977u + static_cast<std::uint32_t>(rank));
  std::vector<std::byte> data(bytes);
  for (std::byte& byte : data) byte = static_cast<std::byte>(generator());
  return data;
}

std::vector<std::byte> numbers(bp_dtype dtype, std::size_t count, int rank, std::uint32_t seed) {
  std::mt19937 generator(seed * 131u + static_cast<std::uint32_t>(rank));
  std::normal_distribution<double> normal(0.0, 100.0);
  std::vector<std::byte> data(dtype_bytes(dtype, static_cast<std::int64_t>(count)));
  for (std::size_t i = 0; i < count; ++i)
    encode_element(dtype, normal(generator), data.data(), static_cast<std::int64_t>(i));
  return data;
}

// Runs everything on one rank and appends all received bytes; a status that is not BP_OK appends a mark.
class Exercise {
 public:
  explicit Exercise(const bp_comm& comm) : comm_(&comm), world_(static_cast<std::size_t>(comm.world)) {}

  std::vector<std::byte> run() {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, std::size_t{10007}}) {
      gather(bytes);
      exchange(bytes);
    }
    exchange_uneven();
    for (const bp_dtype dtype : {BP_FP64, BP_FP32, BP_BF16, BP_FP16, BP_INT32, BP_INT64}) {
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1023}, std::size_t{5003}}) {
        sums(dtype, count, BP_REDUCE_RANK_ORDER);
        if ((comm_->world & (comm_->world - 1)) == 0) sums(dtype, count, BP_REDUCE_TREE);
      }
    }
    keep(comm_->barrier(comm_, nullptr), nullptr, 0);
    return result_;
  }

 private:
  void keep(bp_status status, const void* data, std::size_t bytes) {
    result_.push_back(static_cast<std::byte>(status));
    const auto* begin = static_cast<const std::byte*>(data);
    if (bytes > 0) result_.insert(result_.end(), begin, begin + bytes);
  }

  void gather(std::size_t bytes) {
    const auto send = content(bytes, comm_->rank, 1);
    std::vector<std::byte> recv(bytes * world_ + 1);
    keep(comm_->all_gather(comm_, send.data(), recv.data(), bytes, nullptr), recv.data(), bytes * world_);
    std::vector<std::byte> place(bytes * world_ + 1);
    std::byte* own = place.data() + bytes * static_cast<std::size_t>(comm_->rank);
    if (bytes > 0) std::memcpy(own, send.data(), bytes);
    keep(comm_->all_gather(comm_, own, place.data(), bytes, nullptr), place.data(), bytes * world_);
  }

  void exchange(std::size_t bytes) {
    const auto send = content(bytes * world_ + 1, comm_->rank, 2);
    std::vector<std::byte> recv(bytes * world_ + 1);
    keep(comm_->all_to_all(comm_, send.data(), recv.data(), bytes, nullptr), recv.data(), bytes * world_);
  }

  // Rank p sends 611 * (p + 2 q) bytes to rank q, in reverse order in memory.
  void exchange_uneven() {
    const auto size = [](std::size_t p, std::size_t q) { return 611 * (p + 2 * q); };
    const auto own = static_cast<std::size_t>(comm_->rank);
    std::vector<std::size_t> send_bytes(world_), send_offsets(world_), recv_bytes(world_), recv_offsets(world_);
    std::size_t sent = 0, received = 0;
    for (std::size_t i = 0; i < world_; ++i) {
      const std::size_t q = world_ - 1 - i;
      send_bytes[q] = size(own, q);
      send_offsets[q] = sent;
      sent += send_bytes[q];
      recv_bytes[q] = size(q, own);
      recv_offsets[q] = received;
      received += recv_bytes[q];
    }
    const auto send = content(sent + 1, comm_->rank, 3);
    std::vector<std::byte> recv(received + 1);
    keep(comm_->all_to_all_v(comm_, send.data(), send_bytes.data(), send_offsets.data(), recv.data(), recv_bytes.data(),
                             recv_offsets.data(), nullptr),
         recv.data(), received);
  }

  void sums(bp_dtype dtype, std::size_t count, bp_reduce_order order) {
    const std::size_t bytes = dtype_bytes(dtype, static_cast<std::int64_t>(count));
    auto send = numbers(dtype, count * world_ + 1, comm_->rank, 4);
    std::vector<std::byte> recv(bytes + 1);
    keep(comm_->reduce_scatter(comm_, send.data(), recv.data(), count, dtype, order, nullptr), recv.data(), bytes);
    keep(comm_->all_reduce(comm_, send.data(), recv.data(), count, dtype, order, nullptr), recv.data(), bytes);
    auto place = send;
    keep(comm_->all_reduce(comm_, place.data(), place.data(), count, dtype, order, nullptr), place.data(), bytes);
    std::byte* own = send.data() + bytes * static_cast<std::size_t>(comm_->rank);
    keep(comm_->reduce_scatter(comm_, send.data(), own, count, dtype, order, nullptr), own, bytes);
  }

  const bp_comm* comm_;
  std::size_t world_;
  std::vector<std::byte> result_;
};

class ProcessWorldTest : public testing::TestWithParam<int> {};

TEST_P(ProcessWorldTest, GivesTheBytesOfThreads) {
  const int world = GetParam();
  std::vector<std::vector<std::byte>> wanted(static_cast<std::size_t>(world));
  {
    ThreadWorld threads(world);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < world; ++rank) {
      ranks.emplace_back([&, rank] { wanted[static_cast<std::size_t>(rank)] = Exercise(*threads.comm(rank)).run(); });
    }
    for (std::thread& rank : ranks) rank.join();
  }
  const std::size_t bytes = wanted[0].size();
  for (const auto& each : wanted) ASSERT_LE(each.size(), bytes * static_cast<std::size_t>(world) + 1);
  const std::size_t room = std::size_t{16} << 20;
  SharedMemory results(room * static_cast<std::size_t>(world));
  Processes processes(world, kSmallSlot);
  processes.start([&](int rank, ProcessWorld& own) {
    const auto got = Exercise(*own.comm()).run();
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
    if (rank == 1) {
      pause();
      return 0;
    }
    return world.comm()->barrier(world.comm(), nullptr) == BP_COMM ? 0 : 9;
  });
  for (int i = 0; i < 500 && processes.observer().waits_in(0).empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(processes.observer().waits_in(0), "barrier");
  EXPECT_EQ(processes.observer().waits_in(1), "");
  kill(processes.pid(1), SIGTERM);
  const auto ends = processes.wait();
  EXPECT_EQ(ends[0].status, 0);
  EXPECT_TRUE(ends[1].killed);
}

}  // namespace
}  // namespace batchproof
