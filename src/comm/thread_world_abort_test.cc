// SPDX-License-Identifier: Apache-2.0
//
// What happens when ranks fail: one error, no deadlock, no memory touched, and the team works again afterwards.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "src/comm/thread_world.h"
#include "src/comm/watchdog.h"

namespace batchproof {
namespace {

using Status = std::atomic<bp_status>;

class ThreadWorldAbortTest : public testing::Test {
 protected:
  // The team still works, on every rank.
  static void expect_works(RankTeam* team) {
    std::atomic<int> right{0};
    const Result<void> result = team->run([&](int rank, const bp_comm& comm) -> Result<void> {
      std::vector<int> all(static_cast<std::size_t>(comm.world), -1);
      if (comm.all_gather(&comm, &rank, all.data(), sizeof(int), nullptr) != BP_OK) return {};
      for (int q = 0; q < comm.world; ++q) {
        if (all[q] != q) return {};
      }
      ++right;
      return {};
    });
    EXPECT_TRUE(result) << (result ? "" : result.error().message);
    EXPECT_EQ(right, team->world());
  }

  // Runs `odd` on one rank and all_gather on the others; all others must be released with BP_COMM.
  static std::string error_of(int world, int odd_rank, const std::function<Result<void>(const bp_comm&)>& odd,
                              Error::Kind kind = Error::Kind::operation) {
    RankTeam team(world);
    std::vector<Status> statuses(static_cast<std::size_t>(world));
    for (Status& status : statuses) status = -1;
    const Result<void> result = team.run([&](int rank, const bp_comm& comm) -> Result<void> {
      if (rank == odd_rank) return odd(comm);
      std::vector<int> all(static_cast<std::size_t>(comm.world), -1);
      statuses[rank] = comm.all_gather(&comm, &rank, all.data(), sizeof(int), nullptr);
      for (const int value : all) EXPECT_EQ(value, -1) << "nothing may be copied";
      // A later call is refused at once.
      EXPECT_EQ(comm.barrier(&comm, nullptr), BP_COMM);
      return fail(Error::Kind::internal, "a consequence, not the cause");
    });
    for (int rank = 0; rank < world; ++rank) EXPECT_EQ(statuses[rank], rank == odd_rank ? -1 : BP_COMM) << rank;
    if (result) {
      ADD_FAILURE() << "no error";
      return {};
    }
    EXPECT_EQ(result.error().kind, kind);
    expect_works(&team);
    return result.error().message;
  }

  Watchdog watchdog_;
};

void sleep_a_little() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

TEST_F(ThreadWorldAbortTest, ARankThatReturnsAnErrorReleasesTheOthers) {
  for (const int world : {2, 3, 8, 64}) {
    for (const int odd : {0, world / 2, world - 1}) {
      for (const bool late : {false, true}) {
        const std::string error = error_of(
            world, odd,
            [late](const bp_comm&) -> Result<void> {
              if (late) sleep_a_little();
              return fail(Error::Kind::usage, "no such tile");
            },
            Error::Kind::usage);
        EXPECT_EQ(error, "rank " + std::to_string(odd) + ": no such tile");
      }
    }
  }
}

TEST_F(ThreadWorldAbortTest, AnExceptionBecomesAnError) {
  for (const int odd : {0, 2}) {
    const std::string name = "rank " + std::to_string(odd);
    EXPECT_EQ(error_of(3, odd, [](const bp_comm&) -> Result<void> { throw std::runtime_error("bad tile"); }),
              name + ": exception: bad tile");
    EXPECT_EQ(error_of(3, odd, [](const bp_comm&) -> Result<void> { throw 42; }), name + ": exception of unknown type");
  }
  RankTeam alone(1);
  const Result<void> result = alone.run([](int, const bp_comm&) -> Result<void> { throw std::runtime_error("x"); });
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message, "rank 0: exception: x");
  expect_works(&alone);
}

TEST_F(ThreadWorldAbortTest, ARankThatReturnsWithoutCallingIsAnError) {
  for (const int odd : {0, 1, 2}) {
    for (const bool late : {false, true}) {
      const std::string error = error_of(3, odd, [late](const bp_comm&) -> Result<void> {
        if (late) sleep_a_little();
        return {};
      });
      const std::string begin = "rank " + std::to_string(odd) + " returned while rank ";
      EXPECT_EQ(error.substr(0, begin.size()), begin);
      EXPECT_NE(error.find(" waits in all_gather"), std::string::npos) << error;
    }
  }
  // One call too few at the end of a sequence.
  RankTeam team(4);
  const Result<void> result = team.run([](int rank, const bp_comm& comm) -> Result<void> {
    for (int i = 0; i < (rank == 2 ? 9 : 10); ++i) {
      if (comm.barrier(&comm, nullptr) != BP_OK) return {};  // a body that swallows the status
    }
    return {};
  });
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message.substr(0, 26), "rank 2 returned while rank");
  EXPECT_NE(result.error().message.find("waits in barrier"), std::string::npos);
  expect_works(&team);
  // Ranks that call nothing may return whenever they like.
  EXPECT_TRUE(team.run([](int rank, const bp_comm&) -> Result<void> {
    if (rank == 1) sleep_a_little();
    return {};
  }));
}

