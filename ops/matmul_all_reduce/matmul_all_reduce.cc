// SPDX-License-Identifier: Apache-2.0
//
// matmul_all_reduce: K is divided over ranks; every rank multiplies its part, and the sum over ranks is on every rank.
//   y(M, N) = sum over q of (x1_q . x2_q + bias_q + x3)
// bias and x3 are counted once per rank, as MatmulAllReduce documents.
// `fp32_tree` gives the same bytes on 1, 2, 4, 8 and 16 ranks (reduced_linear.h); `vendor_order` rounds the partial
// products to the output dtype and adds them in rank order, which is invariant at a fixed world only.
#include <fmt/format.h>

#include <algorithm>
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
  kX3,
  kY,
  kX1Scale,
  kX2Scale = kX1Scale + kScaleForms,
  kPortCount = kX2Scale + kScaleForms
};
constexpr ReducedPorts kReduced = {kX1, kX2, kBias, kY, {kX1Scale, kX2Scale}};

// Added to every rank's product before the sum.
constexpr bp_port x3_port() {
  bp_port port = row_port("x3", BP_ROW_INPUT, "M, N", BP_REPLICATED, kLinearFloats, "x3Optional");
  port.flags = BP_PORT_OPTIONAL | BP_PORT_PADDED;
  return port;
}

constexpr bp_port kPorts[kPortCount] = {reduced_x1_port("x, input"),
                                        reduced_x2_port("weight"),
                                        bias_port(BP_PER_RANK, "biasOptional"),
                                        x3_port(),
                                        row_port("y", BP_OUTPUT, "M, N", BP_REPLICATED, kLinearFloats, "output"),
                                        reduced_x1_scale(0),
                                        reduced_x1_scale(1),
                                        reduced_x1_scale(2),
                                        reduced_x1_scale(3),
                                        reduced_x2_scale(0),
                                        reduced_x2_scale(1),
                                        reduced_x2_scale(2),
                                        reduced_x2_scale(3)};

constexpr bp_axis_decl kAxes[] = {
    {"M", "rows of x1 and of y"}, {"K", "reduction length of one rank"}, {"N", "columns of x2"}};
constexpr bp_attr_decl kAttrs[] = {
    kReducedTransposeX2,
    reduced_bias_after_scale("false"),
    {"strict_limits", BP_ATTR_BOOL, "false", "accept only what MatmulAllReduce documents"},
    kReduceOp,
    kCommTurn,
    kStreamMode,
    kBlockSize,
    kGroupSize};

// ---- implementations ----

constexpr ReducedPlan kLowBit = {ReduceOrder::low_bit};

constexpr bp_implementation kImplementations[] = {
    kReducedTree,
    kReducedVendorOrder,
    kReducedFast,
    {"cpu-fp8comm-tile16", "partial sums travel as FP8 codes under one scale per 16 rows: the rows of a tile share it",
     nullptr, BP_MODE_FAST, 0, nullptr, &kLowBit},
    kControlRotatedRanks,
    kControlOrderByWorld,
    {"control-low-bit-tile", "a deliberately variant sum over ranks", "as cpu-fp8comm-tile16, promised invariant",
     BP_MODE_INVARIANT, 0, nullptr, &kLowBit},
    kReducedReversedRanks};

// ---- validate ----

// What MatmulAllReduce documents (CANN ops-transformer, mc2/matmul_all_reduce/docs).
std::string strict_error(const bp_problem* problem) {
  const std::int64_t k = bp_axis_value(problem, "K");
  if (k >= 65536) return fmt::format("K = {} is outside the strict limits; it must be 1 to 65535", k);
  const bp_dtype x1 = problem->dtypes[kX1];
  if (x1 == BP_FP32) return "x1 has the dtype fp32; under strict_limits it must be bf16 or fp16";
  const bool quantised = scaling_of(problem->dtypes, kReduced.scales) != Scaling::none;
  for (const auto& [port, name] : {std::pair(kBias, "bias"), std::pair(kX3, "x3"), std::pair(kY, "y")}) {
    const bp_dtype dtype = problem->dtypes[port];
    if (!quantised && dtype != BP_NONE && dtype != x1) {
      return fmt::format("{} has the dtype {}; under strict_limits it must be that of x1, {}", name, dtype_name(dtype),
                         dtype_name(x1));
    }
  }
  for (const auto& [name, value] :
       {std::pair("comm_turn", 0), std::pair("stream_mode", 1), std::pair("block_size", 0)}) {
    if (bp_attr_int(problem, name) != value) {
      return fmt::format("{} = {}; under strict_limits it must be {}", name, bp_attr_int(problem, name), value);
    }
  }
  return "";
}

