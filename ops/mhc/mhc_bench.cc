// SPDX-License-Identifier: Apache-2.0
//
// Speed of the mHC operators beside what the machine can do, both measured in the same run: memory bandwidth (one
// stream read, one written) and the FP32 FMA peak, on the same threads. Every iteration times one call of each, so that
// a busy machine slows both; counters come from the fastest call.
//   share     mhc_post: part of the bandwidth; the others: part of the FMA peak
//   us        microseconds per call
// Threads: BATCHPROOF_BENCH_THREADS, default all.
#include <benchmark/benchmark.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "src/kernels/cpu/mhc.h"
#include "src/numeric/bf16.h"
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

// Independent chains of fused multiply-adds in registers, as many as hide their latency.
#define BATCHPROOF_FMA_LOOP(vector, set1, fmadd, width)                                 \
  vector acc[12];                                                                       \
  for (int i = 0; i < 12; ++i) acc[i] = set1(static_cast<float>(i));                    \
  const vector a = set1(0.999f), b = set1(0.001f);                                      \
  for (std::int64_t n = 0; n < kFmaSteps; ++n) {                                        \
    _Pragma("GCC unroll 12") for (int i = 0; i < 12; ++i) acc[i] = fmadd(acc[i], a, b); \
  }                                                                                     \
  for (int i = 1; i < 12; ++i) acc[0] = fmadd(acc[i], a, acc[0]);                       \
  float out[width];                                                                     \
  std::memcpy(out, &acc[0], sizeof out);                                                \
  benchmark::DoNotOptimize(out);

constexpr std::int64_t kFmaSteps = 300000;

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void fma_avx2() { BATCHPROOF_FMA_LOOP(__m256, _mm256_set1_ps, _mm256_fmadd_ps, 8) }
__attribute__((target("avx512f"))) void fma_avx512() {
  BATCHPROOF_FMA_LOOP(__m512, _mm512_set1_ps, _mm512_fmadd_ps, 16)
}
#endif

// Operations per second over all threads; 0 where there are no vector registers to measure.
double fma_peak(int threads) {
#if defined(__x86_64__)
  const bool wide = best_isa() == Isa::avx512;
  if (!wide && best_isa() != Isa::avx2) return 0;
  const double time =
      seconds([&] { parallel_for(threads, threads, [&](std::int64_t) { wide ? fma_avx512() : fma_avx2(); }); });
  return 2.0 * 12 * (wide ? 16 : 8) * static_cast<double>(kFmaSteps * threads) / time;
#else
  (void)threads;
  return 0;
#endif
}

// Bytes per second of reading one stream and writing another of equal length.
double copy_bandwidth(int threads) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  static std::vector<char> from(kBytes, 1), to(kBytes, 2);
  constexpr std::int64_t kParts = 64;
  const double time = seconds([&] {
    parallel_for(threads, kParts, [&](std::int64_t part) {
      constexpr std::size_t kPiece = kBytes / kParts;
      std::memcpy(to.data() + static_cast<std::size_t>(part) * kPiece,
                  from.data() + static_cast<std::size_t>(part) * kPiece, kPiece);
    });
  });
  return 2.0 * static_cast<double>(kBytes) / time;
}

enum class Op { post, pre, fused_a, fused_b };

struct Data {
  Data(std::int64_t rows, std::int64_t hidden, Op op) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    const auto streams = static_cast<std::size_t>(rows * 4 * hidden);
    // Distinct values cost seconds to make; a pattern of 64 Ki serves as well.
    std::vector<std::uint16_t> pattern(65536);
    for (auto& value : pattern) value = float_to_bf16(normal(generator));
    residual.resize(streams);
    for (std::size_t i = 0; i < streams; ++i) residual[i] = pattern[i & 0xFFFF];
    x.assign(residual.begin(), residual.begin() + rows * hidden);
    post.assign(static_cast<std::size_t>(rows * 4), 1.0f);
    comb.assign(static_cast<std::size_t>(rows * 16), 0.25f);
    fn.resize(static_cast<std::size_t>(24 * 4 * hidden));
    for (auto& value : fn) value = normal(generator) / 128.0f;
    residual_out.resize(streams);
    out.resize(static_cast<std::size_t>(rows * hidden));
    post_out.resize(post.size());
    comb_out.resize(comb.size());