TEST_F(ThreadWorldAbortTest, CallsThatDoNotMatchAreAnErrorThatNamesBoth) {
  int buffer[64] = {};
  int out[64] = {};
  const auto message = [&](int odd, const std::function<bp_status(const bp_comm&)>& call) {
    return error_of(3, odd, [&](const bp_comm& comm) -> Result<void> {
      EXPECT_EQ(call(comm), BP_COMM);
      for (const int value : out) EXPECT_EQ(value, 0);
      return fail(Error::Kind::operation, "a consequence");
    });
  };
  EXPECT_EQ(message(2, [&](const bp_comm& c) { return c.all_gather(&c, buffer, out, 8, nullptr); }),
            "rank 2: all_gather of 8 bytes per rank does not match all_gather of 4 bytes per rank of rank 0");
  EXPECT_EQ(message(0, [&](const bp_comm& c) { return c.all_gather(&c, buffer, out, 8, nullptr); }),
            "rank 1: all_gather of 4 bytes per rank does not match all_gather of 8 bytes per rank of rank 0");
  EXPECT_EQ(message(1, [&](const bp_comm& c) { return c.all_gather(&c, nullptr, nullptr, 0, nullptr); }),
            "rank 1: all_gather of 0 bytes per rank does not match all_gather of 4 bytes per rank of rank 0");
  EXPECT_EQ(message(1, [&](const bp_comm& c) { return c.barrier(&c, nullptr); }),
            "rank 1: barrier does not match all_gather of 4 bytes per rank of rank 0");
  EXPECT_EQ(message(1, [&](const bp_comm& c) { return c.all_to_all(&c, buffer, out, 4, nullptr); }),
            "rank 1: all_to_all of 4 bytes per peer does not match all_gather of 4 bytes per rank of rank 0");
  EXPECT_EQ(message(1,
                    [&](const bp_comm& c) {
                      return c.all_reduce(&c, buffer, out, 4, BP_FP32, BP_REDUCE_RANK_ORDER, nullptr);
                    }),
            "rank 1: all_reduce of 4 fp32 elements in rank order does not match all_gather of 4 bytes per rank of rank "
            "0");
}

TEST_F(ThreadWorldAbortTest, ReductionsMustMatchInCountDtypeAndOrder) {
  struct Arguments {
    std::size_t count;
    bp_dtype dtype;
    bp_reduce_order order;
  };
  for (const Arguments& odd : {Arguments{5, BP_FP32, BP_REDUCE_TREE}, Arguments{4, BP_INT32, BP_REDUCE_TREE},
                               Arguments{4, BP_FP32, BP_REDUCE_RANK_ORDER}}) {
    for (const bool scatter : {false, true}) {
      RankTeam team(4);
      const Result<void> result = team.run([&](int rank, const bp_comm& comm) -> Result<void> {
        const Arguments mine = rank == 3 ? odd : Arguments{4, BP_FP32, BP_REDUCE_TREE};
        float send[20] = {}, recv[20] = {};
        const auto call = scatter ? comm.reduce_scatter : comm.all_reduce;
        EXPECT_EQ(call(&comm, send, recv, mine.count, mine.dtype, mine.order, nullptr), BP_COMM);
        return {};
      });
      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().message.substr(0, 8), "rank 3: ");
      EXPECT_NE(result.error().message.find("does not match"), std::string::npos) << result.error().message;
      EXPECT_NE(result.error().message.find("4 fp32 elements in tree order of rank 0"), std::string::npos);
      expect_works(&team);
    }
  }
}

