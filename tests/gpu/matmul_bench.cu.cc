// SPDX-License-Identifier: Apache-2.0
//
// Speed of the matrix product beside cuBLASLt (best of its heuristics), the floor and fast mode, in one run: CUDA graph
// replay, weights rotated past the L2, medians. Bit classes over M of ours and of cuBLASLt: `bench` has status 1 where
// ours are more than one, or where a launch of ours failed.
//
//   matmul_bench bench FILE.json [BUDGET_SECONDS]   matmul_bench sweep FILE.csv [BUDGET_SECONDS [SEGMENT [K]]]
//   matmul_bench plans LIST.txt FILE.csv [REST_MS]
#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "tests/gpu/clock.h"

namespace batchproof::cuda::gpu {
namespace {

constexpr std::int64_t kRows[] = {1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 512, 1024, 2048, 4096, 8192};
constexpr std::int64_t kShapes[][2] = {{4096, 4096}, {2112, 7168},  {18432, 7168},
                                       {7168, 2048}, {24576, 1536}, {512, 2048}};
constexpr double kPeak = 790e12;  // BF16 rate of a large product on random data, measured on this part

// cuBLASLt, opened at run time: the program starts and measures itself where it is missing.
class Peer {
 public:
  Peer() {
    void* library = nullptr;
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so", "libcublasLt.so.12"})
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto load = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    ok_ = load(create_, "cublasLtCreate") && load(matmul_, "cublasLtMatmul") && load(version_, "cublasLtGetVersion") &&
          load(heuristic_, "cublasLtMatmulAlgoGetHeuristic") && load(desc_create_, "cublasLtMatmulDescCreate") &&
          load(desc_set_, "cublasLtMatmulDescSetAttribute") && load(layout_create_, "cublasLtMatrixLayoutCreate") &&
          load(pref_create_, "cublasLtMatmulPreferenceCreate") &&
          load(pref_set_, "cublasLtMatmulPreferenceSetAttribute") && create_(&handle_) == CUBLAS_STATUS_SUCCESS;
    if (ok_) workspace_ = must(DeviceBuffer::make(kWorkspace));
  }
  bool ok() const { return ok_; }
  std::size_t version() const { return ok_ ? version_() : 0; }

