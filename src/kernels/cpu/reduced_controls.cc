// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/cpu/reduced_controls.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "batchproof/problem.h"
#include "src/kernels/cpu/elements.h"
#include "src/numeric/dtype.h"
#include "src/numeric/fp8.h"

namespace batchproof {
namespace {

constexpr std::int64_t kRotatedRows = 4;
constexpr std::int64_t kLowBitRows = 16;

Result<void> collective(const bp_context* context, const char* what, bp_status status) {
  if (status == BP_OK) return {};
  return fail(Error::Kind::operation, fmt::format("rank {}: the {} failed", context->rank, what));
}

float rounded(float value, bp_dtype dtype) {
  std::uint32_t memory = 0;
  write_float(&memory, 0, dtype, value);
  return read_float(&memory, 0, dtype);
}

// FP8 codes and one scale per tile of rows, back to FP32: what a receiver of low-bit communication sees.
void through_low_bits(float* sums, std::int64_t m, std::int64_t n) {
  constexpr float kLargest = 448.0f;
  for (std::int64_t i = 0; i < m; i += kLowBitRows) {
    const std::int64_t count = std::min(kLowBitRows, m - i) * n;
    float* tile = sums + i * n;
    float largest = 0.0f;
    for (std::int64_t e = 0; e < count; ++e) {
      if (!(std::fabs(tile[e]) <= largest)) largest = std::fabs(tile[e]);  // NaN counts as the largest
    }
    const float scale = largest == 0.0f ? 1.0f : largest / kLargest;
    for (std::int64_t e = 0; e < count; ++e) tile[e] = e4m3_to_float(float_to_e4m3(tile[e] / scale)) * scale;
  }
}

// The sum of element e over ranks, in the control's order.
float sum_of(ReduceOrder order, const std::vector<float>& partials, std::int64_t elements, std::int64_t e,
             std::int64_t row, int world, bp_dtype dtype) {
  const auto part = [&](std::int64_t rank) { return partials[static_cast<std::size_t>(rank * elements + e)]; };
  if (order == ReduceOrder::rotated || order == ReduceOrder::reversed) {
    const std::int64_t start = row / kRotatedRows % world;
    float sum = 0.0f;
    for (std::int64_t step = 0; step < world; ++step) {
      const std::int64_t rank = order == ReduceOrder::rotated ? (start + step) % world : world - 1 - step;
      sum = step == 0 ? part(rank) : rounded(sum + part(rank), dtype);
    }
    return sum;
  }
  const bool narrow = order == ReduceOrder::by_world && world <= 2;
  float sum = 0.0f;
  for (std::int64_t rank = 0; rank < world; ++rank) {
    const float addend = narrow ? rounded(part(rank), dtype) : part(rank);
    sum = narrow ? rounded(sum + addend, dtype) : sum + addend;
  }
  return sum;
}

}  // namespace

Result<void> reduce_scatter_rows(const bp_context* context, const void* send, void* recv, std::int64_t count,
                                 bp_dtype dtype, bp_reduce_order order) {
  if (count == 0) return {};
  return collective(context, "reduce-scatter",
                    context->comm->reduce_scatter(context->comm, send, recv, static_cast<std::size_t>(count), dtype,
                                                  order, context->stream));
}

Result<void> all_reduce_rows(const bp_context* context, const void* send, void* recv, std::int64_t count,
                             bp_dtype dtype, bp_reduce_order order) {
  if (count == 0) return {};
  return collective(context, "all-reduce",
                    context->comm->all_reduce(context->comm, send, recv, static_cast<std::size_t>(count), dtype, order,
                                              context->stream));
}

Result<void> run_reduced_control(ReduceOrder order, const bp_context* context, const ScaledLinear& linear,
                                 const RowRange& rows, const bp_tensor& y, const bp_tensor* addend) {
  const std::int64_t m = linear.x->shape[0];
  const std::int64_t n = linear.w->shape[1];
  const std::int64_t elements = m * n;
  if (elements == 0) return {};
  std::vector<float> own(static_cast<std::size_t>(elements));
  const Result<void> done = chain_partial(linear, kGemmSegment, context->threads, BP_FP32, own.data());
  if (!done) return done;
  for (std::int64_t i = 0; addend != nullptr && i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j)
      own[static_cast<std::size_t>(i * n + j)] += read_float(addend->data, i * addend->stride[0] + j, addend->dtype);
  }
  if (order == ReduceOrder::rotated || order == ReduceOrder::reversed) {
    for (float& value : own) value = rounded(value, y.dtype);
  }
  if (order == ReduceOrder::low_bit) through_low_bits(own.data(), m, n);
  std::vector<float> all(static_cast<std::size_t>(elements * context->world));
  const Result<void> gathered =
      collective(context, "all-gather of partial sums",
                 context->comm->all_gather(context->comm, own.data(), all.data(),
                                           static_cast<std::size_t>(elements) * sizeof(float), context->stream));
  if (!gathered) return gathered;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int64_t row = rows.begin + i;
    for (std::int64_t j = 0; j < n; ++j)
      write_float(y.data, i * y.stride[0] + j, y.dtype,
                  sum_of(order, all, elements, row * n + j, row, context->world, y.dtype));
  }
  return {};
}