TEST_F(ThreadWorldAbortTest, AllToAllVMustMatchPairByPair) {
  RankTeam team(3);
  const Result<void> result = team.run([](int rank, const bp_comm& comm) -> Result<void> {
    const std::size_t send_bytes[3] = {4, 4, 4}, offsets[3] = {0, 4, 8};
    const std::size_t recv_bytes[3] = {4, rank == 2 ? 3u : 4u, 4};
    char send[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, recv[12] = {};
    EXPECT_EQ(comm.all_to_all_v(&comm, send, send_bytes, offsets, recv, recv_bytes, offsets, nullptr), BP_COMM);
    for (const char byte : recv) EXPECT_EQ(byte, 0);
    return {};
  });
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message, "rank 2: all_to_all_v expects 3 bytes from rank 1, which sends 4");
  expect_works(&team);
}

TEST_F(ThreadWorldAbortTest, WhatOneRankCanSeeIsInvalidThere) {
  std::vector<float> buffer(64), other(64);
  float* a = buffer.data();
  float* b = other.data();
  const std::size_t huge = SIZE_MAX / 2;
  const std::size_t four[2] = {4, 4}, apart[2] = {0, 4}, same[2] = {2, 4};
  using Call = std::function<bp_status(const bp_comm&)>;
  const std::vector<std::pair<std::string, Call>> calls = {
      {"dtype e4m3", [&](auto& c) { return c.all_reduce(&c, a, b, 4, BP_E4M3, BP_REDUCE_RANK_ORDER, nullptr); }},
      {"dtype int8", [&](auto& c) { return c.reduce_scatter(&c, a, b, 4, BP_INT8, BP_REDUCE_RANK_ORDER, nullptr); }},
      {"unknown order", [&](auto& c) { return c.all_reduce(&c, a, b, 4, BP_FP32, 7, nullptr); }},
      {"power of two", [&](auto& c) { return c.all_reduce(&c, a, b, 4, BP_FP32, BP_REDUCE_TREE, nullptr); }},
      {"power of two", [&](auto& c) { return c.reduce_scatter(&c, a, b, 4, BP_FP32, BP_REDUCE_TREE, nullptr); }},
      {"send is NULL", [&](auto& c) { return c.all_gather(&c, nullptr, b, 4, nullptr); }},
      {"recv is NULL", [&](auto& c) { return c.all_gather(&c, a, nullptr, 4, nullptr); }},
      {"send is NULL", [&](auto& c) { return c.all_to_all(&c, nullptr, b, 4, nullptr); }},
      {"overlap", [&](auto& c) { return c.all_gather(&c, a + 1, a, 8, nullptr); }},
      {"overlap", [&](auto& c) { return c.all_to_all(&c, a, a, 4, nullptr); }},
      {"overlap", [&](auto& c) { return c.all_reduce(&c, a, a + 1, 4, BP_FP32, BP_REDUCE_RANK_ORDER, nullptr); }},
      {"overflow", [&](auto& c) { return c.all_gather(&c, a, b, huge, nullptr); }},
      {"overflow", [&](auto& c) { return c.all_to_all(&c, a, b, huge, nullptr); }},
      {"overflow", [&](auto& c) { return c.all_reduce(&c, a, b, huge, BP_FP32, BP_REDUCE_RANK_ORDER, nullptr); }},
      {"overflow",
       [&](auto& c) { return c.reduce_scatter(&c, a, b, huge / 4, BP_FP32, BP_REDUCE_RANK_ORDER, nullptr); }},
      {"overlap", [&](auto& c) { return c.reduce_scatter(&c, a, a + 1, 2, BP_FP32, BP_REDUCE_RANK_ORDER, nullptr); }},
  };
  for (const auto& [what, call] : calls) {
    const std::string error = error_of(3, 1, [&, expected = what](const bp_comm& comm) -> Result<void> {
      EXPECT_EQ(call(comm), BP_INVALID) << expected;
      return fail(Error::Kind::operation, "the operator's own words");
    });
    EXPECT_EQ(error.substr(0, 8), "rank 1: ");
    EXPECT_NE(error.find(what), std::string::npos) << error;
  }
  const std::vector<std::pair<std::string, Call>> pair_calls = {
      {"is NULL", [&](auto& c) { return c.all_to_all_v(&c, a, nullptr, apart, b, four, apart, nullptr); }},
      {"send is NULL", [&](auto& c) { return c.all_to_all_v(&c, nullptr, four, apart, b, four, apart, nullptr); }},
      {"overlap in recv", [&](auto& c) { return c.all_to_all_v(&c, a, four, apart, b, four, same, nullptr); }},
      {"send and recv overlap", [&](auto& c) { return c.all_to_all_v(&c, a, four, apart, a, four, apart, nullptr); }},
  };
  for (const auto& [what, call] : pair_calls) {
    const std::string error = error_of(2, 1, [&](const bp_comm& comm) -> Result<void> {
      EXPECT_EQ(call(comm), BP_INVALID);
      return {};
    });
    EXPECT_NE(error.find(what), std::string::npos) << error;
  }
}

