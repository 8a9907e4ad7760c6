// SPDX-License-Identifier: Apache-2.0
//
// Device test of rms_norm: its order, stated plainly on the host, against the kernel for every number of warps per row,
// alignment, stride, row count and processor limit, byte by byte.
//
//   rms_norm_check correct | sanitize
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "src/kernels/cuda/rms_norm.h"
#include "src/numeric/bf16.h"
#include "src/numeric/fp16.h"
#include "src/numeric/recipe.h"
#include "tests/gpu/case.h"

namespace batchproof::cuda::gpu {
namespace {

constexpr std::size_t kGap = 64;  // bytes around tensors that nothing may write

float canonical(float v) { return v != v ? cast_bits<float>(kFp32Nan) : v; }

// One row by the words of rms_norm.h.
std::vector<float> plain_row(const std::vector<float>& x, const std::vector<float>* weight, float eps, int vector) {
  const auto columns = static_cast<std::int64_t>(x.size());
  float total = 0.0f;
  for (std::int64_t chunk = 0; chunk < columns; chunk += kCudaRmsChunk) {
    float lanes[32];
    for (int lane = 0; lane < 32; ++lane) {
      lanes[lane] = 0.0f;
      for (std::int64_t k = chunk + lane * vector; k < chunk + kCudaRmsChunk; k += 32 * vector) {
        for (int e = 0; e < vector; ++e) {
          const float value = k + e < columns ? x[static_cast<std::size_t>(k + e)] : 0.0f;
          lanes[lane] = std::fma(value, value, lanes[lane]);
        }
      }
    }
    for (int half = 16; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) lanes[lane] = lanes[lane] + lanes[lane + half];
    }
    total = chunk == 0 ? lanes[0] : total + lanes[0];
  }
  const float r = 1.0f / std::sqrt(total / static_cast<float>(columns) + eps);
  std::vector<float> y(x.size());
  for (std::size_t k = 0; k < x.size(); ++k) {
    y[k] = x[k] * r;
    if (weight != nullptr) y[k] = y[k] * (*weight)[k];
  }
  return y;
}

// Rows on host and device; a row's bytes follow from its index alone.
class Rows {
 public:
  Rows(std::int64_t rows, std::int64_t columns, bp_dtype dtype, bool weighted)
      : rows_(rows), columns_(columns), dtype_(dtype), weighted_(weighted) {
    bytes_ = static_cast<std::size_t>(columns) * bytes_of(dtype);
    const auto make = [&](const char* name, std::uint64_t row, RecipeKind kind) {
      FillRequest request;
      request.spec.kind = kind;
      request.dtype = dtype;
      request.name = name_hash(name);
      request.row = row;
      request.count = columns;
      std::vector<std::uint8_t> out(bytes_);
      batchproof::fill(request, out.data());
      return out;
    };
    weight_ = make("weight", 0, RecipeKind::normal);
    const std::vector<float> w = values(weight_);
    for (std::int64_t i = 0; i < rows; ++i) {
      x_.push_back(
          make("x", static_cast<std::uint64_t>(i), i % 2 == 0 ? RecipeKind::normal : RecipeKind::wide_exponent));
      // What is no number stays in its row.
      if (i % 16 == 5) store(&x_.back(), static_cast<std::size_t>(i) % static_cast<std::size_t>(columns), 0x7FC12345u);
      if (i % 16 == 6) store(&x_.back(), static_cast<std::size_t>(columns) - 1, 0xFF800000u);
      const std::vector<float> y = plain_row(values(x_.back()), weighted ? &w : nullptr, 1e-6f, 16 / bytes_of(dtype));
      std::vector<std::uint8_t> coded(bytes_);
      for (std::size_t k = 0; k < y.size(); ++k) {
        const float stored = canonical(y[k]);
        const std::uint16_t code = float_to_bf16(y[k]);
        if (dtype == BP_FP32)
          std::memcpy(&coded[k * 4], &stored, 4);
        else
          std::memcpy(&coded[k * 2], &code, 2);
      }
      y_.push_back(std::move(coded));
    }
  }