    call.rows = rows;
    call.hidden = hidden;
    call.residual = {residual.data(), 4 * hidden, hidden};
    call.residual_out = residual_out.data();
    call.residual_out_row = 4 * hidden;
    call.residual_out_stream = hidden;
    if (op != Op::pre) {
      call.post.x = x.data();
      call.post.x_row = hidden;
      call.post.post = {post.data(), 4, 1, 0};
      call.post.comb = {comb.data(), 16, 4, 1};
    }
    call.post_only = op == Op::post;
    call.path.unrounded = op == Op::fused_b;
    call.path.tf32 = op != Op::fused_b;
    call.fn = fn.data();
    call.fn_row = 4 * hidden;
    call.scale[0] = 2.0f, call.scale[1] = 0.02f, call.scale[2] = 0.25f;
    call.rms_eps = call.pre_eps = call.sinkhorn_eps = call.norm_eps = 1e-6f;
    call.post_mult = 2.0f;
    call.sinkhorn_repeat = 20;
    call.post_out = {post_out.data(), 4, 1, 0};
    call.comb_out = {comb_out.data(), 16, 4, 1};
    call.out = {out.data(), hidden};
    workspace.resize(mhc_workspace(rows, 4 * hidden, call.path));
    call.workspace = workspace.data();
    call.workspace_bytes = workspace.size();
    call.threads = bench_threads();
  }

  std::vector<std::uint16_t> residual, x, residual_out, out;
  std::vector<float> post, comb, fn, post_out, comb_out;
  std::vector<char> workspace;
  MhcCall call;
};

void versus_machine(benchmark::State& state, Op op, std::int64_t rows, std::int64_t hidden) {
  Data data(rows, hidden, op);
  const bool bandwidth = op == Op::post;
  double best = std::numeric_limits<double>::infinity();
  double peak = 0;
  for (auto _ : state) {
    const double time = seconds([&] {
      if (!run_mhc(data.call)) state.SkipWithError("run_mhc failed");
    });
    best = std::min(best, time);
    state.SetIterationTime(time);
    peak = std::max(peak, bandwidth ? copy_bandwidth(data.call.threads) : fma_peak(data.call.threads));
  }
  const auto m = static_cast<double>(rows);
  const auto h = static_cast<double>(hidden);
  // Bytes: x, streams in and out, coefficients. Operations: the product and its square sum; post where it runs.
  const double bytes = m * (2 * h + 8 * h + 8 * h + 80);
  double operations = m * (2 * 24 + 2) * 4 * h;
  if (op == Op::fused_a || op == Op::fused_b) operations += m * 36 * h;
  state.counters["us"] = best * 1e6;
  state.counters[bandwidth ? "GBps" : "GF"] = (bandwidth ? bytes : operations) / best * 1e-9;
  state.counters[bandwidth ? "copy_GBps" : "fma_GF"] = peak * 1e-9;
  state.counters["share"] = (bandwidth ? bytes : operations) / best / peak;
}

void add(const char* name, Op op, std::int64_t rows, std::int64_t hidden, int iterations) {
  benchmark::RegisterBenchmark((std::string(name) + "/" + std::to_string(rows) + "x" + std::to_string(hidden)).c_str(),
                               [=](benchmark::State& state) { versus_machine(state, op, rows, hidden); })
      ->UseManualTime()
      ->Iterations(iterations)
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace
}  // namespace batchproof

int main(int argc, char** argv) {
  using batchproof::Op;
  benchmark::Initialize(&argc, argv);
  for (const std::int64_t rows : {1, 16, 128, 1024, 4096}) {
    for (const std::int64_t hidden : {4096, 7168}) {
      if (hidden == 7168 && rows != 1024) continue;
      const int iterations = rows >= 1024 ? 6 : 20;
      batchproof::add("post", Op::post, rows, hidden, iterations);
      batchproof::add("pre", Op::pre, rows, hidden, iterations);
      batchproof::add("fused_a", Op::fused_a, rows, hidden, iterations);
      batchproof::add("fused_b", Op::fused_b, rows, hidden, iterations);
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
