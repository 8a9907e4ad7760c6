// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/cpu/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <vector>

#include "batchproof/problem.h"
#include "src/numeric/dtype.h"
#include "src/numeric/wider.h"
#include "src/runtime/thread_pool.h"

namespace batchproof {
namespace {

constexpr std::int64_t kLargestExtent = INT32_MAX;

bool is_linear_dtype(bp_dtype dtype) { return dtype == BP_FP32 || dtype == BP_BF16 || dtype == BP_FP16; }

Result<void> check_tensor(const char* name, const bp_tensor& tensor, int ndim, std::int64_t rows,
                          std::int64_t columns) {
  if (tensor.memory != BP_MEMORY_HOST) {
    return fail(Error::Kind::environment, fmt::format("{} must lie in host memory for a CPU implementation", name));
  }
  const bool shape_fits = tensor.ndim == ndim && tensor.shape[0] == rows && (ndim == 1 || tensor.shape[1] == columns);
  if (!shape_fits) {
    return fail(Error::Kind::usage, ndim == 1 ? fmt::format("{} must have the shape ({})", name, rows)
                                              : fmt::format("{} must have the shape ({}, {})", name, rows, columns));
  }
  if (tensor.data == nullptr && rows > 0 && columns > 0) {
    return fail(Error::Kind::usage, fmt::format("{} has no memory", name));
  }
  return {};
}

double element(const bp_tensor& tensor, std::int64_t i, std::int64_t j) {
  return decode_element(tensor.dtype, tensor.data, i * tensor.stride[0] + j * tensor.stride[1]);
}

const char* element_at(const void* data, std::int64_t index, bp_dtype dtype) {
  return static_cast<const char*>(data) + index * static_cast<std::int64_t>(dtype_bytes(dtype, 1));
}

}  // namespace

std::string linear_dtype_error(const LinearDtypes& dtypes) {
  if (!is_linear_dtype(dtypes.x)) {
    return fmt::format("x1 has the dtype {}; it must be fp32, bf16 or fp16", dtype_name(dtypes.x));
  }
  if (dtypes.w != dtypes.x) {
    return fmt::format("x2 has the dtype {}; it must be that of x1, {}", dtype_name(dtypes.w), dtype_name(dtypes.x));
  }
  const auto suits = [&](bp_dtype dtype) { return dtype == BP_FP32 || dtype == dtypes.x; };
  const std::string allowed = dtypes.x == BP_FP32 ? "fp32" : fmt::format("{} or fp32", dtype_name(dtypes.x));
  if (dtypes.bias != BP_NONE && !suits(dtypes.bias)) {
    return fmt::format("bias has the dtype {}; it must be {}", dtype_name(dtypes.bias), allowed);
  }
  if (!suits(dtypes.y)) return fmt::format("y has the dtype {}; it must be {}", dtype_name(dtypes.y), allowed);
  return "";
}

std::string extent_error(const char* name, std::int64_t value, std::int64_t least) {
  if (value >= least && value <= kLargestExtent) return "";
  return fmt::format("{} = {} is out of range; it must be {} to {}", name, value, least, kLargestExtent);
}

Result<GemmCall> linear_call(const bp_tensor& x, const bp_tensor& w, const bp_tensor* bias, const bp_tensor& y) {
  GemmCall call;
  call.m = x.shape[0];
  call.k = x.shape[1];
  call.n = w.shape[1];
  for (const Result<void>& checked :
       {check_tensor("x1", x, 2, call.m, call.k), check_tensor("x2", w, 2, call.k, call.n),
        bias == nullptr ? Result<void>() : check_tensor("bias", *bias, 1, call.n, 1),
        check_tensor("y", y, 2, call.m, call.n)}) {
    if (!checked) return tl::unexpected<Error>(checked.error());
  }
  if (call.n > 1 && y.stride[1] != 1) {
    return fail(Error::Kind::usage, fmt::format("y has the column stride {}; it must be 1", y.stride[1]));
  }
  call.a = {x.data, x.dtype, x.stride[0], x.stride[1]};
  call.b = {w.data, w.dtype, w.stride[0], w.stride[1]};
  if (bias != nullptr) call.bias = {bias->data, bias->dtype, bias->stride[0]};
  call.c = {y.data, y.dtype, y.stride[0]};
  return call;
}

bp_tensor dense_matrix(void* data, bp_dtype dtype, std::int64_t rows, std::int64_t columns) {
  bp_tensor tensor = {};
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.memory = BP_MEMORY_HOST;
  tensor.ndim = 2;
  tensor.shape[0] = rows;
  tensor.shape[1] = columns;
  tensor.stride[0] = columns;
  tensor.stride[1] = 1;
  return tensor;
}

GemmCall rows_of(const GemmCall& call, std::int64_t begin, std::int64_t count) {
  GemmCall part = call;
  part.m = count;
  part.a.data = element_at(call.a.data, begin * call.a.row_stride, call.a.dtype);
  part.c.data = const_cast<char*>(element_at(call.c.data, begin * call.c.row_stride, call.c.dtype));
  return part;
}

Result<Schedule> make_schedule(const LinearSchedule& plan, std::int64_t k) {
  if (plan.slices > 0) return Schedule::make(k, TreePolicy{plan.slices, 1, plan.segment});
  return Schedule::make(k, ChainPolicy{plan.segment});
}

Result<void> run_scheduled(const GemmCall& call, const LinearSchedule& plan, int threads) {
  const Result<Schedule> schedule = make_schedule(plan, call.k);
  if (!schedule) return tl::unexpected<Error>(schedule.error());
  return gemm(call, *schedule, {threads, std::nullopt});
}

std::int64_t fast_segment(std::int64_t m, std::int64_t k) {
  constexpr std::int64_t kFewRows = 12;
  return m <= kFewRows ? std::max<std::int64_t>(k, 1) : 2 * kGemmSegment;
}

BATCHPROOF_WIDER
void add_multiple(double factor, const double* from, std::int64_t count, double* to) {
  for (std::int64_t j = 0; j < count; ++j) to[j] += factor * from[j];
}

Result<void> linear_reference(const bp_tensor& x, const bp_tensor& w, const bp_tensor* bias, const bp_tensor& y) {
  const std::int64_t m = x.shape[0];
  const std::int64_t k = x.shape[1];
  const std::int64_t n = w.shape[1];
  if (y.dtype != BP_FP64) return fail(Error::Kind::usage, "the reference writes FP64 outputs only");
  // Decoded once: both are read m or n times.
  std::vector<double> right(static_cast<std::size_t>(k * n));
  for (std::int64_t i = 0; i < k; ++i) {
    for (std::int64_t j = 0; j < n; ++j) right[static_cast<std::size_t>(i * n + j)] = element(w, i, j);
  }
  std::vector<double> row(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < m; ++i) {
    std::fill(row.begin(), row.end(), 0.0);
    for (std::int64_t s = 0; s < k; ++s) {
      const double left = element(x, i, s);
      add_multiple(left, right.data() + s * n, n, row.data());
    }
    for (std::int64_t j = 0; j < n; ++j) {
      const double addend = bias == nullptr ? 0.0 : decode_element(bias->dtype, bias->data, j * bias->stride[0]);
      static_cast<double*>(y.data)[i * y.stride[0] + j * y.stride[1]] = row[static_cast<std::size_t>(j)] + addend;
    }
  }
  return {};
}

bp_status operator_call(const bp_context* context, const std::function<Result<void>()>& body) {
  try {
    const Result<void> done = body();
    if (done) return BP_OK;
    const Error& error = done.error();
    // One rank has no other that could have failed: what failed is a launch or an allocation.
    const bool ranks = context->problem->world > 1;
    const bp_status status = error.kind == Error::Kind::usage                ? BP_INVALID
                             : error.kind == Error::Kind::environment        ? BP_ENVIRONMENT
                             : error.kind == Error::Kind::operation && ranks ? BP_COMM
                                                                             : BP_INTERNAL;
    return bp_fail(context->error, context->error_size, status, "%s", error.message.c_str());
  } catch (const std::exception& exception) {
    return bp_fail(context->error, context->error_size, BP_INTERNAL, "out of memory or worse: %s", exception.what());
  } catch (...) {
    return bp_fail(context->error, context->error_size, BP_INTERNAL, "unknown exception");
  }
}

bp_status begin_run(const bp_context* context) {
  const bp_implementation& implementation = *context->implementation;
  if (context->mode == BP_MODE_INVARIANT && implementation.mode == BP_MODE_FAST) {
    return bp_fail(context->error, context->error_size, BP_REFUSED,
                   "%s is not batch invariant and is refused in invariant mode; choose an invariant implementation or "
                   "mode fast",
                   implementation.id);
  }
  bp_executed(context, implementation.id);
  return BP_OK;
}

}  // namespace batchproof