  struct Place {
    std::size_t x = 0, weight = 0, y = 0;  // elements from a boundary of 256 bytes
    std::int64_t x_pad = 0, y_pad = 0;
    int warps = 0, processors = 0;
    CudaRmsOrder order = CudaRmsOrder::chunks;
  };

  // Rows of [first, first + count) that differ from the plain statement, and bytes written elsewhere.
  int differing(std::int64_t first, std::int64_t count, const Place& place) const {
    const auto size = static_cast<std::size_t>(bytes_of(dtype_));
    const std::size_t x_row = bytes_ + static_cast<std::size_t>(place.x_pad) * size;
    const std::size_t y_row = bytes_ + static_cast<std::size_t>(place.y_pad) * size;
    const auto n = static_cast<std::size_t>(count);
    const std::size_t x_at = kGap + place.x * size, y_at = kGap + place.y * size, w_at = kGap + place.weight * size;
    // Beyond rows lies NaN: what is read there shows.
    std::vector<std::uint8_t> x(x_at + n * x_row + kGap, 0xFF), w(w_at + bytes_ + kGap, 0xFF);
    std::vector<std::uint8_t> y(y_at + n * y_row + kGap, 0xA5), expected = y;
    for (std::size_t i = 0; i < n; ++i) {
      const auto row = static_cast<std::size_t>(first) + i;
      std::copy(x_[row].begin(), x_[row].end(), x.begin() + static_cast<std::ptrdiff_t>(x_at + i * x_row));
      std::copy(y_[row].begin(), y_[row].end(), expected.begin() + static_cast<std::ptrdiff_t>(y_at + i * y_row));
    }
    std::copy(weight_.begin(), weight_.end(), w.begin() + static_cast<std::ptrdiff_t>(w_at));
    DeviceBuffer dx = must(DeviceBuffer::make(x.size())), dw = must(DeviceBuffer::make(w.size()));
    DeviceBuffer dy = must(DeviceBuffer::make(y.size()));
    must(dx.upload(x.data(), x.size()));
    must(dw.upload(w.data(), w.size()));
    must(dy.upload(y.data(), y.size()));
    CudaRmsNormCall call;
    call.rows = count;
    call.columns = columns_;
    call.dtype = dtype_;
    call.x = static_cast<char*>(dx.get()) + x_at;
    call.x_row = columns_ + place.x_pad;
    call.weight = weighted_ ? static_cast<char*>(dw.get()) + w_at : nullptr;
    call.y = static_cast<char*>(dy.get()) + y_at;
    call.y_row = columns_ + place.y_pad;
    call.order = place.order;
    call.warps = place.warps;
    call.processors = place.processors;
    must(cuda_rms_norm(call, nullptr));
    must(dy.download(y.data(), y.size()));
    int wrong = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t at = y_at + i * y_row;
      wrong += std::memcmp(&y[at], &expected[at], bytes_) != 0;
      std::memcpy(&y[at], &expected[at], bytes_);
    }
    return wrong + (y != expected ? 1000000 : 0);
  }

  std::int64_t rows() const { return rows_; }
  std::string name() const {
    return fmt::format("{} H = {}{}", dtype_ == BP_BF16 ? "bf16" : "fp32", columns_, weighted_ ? "" : ", no weight");
  }

 private:
  std::vector<float> values(const std::vector<std::uint8_t>& row) const {
    std::vector<float> out(static_cast<std::size_t>(columns_));
    for (std::size_t k = 0; k < out.size(); ++k) {
      std::uint16_t code = 0;
      if (dtype_ == BP_FP32) {
        std::memcpy(&out[k], &row[k * 4], 4);
      } else {
        std::memcpy(&code, &row[k * 2], 2);
        out[k] = bf16_to_float(code);
      }
    }
    return out;
  }
  void store(std::vector<std::uint8_t>* row, std::size_t k, std::uint32_t bits) const {
    const auto upper = static_cast<std::uint16_t>(bits >> 16);
    if (dtype_ == BP_FP32)
      std::memcpy(&(*row)[k * 4], &bits, 4);
    else
      std::memcpy(&(*row)[k * 2], &upper, 2);
  }

