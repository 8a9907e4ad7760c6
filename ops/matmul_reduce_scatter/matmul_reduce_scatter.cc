// SPDX-License-Identifier: Apache-2.0
//
// matmul_reduce_scatter: K is divided over ranks; every rank multiplies its part, the partial products are summed over
// ranks and rank r keeps its share of the rows.
//   y(M / W, N) on rank r = rows [r * M / W, (r + 1) * M / W) of sum over q of (x1_q . x2_q + bias_q)
// `fp32_tree` gives the same bytes on 1, 2, 4, 8 and 16 ranks (reduced_linear.h); `vendor_order` rounds the partial
// products to the output dtype and adds them in rank order, which is invariant at a fixed world only.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "batchproof/operator.h"
#include "batchproof/problem.h"
#include "batchproof/registry.h"
#include "src/kernels/cpu/elements.h"
#include "src/kernels/cpu/reduced_controls.h"
#include "src/kernels/cpu/reduced_linear.h"
#include "src/kernels/cpu/reduced_ports.h"
#include "src/numeric/dtype.h"
#include "src/runtime/operator_table.h"

namespace batchproof {
namespace {

enum Port : std::uint32_t {
  kX1,
  kX2,
  kBias,
  kY,
  kX1Scale,
  kX2Scale = kX1Scale + kScaleForms,
  kPortCount = kX2Scale + kScaleForms
};
constexpr ReducedPorts kReduced = {kX1, kX2, kBias, kY, {kX1Scale, kX2Scale}};

constexpr bp_port kPorts[kPortCount] = {
    reduced_x1_port("x, input"),
    reduced_x2_port("weight"),
    bias_port(BP_PER_RANK, "biasOptional"),
    sharded(row_port("y", BP_OUTPUT, "M / W, N", BP_SHARDED, kLinearFloats, "output"), 0),
    reduced_x1_scale(0),
    reduced_x1_scale(1),
    reduced_x1_scale(2),
    reduced_x1_scale(3),
    reduced_x2_scale(0),
    reduced_x2_scale(1),
    reduced_x2_scale(2),
    reduced_x2_scale(3)};

constexpr bp_axis_decl kAxes[] = {
    {"M", "rows of x1, and of y over all ranks"}, {"K", "reduction length of one rank"}, {"N", "columns of x2"}};
constexpr bp_attr_decl kAttrs[] = {
    kReducedTransposeX2,
    reduced_bias_after_scale("true"),
    {"strict_limits", BP_ATTR_BOOL, "false", "accept only what MatmulReduceScatterV2 documents"},
    kReduceOp,
    kCommTurn,
    kStreamMode,
    kBlockSize,
    kGroupSize};

// ---- implementations ----

constexpr bp_implementation kImplementations[] = {kReducedTree,         kReducedVendorOrder,  kReducedFast,
                                                  kControlRotatedRanks, kControlOrderByWorld, kReducedReversedRanks};

// ---- validate ----

// What MatmulReduceScatterV2 documents (CANN ops-transformer, mc2/matmul_reduce_scatter_v2/docs).
std::string strict_error(const bp_problem* problem) {
  const std::int64_t k = bp_axis_value(problem, "K");
  if (k < 256 || k >= 65535) return fmt::format("K = {} is outside the strict limits; it must be 256 to 65534", k);
  constexpr int kWorlds[] = {2, 4, 8, 16, 32, 64};
  if (std::find(std::begin(kWorlds), std::end(kWorlds), problem->world) == std::end(kWorlds)) {
    return fmt::format("W = {} is outside the strict limits; it must be 2, 4, 8, 16, 32 or 64", problem->world);
  }
  const bp_dtype x1 = problem->dtypes[kX1];
  const Scaling scaling = scaling_of(problem->dtypes, kReduced.scales);
  if (x1 == BP_FP32) return "x1 has the dtype fp32; under strict_limits it must be bf16 or fp16";
  for (const auto& [port, name] : {std::pair(kBias, "bias"), std::pair(kY, "y")}) {
    const bp_dtype dtype = problem->dtypes[port];
    if (scaling == Scaling::none && dtype != BP_NONE && dtype != x1) {
      return fmt::format("{} has the dtype {}; under strict_limits it must be that of x1, {}", name, dtype_name(dtype),
                         dtype_name(x1));
    }
  }
  if (scaling == Scaling::mx && bp_attr_int(problem, "transpose_x2") == 0) {
    return "MX scaling under strict_limits takes x2 transposed; set transpose_x2";
  }
  struct Fixed {
    const char* name;
    std::int64_t value;
  };
  for (const Fixed& fixed : {Fixed{"comm_turn", 0}, Fixed{"stream_mode", 1}, Fixed{"block_size", 0}}) {
    const std::int64_t value = bp_attr_int(problem, fixed.name);
    if (value != fixed.value) {
      return fmt::format("{} = {}; under strict_limits it must be {}", fixed.name, value, fixed.value);
    }
  }
  return "";
}

std::string problem_error(const bp_problem* problem) {
  if (std::string wrong = reduced_problem_error(problem, kReduced); !wrong.empty()) return wrong;
  const std::int64_t m = bp_axis_value(problem, "M");
  if (m % problem->world != 0) {
    return fmt::format("M = {} must be a multiple of W = {}: every rank keeps M / W rows", m, problem->world);
  }
  if (const std::string op = bp_attr_string(problem, "reduce_op"); op != "sum") {
    return fmt::format("reduce_op {} is not supported; it must be sum", op);
  }
  return bp_attr_int(problem, "strict_limits") != 0 ? strict_error(problem) : "";
}

bp_status validate(const bp_problem* problem, char* error, size_t error_size) {
  const std::string wrong = problem_error(problem);
  return wrong.empty() ? BP_OK : bp_fail(error, error_size, BP_INVALID, "%s", wrong.c_str());
}

// ---- run: workspace is [partial sums (M, N)][this rank's rows (M / W, N)], four bytes an element ----

size_t workspace_size(const bp_implementation* /*implementation*/, const bp_problem* problem, int32_t /*rank*/) {
  const std::int64_t m = bp_axis_value(problem, "M");
  return static_cast<size_t>((m + m / problem->world) * bp_axis_value(problem, "N")) * sizeof(float);
}

Result<void> multiply_and_scatter(const bp_context* context, const bp_tensor* tensors) {
  const bp_tensor& y = tensors[kY];
  const std::int64_t n = y.shape[1];
  const std::int64_t m = y.shape[0] * context->world;
  const ReducedPlan& plan = reduced_plan(context->implementation);
  ScaledLinear linear = reduced_linear_of(context, tensors, kReduced);
  bp_tensor whole = y;  // every tensor is checked before the first rank communicates
  whole.shape[0] = m;
  linear.y = &whole;
  if (const Result<void> fits = check_scaled_linear(linear); !fits) return fits;
  if (context->workspace_bytes < workspace_size(nullptr, context->problem, context->rank)) {
    return fail(Error::Kind::usage, "the workspace is too small");
  }
  float* partial = static_cast<float*>(context->workspace);
  float* own = partial + m * n;
  const std::int64_t segment =
      context->implementation->mode == BP_MODE_FAST ? fast_segment(m, linear.x->shape[1]) : plan.segment;
  if (plan.order == ReduceOrder::tree) {
    const Result<void> done = tree_partial(linear, context->world, segment, context->threads, partial);
    if (!done) return done;
    if (const Result<void> sent = reduce_scatter_rows(context, partial, own, y.shape[0] * n, BP_FP32, BP_REDUCE_TREE);
        !sent) {
      return sent;
    }
    store_rows(own, BP_FP32, y);
    return {};
  }
  if (plan.order == ReduceOrder::vendor) {
    const Result<void> done = chain_partial(linear, segment, context->threads, y.dtype, partial);
    if (!done) return done;
    const Result<void> sent = reduce_scatter_rows(context, partial, own, y.shape[0] * n, y.dtype, BP_REDUCE_RANK_ORDER);
    if (!sent) return sent;
    store_rows(own, y.dtype, y);
    return {};
  }
  const RowRange rows = {context->rank * y.shape[0], y.shape[0]};
  return run_reduced_control(plan.order, context, linear, rows, y);
}

bp_status run(const bp_context* context, const bp_tensor* tensors) {
  if (const bp_status refused = begin_run(context); refused != BP_OK) return refused;
  return operator_call(context, [&] { return multiply_and_scatter(context, tensors); });
}

bp_status reference(const bp_context* context, const bp_tensor* tensors) {
  return operator_call(context, [&]() -> Result<void> {
    const bp_tensor& y = tensors[kY];
    const RowRange rows = {context->rank * y.shape[0], y.shape[0]};
    return reduced_reference(context, reduced_linear_of(context, tensors, kReduced), rows, y);
  });
}

// Controls claim what the invariant implementations promise: that is their lie.
uint32_t promises(const bp_implementation* implementation, const bp_problem* problem, const bp_device* device) {
  return reduced_promises(reduced_plan(implementation).order, implementation, problem, device, kReduced);
}

const bp_operator kOperator = operator_table(
    {.name = "matmul_reduce_scatter",
     .summary = "y = reduce_scatter(x1 . x2 + bias)",
     .aliases = "MatmulReduceScatter, MatmulReduceScatterV2",
     .ignored_attrs = kReducedIgnoredAttrs},
    BP_OP_THREAD_SAFE, kPorts, kAxes, kAttrs, ReducedModes<kPortCount>::kAll, kImplementations, kReducedThresholds,
    {.validate = validate, .workspace_size = workspace_size, .run = run, .reference = reference, .promises = promises});

BATCHPROOF_REGISTER(kOperator);

}  // namespace
}  // namespace batchproof