TEST_F(ThreadWorldAbortTest, TheFirstErrorIsKept) {
  RankTeam team(8);
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::atomic<int> order{0};
    const Result<void> result = team.run([&](int rank, const bp_comm& comm) -> Result<void> {
      if (rank % 2 == 1) return fail(Error::Kind::operation, "failed " + std::to_string(order++));
      if (comm.barrier(&comm, nullptr) != BP_OK) return fail(Error::Kind::operation, "barrier failed");
      return {};
    });
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().message.find(": failed "), std::string::npos) << result.error().message;
  }
}

TEST_F(ThreadWorldAbortTest, AbortFromOutsideReleasesAndResetReopens) {
  ThreadWorld world(3);
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::vector<Status> statuses(2);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {  // rank 2 never comes
      ranks.emplace_back([&, rank] { statuses[rank] = world.comm(rank)->barrier(world.comm(rank), nullptr); });
    }
    sleep_a_little();
    EXPECT_FALSE(world.aborted());
    world.abort(2, "lost");
    world.abort(1, "a later one");
    for (std::thread& rank : ranks) rank.join();
    EXPECT_EQ(statuses[0], BP_COMM);
    EXPECT_EQ(statuses[1], BP_COMM);
    EXPECT_TRUE(world.aborted());
    EXPECT_EQ(world.error(), "rank 2: lost");
    world.reset();
    EXPECT_FALSE(world.aborted());
    EXPECT_EQ(world.error(), "");
    std::atomic<int> passed{0};
    ranks.clear();
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] { passed += world.comm(rank)->barrier(world.comm(rank), nullptr) == BP_OK; });
    }
    for (std::thread& rank : ranks) rank.join();
    EXPECT_EQ(passed, 3);
  }
}

// A rank fails at a random step of a sequence, while others are anywhere in it: what was gathered before is right, the
// error is that rank's, every other rank leaves, and the next run starts afresh.
TEST_F(ThreadWorldAbortTest, RandomFailuresInSequences) {
  std::mt19937 random(3);
  for (const int world : {2, 5, 16, 64}) {
    RankTeam team(world);
    for (int repeat = 0; repeat < 40; ++repeat) {
      const int bad_rank = static_cast<int>(random() % static_cast<unsigned>(world));
      const int bad_step = static_cast<int>(random() % 12);
      const auto how = random() % 3;
      std::atomic<int> wrong{0};
      const Result<void> result = team.run([&](int rank, const bp_comm& comm) -> Result<void> {
        std::vector<std::int64_t> send(static_cast<std::size_t>(world)), recv(send.size());
        for (int step = 0; step < 12; ++step) {
          if (rank == bad_rank && step == bad_step) {
            if (how == 0) return fail(Error::Kind::operation, "chosen");
            if (how == 1) throw std::runtime_error("chosen");
            return {};
          }
          for (int q = 0; q < world; ++q) send[q] = step * 100000 + rank * 100 + q;
          bp_status status;
          if (step % 2 == 0) {
            status = comm.all_to_all(&comm, send.data(), recv.data(), sizeof(std::int64_t), nullptr);
            for (int q = 0; q < world && status == BP_OK; ++q) wrong += recv[q] != step * 100000 + q * 100 + rank;
          } else {
            status = comm.all_reduce(&comm, send.data(), send.data(), static_cast<std::size_t>(world), BP_INT64,
                                     BP_REDUCE_RANK_ORDER, nullptr);
            const std::int64_t base = std::int64_t{100000} * step * world + 50 * world * (world - 1);
            for (int q = 0; q < world && status == BP_OK; ++q) wrong += send[q] != base + world * q;
          }
          if (status != BP_OK) {
            if (status != BP_COMM || step != bad_step) ++wrong;
            return fail(Error::Kind::operation, "a consequence");
          }
        }
        return {};
      });
      ASSERT_FALSE(result);
      EXPECT_EQ(wrong, 0);
      const std::string name = "rank " + std::to_string(bad_rank);
      EXPECT_EQ(result.error().message.substr(0, name.size()), name) << result.error().message;
      EXPECT_NE(result.error().message.find(how == 2 ? "returned while" : "chosen"), std::string::npos)
          << result.error().message;
    }
    expect_works(&team);
  }
}

}  // namespace
}  // namespace batchproof
