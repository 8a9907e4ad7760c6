// SPDX-License-Identifier: Apache-2.0
//
// Speed of the GEMM against OpenBLAS, both in the same run: every iteration times some calls of each, so that a busy
// machine slows both. Counters, from the fastest call: GF = ours, peer_GF = OpenBLAS, ratio = GF / peer_GF.
// For a fair peer unset OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE. Threads: BATCHPROOF_BENCH_THREADS, default all.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "src/kernels/cpu/gemm.h"
#include "src/numeric/bf16.h"
#include "src/numeric/fp16.h"
#include "src/runtime/thread_pool.h"

#ifdef BATCHPROOF_HAVE_OPENBLAS
extern "C" {
void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda,
                 const float* b, int ldb, float beta, float* c, int ldc);
void openblas_set_num_threads(int threads);
}
#endif

namespace batchproof {
namespace {

int bench_threads() {
  const char* text = std::getenv("BATCHPROOF_BENCH_THREADS");
  return text != nullptr ? std::max(std::atoi(text), 1) : hardware_threads();
}

struct Setup {
  std::int64_t m, n, k;
  bp_dtype dtype = BP_FP32;
  bool transposed = false;  // B stored (n, k)
  std::int64_t segment = kGemmSegment;
  std::int64_t slices = 0;  // 0: chain
  Isa isa = Isa::plain;
};

double seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<std::uint8_t> random_matrix(std::int64_t elements, bp_dtype dtype, unsigned seed) {
  std::vector<std::uint8_t> out(static_cast<std::size_t>(elements) * (dtype == BP_FP32 ? 4 : 2));
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  for (std::int64_t i = 0; i < elements; ++i) {
    const float value = uniform(generator);
    if (dtype == BP_FP32) {
      reinterpret_cast<float*>(out.data())[i] = value;
    } else {
      reinterpret_cast<std::uint16_t*>(out.data())[i] = dtype == BP_BF16 ? float_to_bf16(value) : float_to_fp16(value);
    }
  }
  return out;
}

void versus_peer(benchmark::State& state, const Setup& setup) {
  const auto [m, n, k] = std::tuple(setup.m, setup.n, setup.k);
  const std::vector<std::uint8_t> a = random_matrix(m * k, setup.dtype, 1);
  const std::vector<std::uint8_t> b = random_matrix(k * n, setup.dtype, 2);
  std::vector<std::uint8_t> c(static_cast<std::size_t>(m * n) * 4);
  const Result<Schedule> schedule = setup.slices > 0 ? Schedule::make(k, TreePolicy{setup.slices, 1, setup.segment})
                                                     : Schedule::make(k, ChainPolicy{setup.segment});
  GemmCall call;
  call.m = m;
  call.n = n;
  call.k = k;
  call.a = {a.data(), setup.dtype, k, 1};
  call.b = {b.data(), setup.dtype, setup.transposed ? 1 : n, setup.transposed ? k : 1};
  call.c = {c.data(), setup.dtype, n};
  const GemmOptions options = {bench_threads(), setup.isa};

#ifdef BATCHPROOF_HAVE_OPENBLAS
  // The peer always computes in FP32 from FP32: Debian's has no 16-bit product.
  const std::vector<std::uint8_t> peer_a = random_matrix(m * k, BP_FP32, 1);
  const std::vector<std::uint8_t> peer_b = random_matrix(k * n, BP_FP32, 2);
  std::vector<float> peer_c(static_cast<std::size_t>(m * n));
  openblas_set_num_threads(options.threads);
  double peer_best = std::numeric_limits<double>::infinity();
#endif
  double best = std::numeric_limits<double>::infinity();
  constexpr int kCalls = 3;
  for (auto _ : state) {
    // Idle OpenBLAS threads spin for some 30 ms and would share our processors.
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    double total = 0;
    for (int i = 0; i < kCalls; ++i) {
      const double ours = seconds([&] {
        if (!gemm(call, *schedule, options)) state.SkipWithError("gemm failed");
      });
      total += ours;
      best = std::min(best, ours);
    }
    state.SetIterationTime(total / kCalls);
#ifdef BATCHPROOF_HAVE_OPENBLAS
    for (int i = 0; i < kCalls; ++i) {
      peer_best =
          std::min(peer_best, seconds([&] {
                     cblas_sgemm(101, 111, setup.transposed ? 112 : 111, static_cast<int>(m), static_cast<int>(n),
                                 static_cast<int>(k), 1.0f, reinterpret_cast<const float*>(peer_a.data()),
                                 static_cast<int>(k), reinterpret_cast<const float*>(peer_b.data()),
                                 static_cast<int>(setup.transposed ? k : n), 0.0f, peer_c.data(), static_cast<int>(n));
                   }));
    }
#endif
  }
  const double work = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) * 1e-9;
  state.counters["GF"] = work / best;
#ifdef BATCHPROOF_HAVE_OPENBLAS
  state.counters["peer_GF"] = work / peer_best;
  state.counters["ratio"] = peer_best / best;
#else
  state.SetLabel("no peer: OpenBLAS was not found");
#endif
}

void add(const std::string& name, const Setup& setup, int iterations) {
  benchmark::RegisterBenchmark(name.c_str(), [setup](benchmark::State& state) { versus_peer(state, setup); })
      ->UseManualTime()
      ->Iterations(iterations)
      ->Unit(benchmark::kMillisecond);
}

void add_all() {
  for (const Isa isa : available_isas()) {
    const std::string name = isa_name(isa);
    if (isa == Isa::plain) {
      add(name + "/fp32/128x128x128", {.m = 128, .n = 128, .k = 128, .isa = isa}, 3);
      continue;
    }
    add(name + "/fp32/1024x1024x1024", {.m = 1024, .n = 1024, .k = 1024, .isa = isa}, 4);
    add(name + "/fp32/1024x1024x1024/transposed", {.m = 1024, .n = 1024, .k = 1024, .transposed = true, .isa = isa}, 4);
    add(name + "/fp32/1024x1024x1024/tree16", {.m = 1024, .n = 1024, .k = 1024, .slices = 16, .isa = isa}, 4);
    add(name + "/bf16/1024x1024x1024", {.m = 1024, .n = 1024, .k = 1024, .dtype = BP_BF16, .isa = isa}, 4);
    add(name + "/fp16/1024x1024x1024", {.m = 1024, .n = 1024, .k = 1024, .dtype = BP_FP16, .isa = isa}, 4);
    for (const std::int64_t segment : {128, 384, 512}) {
      add(name + "/fp32/1024x1024x1024/chain" + std::to_string(segment),
          {.m = 1024, .n = 1024, .k = 1024, .segment = segment, .isa = isa}, 4);
    }
    for (const std::int64_t size : {2048, 4096}) {
      for (const std::int64_t m : {1, 4, 8, 16, 32, 64, 256}) {
        const std::string shape = std::to_string(m) + "x" + std::to_string(size) + "x" + std::to_string(size);
        add(name + "/fp32/" + shape, {.m = m, .n = size, .k = size, .isa = isa}, 4);
        if (m == 1 || m == 16) {
          add(name + "/fp32/" + shape + "/transposed", {.m = m, .n = size, .k = size, .transposed = true, .isa = isa},
              4);
          add(name + "/bf16/" + shape, {.m = m, .n = size, .k = size, .dtype = BP_BF16, .isa = isa}, 4);
        }
      }
    }
  }
}

}  // namespace
}  // namespace batchproof

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  batchproof::add_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
