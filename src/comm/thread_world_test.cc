// SPDX-License-Identifier: Apache-2.0
//
// Every collective against a plain reference, for many worlds, under load, on 64 ranks. Failures:
// thread_world_abort_test.
#include "src/comm/thread_world.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "src/comm/reduce.h"
#include "src/comm/watchdog.h"
#include "src/numeric/dtype.h"
#include "src/runtime/fp_env.h"

// The child of a fork makes threads on purpose.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace batchproof {
namespace {

using Bytes = std::vector<unsigned char>;

constexpr int kWorlds[] = {1, 2, 3, 4, 5, 7, 8, 16};

Result<void> to_result(bp_status status, const char* what) {
  if (status == BP_OK) return {};
  return fail(Error::Kind::operation, std::string(what) + " returned " + std::to_string(status));
}

#define EXPECT_RUNS(team, ...)                                     \
  do {                                                             \
    const Result<void> result = (team).run(__VA_ARGS__);           \
    EXPECT_TRUE(result) << (result ? "" : result.error().message); \
  } while (false)

Bytes random_bytes(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  return bytes;
}

// Finite values over many binades.
Bytes random_elements(bp_dtype dtype, std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(dtype_bytes(dtype, static_cast<std::int64_t>(count)));
  for (std::size_t i = 0; i < count; ++i) {
    const double value =
        std::ldexp(static_cast<double>(random()) / 2147483648.0 - 1.0, static_cast<int>(random() % 24) - 12);
    encode_element(dtype, is_integer(dtype) ? value * 1e6 : value, bytes.data(), static_cast<std::int64_t>(i));
  }
  return bytes;
}

// Lets ranks arrive in another order each time.
void jitter(std::mt19937* random) {
  switch ((*random)() % 4) {
    case 0:
      std::this_thread::yield();
      break;
    case 1:
      std::this_thread::sleep_for(std::chrono::microseconds((*random)() % 100));
      break;
    default:
      break;
  }
}

class ThreadWorldTest : public testing::Test {
 protected:
  Watchdog watchdog_;
};

TEST_F(ThreadWorldTest, CommunicatorsDescribeThemselves) {
  ThreadWorld world(3);
  EXPECT_EQ(world.world(), 3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(world.comm(rank)->rank, rank);
    EXPECT_EQ(world.comm(rank)->world, 3);
    EXPECT_EQ(world.comm(rank)->struct_size, sizeof(bp_comm));
    EXPECT_EQ(world.comm(rank)->handle, nullptr);
  }
  EXPECT_FALSE(world.aborted());
  EXPECT_EQ(world.error(), "");
}

TEST_F(ThreadWorldTest, ABarrierHoldsUntilAllHaveCome) {
  for (const int world : kWorlds) {
    RankTeam team(world);
    std::atomic<int> before{0};
    std::atomic<int> wrong{0};
    EXPECT_RUNS(team, [&](int rank, const bp_comm& comm) -> Result<void> {
      std::mt19937 random(static_cast<unsigned>(rank));
      for (int round = 1; round <= 50; ++round) {
        jitter(&random);
        ++before;
        if (comm.barrier(&comm, nullptr) != BP_OK) return fail(Error::Kind::operation, "barrier");
        if (before < round * world) ++wrong;
        if (comm.barrier(&comm, nullptr) != BP_OK) return fail(Error::Kind::operation, "barrier");
      }
      return {};
    });
    EXPECT_EQ(wrong, 0) << world;
    EXPECT_EQ(before, 50 * world);
  }
}

TEST_F(ThreadWorldTest, AllGather) {
  for (const int world : kWorlds) {
    RankTeam team(world);
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{64}, std::size_t{70001}}) {
      std::vector<Bytes> send;
      Bytes expected;
      for (int q = 0; q < world; ++q) {
        send.push_back(random_bytes(bytes, static_cast<unsigned>(q) + 1));
        expected.insert(expected.end(), send.back().begin(), send.back().end());
      }
      expected.push_back(0xee);  // must stay
      for (const bool in_place : {false, true}) {
        std::vector<Bytes> recv(static_cast<std::size_t>(world), Bytes(expected.size(), 0xee));
        EXPECT_RUNS(team, [&](int rank, const bp_comm& comm) {
          unsigned char* own = recv[rank].data() + rank * bytes;
          if (in_place) std::copy(send[rank].begin(), send[rank].end(), own);
          const void* from = in_place ? own : send[rank].data();
          return to_result(comm.all_gather(&comm, from, recv[rank].data(), bytes, nullptr), "all_gather");
        });
        for (int q = 0; q < world; ++q) ASSERT_EQ(recv[q], expected) << world << " ranks, " << bytes << " bytes";
      }
    }
  }
}

