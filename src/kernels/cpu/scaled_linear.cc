// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/cpu/scaled_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "src/kernels/cpu/elements.h"
#include "src/kernels/cpu/scaled_operand.h"
#include "src/numeric/dtype.h"
#include "src/numeric/host_device.h"
#include "src/runtime/thread_pool.h"

namespace batchproof {
namespace {

// Sums of integers below this length are exact in FP32: 2^10 products of at most 2^14.
constexpr std::int64_t kExactInt8Chunk = 1024;

// What the FP32 form of mx can hold; the rest takes the slow form. Exponents: each operand scaled by its own, exact;
// their sum: products neither lose bits (2^-32 is the smallest product of two FP8 codes) nor overflow (2^32).
constexpr int kMxOperandLimit = 110;
constexpr int kMxLowestSum = -117;
constexpr int kMxHighestSum = 95;

const float* row_scales(const bp_tensor& scale) { return static_cast<const float*>(scale.data); }

float scale_at(const bp_tensor& scale, std::int64_t i, std::int64_t j) {
  return row_scales(scale)[i * scale.stride[0] + j * scale.stride[1]];
}

// round(value) into column j of row i of y.
void store(const ScaledLinear& linear, std::int64_t i, std::int64_t j, float value) {
  write_float(linear.y->data, i * linear.y->stride[0] + j, linear.y->dtype, value);
}

float bias_at(const ScaledLinear& linear, std::int64_t j) {
  if (linear.bias->dtype == BP_INT32)
    return static_cast<float>(static_cast<const std::int32_t*>(linear.bias->data)[j * linear.bias->stride[0]]);
  return read_float(linear.bias->data, j * linear.bias->stride[0], linear.bias->dtype);
}

float tensor_scale_of_row(const ScaledLinear& linear, std::int64_t i) {
  const std::int64_t entry = linear.rows_per_scale > 0 ? i / linear.rows_per_scale : 0;
  return masked_scale(row_scales(*linear.x_scale)[entry * linear.x_scale->stride[0]], row_scales(*linear.w_scale)[0]);
}

Result<void> check_scale(const char* name, const bp_tensor* scale, bp_dtype dtype, std::vector<std::int64_t> shape) {
  if (scale == nullptr) return fail(Error::Kind::usage, fmt::format("{} is missing", name));
  if (scale->memory != BP_MEMORY_HOST) {
    return fail(Error::Kind::environment, fmt::format("{} must lie in host memory for a CPU implementation", name));
  }
  const bool fits = scale->dtype == dtype && scale->ndim == static_cast<int>(shape.size()) &&
                    std::equal(shape.begin(), shape.end(), scale->shape);
  if (!fits) {
    return fail(Error::Kind::usage,
                fmt::format("{} must be {} of the shape ({})", name, dtype_name(dtype), fmt::join(shape, ", ")));
  }
  const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  if (scale->data == nullptr && !empty) return fail(Error::Kind::usage, fmt::format("{} has no memory", name));
  return {};
}

Result<void> check_scales(const ScaledLinear& linear) {
  const std::int64_t m = linear.x->shape[0];
  const std::int64_t k = linear.x->shape[1];
  const std::int64_t n = linear.w->shape[1];
  const auto both = [&](bp_dtype dtype, std::vector<std::int64_t> of_x, std::vector<std::int64_t> of_w) {
    Result<void> checked = check_scale("x1_scale", linear.x_scale, dtype, std::move(of_x));
    return checked ? check_scale("x2_scale", linear.w_scale, dtype, std::move(of_w)) : checked;
  };
  switch (linear.scaling) {
    case Scaling::none:
      return {};
    case Scaling::tensor:
      return both(BP_FP32, {linear.rows_per_scale > 0 ? blocks_of(m, linear.rows_per_scale) : 1}, {1});
    case Scaling::token_channel:
      if (linear.x_scale == nullptr) return check_scale("x2_scale", linear.w_scale, BP_FP32, {1, n});
      return both(BP_FP32, {m, 1}, {1, n});
    case Scaling::block:
      return both(BP_FP32, {blocks_of(m, kScaleBlock), blocks_of(k, kScaleBlock)},
                  {blocks_of(k, kScaleBlock), blocks_of(n, kScaleBlock)});
    case Scaling::mx:
      return both(BP_E8M0, {m, blocks_of(k, 2 * kMxBlock), 2}, {blocks_of(k, 2 * kMxBlock), n, 2});
  }
  return {};
}

// An FP32 result of the same extents without bias.
struct Sums {
  explicit Sums(const GemmCall& call) : n(call.n), memory(new float[static_cast<std::size_t>(call.m * call.n)]) {}
  GemmCall into(GemmCall call) const {
    call.bias = {};
    call.c = {memory.get(), BP_FP32, n};
    return call;
  }
  float& at(std::int64_t i, std::int64_t j) const { return memory[static_cast<std::size_t>(i * n + j)]; }
  std::int64_t n;
  std::unique_ptr<float[]> memory;
};

// Indices [begin, begin + count) of k of a call on FP32 operands.
GemmCall k_range(GemmCall call, std::int64_t begin, std::int64_t count) {
  call.a.data = static_cast<const float*>(call.a.data) + begin * call.a.column_stride;
  call.b.data = static_cast<const float*>(call.b.data) + begin * call.b.row_stride;
  call.k = count;
  return call;
}

// ---- tensor ----

Result<void> run_tensor(const ScaledLinear& linear, const GemmCall& call, const LinearSchedule& order,
                        const Product& product) {
  const Sums sums(call);
  if (const Result<void> done = product(sums.into(call), order); !done) return done;
  for (std::int64_t i = 0; i < call.m; ++i) {
    const float scale = tensor_scale_of_row(linear, i);
    for (std::int64_t j = 0; j < call.n; ++j) {
      float value = sums.at(i, j);
      if (linear.bias == nullptr) {
        value = value * scale;
      } else if (linear.bias_after_scale) {
        value = value * scale;
        value = value + bias_at(linear, j);
      } else {
        value = value + bias_at(linear, j);
        value = value * scale;
      }
      store(linear, i, j, value);
    }
  }
  return {};
}

// ---- token_channel ----

// The exact sums of INT8 codes, with an INT32 bias, rounded to FP32 once.
Result<void> integer_sums(const ScaledLinear& linear, const GemmCall& call, const Product& product, const Sums& out) {
  std::vector<std::int32_t> total(static_cast<std::size_t>(call.m * call.n), 0);
  for (std::int64_t begin = 0; begin < call.k; begin += kExactInt8Chunk) {
    const GemmCall chunk = k_range(out.into(call), begin, std::min(kExactInt8Chunk, call.k - begin));
    if (const Result<void> done = product(chunk, {kExactInt8Chunk, 0}); !done) return done;
    for (std::size_t e = 0; e < total.size(); ++e) {
      // A defective product may leave the integers; a conversion beyond them is not defined.
      const float sum = out.memory[e];
      total[e] += std::fabs(sum) <= 0x1p24f ? static_cast<std::int32_t>(sum) : 0;
    }
  }
  const bool integer_bias = linear.bias != nullptr && linear.bias->dtype == BP_INT32;
  for (std::int64_t i = 0; i < call.m; ++i) {
    for (std::int64_t j = 0; j < call.n; ++j) {
      std::int32_t sum = total[static_cast<std::size_t>(i * call.n + j)];
      if (integer_bias) {
        const auto addend = static_cast<const std::int32_t*>(linear.bias->data)[j * linear.bias->stride[0]];
        sum = static_cast<std::int32_t>(static_cast<std::uint32_t>(sum) + static_cast<std::uint32_t>(addend));
      }
      out.at(i, j) = static_cast<float>(sum);
    }
  }
  return {};
}

Result<void> run_token_channel(const ScaledLinear& linear, const GemmCall& call, const LinearSchedule& order,
                               const Product& product) {
  const Sums sums(call);
  const Result<void> done =
      linear.x->dtype == BP_INT8 ? integer_sums(linear, call, product, sums) : product(sums.into(call), order);
  if (!done) return done;
  const bool float_bias = linear.bias != nullptr && linear.bias->dtype != BP_INT32;
  for (std::int64_t i = 0; i < call.m; ++i) {
    const float row_scale = linear.x_scale == nullptr ? 1.0f : scale_at(*linear.x_scale, i, 0);
    for (std::int64_t j = 0; j < call.n; ++j) {
      float value = sums.at(i, j);
      if (float_bias && !linear.bias_after_scale) value = value + bias_at(linear, j);
      value = value * scale_at(*linear.w_scale, 0, j);
      if (linear.x_scale != nullptr) value = value * row_scale;
      if (float_bias && linear.bias_after_scale) value = value + bias_at(linear, j);
      store(linear, i, j, value);
    }
  }
  return {};
}

// ---- block ----

// total += p * (x_scale * w_scale) for chunk c; the first chunk of a slice starts from +0.
void add_block_chunk(const ScaledLinear& linear, const GemmCall& call, std::int64_t c, const float* part,
                     float* total) {
  for (std::int64_t i = 0; i < call.m; ++i) {
    const float x_scale = scale_at(*linear.x_scale, i / kScaleBlock, c);
    for (std::int64_t j0 = 0; j0 < call.n; j0 += kScaleBlock) {
      const float scale = x_scale * scale_at(*linear.w_scale, c, j0 / kScaleBlock);
      for (std::int64_t e = i * call.n + j0; e < i * call.n + std::min(j0 + kScaleBlock, call.n); ++e) {
        const float scaled = part[e] * scale;
        total[e] = total[e] + scaled;
      }
    }
  }
}

Result<void> run_block(const ScaledLinear& linear, const GemmCall& call, const LinearSchedule& order,
                       const Product& product) {
  const std::int64_t slices = std::max<std::int64_t>(order.slices, 1);
  if (slices > 1 && call.k % (slices * kScaleBlock) != 0) {
    return fail(Error::Kind::usage, fmt::format("K = {} must be a multiple of {} for {} slices of whole scale blocks",
                                                call.k, slices * kScaleBlock, slices));
  }
  const std::int64_t length = slices > 1 ? call.k / slices : call.k;
  const auto elements = static_cast<std::size_t>(call.m * call.n);
  const LinearSchedule chunk_order = {std::min(std::max<std::int64_t>(order.segment, 1), kScaleBlock), 0};
  const Sums part(call);
  std::vector<std::vector<float>> stack;  // finished subtrees
  for (std::int64_t slice = 0; slice < slices; ++slice) {
    stack.emplace_back(elements, 0.0f);
    for (std::int64_t begin = slice * length; begin < (slice + 1) * length; begin += kScaleBlock) {
      const std::int64_t count = std::min(kScaleBlock, (slice + 1) * length - begin);
      if (const Result<void> done = product(k_range(part.into(call), begin, count), chunk_order); !done) return done;
      add_block_chunk(linear, call, begin / kScaleBlock, part.memory.get(), stack.back().data());
    }
    for (std::int64_t count = slice + 1; count % 2 == 0; count /= 2) {
      std::vector<float>& left = stack[stack.size() - 2];
      for (std::size_t e = 0; e < elements; ++e) left[e] = left[e] + stack.back()[e];
      stack.pop_back();
    }
  }
  for (std::int64_t i = 0; i < call.m; ++i) {
    for (std::int64_t j = 0; j < call.n; ++j) {
      const float sum = stack.front()[static_cast<std::size_t>(i * call.n + j)];
      store(linear, i, j, linear.bias == nullptr ? sum : sum + bias_at(linear, j));
    }
  }
  return {};
}

// ---- mx ----

// Whether the FP32 form holds every product of two operands with exponents in these ranges.
bool fits_fp32(const ExponentRange& x, const ExponentRange& w) {
  if (x.empty() || w.empty()) return true;  // nothing but NaN
  return x.low >= -kMxOperandLimit && x.high <= kMxOperandLimit && w.low >= -kMxOperandLimit &&
         w.high <= kMxOperandLimit && x.low + w.low >= kMxLowestSum && x.high + w.high <= kMxHighestSum;
}

// One row with every product scaled by the combined exponent: exact in FP64, then rounded to FP32 (which changes it
// only where it is a subnormal FP32 or none at all).
void slow_mx_row(const ScaledLinear& linear, const Schedule& schedule, const DecodedMatrix& w,
                 const std::vector<int>& w_exponents, std::int64_t i) {
  const std::int64_t n = linear.w->shape[1];
  const auto columns = static_cast<std::size_t>(n);
  const DecodedMatrix x = decode_matrix(*linear.x, i, 1, 1);
  std::vector<std::vector<float>> segment_sums;
  std::vector<double> scale(columns);
  for (const Segment& segment : schedule.segments()) {
    std::vector<float>& sum = segment_sums.emplace_back(columns, 0.0f);
    for (std::int64_t kk = segment.begin; kk < segment.end; ++kk) {
      const std::int64_t block = kk / kMxBlock;
      if (kk == segment.begin || kk % kMxBlock == 0) {
        const int of_row = mx_exponent(mx_row_code(*linear.x_scale, i, block));
        for (std::size_t j = 0; j < columns; ++j)
          scale[j] = power_of_exponents(of_row, w_exponents[static_cast<std::size_t>(block) * columns + j]);
      }
      const double left = x.data[static_cast<std::size_t>(kk)];
      const float* right = w.data.get() + kk * n;
      for (std::size_t j = 0; j < columns; ++j) {
        const float product = static_cast<float>(left * static_cast<double>(right[j]) * scale[j]);
        sum[j] = sum[j] + product;
      }
    }
  }
  std::vector<float> values(segment_sums.size());
  for (std::size_t j = 0; j < columns; ++j) {
    for (std::size_t s = 0; s < values.size(); ++s) values[s] = segment_sums[s][j];
    const float sum = merge_segment_sums(schedule, values);
    store(linear, i, static_cast<std::int64_t>(j),
          linear.bias == nullptr ? sum : sum + bias_at(linear, static_cast<std::int64_t>(j)));
  }
}

Result<void> run_mx(const ScaledLinear& linear, GemmCall call, const LinearSchedule& order, int threads,
                    const Product& product) {
  const ExponentRange w_range = mx_range_of_columns(*linear.w_scale, call.k);
  std::vector<std::int64_t> slow_rows;
  for (std::int64_t i = 0; i < call.m; ++i) {
    if (!fits_fp32(mx_range_of_row(*linear.x_scale, i, call.k), w_range)) slow_rows.push_back(i);
  }
  // Rows that do not fit are computed in both forms: the first result is dropped. Which rows those are changes time
  // only: where both forms apply their bytes are equal.
  if (const Result<void> done = product(call, order); !done) return done;
  if (slow_rows.empty()) return {};
  const Result<Schedule> schedule = make_schedule(order, call.k);
  if (!schedule) return tl::unexpected<Error>(schedule.error());
  const DecodedMatrix w = decode_rows_by_k(*linear.w, threads);
  const std::vector<int> w_exponents = mx_exponents_by_block(*linear.w_scale, call.k);
  parallel_for(threads, static_cast<std::int64_t>(slow_rows.size()), [&](std::int64_t r) {
    slow_mx_row(linear, *schedule, w, w_exponents, slow_rows[static_cast<std::size_t>(r)]);
  });
  return {};
}

}  // namespace

float masked_scale(float x_scale, float w_scale) {
  const float product = x_scale * w_scale;
  // Clearing bits of a NaN could leave an infinity.
  if (std::isnan(product)) return product;
  return cast_bits<float>(cast_bits<std::uint32_t>(product) & 0xFFFFE000u);
}

Result<void> check_scaled_linear(const ScaledLinear& linear) {
  const Result<GemmCall> call = linear_call(*linear.x, *linear.w, linear.bias, *linear.y);
  if (!call) return tl::unexpected<Error>(call.error());
  return check_scales(linear);
}

Result<void> scaled_linear(const ScaledLinear& linear, const LinearSchedule& order, int threads,
                           const Product& product) {
  Result<GemmCall> call = linear_call(*linear.x, *linear.w, linear.bias, *linear.y);
  if (!call) return tl::unexpected<Error>(call.error());
  if (linear.scaling == Scaling::none) return product(*call, order);
  if (const Result<void> checked = check_scales(linear); !checked) return checked;
  if (call->m == 0 || call->n == 0) return {};
  const bool mx = linear.scaling == Scaling::mx;
  const DecodedMatrix x =
      mx ? decode_mx_rows(*linear.x, *linear.x_scale, threads) : decode_matrix(*linear.x, 0, call->m, threads);
  const DecodedMatrix w =
      mx ? decode_mx_columns(*linear.w, *linear.w_scale, threads) : decode_weights(*linear.w, threads);
  call->a = {x.data.get(), BP_FP32, x.row_stride, x.column_stride};
  call->b = {w.data.get(), BP_FP32, w.row_stride, w.column_stride};
  switch (linear.scaling) {
    case Scaling::tensor:
      return run_tensor(linear, *call, order, product);
    case Scaling::token_channel:
      return run_token_channel(linear, *call, order, product);
    case Scaling::block:
      return run_block(linear, *call, order, product);
    default:
      return run_mx(linear, *call, order, threads, product);
  }
}

}  // namespace batchproof