  std::int64_t rows_, columns_;
  bp_dtype dtype_;
  bool weighted_;
  std::size_t bytes_ = 0;
  std::vector<std::uint8_t> weight_;
  std::vector<std::vector<std::uint8_t>> x_, y_;
};

void every_way(const Rows& rows, bool brief, Score& score) {
  using Place = Rows::Place;
  int wrong = 0, runs = 0;
  std::string first;
  const auto run = [&](std::int64_t from, std::int64_t count, const Place& place, const std::string& what) {
    const int found = rows.differing(from, count, place);
    if (found != 0 && first.empty()) first = fmt::format("; first: {}, {} rows from {}: {}", what, count, from, found);
    wrong += found;
    ++runs;
  };
  const std::int64_t all = rows.rows();
  for (const int warps : {0, 1, 2, 4, 8, 16}) {
    for (const std::int64_t count : {std::int64_t{1}, std::int64_t{3}, all})
      run(all - count, count, {.warps = warps}, fmt::format("{} warps", warps));
  }
  for (const int warps : {1, 2, 4, 8, 16})
    run(0, all, {.warps = warps, .processors = 2}, fmt::format("{} warps on two processors", warps));
  for (const std::size_t offset : {std::size_t{1}, std::size_t{3}, std::size_t{4}, std::size_t{8}}) {
    for (const int warps : {1, 4}) {
      run(0, all, {.x = offset, .warps = warps}, fmt::format("x {} elements on", offset));
      run(0, all, {.weight = offset, .y = offset, .warps = warps}, fmt::format("weight and y {} elements on", offset));
      run(0, all, {.x_pad = static_cast<std::int64_t>(offset), .y_pad = 3, .warps = warps},
          fmt::format("rows {} elements apart", offset));
    }
  }
  if (!brief) {
    for (std::int64_t count = 1; count <= all; count += count < 20 ? 1 : 17) run(0, count, {}, "row counts");
    for (const int processors : {1, 3, 61}) run(0, all, {.processors = processors}, "a processor limit");
  }
  score.line(wrong == 0,
             fmt::format("{}: {} runs against the plain statement, {} rows differ{}", rows.name(), runs, wrong, first));
}

// The other orders must move bytes, else the comparison above says nothing.
void controls(Score& score) {
  const Rows rows(16, 4096, BP_FP32, true);
  score.line(rows.differing(0, 16, {.order = CudaRmsOrder::descending}) > 0, "the descending order moves bytes");
  score.line(rows.differing(0, 16, {.warps = 2, .order = CudaRmsOrder::warps}) > 0, "the order of 2 warps moves bytes");
  CudaRmsNormCall bad;
  bad.columns = 0;
  const auto refused = cuda_rms_norm(bad, nullptr);
  score.line(!refused && refused.error().message.find("0 rows of 0 columns") != std::string::npos,
             "no columns: " + (refused ? "not refused" : refused.error().message));
}

int check(bool brief) {
  Score score;
  const std::vector<std::int64_t> columns =
      brief ? std::vector<std::int64_t>{7, 1000, 5120}
            : std::vector<std::int64_t>{1, 7, 8, 511, 512, 513, 1000, 2048, 4096, 4099, 5120, 7168, 20000, 70001};
  for (const bp_dtype dtype : {BP_BF16, BP_FP32}) {
    for (const std::int64_t h : columns) every_way(Rows(brief ? 9 : 67, h, dtype, h % 3 != 2), brief, score);
  }
  if (!brief) controls(score);
  std::printf("%d passed, %d failed\n", score.passed, score.failed);
  return score.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace batchproof::cuda::gpu

int main(int argc, char** argv) {
  const std::string part = argc > 1 ? argv[1] : "";
  if (part == "correct") return batchproof::cuda::gpu::check(false);
  if (part == "sanitize") return batchproof::cuda::gpu::check(true);
  std::fprintf(stderr, "usage: rms_norm_check correct | sanitize\n");
  return 2;
}
