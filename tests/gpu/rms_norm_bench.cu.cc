// SPDX-License-Identifier: Apache-2.0
//
// Speed of rms_norm beside a copy of as many bytes, and bit classes of row 0 over the row counts: graph replay, buffers
// rotated past the L2, medians. `bench` has status 1 where row 0 moved or a launch failed.
//
//   rms_norm_bench bench FILE.json | warps
#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "ops/rms_norm/rms_norm.h"
#include "src/kernels/cuda/rms_norm.h"
#include "tests/gpu/clock.h"

namespace batchproof::cuda::gpu {
namespace {

constexpr std::int64_t kRows[] = {1, 2, 8, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
constexpr std::int64_t kColumns[] = {4096, 5120, 7168};
constexpr std::int64_t kLarge = 4096;  // rows from which bandwidth counts, not latency

// x and y in as many places as leave nothing of one in the L2 when its turn comes again.
class Data {
 public:
  Data(std::int64_t columns, bp_dtype dtype)
      : columns_(columns),
        dtype_(dtype),
        pool_(2 * kRows[std::size(kRows) - 1]),
        x_(matrix(pool_, columns, dtype)),
        y_(matrix(pool_, columns, dtype)),
        weight_(matrix(1, columns, dtype)) {
    fill(x_, RecipeKind::normal, "x");
    fill(weight_, RecipeKind::normal, "weight");
    must("waiting", cudaDeviceSynchronize());
  }
  CudaRmsNormCall call(std::int64_t m, int i) const {
    CudaRmsNormCall c;
    const std::int64_t row = i * m % (pool_ - m + 1);
    c.rows = m;
    c.columns = columns_;
    c.dtype = dtype_;
    c.x = x_.at(row);
    c.x_row = columns_;
    c.weight = weight_.memory.get();
    c.y = y_.at(row);
    c.y_row = columns_;
    return c;
  }
  std::string row_zero() const {
    std::string row(static_cast<std::size_t>(columns_ * bytes_of(dtype_)), '\0');
    must("waiting", cudaDeviceSynchronize());
    must("reading", cudaMemcpy(row.data(), y_.memory.get(), row.size(), cudaMemcpyDeviceToHost));
    return row;
  }
  double bytes(std::int64_t m) const { return 2.0 * static_cast<double>(m * columns_ * bytes_of(dtype_)); }

 private:
  std::int64_t columns_;
  bp_dtype dtype_;
  std::int64_t pool_;
  Matrix x_, y_, weight_;
};

int launches_for(double bytes) { return bytes > 1e8 ? 2 : bytes > 1e7 ? 8 : 40; }

double time_of(Clock& clock, const Data& data, std::int64_t m, CudaRmsOrder order, int warps) {
  return clock.graph(launches_for(data.bytes(m)), 11, [&](int i, cudaStream_t s) {
    CudaRmsNormCall c = data.call(m, i);
    c.order = order;
    c.warps = warps;
    return cuda_rms_norm(c, s).has_value();
  });
}

double copy_of(Clock& clock, const Data& data, std::int64_t m) {
  return clock.graph(launches_for(data.bytes(m)), 11, [&](int i, cudaStream_t s) {
    const CudaRmsNormCall c = data.call(m, i);
    return launch_copy(c.x, c.y, static_cast<std::int64_t>(data.bytes(m) / 2), s) == cudaSuccess;
  });
}

int bench(const char* file) {
  Clock clock;
  const DeviceInfo device = must(current_device());
  const double bandwidth = copy_bandwidth(clock);
  nlohmann::ordered_json json;
  json["device"] = device.name;
  json["copy_tb_per_s"] = bandwidth / 1e12;
  fmt::print("# {}, copy {:.2f} TB/s\n", device.name, bandwidth / 1e12);
  fmt::print("{:>5} {:>6} {:>6} {:>9} {:>8} {:>8} {:>9} {:>9} {:>6}\n", "dtype", "H", "M", "us", "GB/s", "of copy",
             "copy us", "fast us", "warps");
  double share = 0;
  int count = 0;
  std::size_t most = 0, fast_classes = 0;
  Score score;
  for (const bp_dtype dtype : {BP_BF16, BP_FP32}) {
    for (const std::int64_t h : kColumns) {
      const Data data(h, dtype);
      std::set<std::string> classes, fast;
      for (const std::int64_t m : kRows) {
        const double us = time_of(clock, data, m, CudaRmsOrder::chunks, 0);
        const double copy = copy_of(clock, data, m);
        const double free = time_of(clock, data, m, CudaRmsOrder::warps, rms_fast_warps(m));
        CudaRmsNormCall call = data.call(m, 0);
        must(cuda_rms_norm(call, nullptr));
        classes.insert(data.row_zero());
        call.order = CudaRmsOrder::warps;
        call.warps = rms_fast_warps(m);
        must(cuda_rms_norm(call, nullptr));
        fast.insert(data.row_zero());
        const double rate = data.bytes(m) / us * 1e-3, of_copy = rate * 1e9 / bandwidth;
        const int warps = must(cuda_rms_norm_warps(call));
        const char* name = dtype == BP_BF16 ? "bf16" : "fp32";
        fmt::print("{:>5} {:6} {:6} {:9.2f} {:8.0f} {:8.3f} {:9.2f} {:9.2f} {:6}\n", name, h, m, us, rate, of_copy,
                   copy, free, warps);
        if (us == 0 || free == 0) score.line(false, fmt::format("{} H = {}, M = {}: a launch failed", name, h, m));
        std::fflush(stdout);
        json["rows"].push_back({{"dtype", name},
                                {"H", h},
                                {"M", m},
                                {"us", us},
                                {"gb_per_s", rate},
                                {"of_copy", of_copy},
                                {"copy_us", copy},
                                {"fast_us", free},
                                {"warps", warps}});
        if (m >= kLarge && us > 0) {
          share += std::log(of_copy);
          ++count;
        }
      }
      if (classes.size() > 1)
        score.line(false, fmt::format("{} H = {}: row 0 moved, {} bit classes over M",
                                      dtype == BP_BF16 ? "bf16" : "fp32", h, classes.size()));
      most = std::max(most, classes.size());
      fast_classes = std::max(fast_classes, fast.size());
      json["classes"].push_back(
          {{"dtype", dtype == BP_BF16 ? "bf16" : "fp32"}, {"H", h}, {"ours", classes.size()}, {"fast", fast.size()}});
    }
  }
  const double mean = std::exp(share / count);
  json["of_copy_large"] = mean;
  std::ofstream(file) << json.dump(1) << "\n";
  fmt::print("# M >= {}: {:.3f} of the copy bandwidth, geometric mean; bit classes of row 0 over M: {}, fast mode {}\n",
             kLarge, mean, most, fast_classes);
  return score.failed == 0 ? 0 : 1;
}

// Every number of warps per row: what the choice rests on.
int warps_sweep() {
  Clock clock;
  for (const bp_dtype dtype : {BP_BF16, BP_FP32}) {
    for (const std::int64_t h : kColumns) {
      const Data data(h, dtype);
      for (const std::int64_t m : {1, 64, 256, 512, 1024, 2048, 16384}) {
        fmt::print("{} H = {:5} M = {:6}:", dtype == BP_BF16 ? "bf16" : "fp32", h, m);
        for (const int warps : {1, 2, 4, 8, 16})
          fmt::print("  {:2} {:8.2f}", warps, time_of(clock, data, m, CudaRmsOrder::chunks, warps));
        fmt::print("  copy {:.2f}\n", copy_of(clock, data, m));
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace batchproof::cuda::gpu

int main(int argc, char** argv) {
  const std::string part = argc > 1 ? argv[1] : "";
  if (part == "bench" && argc > 2) return batchproof::cuda::gpu::bench(argv[2]);
  if (part == "warps") return batchproof::cuda::gpu::warps_sweep();
  std::fprintf(stderr, "usage: rms_norm_bench bench FILE.json | warps\n");
  return 2;
}
