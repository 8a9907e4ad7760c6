// SPDX-License-Identifier: Apache-2.0
//
// What a collective between threads costs: latency of small ones, bandwidth of large ones.
#include <benchmark/benchmark.h>

#include <vector>

#include "src/comm/thread_world.h"

namespace batchproof {
namespace {

constexpr int kCallsPerRun = 100;

// Time is per call: a run of the team makes 100 of them.
template <class Call>
void run_calls(benchmark::State& state, int world, const Call& call) {
  RankTeam team(world);
  for (auto _ : state) {
    const Result<void> result = team.run([&](int, const bp_comm& comm) -> Result<void> {
      for (int i = 0; i < kCallsPerRun; ++i) {
        if (call(comm) != BP_OK) return fail(Error::Kind::operation, "a collective failed");
      }
      return {};
    });
    if (!result) state.SkipWithError(result.error().message.c_str());
  }
  state.counters["call"] =
      benchmark::Counter(kCallsPerRun, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void bench_barrier(benchmark::State& state) {
  run_calls(state, static_cast<int>(state.range(0)), [](const bp_comm& comm) { return comm.barrier(&comm, nullptr); });
}
BENCHMARK(bench_barrier)->Arg(1)->Arg(2)->Arg(8)->Arg(64)->UseRealTime();

void bench_all_gather(benchmark::State& state) {
  const int world = static_cast<int>(state.range(0));
  const std::size_t bytes = static_cast<std::size_t>(state.range(1));
  std::vector<std::vector<char>> send(static_cast<std::size_t>(world), std::vector<char>(bytes));
  std::vector<std::vector<char>> recv(static_cast<std::size_t>(world), std::vector<char>(bytes * world));
  run_calls(state, world, [&](const bp_comm& comm) {
    return comm.all_gather(&comm, send[comm.rank].data(), recv[comm.rank].data(), bytes, nullptr);
  });
}
BENCHMARK(bench_all_gather)->Args({2, 64})->Args({8, 64})->Args({64, 64})->Args({8, 1 << 20})->UseRealTime();

void bench_all_reduce(benchmark::State& state) {
  const int world = static_cast<int>(state.range(0));
  const std::size_t count = static_cast<std::size_t>(state.range(1));
  std::vector<std::vector<float>> send(static_cast<std::size_t>(world), std::vector<float>(count));
  std::vector<std::vector<float>> recv = send;
  run_calls(state, world, [&](const bp_comm& comm) {
    return comm.all_reduce(&comm, send[comm.rank].data(), recv[comm.rank].data(), count, BP_FP32, BP_REDUCE_RANK_ORDER,
                           nullptr);
  });
}
BENCHMARK(bench_all_reduce)->Args({8, 16})->Args({8, 1 << 18})->UseRealTime();

void bench_team_run(benchmark::State& state) {
  RankTeam team(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    const Result<void> result = team.run([](int, const bp_comm&) -> Result<void> { return {}; });
    if (!result) state.SkipWithError("a run failed");
  }
}
BENCHMARK(bench_team_run)->Arg(1)->Arg(8)->Arg(64)->UseRealTime();

}  // namespace
}  // namespace batchproof

BENCHMARK_MAIN();
