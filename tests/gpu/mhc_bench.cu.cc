// SPDX-License-Identifier: Apache-2.0
//
// Speed of the mHC operators: CUDA graph replay, tensors rotated past the L2, medians; beside the memory floor of one
// pass, both paths and fast mode. `bench` has status 1 where row 0 moved or a launch failed.
//
//   mhc_bench bench FILE.json [BUDGET_SECONDS]    mhc_bench product FILE.json [BUDGET_SECONDS]
//   mhc_bench sweep [BUDGET_SECONDS]    mhc_bench sweep_product [BUDGET_SECONDS]
//   mhc_bench once OPERATOR H M [PATH]
#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/gpu/clock.h"
#include "tests/gpu/mhc_case.h"

namespace batchproof::cuda::gpu {
namespace {

constexpr std::int64_t kRows[] = {1, 2, 4, 8, 16, 17, 32, 64, 128, 129, 192, 256, 512, 1024, 2048, 4096, 8192, 16384};
constexpr double kBeyondCache = 160e6;  // bytes: three times the L2

struct Work {
  MhcForm form;
  std::int64_t hidden;
  bool norm;
};
constexpr Work kWork[] = {
    {MhcForm::fused, 4096, true},     {MhcForm::fused, 7168, true},     {MhcForm::fused, 5120, true},
    {MhcForm::pre, 4096, true},       {MhcForm::pre, 7168, true},       {MhcForm::pre, 5120, true},
    {MhcForm::broadcast, 4096, true}, {MhcForm::broadcast, 7168, true}, {MhcForm::post, 4096, false},
    {MhcForm::post, 7168, false},     {MhcForm::head, 4096, false},     {MhcForm::head, 7168, false}};

// Enough copies of a problem that none is in the L2 when its turn comes again.
std::vector<MhcCase> copies_of(const Work& w, std::int64_t rows, bool product = false) {
  std::vector<MhcCase> all;
  all.emplace_back(w.form, rows, w.hidden, w.norm, 1);
  const double bytes = product ? all[0].product_floor_bytes(rows) : all[0].floor_bytes(rows);
  const int count = static_cast<int>(std::clamp(kBeyondCache / bytes + 1, 2.0, 110.0));
  for (int i = 1; i < count; ++i) all.emplace_back(w.form, rows, w.hidden, w.norm, static_cast<std::uint64_t>(i + 1));
  return all;
}

// product: the product alone.
double time_of(Clock& clock, const std::vector<MhcCase>& all, std::int64_t rows, double floor, CudaMhcOptions options,
               bool product = false) {
  const auto copies = static_cast<int>(all.size());
  int launches = static_cast<int>(std::clamp(6000.0 / (floor + 5), 4.0, 220.0));
  launches = std::max(1, launches / copies) * copies;  // whole rounds: a copy that is used twice in a row is in the L2
  return clock.graph(launches, floor > 100 ? 5 : 11, [&](int i, cudaStream_t s) {
    options.stream = s;
    CudaMhcCall call = all[static_cast<std::size_t>(i % copies)].call(0, rows, false);
    // Layers follow one another with one workspace, whose sums the next kernel reads at once.
    call.call.workspace = all[0].call(0, rows, false).call.workspace;
    return product ? cuda_mhc_product(call, options).has_value() : cuda_mhc(call, options).has_value();
  });
}

// Elements of row 0 that differ between a call with one row and one with all; what one of them leaves out differs.
std::uint64_t moved(const MhcCase& c, std::int64_t rows, CudaMhcOptions options) {
  c.clear_outputs();
  must(cuda_mhc(c.call(0, rows), options));
  must("waiting", cudaDeviceSynchronize());
  const std::vector<Matrix> kept = c.kept();
  c.clear_outputs();
  must(cuda_mhc(c.call(0, 1), options));
  must("waiting", cudaDeviceSynchronize());
  return c.differing(kept, 0, 1, nullptr);
}

int bench(const char* file, double budget) {
  const auto start = std::chrono::steady_clock::now();
  Clock clock;
  const double bandwidth = copy_bandwidth(clock);
  nlohmann::ordered_json json;
  Score score;
  const auto finish = [&] {
    std::ofstream(file) << json.dump(1) << "\n";
    return score.failed == 0 ? 0 : 1;
  };
  json["copy_tb_per_s"] = bandwidth / 1e12;
  fmt::print("# copy {:.2f} TB/s\n{:20} {:>5} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>6} {:>6}\n",
             bandwidth / 1e12, "operator", "H", "M", "floor us", "us", "dependent", "cluster", "many rows", "2 kernels",
             "product", "x floor", "fast", "/ fast");
  for (const Work& w : kWork) {
    for (const std::int64_t rows : kRows) {
      if (seconds_since(start) > budget) {
        fmt::print("# time is up\n");
        return finish();
      }
      const std::vector<MhcCase> all = copies_of(w, rows);
      const double floor = 1e6 * all[0].floor_bytes(rows) / bandwidth;
      const auto time = [&](CudaMhcPath path, bool dependent) {
        CudaMhcOptions options;
        options.path = path;
        options.dependent = dependent;
        return time_of(clock, all, rows, floor, options);
      };
      const bool post = w.form == MhcForm::post;
      const double us = time(CudaMhcPath::automatic, false);
      const double dependent = post ? 0 : time(CudaMhcPath::automatic, true);
      const double cluster = post ? 0 : time(CudaMhcPath::cluster, false);
      const double two = post ? 0 : time(CudaMhcPath::portable, false);
      const bool split = w.form == MhcForm::pre || w.form == MhcForm::fused;
      const double relay = split ? time(CudaMhcPath::relay, false) : 0;
      const double by_product = split ? time(CudaMhcPath::product, false) : 0;
      const double fast = post || w.form == MhcForm::head ? 0 : time(CudaMhcPath::occupancy, false);
      const std::uint64_t differing = moved(all[0], rows, {});
      fmt::print("{:20} {:5} {:6} {:9.2f} {:9.2f} {:9.2f} {:9.2f} {:9.2f} {:9.2f} {:9.2f} {:7.2f} {:6.2f} {:6.2f}{}\n",
                 name_of(w.form), w.hidden, rows, floor, us, dependent, cluster, relay, two, by_product, us / floor,
                 fast, fast > 0 ? us / fast : 0.0, differing == 0 ? "" : "  ROW 0 MOVED");
      const auto expect = [&](bool ok, const std::string& what) {
        if (!ok) score.line(false, fmt::format("{} H={} M={}: {}", name_of(w.form), w.hidden, rows, what));
      };
      expect(differing == 0, fmt::format("{} elements of row 0 moved", differing));
      expect(us > 0, "a launch failed");
      // Not the cluster kernel by itself: another device may hold no cluster that fits.
      if (!post) expect(dependent > 0 && two > 0, "a dependent launch or the two kernels failed");
      if (!post && w.form != MhcForm::head) expect(fast > 0, "a launch of fast mode failed");
      std::fflush(stdout);
      json["rows"].push_back({{"op", name_of(w.form)},
                              {"H", w.hidden},
                              {"M", rows},
                              {"norm", w.norm},
                              {"floor_us", floor},
                              {"us", us},
                              {"dependent_us", dependent},
                              {"cluster_us", cluster},
                              {"many_rows_us", relay},
                              {"two_kernels_us", two},
                              {"by_product_us", by_product},
                              {"fast_us", fast},
                              {"row_0_elements_moved", differing}});
    }
  }
  return finish();
}

// Cuts of the cluster kernel and of the one for many rows, and the other paths, timed: what the choices rest on.
int sweep(double budget) {
  const auto start = std::chrono::steady_clock::now();
  Clock clock;
  for (const Work& w : {kWork[0], kWork[1], kWork[2], kWork[3], kWork[4], kWork[5]}) {
    for (const std::int64_t rows : {1, 64, 128, 256, 512, 1024, 2048, 4096, 8192}) {
      if (seconds_since(start) > budget) return 0;
      const std::vector<MhcCase> all = copies_of(w, rows);
      const double floor = 1e6 * all[0].floor_bytes(rows) / kQuotedBandwidth;
      fmt::print("{} H={} M={} floor {:.2f}:", name_of(w.form), w.hidden, rows, floor);
      const auto time = [&](const std::string& name, const CudaMhcOptions& options) {
        const double us = time_of(clock, all, rows, floor, options);
        if (us > 0) fmt::print(" {}:{:.1f}", name, us);
      };
      CudaMhcOptions options;
      options.path = CudaMhcPath::cluster;
      for (const int cluster : {0, 8}) {
        for (const int lag : {0, 1, 2}) {
          if ((rows <= 64 || rows == 2048 || rows == 4096) && lag > 0) continue;
          options.cluster = cluster;
          options.lag = lag;
          time(fmt::format("{}/{}", cluster, lag), options);
        }
      }
      options.path = CudaMhcPath::relay;
      for (const int ahead : {4, 5, 6, 7, 8}) {
        options.ahead = ahead;
        if (rows > 64) time(fmt::format("ahead {}", ahead), options);
      }
      options.path = CudaMhcPath::product;
      time("product", options);
      options.path = CudaMhcPath::portable;
      time("portable", options);
      fmt::print("\n");
      std::fflush(stdout);
    }
  }
  return 0;
}

// The prenorm product alone, as an engine runs it that has its own kernel behind it.
int bench_product(const char* file, double budget) {
  const auto start = std::chrono::steady_clock::now();
  Clock clock;
  const double bandwidth = copy_bandwidth(clock);
  nlohmann::ordered_json json;
  Score score;
  json["copy_tb_per_s"] = bandwidth / 1e12;
  fmt::print("# copy {:.2f} TB/s\n{:>6} {:>6} {:>9} {:>9} {:>9} {:>9} {:>8}\n", bandwidth / 1e12, "H", "M", "floor us",
             "us", "dependent", "partials", "x floor");
  for (const std::int64_t hidden : {4096, 7168, 5120}) {
    for (const std::int64_t rows : kRows) {
      if (seconds_since(start) > budget) {
        fmt::print("# time is up\n");
        break;
      }
      const Work w{MhcForm::pre, hidden, false};
      const std::vector<MhcCase> all = copies_of(w, rows, true);
      const double floor = 1e6 * all[0].product_floor_bytes(rows) / bandwidth;
      CudaMhcOptions options;
      const double us = time_of(clock, all, rows, floor, options, true);
      options.dependent = true;
      const double dependent = time_of(clock, all, rows, floor, options, true);
      const int partials = must(cuda_mhc_product(all[0].call(0, rows), {})).partials;
      CudaMhcOptions whole;
      whole.path = CudaMhcPath::product;
      const std::uint64_t differing = moved(all[0], rows, whole);
      fmt::print("{:6} {:6} {:9.2f} {:9.2f} {:9.2f} {:9} {:8.2f}{}\n", hidden, rows, floor, us, dependent, partials,
                 us / floor, differing == 0 ? "" : "  ROW 0 MOVED");
      std::fflush(stdout);
      if (differing != 0 || us <= 0 || dependent <= 0)
        score.line(false, fmt::format("the product, H={} M={}: row 0 moved or a launch failed", hidden, rows));
      json["rows"].push_back({{"H", hidden},
                              {"M", rows},
                              {"floor_us", floor},
                              {"us", us},
                              {"dependent_us", dependent},
                              {"partials", partials},
                              {"row_0_elements_moved", differing}});
    }
  }
  std::ofstream(file) << json.dump(1) << "\n";
  return score.failed == 0 ? 0 : 1;
}

// Every plan of the product, timed: what choose_mhc_product rests on.
int sweep_product(double budget) {
  const auto start = std::chrono::steady_clock::now();
  Clock clock;
  for (const std::int64_t hidden : {4096, 7168, 5120}) {
    for (const std::int64_t rows : {1, 8, 64, 128, 192, 256, 512, 1024, 2048, 4096, 6000, 8192, 16384}) {
      const Work w{MhcForm::pre, hidden, false};
      const std::vector<MhcCase> all = copies_of(w, rows, true);
      const double floor = 1e6 * all[0].product_floor_bytes(rows) / kQuotedBandwidth;
      fmt::print("H={} M={} floor {:.2f}:", hidden, rows, floor);
      const auto time = [&](const std::string& name, int few, int many) {
        if (seconds_since(start) > budget) return;
        CudaMhcOptions options;
        options.few_tokens = few;
        options.many_shares = many;
        const double us = time_of(clock, all, rows, floor, options, true);
        if (us > 0) fmt::print(" {}:{:.2f}", name, us);
      };
      for (const int few : {32, 64, 128, 256})
        if (rows > few / 2 && rows <= 1024) time(fmt::format("f{}", few), few, 0);
      for (const int many : {4, 5, 6, 8})
        if (rows >= 192) time(fmt::format("m{}", many), 0, many);
      time("chosen", 0, 0);
      fmt::print("\n");
      std::fflush(stdout);
    }
  }
  return 0;
}

// A few launches of one problem, for a profiler.
int once(const std::string& name, std::int64_t hidden, std::int64_t rows, const std::string& path) {
  CudaMhcOptions options;
  options.path = path == "cluster"     ? CudaMhcPath::cluster
                 : path == "many_rows" ? CudaMhcPath::relay
                 : path == "product"   ? CudaMhcPath::product
                                       : CudaMhcPath::automatic;
  for (const Work& w : kWork) {
    if (name != name_of(w.form) || w.hidden != hidden) continue;
    const MhcCase c(w.form, rows, hidden, w.norm);
    for (int i = 0; i < 4; ++i) must(cuda_mhc(c.call(0, rows, false), options));
    must("waiting", cudaDeviceSynchronize());
    return 0;
  }
  fmt::print(stderr, "error: {} with H = {} is not timed here\n", name, hidden);
  return 2;
}

}  // namespace
}  // namespace batchproof::cuda::gpu

int main(int argc, char** argv) {
  const std::string part = argc > 1 ? argv[1] : "";
  if (part == "bench" && argc > 2) return batchproof::cuda::gpu::bench(argv[2], argc > 3 ? std::atof(argv[3]) : 1e9);
  if (part == "product" && argc > 2)
    return batchproof::cuda::gpu::bench_product(argv[2], argc > 3 ? std::atof(argv[3]) : 1e9);
  if (part == "sweep_product") return batchproof::cuda::gpu::sweep_product(argc > 2 ? std::atof(argv[2]) : 1e9);
  if (part == "sweep") return batchproof::cuda::gpu::sweep(argc > 2 ? std::atof(argv[2]) : 1e9);
  if (part == "once" && argc > 4)
    return batchproof::cuda::gpu::once(argv[2], std::atoll(argv[3]), std::atoll(argv[4]), argc > 5 ? argv[5] : "");
  std::fprintf(stderr,
               "usage: mhc_bench bench FILE.json [BUDGET_SECONDS] | product FILE.json [BUDGET_SECONDS] | "
               "sweep [BUDGET_SECONDS] | sweep_product [BUDGET_SECONDS] | once OPERATOR H M [PATH]\n");
  return 2;
}
