// SPDX-License-Identifier: Apache-2.0
//
// Device test of inputs: every recipe that is made there, for every dtype, against fill() on the host, byte by byte;
// and how long both take.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>

#include "src/check/device_inputs.h"
#include "src/numeric/dtype.h"
#include "src/numeric/recipe.h"
#include "tests/gpu/case.h"

namespace batchproof::cuda::gpu {
namespace {

struct Recipe {
  RecipeKind kind;
  double lo, hi;
};

constexpr Recipe kRecipes[] = {
    {RecipeKind::normal, 0, 1},         {RecipeKind::normal, 0.5, 3},      {RecipeKind::uniform, -3, 5},
    {RecipeKind::uniform, -1e30, 1e30}, {RecipeKind::constant, -1.7, 1},   {RecipeKind::constant, HUGE_VAL, 1},
    {RecipeKind::constant, NAN, 1},     {RecipeKind::wide_exponent, 0, 1}, {RecipeKind::cancelling, 0, 1},
    {RecipeKind::small_integer, 0, 1},  {RecipeKind::identity, 0, 1},      {RecipeKind::varying, 0, 1},
    {RecipeKind::checkpoint, 0, 1}};

FillRequest request_of(const CudaFill& fill) {
  FillRequest request;
  request.spec.kind = fill.kind;
  request.spec.lo = fill.lo;
  request.spec.hi = fill.hi;
  request.dtype = fill.dtype;
  request.seed = fill.seed;
  request.name = fill.name;
  request.count = fill.columns;
  request.magnitude = fill.magnitude;
  request.scale = fill.scale;
  request.reduction_input = fill.reduction_input;
  return request;
}

// Bytes that differ, those between and behind rows included.
std::int64_t differing(CudaFill fill) {
  const std::size_t row = dtype_bytes(fill.dtype, fill.row_stride);
  std::vector<std::uint8_t> host(row * static_cast<std::size_t>(fill.rows) + 16, 0xEE), device = host;
  FillRequest request = request_of(fill);
  for (std::int64_t r = 0; r < fill.rows; ++r) {
    request.row = fill.row + static_cast<std::uint64_t>(r);
    batchproof::fill(request, host.data() + static_cast<std::size_t>(r) * row);
  }
  DeviceBuffer memory = must(DeviceBuffer::make(device.size()));
  must(memory.upload(device.data(), device.size()));
  fill.out = memory.get();
  must(cuda_fill(fill, nullptr));
  must(memory.download(device.data(), device.size()));
  std::int64_t count = 0;
  for (std::size_t i = 0; i < host.size(); ++i) count += host[i] != device[i];
  return count;
}

void every_recipe(Score& score) {
  for (const bp_dtype dtype : all_dtypes()) {
    std::int64_t wrong = 0, runs = 0;
    std::string first;
    for (const Recipe& recipe : kRecipes) {
      for (const double magnitude : {1.0, 1e-4, 3.7e4}) {
        for (const int form : {0, 1, 2}) {  // an element, one of a reduction, a scale
          for (const std::int64_t columns : {std::int64_t{2}, std::int64_t{130}, std::int64_t{1002}}) {
            CudaFill fill;
            fill.kind = recipe.kind;
            fill.lo = recipe.lo;
            fill.hi = recipe.hi;
            fill.dtype = dtype;
            fill.seed = 7 + static_cast<std::uint64_t>(columns);
            fill.name = name_hash("x1");
            fill.row = columns == 130 ? ~std::uint64_t{0} >> 3 : 20;
            fill.rows = 50;
            fill.columns = columns;
            fill.row_stride = columns + 6;
            fill.magnitude = magnitude;
            fill.reduction_input = form == 1;
            fill.scale = form == 2;
            const std::int64_t found = differing(fill);
            if (found != 0 && first.empty())
              first =
                  fmt::format("; first: {}, magnitude {}, form {}, {} columns: {} bytes",
                              recipe_name({recipe.kind, recipe.lo, recipe.hi, ""}), magnitude, form, columns, found);
            wrong += found;
            ++runs;
          }
        }
      }
    }
    score.line(wrong == 0,
               fmt::format("{}: {} fills against the host, {} bytes differ{}", dtype_name(dtype), runs, wrong, first));
  }
  // The comparison must be able to fail: another seed on one side.
  CudaFill fill;
  fill.rows = fill.columns = fill.row_stride = 64;
  const std::int64_t same = differing(fill);
  DeviceBuffer memory = must(DeviceBuffer::make(64 * 64 * 2));
  fill.out = memory.get();
  fill.seed = 1;
  must(cuda_fill(fill, nullptr));
  std::vector<std::uint16_t> device(64 * 64), host(64);
  must(memory.download(device.data(), device.size() * 2));
  batchproof::fill(request_of(CudaFill{.rows = 64, .columns = 64}), host.data());
  score.line(same == 0 && std::memcmp(host.data(), device.data(), 128) != 0, "another seed gives other bytes");
  fill.kind = RecipeKind::file;
  const auto refused = cuda_fill(fill, nullptr);
  score.line(!refused && refused.error().message.find("captured tensor") != std::string::npos,
             "a captured tensor: " + (refused ? "not refused" : refused.error().message));
}

// The harness's way: rows by the device in host memory, and what it leaves to the host.
void harness(Score& score) {
  Device* device = must(cuda_device(0));
  int wrong = 0, taken = 0, left = 0;
  for (const bp_dtype dtype : all_dtypes()) {
    for (const Recipe& recipe : kRecipes) {
      for (const std::int64_t rows : {1, 40}) {
        FillRequest request;
        request.spec = {recipe.kind, recipe.lo, recipe.hi, ""};
        request.dtype = dtype;
        request.name = name_hash("x2");
        request.row = 11;
        request.count = 4098;
        const std::size_t bytes = dtype_bytes(dtype, request.count) * static_cast<std::size_t>(rows);
        std::vector<std::uint8_t> host(bytes), made(bytes);
        make_inputs(nullptr, request, rows, host.data());
        if (fill_on_device(device, request, rows, made.data()))
          ++taken;
        else
          ++wrong;
        wrong += host != made;
      }
    }
  }
  const CancellingPairs pairs(1, 4098);
  FillRequest request;
  request.count = 4098;
  std::vector<std::uint8_t> out(4098 * 4, 0xEE);
  const std::vector<std::uint8_t> untouched = out;
  request.pairs = &pairs;
  left += fill_on_device(device, request, 1, out.data());
  request.pairs = nullptr;
  request.count = 10;
  left += fill_on_device(device, request, 1, out.data());
  left += fill_on_device(nullptr, request, 1000, out.data());
  score.line(wrong == 0 && left == 0 && out == untouched,
             fmt::format("the harness's inputs: {} made by the device, {} differ or were not made", taken, wrong));
}

double milliseconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// By the host, with the way to the device; and by the device, with the way back.
void time_both() {
  for (const RecipeKind kind : {RecipeKind::normal, RecipeKind::wide_exponent}) {
    for (const std::int64_t side : {256, 4096}) {
      CudaFill fill;
      fill.kind = kind;
      fill.rows = fill.columns = fill.row_stride = side;
      const std::size_t bytes = static_cast<std::size_t>(side * side) * 2;
      std::vector<std::uint8_t> host(bytes);
      DeviceBuffer memory = must(DeviceBuffer::make(bytes));
      fill.out = memory.get();
      must(cuda_fill(fill, nullptr));
      must("waiting", cudaDeviceSynchronize());
      FillRequest request = request_of(fill);
      const double made = milliseconds([&] {
        for (std::int64_t r = 0; r < side; ++r) {
          request.row = static_cast<std::uint64_t>(r);
          batchproof::fill(request, host.data() + static_cast<std::size_t>(r * side) * 2);
        }
      });
      const double copied = milliseconds([&] { must(memory.upload(host.data(), bytes)); });
      const double on_device = milliseconds([&] {
        must(cuda_fill(fill, nullptr));
        must("waiting", cudaDeviceSynchronize());
      });
      const double read = milliseconds([&] { must(memory.download(host.data(), bytes)); });
      fmt::print("# {} {} x {} bf16: host {:.2f} ms + copy {:.2f} ms; device {:.2f} ms, read back {:.2f} ms\n",
                 recipe_name({kind, 0.0, 1.0, ""}), side, side, made, copied, on_device, read);
    }
  }
}

}  // namespace
}  // namespace batchproof::cuda::gpu

int main() {
  using namespace batchproof::cuda::gpu;
  Score score;
  every_recipe(score);
  harness(score);
  time_both();
  std::printf("%d passed, %d failed\n", score.passed, score.failed);
  return score.failed == 0 ? 0 : 1;
}