std::string problem_error(const bp_problem* problem) {
  if (std::string wrong = reduced_problem_error(problem, kReduced); !wrong.empty()) return wrong;
  const bp_dtype x3 = problem->dtypes[kX3];
  if (x3 != BP_NONE && x3 != problem->dtypes[kY]) {
    return fmt::format("x3 has the dtype {}; it must be that of y, {}", dtype_name(x3),
                       dtype_name(problem->dtypes[kY]));
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

// ---- run: workspace is [partial sums (M, N)][sums (M, N)], four bytes an element ----

size_t workspace_size(const bp_implementation* /*implementation*/, const bp_problem* problem, int32_t /*rank*/) {
  return static_cast<size_t>(2 * bp_axis_value(problem, "M") * bp_axis_value(problem, "N")) * sizeof(float);
}

// rows = round(rows + x3) in the dtype of the rows.
void add_x3(const bp_tensor& x3, void* rows, bp_dtype dtype) {
  for (std::int64_t i = 0; i < x3.shape[0]; ++i) {
    for (std::int64_t j = 0; j < x3.shape[1]; ++j) {
      const std::int64_t at = i * x3.shape[1] + j;
      const float sum = read_float(rows, at, dtype) + read_float(x3.data, i * x3.stride[0] + j, x3.dtype);
      write_float(rows, at, dtype, sum);
    }
  }
}

Result<void> multiply_and_reduce(const bp_context* context, const bp_tensor* tensors) {
  const bp_tensor& y = tensors[kY];
  const bp_tensor* x3 = tensors[kX3].dtype == BP_NONE ? nullptr : &tensors[kX3];
  const std::int64_t elements = y.shape[0] * y.shape[1];
  const ReducedPlan& plan = reduced_plan(context->implementation);
  ScaledLinear linear = reduced_linear_of(context, tensors, kReduced);
  linear.y = &y;  // every tensor is checked before the first rank communicates
  if (const Result<void> fits = check_scaled_linear(linear); !fits) return fits;
  if (x3 != nullptr && (x3->memory != BP_MEMORY_HOST || (x3->shape[1] > 1 && x3->stride[1] != 1))) {
    return fail(Error::Kind::usage, "x3 must lie in host memory with contiguous columns");
  }
  if (context->workspace_bytes < workspace_size(nullptr, context->problem, context->rank)) {
    return fail(Error::Kind::usage, "the workspace is too small");
  }
  float* partial = static_cast<float*>(context->workspace);
  float* sums = partial + elements;
  const bool follows_batch = context->implementation->mode == BP_MODE_FAST;
  const std::int64_t segment = follows_batch ? fast_segment(y.shape[0], linear.x->shape[1]) : plan.segment;
  if (plan.order != ReduceOrder::tree && plan.order != ReduceOrder::vendor) {
    return run_reduced_control(plan.order, context, linear, {0, y.shape[0]}, y, x3);
  }
  const bool tree = plan.order == ReduceOrder::tree;
  const bp_dtype dtype = tree ? bp_dtype{BP_FP32} : y.dtype;
  const Result<void> done = tree ? tree_partial(linear, context->world, segment, context->threads, partial)
                                 : chain_partial(linear, segment, context->threads, dtype, partial);
  if (!done) return done;
  if (x3 != nullptr) add_x3(*x3, partial, dtype);
  const Result<void> sent =
      all_reduce_rows(context, partial, sums, elements, dtype, tree ? BP_REDUCE_TREE : BP_REDUCE_RANK_ORDER);
  if (!sent) return sent;
  store_rows(sums, dtype, y);
  return {};
}

bp_status run(const bp_context* context, const bp_tensor* tensors) {
  if (const bp_status refused = begin_run(context); refused != BP_OK) return refused;
  return operator_call(context, [&] { return multiply_and_reduce(context, tensors); });
}

bp_status reference(const bp_context* context, const bp_tensor* tensors) {
  return operator_call(context, [&]() -> Result<void> {
    const bp_tensor& y = tensors[kY];
    const bp_tensor* x3 = tensors[kX3].dtype == BP_NONE ? nullptr : &tensors[kX3];
    return reduced_reference(context, reduced_linear_of(context, tensors, kReduced), {0, y.shape[0]}, y, x3);
  });
}

// Controls claim what the invariant implementations promise: that is their lie.
uint32_t promises(const bp_implementation* implementation, const bp_problem* problem, const bp_device* device) {
  return reduced_promises(reduced_plan(implementation).order, implementation, problem, device, kReduced,
                          problem->dtypes[kX3] != BP_NONE);
}

const bp_operator kOperator = operator_table(
    {.name = "matmul_all_reduce",
     .summary = "y = all_reduce(x1 . x2 + bias + x3)",
     .aliases = "MatmulAllReduce, MatmulAllReduceV2, MatmulAllReduceV3, QuantMatmulAllReduce",
     .ignored_attrs = kReducedIgnoredAttrs},
    BP_OP_THREAD_SAFE, kPorts, kAxes, kAttrs, ReducedModes<kPortCount>::kAll, kImplementations, kReducedThresholds,
    {.validate = validate, .workspace_size = workspace_size, .run = run, .reference = reference, .promises = promises});

BATCHPROOF_REGISTER(kOperator);

}  // namespace
}  // namespace batchproof