TEST_F(ThreadWorldTest, AllToAll) {
  for (const int world : kWorlds) {
    RankTeam team(world);
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{33}, std::size_t{5000}}) {
      std::vector<Bytes> send;
      for (int q = 0; q < world; ++q) send.push_back(random_bytes(bytes * world, static_cast<unsigned>(q) + 1));
      std::vector<Bytes> recv(static_cast<std::size_t>(world), Bytes(bytes * world + 1, 0xee));
      EXPECT_RUNS(team, [&](int rank, const bp_comm& comm) {
        return to_result(comm.all_to_all(&comm, send[rank].data(), recv[rank].data(), bytes, nullptr), "all_to_all");
      });
      for (int to = 0; to < world; ++to) {
        Bytes expected;
        for (int from = 0; from < world; ++from) {
          expected.insert(expected.end(), send[from].begin() + to * bytes, send[from].begin() + (to + 1) * bytes);
        }
        expected.push_back(0xee);
        ASSERT_EQ(recv[to], expected);
      }
    }
  }
}

// Sizes that differ for every pair, zeros among them; blocks in descending order with gaps that must stay.
TEST_F(ThreadWorldTest, AllToAllV) {
  for (const int world : kWorlds) {
    RankTeam team(world);
    const auto size = [](int from, int to) { return static_cast<std::size_t>((from * 31 + to * 17) % 7 * 100 + to); };
    struct Side {
      std::vector<std::size_t> bytes, offsets;
      Bytes data;
    };
    std::vector<Side> send(static_cast<std::size_t>(world)), recv(static_cast<std::size_t>(world));
    const auto lay_out = [world](Side* side) {
      std::size_t end = 3;
      side->offsets.resize(static_cast<std::size_t>(world));
      for (int q = world - 1; q >= 0; --q) {
        side->offsets[q] = end;
        end += side->bytes[q] + 5;
      }
      side->data.assign(end, 0xee);
    };
    for (int rank = 0; rank < world; ++rank) {
      for (int q = 0; q < world; ++q) {
        send[rank].bytes.push_back(size(rank, q));
        recv[rank].bytes.push_back(size(q, rank));
      }
      lay_out(&send[rank]);
      lay_out(&recv[rank]);
      send[rank].data = random_bytes(send[rank].data.size(), static_cast<unsigned>(rank) + 1);
    }
    std::vector<Bytes> expected;
    for (int to = 0; to < world; ++to) {
      expected.emplace_back(recv[to].data.size(), 0xee);
      for (int from = 0; from < world; ++from) {
        std::copy_n(send[from].data.begin() + send[from].offsets[to], size(from, to),
                    expected[to].begin() + recv[to].offsets[from]);
      }
    }
    EXPECT_RUNS(team, [&](int rank, const bp_comm& comm) {
      return to_result(
          comm.all_to_all_v(&comm, send[rank].data.data(), send[rank].bytes.data(), send[rank].offsets.data(),
                            recv[rank].data.data(), recv[rank].bytes.data(), recv[rank].offsets.data(), nullptr),
          "all_to_all_v");
    });
    for (int q = 0; q < world; ++q) ASSERT_EQ(recv[q].data, expected[q]) << world;
    // Nothing at all, with NULL buffers and offsets that are not zero.
    const std::vector<std::size_t> none(static_cast<std::size_t>(world), 0), some(static_cast<std::size_t>(world), 64);
    EXPECT_RUNS(team, [&](int, const bp_comm& comm) {
      return to_result(
          comm.all_to_all_v(&comm, nullptr, none.data(), some.data(), nullptr, none.data(), some.data(), nullptr),
          "all_to_all_v");
    });
  }
}

struct Reduction {
  bp_dtype dtype;
  bp_reduce_order order;
};

std::vector<Reduction> reductions(int world) {
  std::vector<Reduction> all;
  for (const bp_dtype dtype : {BP_FP64, BP_FP32, BP_BF16, BP_FP16, BP_INT32, BP_INT64}) {
    all.push_back({dtype, BP_REDUCE_RANK_ORDER});
    if ((world & (world - 1)) == 0) all.push_back({dtype, BP_REDUCE_TREE});
  }
  return all;
}

// All sums by one call in one thread; reduce() itself is tested against scalar sums in reduce_test.
Bytes reference_sum(const Reduction& r, const std::vector<Bytes>& sources, std::size_t count) {
  std::vector<const void*> pointers;
  for (const Bytes& source : sources) pointers.push_back(source.data());
  Bytes sum(sources[0].size());
  reduce(r.dtype, r.order, pointers, count, sum.data());
  return sum;
}