Result<void> reduced_reference(const bp_context* context, const ScaledLinear& linear, const RowRange& rows,
                               const bp_tensor& y, const bp_tensor* addend) {
  const std::int64_t m = linear.x->shape[0];
  const std::int64_t n = linear.w->shape[1];
  const auto elements = static_cast<std::size_t>(m * n);
  if (elements == 0) return {};
  std::vector<double> own(elements);
  if (const Result<void> done = partial_reference(linear, own.data()); !done) return done;
  for (std::int64_t i = 0; addend != nullptr && i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j)
      own[static_cast<std::size_t>(i * n + j)] +=
          decode_element(addend->dtype, addend->data, i * addend->stride[0] + j * addend->stride[1]);
  }
  std::vector<double> all(elements * static_cast<std::size_t>(context->world));
  const Result<void> gathered = collective(
      context, "all-gather of partial sums",
      context->comm->all_gather(context->comm, own.data(), all.data(), elements * sizeof(double), context->stream));
  if (!gathered) return gathered;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0.0;
      for (std::size_t rank = 0; rank < static_cast<std::size_t>(context->world); ++rank)
        sum += all[rank * elements + static_cast<std::size_t>((rows.begin + i) * n + j)];
      static_cast<double*>(y.data)[i * y.stride[0] + j * y.stride[1]] = sum;
    }
  }
  return {};
}

uint32_t reduced_promises(ReduceOrder order, const bp_implementation* implementation, const bp_problem* problem,
                          const bp_device* device, const ReducedPorts& ports, bool has_addend) {
  if (device->memory != BP_MEMORY_HOST) return 0;
  constexpr uint32_t kRepeatable = BP_REPEAT | BP_COMM_MODE | BP_ALIGNMENT | BP_THREADS;
  constexpr uint32_t kRowLocal = kRepeatable | BP_NEIGHBOURS | BP_POISON;
  constexpr uint32_t kInvariant = kRowLocal | BP_BATCH_SIZE | BP_POSITION | BP_CROSS_RANK | BP_HISTORY;
  if (implementation->mode == BP_MODE_FAST) return order == ReduceOrder::low_bit ? kRepeatable : kRowLocal;
  if (order == ReduceOrder::vendor) return kInvariant;
  if (order != ReduceOrder::tree) return kInvariant | BP_WORLD_SIZE;
  const Scaling scaling = scaling_of(problem->dtypes, ports.scales);
  if (!tree_error(scaling, bp_axis_value(problem, "K"), problem->world).empty()) return 0;
  const bool per_rank = problem->dtypes[ports.bias] != BP_NONE || has_addend;
  return per_rank ? kInvariant : kInvariant | BP_WORLD_SIZE;
}

}  // namespace batchproof