  struct Problem {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    std::vector<cublasLtMatmulHeuristicResult_t> algorithms;
  };
  // y(m, n) = x(m, k) . w(n, k)^T, all row-major: column-major y^T = w^T' x'.
  Problem problem(std::int64_t m, std::int64_t n, std::int64_t k) {
    Problem p{};
    desc_create_(&p.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasOperation_t transpose = CUBLAS_OP_T;
    desc_set_(p.desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof(transpose));
    layout_create_(&p.a, CUDA_R_16BF, static_cast<std::uint64_t>(k), static_cast<std::uint64_t>(n), k);
    layout_create_(&p.b, CUDA_R_16BF, static_cast<std::uint64_t>(k), static_cast<std::uint64_t>(m), k);
    layout_create_(&p.c, CUDA_R_16BF, static_cast<std::uint64_t>(n), static_cast<std::uint64_t>(m), n);
    cublasLtMatmulPreference_t preference;
    pref_create_(&preference);
    const std::size_t limit = kWorkspace;
    pref_set_(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, sizeof(limit));
    p.algorithms.resize(8);
    int found = 0;
    heuristic_(handle_, p.desc, p.a, p.b, p.c, p.c, preference, 8, p.algorithms.data(), &found);
    p.algorithms.resize(static_cast<std::size_t>(found));
    return p;
  }
  bool run(const Problem& p, std::size_t algorithm, const void* w, const void* x, void* y, cudaStream_t stream) {
    const float one = 1.0f, zero = 0.0f;
    return matmul_(handle_, p.desc, &one, w, p.a, x, p.b, &zero, y, p.c, y, p.c, &p.algorithms[algorithm].algo,
                   workspace_.get(), kWorkspace, stream) == CUBLAS_STATUS_SUCCESS;
  }

 private:
  static constexpr std::size_t kWorkspace = std::size_t{64} << 20;
  bool ok_ = false;
  cublasLtHandle_t handle_ = nullptr;
  DeviceBuffer workspace_;
  decltype(&cublasLtCreate) create_ = nullptr;
  decltype(&cublasLtMatmul) matmul_ = nullptr;
  decltype(&cublasLtGetVersion) version_ = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic_ = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create_ = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set_ = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create_ = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) pref_create_ = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) pref_set_ = nullptr;
};

// Weights in as many copies as it takes to leave nothing of one in the L2 when its turn comes again.
struct Data {
  std::int64_t n, k;
  int copies;
  std::vector<Matrix> w, x, y;
  Data(std::int64_t n_, std::int64_t k_, std::int64_t rows) : n(n_), k(k_) {
    copies = static_cast<int>(std::clamp<std::int64_t>(160000000 / (n * k * 2) + 1, 2, 80));
    for (int i = 0; i < copies; ++i) {
      w.push_back(matrix(n, k, BP_BF16));
      fill(w.back(), RecipeKind::normal, "x2", static_cast<std::uint64_t>(i + 1));
    }
    for (int i = 0; i < 2; ++i) {
      x.push_back(matrix(rows, k, BP_BF16));
      fill(x.back(), RecipeKind::normal, "x1", static_cast<std::uint64_t>(i + 1));
      y.push_back(matrix(rows, n, BP_BF16));
    }
    must("waiting", cudaDeviceSynchronize());
  }
  CudaGemmCall call(std::int64_t m, int i) const {
    CudaGemmCall c;
    c.m = m;
    c.n = n;
    c.k = k;
    c.x = x[static_cast<std::size_t>(i % 2)].memory.get();
    c.x_row_stride = k;
    c.w = w[static_cast<std::size_t>(i % copies)].memory.get();
    c.w_row_stride = 1;
    c.w_column_stride = k;
    c.y = y[static_cast<std::size_t>(i % 2)].memory.get();
    c.y_dtype = BP_BF16;
    c.y_row_stride = n;
    return c;
  }
};

double floor_us(std::int64_t m, std::int64_t n, std::int64_t k, double bandwidth) {
  const auto bytes = 2.0 * static_cast<double>(n * k + m * k + m * n);
  const auto work = 2.0 * static_cast<double>(m) * static_cast<double>(n * k);
  return 1e6 * std::max(bytes / bandwidth, work / kPeak);
}

int launches_for(const Data& data, double floor) {
  return static_cast<int>(std::clamp(20000.0 / floor, 3.0, static_cast<double>(std::max(data.copies, 24))));
}

std::vector<std::uint16_t> row_zero(const Data& data, cudaStream_t stream) {
  std::vector<std::uint16_t> row(static_cast<std::size_t>(data.n));
  must("waiting", cudaStreamSynchronize(stream));
  must(data.y[0].memory.download(row.data(), row.size() * 2));
  return row;
}

int bench(const char* file, double budget) {
  const auto start = std::chrono::steady_clock::now();
  Clock clock;
  Peer peer;
  const DeviceInfo device = must(current_device());
  nlohmann::ordered_json json;
  const double bandwidth = copy_bandwidth(clock);
  json["device"] = device.name;
  json["driver"] = device.driver;
  json["runtime"] = device.runtime;
  json["cublaslt"] = peer.version();
  json["copy_tb_per_s"] = bandwidth / 1e12;
  json["peak_tflops"] = kPeak / 1e12;
  json["segment"] = kCudaGemmSegment;
  fmt::print("# {}, copy {:.2f} TB/s, cuBLASLt {}\n", device.name, bandwidth / 1e12, peer.version());
  fmt::print("{:>6} {:>6} {:>5} {:>8} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7} {:>7}  {}\n", "N", "K", "M", "floor us",
             "ours", "ready", "fast", "cublaslt", "x floor", "/ lt", "/ fast", "plan");
  double small = 0, middle = 0, large = 0, cost = 0;
  int small_count = 0, middle_count = 0, large_count = 0, cost_count = 0;
  Score score;
  bool cut = false;
  const auto time_is_up = [&] { return cut = cut || seconds_since(start) > budget; };
  for (const auto& shape : kShapes) {
    if (time_is_up()) break;  // what a shape allocates and fills takes seconds
    const std::int64_t n = shape[0], k = shape[1];
    Data data(n, k, kRows[std::size(kRows) - 1]);
    const Schedule schedule = must(cuda_gemm_schedule(k));
    std::set<std::vector<std::uint16_t>> ours_classes, peer_classes;
    for (const std::int64_t m : kRows) {
      if (time_is_up()) break;
      const double floor = floor_us(m, n, k, bandwidth);
      const int launches = launches_for(data, floor);
      const int replays = floor > 300 ? 5 : 11;
      const GemmPlan plan = must(cuda_gemm_plan(data.call(m, 0), schedule));
      const auto time_ours = [&] {
        return clock.graph(launches, replays, [&](int i, cudaStream_t s) {
          return cuda_gemm(data.call(m, i), schedule, {.stream = s, .path = CudaGemmPath::wgmma}).has_value();
        });
      };
      double ours = time_ours();
      const double ready = clock.graph(launches, replays, [&](int i, cudaStream_t s) {
        return cuda_gemm(data.call(m, i), schedule, {.stream = s, .path = CudaGemmPath::wgmma, .weights_ready = true})
            .has_value();
      });
      must(cuda_gemm(data.call(m, 0), schedule, {.stream = clock.stream(), .path = CudaGemmPath::wgmma}));
      ours_classes.insert(row_zero(data, clock.stream()));
      const Schedule free = must(fast_gemm_schedule(data.call(m, 0)));
      const double fast = clock.graph(launches, replays, [&](int i, cudaStream_t s) {
        return cuda_gemm(data.call(m, i), free, {.stream = s, .path = CudaGemmPath::wgmma}).has_value();
      });
      double best = 0;
      std::size_t best_at = 0;
      if (peer.ok()) {
        const Peer::Problem p = peer.problem(m, n, k);
        for (std::size_t a = 0; a < p.algorithms.size(); ++a) {
          const double us = clock.graph(launches, replays, [&](int i, cudaStream_t s) {
            const CudaGemmCall c = data.call(m, i);
            return peer.run(p, a, c.w, c.x, c.y, s);
          });
          if (us > 0 && (best == 0 || us < best)) {
            best = us;
            best_at = a;
          }
        }
        const CudaGemmCall c = data.call(m, 0);
        if (!p.algorithms.empty() && peer.run(p, 0, c.w, c.x, c.y, clock.stream()))
          peer_classes.insert(row_zero(data, clock.stream()));
      }
      // The peer has the best of eight tries, spread over time: clocks move. So ours is timed before and behind it.
      ours = std::min(ours, time_ours());
      fmt::print("{:6} {:6} {:5} {:8.2f} {:8.2f} {:8.2f} {:8.2f} {:8.2f} {:7.2f} {:7.2f} {:7.2f}  {}\n", n, k, m, floor,
                 ours, ready, fast, best, ours / floor, best > 0 ? ours / best : 0.0, fast > 0 ? ours / fast : 0.0,
                 plan.name());
      std::fflush(stdout);
      const bool ran = ours > 0 && ready > 0 && fast > 0;
      if (!ran) score.line(false, fmt::format("N = {}, K = {}, M = {}: a launch of ours failed", n, k, m));
      json["rows"].push_back({{"N", n},
                              {"K", k},
                              {"M", m},
                              {"floor_us", floor},
                              {"ours_us", ours},
                              {"ours_weights_ready_us", ready},
                              {"fast_us", fast},
                              {"fast_schedule", free.name()},
                              {"cublaslt_us", best},
                              {"cublaslt_algorithm", best_at},
                              {"plan", plan.name()}});
      if (!ran) continue;
      if (best > 0) {
        auto& sum = m <= 64 ? small : m <= 1024 ? middle : large;
        auto& count = m <= 64 ? small_count : m <= 1024 ? middle_count : large_count;
        sum += std::log(best / ours);
        ++count;
      }
      cost += std::log(ours / (best > 0 ? std::min(fast, best) : fast));
      ++cost_count;
    }
    fmt::print("# N = {}, K = {}: {} bit class(es) of row 0 over M, cuBLASLt {}\n", n, k, ours_classes.size(),
               peer_classes.size());
    if (ours_classes.size() > 1)
      score.line(false, fmt::format("N = {}, K = {}: row 0 moved, {} bit classes over M", n, k, ours_classes.size()));
    json["classes"].push_back({{"N", n}, {"K", k}, {"ours", ours_classes.size()}, {"cublaslt", peer_classes.size()}});
  }
  if (cut) fmt::print("# time is up\n");
  const auto mean = [](double sum, int count) { return count == 0 ? 0.0 : std::exp(sum / count); };
  json["speed_vs_cublaslt"] = {{"M<=64", mean(small, small_count)},
                               {"M 128..1024", mean(middle, middle_count)},
                               {"M>=2048", mean(large, large_count)}};
  json["cost_of_invariance"] = mean(cost, cost_count);
  fmt::print(
      "# speed against cuBLASLt, geometric mean: M <= 64 {:.3f}, 128..1024 {:.3f}, >= 2048 {:.3f}; cost of invariance "
      "{:.3f}\n",
      mean(small, small_count), mean(middle, middle_count), mean(large, large_count), mean(cost, cost_count));
  std::ofstream(file) << json.dump(1) << "\n";
  return score.failed == 0 ? 0 : 1;
}

// Every plan that the model does not rule out, timed: what the model is fitted to.
int sweep(const char* file, double budget, std::int64_t segment, std::int64_t only_k) {
  const auto start = std::chrono::steady_clock::now();
  Clock clock;
  const GemmDevice device = must(cuda_gemm_device());
  for (int size = 1; size <= 8; ++size) fmt::print("# clusters of {}: {}\n", size, device.clusters[size]);
  std::ofstream out(file);
  out << "n,k,m,plan,model_us,us\n";
  for (const auto& shape : kShapes) {
    const std::int64_t n = shape[0], k = shape[1];
    if (only_k != 0 && k != only_k) continue;
    if (seconds_since(start) > budget) return 0;
    Data data(n, k, kRows[std::size(kRows) - 1]);
    const Schedule schedule = must(Schedule::make(k, ChainPolicy{segment}));
    const KAxis axis = must(kernel_axis(schedule));
    for (const std::int64_t m : kRows) {
      if (seconds_since(start) > budget) return 0;
      const GemmShape s = cuda_gemm_shape(data.call(m, 0), axis);
      const double chosen = gemm_plan_cost(choose_gemm_plan(s, device), s, device);
      const double floor = floor_us(m, n, k, kQuotedBandwidth);
      const int launches = launches_for(data, floor);
      std::pair<double, std::string> best{0, ""};
      double planned = 0;
      for (const GemmPlan& plan : gemm_plans(s, device)) {
        const double cost = gemm_plan_cost(plan, s, device);
        if (cost > 1.7 * chosen && (plan.tile.rows() < 176 || m < 128)) continue;
        const double us = clock.graph(launches, floor > 300 ? 2 : 3, [&](int i, cudaStream_t t) {
          return cuda_gemm(data.call(m, i), schedule, {.stream = t, .path = CudaGemmPath::wgmma, .plan = plan})
              .has_value();
        });
        out << fmt::format("{},{},{},{},{:.2f},{:.2f}\n", n, k, m, plan.name(), cost, us);
        if (us > 0 && (best.first == 0 || us < best.first)) best = {us, plan.name()};
        if (cost == chosen && planned == 0) planned = us;
      }
      fmt::print("{:6} {:6} {:5} floor {:8.2f} best {:8.2f} {:24} chosen {:8.2f}\n", n, k, m, floor, best.first,
                 best.second, planned);
      std::fflush(stdout);
    }
  }
  return 0;
}

// Single plans by hand: the experiments from which the planner's tables come. A line of the file is
// (TILE_N below 0: by rows)
//   N K M SEGMENT TILE_N GROUPS STEP CLUSTER_N CLUSTER_K BLOCKS RASTER DEEP [PREFETCH]   or   N K M peer
// `rest_ms` between replays tells a processor that is slowed by heat and power from a kernel that is slow.
int plans(const char* list, const char* file, int rest_ms) {
  Clock clock;
  Peer peer;
  const GemmDevice device = must(cuda_gemm_device());
  std::ifstream in(list);
  std::ofstream out(file);
  out << "n,k,m,segment,plan,us\n";
  std::unique_ptr<Data> data;
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::int64_t n = 0, k = 0, m = 0;
    std::string segment;
    if (!(words >> n >> k >> m >> segment)) continue;
    if (data == nullptr || data->n != n || data->k != k) {
      data.reset();
      data = std::make_unique<Data>(n, k, kRows[std::size(kRows) - 1]);
    }
    const double floor = floor_us(m, n, k, kQuotedBandwidth);
    const int launches = launches_for(*data, floor), replays = floor > 50 ? 3 : 7;
    double us = 0;
    std::string name = "cublaslt";
    if (segment == "peer") {
      const Peer::Problem p = peer.problem(m, n, k);
      for (std::size_t a = 0; peer.ok() && a < p.algorithms.size(); ++a) {
        const double t = clock.graph(
            launches, replays,
            [&](int i, cudaStream_t s) {
              const CudaGemmCall c = data->call(m, i);
              return peer.run(p, a, c.w, c.x, c.y, s);
            },
            rest_ms);
        if (t > 0 && (us == 0 || t < us)) us = t;
      }
    } else {
      const Schedule schedule = must(Schedule::make(k, ChainPolicy{std::atoll(segment.c_str())}));
      const GemmShape shape = cuda_gemm_shape(data->call(m, 0), must(kernel_axis(schedule)));
      GemmPlan plan = choose_gemm_plan(shape, device);
      int rows = 0;
      if (words >> rows) {
        plan = GemmPlan{};
        plan.tile.n = std::abs(rows);
        plan.tile.by_rows = rows < 0;
        words >> plan.tile.groups >> plan.step >> plan.cluster_n >> plan.cluster_k >> plan.blocks >> plan.raster >>
            plan.deep;
        words >> plan.prefetch;
        plan.tile.one = shape.axis.segments() == 1;
        if (!complete_gemm_plan(&plan, shape, device)) {
          fmt::print("{} does not fit: {}\n", plan.name(), line);
          continue;
        }
      }
      name = plan.name();
      us = clock.graph(
          launches, replays,
          [&](int i, cudaStream_t s) {
            const auto done =
                cuda_gemm(data->call(m, i), schedule, {.stream = s, .path = CudaGemmPath::wgmma, .plan = plan});
            if (!done && i == 0) fmt::print("{}\n", done.error().message);
            return done.has_value();
          },
          rest_ms);
    }
    out << fmt::format("{},{},{},{},{},{:.2f}\n", n, k, m, segment, name, us);
    fmt::print("{:6} {:6} {:5} {:>6} {:32} {:9.2f} us, {:5.2f} x floor\n", n, k, m, segment, name, us, us / floor);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace batchproof::cuda::gpu

int main(int argc, char** argv) {
  const std::string part = argc > 1 ? argv[1] : "";
  const double budget = argc > 3 ? std::atof(argv[3]) : 1e9;
  if (argc > 2 && part == "bench") return batchproof::cuda::gpu::bench(argv[2], budget);
  const std::int64_t segment = argc > 4 ? std::atoll(argv[4]) : batchproof::cuda::kCudaGemmSegment;
  if (argc > 2 && part == "sweep")
    return batchproof::cuda::gpu::sweep(argv[2], budget, segment, argc > 5 ? std::atoll(argv[5]) : 0);
  if (argc > 3 && part == "plans")
    return batchproof::cuda::gpu::plans(argv[2], argv[3], argc > 4 ? std::atoi(argv[4]) : 0);
  std::fprintf(stderr,
               "usage: matmul_bench bench FILE.json | sweep FILE.csv [BUDGET_SECONDS [SEGMENT [K]]] |\n"
               "       matmul_bench plans LIST.txt FILE.csv [REST_MS]\n");
  return 2;
}
