// SPDX-License-Identifier: Apache-2.0
//
// skeleton: the smallest operator, to be copied. y(M) = x(M, K) . w(K), FP32 inputs and output.
//
//   cp -r examples/skeleton ops/my_op      rename the files and the word `skeleton` inside; nothing else changes
//
// What is unusual in a line is explained at the line. The contracts are in docs/design.md.
#include <cmath>
#include <cstdint>

#include "batchproof/operator.h"
#include "batchproof/problem.h"
#include "batchproof/registry.h"

namespace batchproof {
namespace {

// An implementation id names backend, arithmetic and order of summation: whatever can move bytes is in the id.
enum class Order { ascending, descending, by_batch };
constexpr Order kAscending = Order::ascending;
constexpr Order kDescending = Order::descending;
constexpr Order kByBatch = Order::by_batch;

const bp_implementation kImplementations[] = {
    // The first of a mode is the mode's default. `order_witness` names the same arithmetic in another order: where it
    // moves no byte, the inputs could not have shown a fault, and the verdict is vacuous instead of pass.
    {"cpu-fp32fma-ascending", "one chain over K, ascending", nullptr, BP_MODE_INVARIANT, 0, "cpu-fp32fma-descending",
     &kAscending},
    {"cpu-fp32fma-descending", "one chain over K, descending", nullptr, BP_MODE_INVARIANT, BP_IMPL_WITNESS, nullptr,
     &kDescending},
    // A control: deliberately variant, it must be caught. Without one the operator's tests prove nothing.
    {"control-order-by-batch", "descending for more than four rows",
     "the order of summation follows the number of rows", BP_MODE_INVARIANT, 0, "cpu-fp32fma-descending", &kByBatch},
};

constexpr std::uint32_t kFp32 = BP_DTYPE_BIT(BP_FP32);

const bp_port kPorts[] = {
    {.name = "x",
     .kind = BP_ROW_INPUT,
     .shape = "M, K",
     .row_axis = 0,
     .reduction_axes = 1u << 1,  // axis 1 is summed over
     .reduction_block = 1,
     .reduction_group = "K",
     .scale_of = nullptr,
     .distribution = BP_REPLICATED,
     .sharded_axis = 0,
     .dtypes = kFp32,
     .order_exact_dtypes = 0,
     .flags = 0,
     .transposed_by = nullptr,
     .transposed_axes = 0,
     .aliases = "",
     .row_block = 0},
    {.name = "w",
     .kind = BP_WEIGHT,
     .shape = "K",
     .row_axis = -1,
     .reduction_axes = 1u << 0,
     .reduction_block = 1,
     .reduction_group = "K",  // permuted together with x
     .scale_of = nullptr,
     .distribution = BP_REPLICATED,
     .sharded_axis = 0,
     .dtypes = kFp32,
     .order_exact_dtypes = 0,
     .flags = 0,
     .transposed_by = nullptr,
     .transposed_axes = 0,
     .aliases = "",
     .row_block = 0},
    {.name = "y",
     .kind = BP_OUTPUT,
     .shape = "M",
     .row_axis = 0,
     .reduction_axes = 0,
     .reduction_block = 1,
     .reduction_group = nullptr,
     .scale_of = nullptr,
     .distribution = BP_REPLICATED,
     .sharded_axis = 0,
     .dtypes = kFp32,
     .order_exact_dtypes = 0,
     .flags = 0,
     .transposed_by = nullptr,
     .transposed_axes = 0,
     .aliases = "",
     .row_block = 0},
};

const bp_axis_decl kAxes[] = {{"M", "rows"}, {"K", "columns, summed over"}};
const bp_dtype kFp32Ports[] = {BP_FP32, BP_FP32, BP_FP32};
const bp_dtype_mode kDtypeModes[] = {{"fp32", kFp32Ports}};

// Every constraint, one sentence each: what, the value, what would be right.
bp_status validate(const bp_problem* problem, char* error, size_t error_size) {
  const auto k = static_cast<long long>(bp_axis_value(problem, "K"));
  if (problem->world != 1)
    return bp_fail(error, error_size, BP_INVALID, "W = %d: skeleton runs on one rank", problem->world);
  if (k < 1) return bp_fail(error, error_size, BP_INVALID, "K = %lld must be at least 1", k);
  return BP_OK;
}

bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const std::int64_t m = bp_axis_value(context->problem, "M");
  const std::int64_t k = bp_axis_value(context->problem, "K");
  const auto* x = static_cast<const float*>(tensors[0].data);
  const auto* w = static_cast<const float*>(tensors[1].data);
  auto* y = static_cast<float*>(tensors[2].data);
  const Order order = *static_cast<const Order*>(context->implementation->data);
  const bool descending = order == Order::descending || (order == Order::by_batch && m > 4);
  for (std::int64_t i = 0; i < m; ++i) {
    float sum = 0.0f;
    for (std::int64_t step = 0; step < k; ++step) {
      const std::int64_t kk = descending ? k - 1 - step : step;
      // A tensor may be strided: read strides, never assume them. std::fma where a fused product is meant.
      sum = std::fma(x[i * tensors[0].stride[0] + kk * tensors[0].stride[1]], w[kk * tensors[1].stride[0]], sum);
    }
    y[i * tensors[2].stride[0]] = sum;
  }
  bp_executed(context, context->implementation->id);  // what really ran; a mismatch is an error
  return BP_OK;
}

bp_status reference(const bp_context* context, const bp_tensor* tensors) {
  const std::int64_t m = bp_axis_value(context->problem, "M");
  const std::int64_t k = bp_axis_value(context->problem, "K");
  const auto* x = static_cast<const float*>(tensors[0].data);
  const auto* w = static_cast<const float*>(tensors[1].data);
  auto* y = static_cast<double*>(tensors[2].data);
  for (std::int64_t i = 0; i < m; ++i) {
    double sum = 0.0;
    for (std::int64_t kk = 0; kk < k; ++kk)
      sum += double{x[i * tensors[0].stride[0] + kk * tensors[0].stride[1]]} * double{w[kk * tensors[1].stride[0]]};
    y[i * tensors[2].stride[0]] = sum;
  }
  return BP_OK;
}

// The control promises what the others do: that is its lie.
std::uint32_t promises(const bp_implementation*, const bp_problem*, const bp_device*) {
  return BP_REPEAT | BP_NEIGHBOURS | BP_BATCH_SIZE | BP_POSITION | BP_POISON | BP_ALIGNMENT | BP_THREADS | BP_HISTORY;
}

const bp_operator kTable = {
    .abi_version = BP_ABI_VERSION,
    .struct_size = sizeof(bp_operator),
    .name = "skeleton",
    .summary = "y = x . w, the smallest operator",
    .rows = "M",
    .row_count_axis = "M",
    .aliases = "",
    .ignored_attrs = "",
    .flags = BP_OP_THREAD_SAFE,
    .port_count = 3,
    .ports = kPorts,
    .axis_count = 2,
    .axes = kAxes,
    .attr_count = 0,
    .attrs = nullptr,
    .dtype_mode_count = 1,
    .dtype_modes = kDtypeModes,
    .implementation_count = 3,
    .implementations = kImplementations,
    .threshold_count = 0,
    .thresholds = nullptr,
    .validate = validate,
    .workspace_size = nullptr,
    .run = run,
    .reference = reference,
    .promises = promises,
    .infer_shapes = nullptr,
    .locate = nullptr,
    .alloc = nullptr,
    .release = nullptr,
    .copy = nullptr,
    .synchronise = nullptr,
};

BATCHPROOF_REGISTER(kTable);

}  // namespace
}  // namespace batchproof
