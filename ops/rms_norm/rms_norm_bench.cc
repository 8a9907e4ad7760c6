// SPDX-License-Identifier: Apache-2.0
//
// Speed of rms_norm beside a copy of the same bytes, both in the same run and on the same threads. Counters from the
// fastest call: GBps (read + written), copy_GBps, share = GBps / copy_GBps. Threads: BATCHPROOF_BENCH_THREADS.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "src/kernels/cpu/rms_norm.h"
#include "src/runtime/thread_pool.h"

namespace batchproof {
namespace {

int bench_threads() {
  const char* text = std::getenv("BATCHPROOF_BENCH_THREADS");
  return text != nullptr ? std::max(std::atoi(text), 1) : hardware_threads();
}

double seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void versus_copy(benchmark::State& state, std::int64_t rows, std::int64_t columns, bp_dtype dtype) {
  const std::size_t size = dtype == BP_BF16 ? 2 : 4;
  const std::size_t bytes = static_cast<std::size_t>(rows * columns) * size;
  // 0x3F80 and 0x3F803F80 are numbers near 1.
  std::vector<std::uint16_t> x(bytes / 2, 0x3F80), weight(static_cast<std::size_t>(columns) * size / 2, 0x3F80);
  std::vector<std::uint16_t> y(bytes / 2, 1);
  RmsNormCall call;
  call.rows = rows;
  call.columns = columns;
  call.dtype = dtype;
  call.x = x.data();
  call.x_row = columns;
  call.weight = weight.data();
  call.y = y.data();
  call.y_row = columns;
  call.threads = bench_threads();
  double best = std::numeric_limits<double>::infinity(), copy = best;
  for (auto _ : state) {
    const double time = seconds([&] {
      if (!rms_norm(call)) state.SkipWithError("rms_norm failed");
    });
    best = std::min(best, time);
    state.SetIterationTime(time);
    constexpr std::int64_t kParts = 64;
    copy = std::min(copy, seconds([&] {
                      parallel_for(call.threads, kParts, [&](std::int64_t part) {
                        const std::size_t begin = x.size() * static_cast<std::size_t>(part) / kParts;
                        const std::size_t end = x.size() * static_cast<std::size_t>(part + 1) / kParts;
                        std::memcpy(y.data() + begin, x.data() + begin, (end - begin) * 2);
                      });
                    }));
  }
  state.counters["GBps"] = 2.0 * static_cast<double>(bytes) / best * 1e-9;
  state.counters["copy_GBps"] = 2.0 * static_cast<double>(bytes) / copy * 1e-9;
  state.counters["share"] = copy / best;
}

}  // namespace
}  // namespace batchproof

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  for (const bp_dtype dtype : {BP_BF16, BP_FP32}) {
    for (const std::int64_t columns : {4096, 7168}) {
      for (const std::int64_t rows : {16, 4096, 8192}) {
        const std::string name = std::string(dtype == BP_BF16 ? "bf16" : "fp32") + "/" + std::to_string(rows) + "x" +
                                 std::to_string(columns);
        benchmark::RegisterBenchmark(
            name.c_str(), [=](benchmark::State& state) { batchproof::versus_copy(state, rows, columns, dtype); })
            ->UseManualTime()
            ->Iterations(10)
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