TEST_F(ThreadWorldTest, AllReduce) {
  for (const int world : kWorlds) {
    RankTeam team(world);
    for (const Reduction& r : reductions(world)) {
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{5}, std::size_t{1003}}) {
        std::vector<Bytes> send;
        for (int q = 0; q < world; ++q) send.push_back(random_elements(r.dtype, count, static_cast<unsigned>(q) + 1));
        const Bytes expected = reference_sum(r, send, count);
        for (const bool in_place : {false, true}) {
          std::vector<Bytes> recv = in_place ? send : std::vector<Bytes>(send.size(), Bytes(expected.size(), 0xee));
          EXPECT_RUNS(team, [&](int rank, const bp_comm& comm) {
            const void* from = in_place ? recv[rank].data() : send[rank].data();
            return to_result(comm.all_reduce(&comm, from, recv[rank].data(), count, r.dtype, r.order, nullptr),
                             "all_reduce");
          });
          for (int q = 0; q < world; ++q) {
            ASSERT_EQ(recv[q], expected) << dtype_name(r.dtype) << " order " << r.order << " world " << world;
          }
        }
      }
    }
  }
}

TEST_F(ThreadWorldTest, ReduceScatter) {
  for (const int world : kWorlds) {
    RankTeam team(world);
    for (const Reduction& r : reductions(world)) {
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{300}}) {
        const std::size_t total = count * static_cast<std::size_t>(world);
        std::vector<Bytes> send;
        for (int q = 0; q < world; ++q) send.push_back(random_elements(r.dtype, total, static_cast<unsigned>(q) + 1));
        const Bytes sum = reference_sum(r, send, total);
        const std::size_t bytes = sum.size() / static_cast<std::size_t>(world);
        for (const bool in_place : {false, true}) {
          std::vector<Bytes> buffers = send;
          std::vector<Bytes> recv(send.size(), Bytes(bytes, 0xee));
          EXPECT_RUNS(team, [&](int rank, const bp_comm& comm) {
            void* to = in_place ? buffers[rank].data() + rank * bytes : recv[rank].data();
            return to_result(comm.reduce_scatter(&comm, buffers[rank].data(), to, count, r.dtype, r.order, nullptr),
                             "reduce_scatter");
          });
          for (int q = 0; q < world; ++q) {
            const unsigned char* got = in_place ? buffers[q].data() + q * bytes : recv[q].data();
            ASSERT_TRUE(std::equal(got, got + bytes, sum.begin() + q * bytes))
                << dtype_name(r.dtype) << " order " << r.order << " world " << world;
          }
        }
      }
    }
  }
}

// Arrival order changes, other threads take the processors: the bytes stay.
TEST_F(ThreadWorldTest, FiftyRepeatsUnderLoadGiveTheSameBytes) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> load;
  for (int i = 0; i < 2; ++i) {
    load.emplace_back([&stop] {
      while (!stop) std::this_thread::yield();
    });
  }
  for (const int world : {3, 8, 16}) {
    RankTeam team(world);
    constexpr std::size_t kCount = 257;
    for (const Reduction& r : reductions(world)) {
      std::vector<Bytes> send;
      for (int q = 0; q < world; ++q) send.push_back(random_elements(r.dtype, kCount, static_cast<unsigned>(q) + 9));
      const Bytes expected = reference_sum(r, send, kCount);
      std::atomic<int> wrong{0};
      EXPECT_RUNS(team, [&](int rank, const bp_comm& comm) -> Result<void> {
        std::mt19937 random(static_cast<unsigned>(rank));
        for (int repeat = 0; repeat < 50; ++repeat) {
          if (repeat % 8 == 0) jitter(&random);
          Bytes recv(expected.size(), 0xee);
          const bp_status status =
              comm.all_reduce(&comm, send[rank].data(), recv.data(), kCount, r.dtype, r.order, nullptr);
          if (status != BP_OK) return to_result(status, "all_reduce");
          if (recv != expected) ++wrong;
        }
        return {};
      });
      EXPECT_EQ(wrong, 0) << dtype_name(r.dtype) << " order " << r.order << " world " << world;
    }
  }
  stop = true;
  for (std::thread& thread : load) thread.join();
}

