// SPDX-License-Identifier: Apache-2.0
//
// grouped_matmul_alltoallv: every expert multiplies the rows that it holds, and the products go back to the ranks that
// the rows belong to. The mirror of alltoallv_grouped_matmul.
//   c on rank d = gmm_x[rows of expert j] . gmm_weight[j]     rows by expert, then by rank, then by row
//   y on rank r = the rows of rank r out of all c, by ascending expert
//   mm_y        = mm_x . mm_weight                            the shared expert, which takes no part in the exchange
// Which expert a row chose is in the attributes (src/kernels/routing.h).
#include <cstring>
#include <vector>

#include "batchproof/operator.h"
#include "batchproof/problem.h"
#include "batchproof/registry.h"
#include "src/kernels/cpu/grouped_ports.h"
#include "src/numeric/dtype.h"
#include "src/runtime/operator_table.h"

namespace batchproof {
namespace {

constexpr std::uint32_t kPortCount = kGroupedPorts;

constexpr bp_port kPorts[kPortCount] = {
    grouped_rows("gmm_x", BP_ROW_INPUT, "M, K", "gmmX"),
    gmm_weight_port(),
    grouped_rows("y", BP_OUTPUT, "M, N", "yOut, output, out"),
    mm_x_port(),
    mm_weight_port(),
    grouped_optional(grouped_rows("mm_y", BP_OUTPUT, "M / TOPK, N2", "mmY")),
    grouped_row_scale("gmm_x_scale", "gmm_x", "M, ceil_div(K, 64), 2", "K", "gmmXScale"),
    gmm_weight_scale_port(),
    grouped_row_scale("mm_x_scale", "mm_x", "M / TOPK, ceil_div(K2, 64), 2", "K2", "mmXScale"),
    mm_weight_scale_port()};

constexpr auto kFp32 = grouped_mode<kPortCount>(BP_FP32, BP_FP32, BP_NONE);
constexpr auto kBf16 = grouped_mode<kPortCount>(BP_BF16, BP_BF16, BP_NONE);
constexpr auto kFp16 = grouped_mode<kPortCount>(BP_FP16, BP_FP16, BP_NONE);
constexpr auto kMxfp8 = grouped_mode<kPortCount>(BP_E4M3, BP_BF16, BP_E8M0);
constexpr bp_dtype_mode kDtypeModes[] = {
    {"fp32", kFp32.data()}, {"bf16", kBf16.data()}, {"fp16", kFp16.data()}, {"mxfp8", kMxfp8.data()}};

const GroupedForm& form() {
  static const GroupedForm form = {.output = "y",
                                   .row_counts = "recv_counts",
                                   .owner_counts = "send_counts",
                                   .most_experts = 32,
                                   .with_rows = {kGmmY},
                                   .with_experts = {kGmmX, kGmmXScale}};
  return form;
}

bp_status validate(const bp_problem* problem, char* error, size_t error_size) {
  const std::string wrong = grouped_problem_error(problem, form());
  return wrong.empty() ? BP_OK : bp_fail(error, error_size, BP_INVALID, "%s", wrong.c_str());
}

bp_status infer_shapes(const bp_problem* problem, bp_tensor* tensors, char* error, size_t error_size) {
  return grouped_shapes(problem, form(), tensors, error, error_size);
}

size_t locate(const bp_problem* problem, int64_t row, bp_location* places, size_t capacity) {
  return grouped_locate(problem, form(), row, places, capacity);
}

// ---- run ----

// [products by expert][products by rank][products of this rank's rows] of one dtype.
struct Workspace {
  std::size_t landed = 0;
  std::size_t own = 0;
  std::size_t bytes() const { return 2 * landed + own; }
};

Workspace workspace_layout(const bp_problem* problem, bp_dtype dtype) {
  const Result<Routing> routing = grouped_routing(problem, form());
  if (!routing) return {};
  const std::size_t line = dtype_bytes(dtype, bp_axis_value(problem, "N"));
  return {grouped_buffer(routing->most_received(), line), grouped_buffer(bp_axis_value(problem, "M"), line)};
}

size_t workspace_size(const bp_implementation* /*implementation*/, const bp_problem* problem, int32_t /*rank*/) {
  return workspace_layout(problem, problem->dtypes[kGmmY]).bytes();
}

struct Local {
  Routing routing;
  GroupedLinear grouped;
  bp_tensor c = {};
};

Result<void> describe(const bp_context* context, const bp_tensor* tensors, bp_dtype dtype, char* memory, Local* local) {
  Result<Routing> routing = grouped_routing(context->problem, form());
  if (!routing) return tl::unexpected<Error>(routing.error());
  local->routing = *std::move(routing);
  local->c = dense_matrix(memory, dtype, local->routing.most_received(), tensors[kGmmWeight].shape[2]);
  GroupedLinear& grouped = local->grouped;
  grouped.scaling = grouped_scaling(context->problem->dtypes);
  grouped.x = &tensors[kGmmX];
  grouped.w = &tensors[kGmmWeight];
  grouped.y = &local->c;
  grouped.routing = &local->routing;
  grouped.owner = context->rank;
  if (grouped.scaling == Scaling::mx) {
    grouped.x_scale = &tensors[kGmmXScale];
    grouped.w_scale = &tensors[kGmmWeightScale];
  }
  return {};
}

// Products back to the ranks of their rows, and into y.
Result<void> return_rows(const bp_context* context, const Local& local, char* memory, const bp_tensor& y) {
  const Workspace layout = workspace_layout(context->problem, local.c.dtype);
  const std::size_t line = dtype_bytes(local.c.dtype, local.c.shape[1]);
  const RowBuffer own = {memory + 2 * layout.landed, line};
  const Result<void> done =
      rows_from_experts(context, local.routing, "the products", {memory, line}, {memory + layout.landed, line}, own);
  if (!done) return done;
  for (std::int64_t i = 0; i < local.routing.sent(context->rank); ++i)
    std::memcpy(static_cast<char*>(y.data) + dtype_bytes(y.dtype, i * y.stride[0]), own.row(i), line);
  return {};
}

Result<void> check_y(const bp_context* context, const bp_tensor& y) {
  if (y.memory != BP_MEMORY_HOST) {
    return fail(Error::Kind::environment, "y must lie in host memory for a CPU implementation");
  }
  const bool fits = y.ndim == 2 && y.shape[0] == bp_axis_value(context->problem, "M") &&
                    y.shape[1] == bp_axis_value(context->problem, "N") && (y.shape[1] <= 1 || y.stride[1] == 1);
  if (!fits) return fail(Error::Kind::usage, "y must have the shape (M, N) and contiguous columns");
  return {};
}

Result<void> multiply_and_exchange(const bp_context* context, const bp_tensor* tensors) {
  const bp_dtype dtype = tensors[kGmmY].dtype;
  if (context->workspace_bytes < workspace_layout(context->problem, dtype).bytes()) {
    return fail(Error::Kind::usage, "the workspace is too small");
  }
  char* workspace = static_cast<char*>(context->workspace);
  // Everything is checked before the first rank communicates.
  if (const Result<void> fits = check_y(context, tensors[kGmmY]); !fits) return fits;
  Local local;
  if (const Result<void> done = describe(context, tensors, dtype, workspace, &local); !done) return done;
  if (const Result<void> fits = check_grouped_linear(local.grouped); !fits) return fits;
  if (const Result<void> fits = check_shared_expert(context, tensors); !fits) return fits;
  const GroupedPlan& plan = grouped_plan(context->implementation);
  Result<void> done = grouped_linear(local.grouped, plan, *context->implementation, context->threads);
  if (done) done = return_rows(context, local, workspace, tensors[kGmmY]);
  return done ? shared_expert(context, tensors, plan) : done;
}

bp_status run(const bp_context* context, const bp_tensor* tensors) {
  if (const bp_status refused = begin_run(context); refused != BP_OK) return refused;
  return operator_call(context, [&] { return multiply_and_exchange(context, tensors); });
}

bp_status reference(const bp_context* context, const bp_tensor* tensors) {
  return operator_call(context, [&]() -> Result<void> {
    std::vector<double> memory(workspace_layout(context->problem, BP_FP64).bytes() / sizeof(double));
    char* bytes = reinterpret_cast<char*>(memory.data());
    Local local;
    if (const Result<void> done = describe(context, tensors, BP_FP64, bytes, &local); !done) return done;
    if (const Result<void> done = grouped_linear_reference(local.grouped); !done) return done;
    if (const Result<void> done = return_rows(context, local, bytes, tensors[kGmmY]); !done) return done;
    return shared_expert_reference(context, tensors);
  });
}

uint32_t promises(const bp_implementation* implementation, const bp_problem* /*problem*/, const bp_device* device) {
  return grouped_promises(implementation, device);
}

const bp_operator kOperator = operator_table(
    {.name = "grouped_matmul_alltoallv",
     .summary = "y = all_to_all_v(gmm_x . gmm_weight of each row's expert); mm_y = mm_x . mm_weight",
     .rows = "W * M",
     .aliases = "GroupedMatMulAlltoAllv, GroupedMatmulAlltoAllv, QuantGroupedMatMulAlltoAllv, "
                "QuantGroupedMatMulAlltoAllvV2",
     .ignored_attrs = kGroupedIgnoredAttrs},
    BP_OP_THREAD_SAFE, kPorts, kGroupedAxes, kGroupedAttrs, kDtypeModes, kGroupedImplementations, kGroupedThresholds,
    {.validate = validate,
     .workspace_size = workspace_size,
     .run = run,
     .reference = reference,
     .promises = promises,
     .infer_shapes = infer_shapes,
     .locate = locate});

BATCHPROOF_REGISTER(kOperator);

}  // namespace
}  // namespace batchproof
