// SPDX-License-Identifier: Apache-2.0
//
// MpiWorld against ThreadWorld: the same bytes, the same errors. Started by mpirun; every process runs the same tests
// in the same order, so a test may fail but never leave early: it uses EXPECT only.
#include "src/comm/mpi_world.h"

#include <gtest/gtest.h>
#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "src/comm/exercise.h"
#include "src/comm/thread_world.h"
#include "src/comm/watchdog.h"
#include "src/numeric/dtype.h"

namespace batchproof {
namespace {

constexpr unsigned kLimitSeconds = 150;

std::unique_ptr<MpiProcesses> processes;

// All processes, and fewer than there are.
std::set<int> worlds() { return {processes->size(), processes->size() / 2 + 1}; }

using Bytes = std::vector<std::byte>;
using Body = std::function<Result<void>(int rank, const bp_comm& comm)>;

// One call of `body` as MpiHost makes it: how it ended on this rank. Nothing where this process is outside.
MpiWorld::Ending ending_of(MpiWorld& world, int size, const Body& body) {
  const int rank = processes->rank();
  if (rank >= size) return {};
  const Result<void> done = body(rank, *world.comm());
  return world.finished(!done);
}

void expect_works(MpiWorld& world, int size) {
  std::vector<int> all(static_cast<std::size_t>(size), -1);
  const auto ending = ending_of(world, size, [&](int rank, const bp_comm& comm) -> Result<void> {
    EXPECT_EQ(comm.all_gather(&comm, &rank, all.data(), sizeof(int), nullptr), BP_OK);
    for (int q = 0; q < size; ++q) EXPECT_EQ(all[static_cast<std::size_t>(q)], q);
    return {};
  });
  EXPECT_FALSE(ending.aborted) << ending.error;
}

// ---- bytes --------------------------------------------------------------------------------------------------------

// What every rank received, on rank 0; nothing elsewhere.
std::vector<Bytes> collected(const Bytes& own) {
  const std::vector<std::string> sizes = processes->gather(std::to_string(own.size()));
  std::vector<Bytes> all;
  std::vector<MpiProcesses::Piece> sends, receives;
  if (processes->rank() != 0) {
    sends.push_back({0, const_cast<std::byte*>(own.data()), own.size()});
  } else {
    for (const std::string& size : sizes) all.emplace_back(std::stoull(size));
    all[0] = own;
    for (std::size_t q = 1; q < all.size(); ++q)
      receives.push_back({static_cast<int>(q), all[q].data(), all[q].size()});
  }
  EXPECT_TRUE(processes->exchange("what was received", sends, receives));
  return all;
}

TEST(MpiWorldTest, EveryCollectiveGivesTheBytesOfThreads) {
  for (const int size : worlds()) {
    MpiWorld world(*processes, size);
    Bytes own;
    const auto ending = ending_of(world, size, [&](int, const bp_comm& comm) -> Result<void> {
      own = CollectiveExercise(comm).run();
      return {};
    });
    EXPECT_FALSE(ending.aborted) << ending.error;
    const std::vector<Bytes> all = collected(own);
    if (processes->rank() != 0) continue;
    RankTeam threads(size);
    std::vector<Bytes> wanted(static_cast<std::size_t>(size));
    const auto done = threads.run([&](int rank, const bp_comm& comm) -> Result<void> {
      wanted[static_cast<std::size_t>(rank)] = CollectiveExercise(comm).run();
      return {};
    });
    EXPECT_TRUE(done) << (done ? "" : done.error().message);
    for (int rank = 0; rank < processes->size(); ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      if (rank >= size) {
        EXPECT_TRUE(all[r].empty()) << "rank " << rank << " is outside a world of " << size;
        continue;
      }
      EXPECT_GT(all[r].size(), 100'000u);
      EXPECT_TRUE(all[r] == wanted[r]) << "rank " << rank << " of " << size;
    }
  }
}

// The control of the test above: its numbers tell one order of summation from the other.
TEST(MpiWorldTest, TheTwoOrdersDiffer) {
  const int size = processes->size();
  if (size < 4) GTEST_SKIP() << "with two addends every order is the same";
  MpiWorld world(*processes, size);
  constexpr std::size_t kCount = 1023;
  for (const bp_dtype dtype : {BP_FP64, BP_FP32, BP_BF16, BP_FP16}) {
    const auto ending = ending_of(world, size, [&](int rank, const bp_comm& comm) -> Result<void> {
      const Bytes send = random_numbers(dtype, kCount, rank, 4);
      Bytes in_rank_order(send.size()), in_tree_order(send.size());
      for (auto& [order, recv] :
           {std::pair<bp_reduce_order, Bytes&>{BP_REDUCE_RANK_ORDER, in_rank_order}, {BP_REDUCE_TREE, in_tree_order}})
        EXPECT_EQ(comm.all_reduce(&comm, send.data(), recv.data(), kCount, dtype, order, nullptr), BP_OK);
      EXPECT_TRUE(in_rank_order != in_tree_order) << dtype_name(dtype);
      return {};
    });
    EXPECT_FALSE(ending.aborted) << ending.error;
  }
}

TEST(MpiWorldTest, TheHandleIsACommunicatorOfTheWorldWithNoTrafficOfOurs) {
  for (const int size : worlds()) {
    MpiWorld world(*processes, size);
    const auto ending = ending_of(world, size, [&](int rank, const bp_comm& comm) -> Result<void> {
      EXPECT_EQ(comm.struct_size, sizeof(bp_comm));
      EXPECT_EQ(comm.rank, rank);
      EXPECT_EQ(comm.world, size);
      const MPI_Comm handle = *static_cast<MPI_Comm*>(comm.handle);
      int own = -1, ranks = -1, sum = -1;
      MPI_Comm_rank(handle, &own);
      MPI_Comm_size(handle, &ranks);
      EXPECT_EQ(own, rank);
      EXPECT_EQ(ranks, size);
      EXPECT_EQ(comm.barrier(&comm, nullptr), BP_OK);
      MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, handle);
      EXPECT_EQ(sum, size * (size - 1) / 2);
      EXPECT_EQ(comm.barrier(&comm, nullptr), BP_OK);
      return {};
    });
    EXPECT_FALSE(ending.aborted) << ending.error;
  }
}

// ---- errors -------------------------------------------------------------------------------------------------------

struct NamedCall {
  const char* name;
  std::function<bp_status(const bp_comm&)> call;
};

// Sixteen floats per rank are enough for all of them; nothing may be written by a call that does not happen.
struct Buffers {
  std::vector<float> send = std::vector<float>(64, 1.0f);
  std::vector<float> recv = std::vector<float>(64, -1.0f);
};

std::vector<NamedCall> different_calls(Buffers& b) {
  const auto gather = [&b](const bp_comm& c, std::size_t bytes) {
    return c.all_gather(&c, b.send.data(), b.recv.data(), bytes, nullptr);
  };
  const auto sum = [&b](const bp_comm& c, std::size_t count, bp_dtype dtype, bp_reduce_order order, bool scatter) {
    const auto function = scatter ? c.reduce_scatter : c.all_reduce;
    return function(&c, b.send.data(), b.recv.data(), count, dtype, order, nullptr);
  };
  return {
      {"barrier", [](const bp_comm& c) { return c.barrier(&c, nullptr); }},
      {"all_gather of 4", [=](const bp_comm& c) { return gather(c, 4); }},
      {"all_gather of 8", [=](const bp_comm& c) { return gather(c, 8); }},
      {"all_gather of 0", [=](const bp_comm& c) { return gather(c, 0); }},
      {"all_to_all of 4",
       [&b](const bp_comm& c) { return c.all_to_all(&c, b.send.data(), b.recv.data(), 4, nullptr); }},
      {"all_to_all_v",
       [&b](const bp_comm& c) {
         const std::vector<std::size_t> none(static_cast<std::size_t>(c.world), 0);
         return c.all_to_all_v(&c, b.send.data(), none.data(), none.data(), b.recv.data(), none.data(), none.data(),
                               nullptr);
       }},
      {"all_reduce", [=](const bp_comm& c) { return sum(c, 4, BP_FP32, BP_REDUCE_RANK_ORDER, false); }},
      {"all_reduce of another count",
       [=](const bp_comm& c) { return sum(c, 5, BP_FP32, BP_REDUCE_RANK_ORDER, false); }},
      {"all_reduce of another dtype",
       [=](const bp_comm& c) { return sum(c, 4, BP_INT32, BP_REDUCE_RANK_ORDER, false); }},
      {"all_reduce of another order", [=](const bp_comm& c) { return sum(c, 4, BP_FP32, BP_REDUCE_TREE, false); }},
      {"reduce_scatter", [=](const bp_comm& c) { return sum(c, 4, BP_FP32, BP_REDUCE_RANK_ORDER, true); }},
  };
}

// The body over MPI and over threads: both abort, with the same sentence on every rank.
void expect_same_error(MpiWorld& world, RankTeam& threads, const Body& body, const std::string& what) {
  const int size = threads.world();
  const auto ending = ending_of(world, size, body);
  const Result<void> wanted = threads.run(body);
  EXPECT_FALSE(wanted) << what;
  if (processes->rank() >= size || wanted) return;
  EXPECT_TRUE(ending.aborted) << what;
  EXPECT_TRUE(ending.known) << what;
  EXPECT_EQ(ending.error, wanted.error().message) << what;
}

int other_power_of_two(int size) {
  int power = 1;
  while (2 * power < size) power *= 2;
  return power;
}

TEST(MpiWorldErrorTest, CallsThatDoNotMatchAreTheErrorOfThreadsOnAllRanks) {
  for (const int size : {processes->size(), other_power_of_two(processes->size())}) {
    if (size < 2) continue;
    MpiWorld world(*processes, size);
    RankTeam threads(size);
    const std::size_t calls = [] {
      Buffers none;
      return different_calls(none).size();
    }();
    for (std::size_t a = 0; a < calls; ++a) {
      for (std::size_t b = 0; b < calls; ++b) {
        if (a == b) continue;
        const int odd = a < b ? size - 1 : 0;
        const Body body = [&](int rank, const bp_comm& comm) -> Result<void> {
          Buffers buffers;
          const NamedCall call = different_calls(buffers)[rank == odd ? a : b];
          EXPECT_EQ(call.call(comm), BP_COMM) << call.name;
          EXPECT_EQ(comm.barrier(&comm, nullptr), BP_COMM) << "a later call is refused";
          EXPECT_EQ(buffers.recv, std::vector<float>(64, -1.0f)) << call.name << " wrote";
          return {};  // the status is swallowed: the world must know even so
        };
        Buffers names;
        expect_same_error(world, threads, body,
                          std::string(different_calls(names)[a].name) + " on rank " + std::to_string(odd) + ", " +
                              different_calls(names)[b].name + " elsewhere");
      }
    }
    expect_works(world, size);
  }
}

TEST(MpiWorldErrorTest, AllToAllVMustMatchPairByPair) {
  const int size = processes->size();
  MpiWorld world(*processes, size);
  RankTeam threads(size);
  for (const bool sends : {false, true}) {
    const Body body = [&](int rank, const bp_comm& comm) -> Result<void> {
      const auto world_size = static_cast<std::size_t>(size);
      std::vector<std::size_t> sent(world_size, 4), expected(world_size, 4), offsets;
      for (std::size_t q = 0; q < world_size; ++q) offsets.push_back(q * 8);
      if (rank == size - 1) (sends ? sent : expected)[0] = 3;
      Bytes send(world_size * 8, std::byte{1}), recv(world_size * 8, std::byte{7});
      EXPECT_EQ(comm.all_to_all_v(&comm, send.data(), sent.data(), offsets.data(), recv.data(), expected.data(),
                                  offsets.data(), nullptr),
                BP_COMM);
      EXPECT_EQ(recv, Bytes(recv.size(), std::byte{7}));
      return {};
    };
    expect_same_error(world, threads, body, sends ? "a rank sends less" : "a rank expects less");
  }
  expect_works(world, size);
}

// The first to be waited for is not told apart by threads, which see it as it happens; so the sentence is checked here.
TEST(MpiWorldErrorTest, ARankThatReturnsEarlyIsAnErrorOnAllRanks) {
  for (const int size : worlds()) {
    if (size < 2) continue;
    MpiWorld world(*processes, size);
    for (const int odd : {0, size / 2, size - 1}) {
      for (const int before : {0, 3}) {
        const auto ending = ending_of(world, size, [&](int rank, const bp_comm& comm) -> Result<void> {
          for (int i = 0; i < before; ++i) EXPECT_EQ(comm.barrier(&comm, nullptr), BP_OK);
          if (rank == odd) return {};
          float value = 1.0f;
          EXPECT_EQ(comm.all_reduce(&comm, &value, &value, 1, BP_FP32, BP_REDUCE_RANK_ORDER, nullptr), BP_COMM);
          EXPECT_EQ(value, 1.0f);
          return {};
        });
        if (processes->rank() >= size) continue;
        EXPECT_TRUE(ending.aborted);
        EXPECT_TRUE(ending.known);
        EXPECT_EQ(ending.while_running, processes->rank() != odd);
        EXPECT_EQ(ending.error, "rank " + std::to_string(odd) + " returned while rank " + (odd == 0 ? "1" : "0") +
                                    " waits in all_reduce");
      }
    }
    expect_works(world, size);
  }
}

// The others only know that it left: the reason is that rank's own.
TEST(MpiWorldErrorTest, ARankThatFailsReleasesTheOthers) {
  const int size = processes->size();
  MpiWorld world(*processes, size);
  for (const int odd : {0, size - 1}) {
    const auto ending = ending_of(world, size, [&](int rank, const bp_comm& comm) -> Result<void> {
      if (rank == odd) return fail(Error::Kind::operation, "no such tile");
      EXPECT_EQ(comm.barrier(&comm, nullptr), BP_COMM);
      return {};
    });
    EXPECT_TRUE(ending.aborted);
    EXPECT_FALSE(ending.known);
    EXPECT_EQ(ending.while_running, processes->rank() != odd);
  }
  expect_works(world, size);
}

TEST(MpiWorldErrorTest, WhatOneRankCanSeeIsInvalidThereAndAnErrorElsewhere) {
  const int size = processes->size();
  MpiWorld world(*processes, size);
  Buffers b;
  float* send = b.send.data();
  const std::vector<NamedCall> calls = {
      {"dtype e4m3",
       [&](const bp_comm& c) {
         return c.all_reduce(&c, send, b.recv.data(), 4, BP_E4M3, BP_REDUCE_RANK_ORDER, nullptr);
       }},
      {"recv is NULL", [&](const bp_comm& c) { return c.all_gather(&c, send, nullptr, 4, nullptr); }},
      {"send and recv overlap", [&](const bp_comm& c) { return c.all_to_all(&c, send, send, 4, nullptr); }},
      {"overflow", [&](const bp_comm& c) { return c.all_gather(&c, send, b.recv.data(), SIZE_MAX / 2 + 1, nullptr); }},
  };
  for (const NamedCall& bad : calls) {
    for (const int odd : {0, size - 1}) {
      const auto ending = ending_of(world, size, [&](int rank, const bp_comm& comm) -> Result<void> {
        if (rank != odd) {
          EXPECT_EQ(comm.barrier(&comm, nullptr), BP_COMM) << bad.name;
          return {};
        }
        EXPECT_EQ(bad.call(comm), BP_INVALID) << bad.name;
        return {};
      });
      EXPECT_TRUE(ending.aborted) << bad.name;
      EXPECT_EQ(ending.known, processes->rank() == odd) << bad.name;
      EXPECT_EQ(ending.error.rfind("rank " + std::to_string(odd), 0), 0u) << ending.error;
      const bool named = ending.error.find(bad.name) != std::string::npos;
      EXPECT_TRUE(named || processes->rank() != odd) << ending.error;
    }
  }
  expect_works(world, size);
}

// Rank 0 tells how the tests went; the others only what failed on them.
class FailuresOnly : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (!part.failed()) return;
    std::fprintf(stderr, "rank %d: %s:%d: %s\n", processes->rank(), part.file_name() ? part.file_name() : "?",
                 part.line_number(), part.message());
  }
};

int run_tests() {
  if (processes->rank() != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOnly);
  }
  const int own = RUN_ALL_TESTS();
  const std::vector<std::string> all = processes->gather(own == 0 ? "passed" : "failed");
  return std::all_of(all.begin(), all.end(), [](const std::string& each) { return each == "passed"; }) ? 0 : 1;
}

}  // namespace
}  // namespace batchproof

int main(int argc, char** argv) {
  using namespace batchproof;
  testing::InitGoogleTest(&argc, argv);
  const int wanted = argc == 2 ? std::atoi(argv[1]) : 0;
  const Watchdog watchdog(kLimitSeconds);
  auto started = MpiProcesses::start();
  if (!started || (*started)->size() != wanted) {
    std::fprintf(stderr, "%s\n", started ? "usage: mpirun -n N mpi_world_test N" : started.error().message.c_str());
    return 2;
  }
  processes = *std::move(started);
  processes->on_failure([](const std::string& what) {
    std::fprintf(stderr, "rank %d: %s\n", processes->rank(), what.c_str());
    _exit(3);
  });
  const int failed = run_tests();
  processes->finish();
  return failed;
}