// All ranks draw the same sequence of calls; every result is checked, buffers are reused at once.
TEST_F(ThreadWorldTest, RandomSequencesOnSixtyFourRanks) {
  constexpr int kWorld = 64;
  RankTeam team(kWorld);
  std::atomic<int> wrong{0};
  const auto value = [](int step, int from, int to) {
    return static_cast<std::int32_t>(step * 10000 + from * 100 + to);
  };
  for (int repeat = 0; repeat < 3; ++repeat) {
    EXPECT_RUNS(team, [&](int rank, const bp_comm& comm) -> Result<void> {
      std::mt19937 same(static_cast<unsigned>(repeat));
      std::vector<std::int32_t> send(kWorld), recv(kWorld);
      for (int step = 0; step < 40; ++step) {
        bp_status status = BP_OK;
        for (int q = 0; q < kWorld; ++q) send[q] = value(step, rank, q);
        std::int32_t sum = 0;
        switch (same() % 5) {
          case 0:
            status = comm.barrier(&comm, nullptr);
            break;
          case 1:
            status = comm.all_gather(&comm, &send[0], recv.data(), sizeof(std::int32_t), nullptr);
            for (int q = 0; q < kWorld; ++q) wrong += recv[q] != value(step, q, 0);
            break;
          case 2:
            status = comm.all_to_all(&comm, send.data(), recv.data(), sizeof(std::int32_t), nullptr);
            for (int q = 0; q < kWorld; ++q) wrong += recv[q] != value(step, q, rank);
            break;
          case 3:
            status = comm.all_reduce(&comm, send.data(), recv.data(), kWorld, BP_INT32, BP_REDUCE_TREE, nullptr);
            for (int q = 0; q < kWorld; ++q) {
              sum = 0;
              for (int p = 0; p < kWorld; ++p) sum += value(step, p, q);
              wrong += recv[q] != sum;
            }
            break;
          default:
            status = comm.reduce_scatter(&comm, send.data(), recv.data(), 1, BP_INT32, BP_REDUCE_RANK_ORDER, nullptr);
            for (int p = 0; p < kWorld; ++p) sum += value(step, p, rank);
            wrong += recv[0] != sum;
        }
        if (status != BP_OK) return to_result(status, "step");
      }
      return {};
    });
  }
  EXPECT_EQ(wrong, 0);
}

TEST_F(ThreadWorldTest, RanksRunAtOnceOnThreadsThatAreKept) {
  RankTeam team(5);
  EXPECT_EQ(team.world(), 5);
  std::set<std::thread::id> first, second;
  std::mutex mutex;
  for (std::set<std::thread::id>* ids : {&first, &second}) {
    EXPECT_RUNS(team, [&](int, const bp_comm& comm) -> Result<void> {
      {
        const std::lock_guard lock(mutex);
        ids->insert(std::this_thread::get_id());
      }
      return to_result(comm.barrier(&comm, nullptr), "barrier");
    });
  }
  EXPECT_EQ(first.size(), 5u);
  EXPECT_EQ(first, second);
  RankTeam alone(1);
  std::thread::id id;
  EXPECT_RUNS(alone, [&](int, const bp_comm&) -> Result<void> {
    id = std::this_thread::get_id();
    return {};
  });
  EXPECT_EQ(id, std::this_thread::get_id());
}

TEST_F(ThreadWorldTest, SeveralTeamsAndSeveralCallersAtOnce) {
  RankTeam shared(3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      RankTeam own(2 + caller);
      for (int repeat = 0; repeat < 20; ++repeat) {
        for (RankTeam* team : {&shared, &own}) {
          const Result<void> result = team->run([&](int rank, const bp_comm& comm) -> Result<void> {
            const std::int64_t mine = caller * 1000 + rank;
            std::vector<std::int64_t> all(static_cast<std::size_t>(comm.world));
            if (comm.all_gather(&comm, &mine, all.data(), sizeof(mine), nullptr) != BP_OK) ++wrong;
            for (int q = 0; q < comm.world; ++q) wrong += all[q] != caller * 1000 + q;
            return {};
          });
          if (!result) ++wrong;
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(ThreadWorldTest, BodiesBeginWithTheDefaultFpEnvironment) {
  for (const int world : {1, 3}) {
    RankTeam team(world);
    ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
    const std::uint64_t before = fp_control();
    std::atomic<int> other{0};
    for (int repeat = 0; repeat < 2; ++repeat) {
      EXPECT_RUNS(team, [&](int, const bp_comm&) -> Result<void> {
        if (fp_control() != default_fp_control()) ++other;
        std::fesetround(FE_TOWARDZERO);  // the second run must not see it
        return {};
      });
    }
    EXPECT_EQ(other, 0);
    EXPECT_EQ(fp_control(), before);
    set_fp_control(default_fp_control());
  }
}

TEST_F(ThreadWorldTest, AForkedChildMayUseTheTeam) {
  RankTeam team(4);
  const auto gather = [](int rank, const bp_comm& comm) -> Result<void> {
    int all[4] = {};
    const bp_status status = comm.all_gather(&comm, &rank, all, sizeof(int), nullptr);
    if (all[3] != 3) return fail(Error::Kind::operation, "wrong");
    return to_result(status, "all_gather");
  };
  EXPECT_RUNS(team, gather);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);
    _exit(team.run(gather) && team.run(gather) ? 7 : 8);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_RUNS(team, gather);
}

}  // namespace
}  // namespace batchproof
