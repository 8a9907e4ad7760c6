// SPDX-License-Identifier: Apache-2.0
//
// alltoallv_grouped_matmul: rows go to the ranks of their experts, and every expert multiplies the rows that it got.
//   permute_out on rank d = rows of all ranks that chose an expert of rank d: by expert, then by rank, then by row
//   gmm_y                 = permute_out[rows of expert j] . gmm_weight[j]
//   mm_y                  = mm_x . mm_weight          the shared expert, which takes no part in the exchange
// gmm_x holds a rank's rows by ascending expert. Which expert a row chose is in the attributes (src/kernels/routing.h).
#include <vector>

#include "batchproof/operator.h"
#include "batchproof/problem.h"
#include "batchproof/registry.h"
#include "src/kernels/cpu/grouped_ports.h"
#include "src/kernels/cpu/scaled_operand.h"
#include "src/numeric/dtype.h"
#include "src/runtime/operator_table.h"

namespace batchproof {
namespace {

enum Port : std::uint32_t { kPermuteOut = kGroupedPorts, kPortCount };

// Data movement: exact for every dtype.
constexpr bp_port permute_out_port() {
  bp_port port = grouped_rows("permute_out", BP_OUTPUT, "M, K", "permuteOut, permuteOutOptional");
  port.dtypes = kGroupedInputs;
  port.order_exact_dtypes = kGroupedInputs;
  port.reduction_axes = 1u << 1;
  port.reduction_group = "K";
  port.flags = BP_PORT_OPTIONAL;
  return port;
}

constexpr bp_port kPorts[kPortCount] = {
    grouped_rows("gmm_x", BP_ROW_INPUT, "M, K", "gmmX"),
    gmm_weight_port(),
    grouped_rows("gmm_y", BP_OUTPUT, "M, N", "gmmY"),
    mm_x_port(),
    mm_weight_port(),
    grouped_optional(grouped_rows("mm_y", BP_OUTPUT, "M / TOPK, N2", "mmY")),
    grouped_row_scale("gmm_x_scale", "gmm_x", "M, ceil_div(K, 64), 2", "K", "gmmXScale"),
    gmm_weight_scale_port(),
    grouped_row_scale("mm_x_scale", "mm_x", "M / TOPK, ceil_div(K2, 64), 2", "K2", "mmXScale"),
    mm_weight_scale_port(),
    permute_out_port()};

constexpr auto kFp32 = grouped_mode<kPortCount>(BP_FP32, BP_FP32, BP_NONE);
constexpr auto kBf16 = grouped_mode<kPortCount>(BP_BF16, BP_BF16, BP_NONE);
constexpr auto kFp16 = grouped_mode<kPortCount>(BP_FP16, BP_FP16, BP_NONE);
constexpr auto kMxfp8 = grouped_mode<kPortCount>(BP_E4M3, BP_BF16, BP_E8M0);
constexpr bp_dtype_mode kDtypeModes[] = {
    {"fp32", kFp32.data()}, {"bf16", kBf16.data()}, {"fp16", kFp16.data()}, {"mxfp8", kMxfp8.data()}};

const GroupedForm& form() {
  static const GroupedForm form = {.output = "gmm_y",
                                   .row_counts = "send_counts",
                                   .owner_counts = "recv_counts",
                                   .most_experts = 48,
                                   .with_rows = {kGmmX, kGmmXScale},
                                   .with_experts = {kGmmY, kPermuteOut}};
  return form;
}

bp_status validate(const bp_problem* problem, char* error, size_t error_size) {
  std::string wrong = grouped_problem_error(problem, form());
  const bp_dtype moved = problem->dtypes[kPermuteOut];
  if (wrong.empty() && moved != BP_NONE && moved != problem->dtypes[kGmmX]) {
    wrong = std::string("permute_out has the dtype ") + dtype_name(moved) + "; it must be that of gmm_x, " +
            dtype_name(problem->dtypes[kGmmX]);
  }
  return wrong.empty() ? BP_OK : bp_fail(error, error_size, BP_INVALID, "%s", wrong.c_str());
}

bp_status infer_shapes(const bp_problem* problem, bp_tensor* tensors, char* error, size_t error_size) {
  return grouped_shapes(problem, form(), tensors, error, error_size);
}

size_t locate(const bp_problem* problem, int64_t row, bp_location* places, size_t capacity) {
  return grouped_locate(problem, form(), row, places, capacity);
}

// ---- run ----

// [own rows without gaps][received, by rank][received, by expert], then the same for the scales.
struct Workspace {
  std::size_t own = 0, landed = 0, own_scales = 0, landed_scales = 0;
  std::size_t bytes() const { return own + 2 * landed + own_scales + 2 * landed_scales; }
};

Workspace workspace_layout(const bp_problem* problem) {
  const Result<Routing> routing = grouped_routing(problem, form());
  if (!routing) return {};
  const std::int64_t k = bp_axis_value(problem, "K");
  const std::int64_t rows = bp_axis_value(problem, "M");
  const std::int64_t most = routing->most_received();
  const std::size_t line = dtype_bytes(problem->dtypes[kGmmX], k);
  Workspace out = {grouped_buffer(rows, line), grouped_buffer(most, line)};
  if (grouped_scaling(problem->dtypes) == Scaling::mx) {
    const auto scale_line = static_cast<std::size_t>(blocks_of(k, 2 * kMxBlock) * 2);
    out.own_scales = grouped_buffer(rows, scale_line);
    out.landed_scales = grouped_buffer(most, scale_line);
  }
  return out;
}

size_t workspace_size(const bp_implementation* /*implementation*/, const bp_problem* problem, int32_t /*rank*/) {
  return workspace_layout(problem).bytes();
}

// The rows of this rank's experts and their product.
struct Landed {
  Routing routing;
  GroupedLinear grouped;
  bp_tensor x = {}, x_scale = {};
};

Result<void> describe(const bp_context* context, const bp_tensor* tensors, char* memory, bool into_permute_out,
                      Landed* out) {
  const Workspace layout = workspace_layout(context->problem);
  Result<Routing> routing = grouped_routing(context->problem, form());
  if (!routing) return tl::unexpected<Error>(routing.error());
  out->routing = *std::move(routing);
  const bp_tensor& gmm_x = tensors[kGmmX];
  const std::int64_t most = out->routing.most_received();
  void* rows = into_permute_out ? tensors[kPermuteOut].data : memory + layout.own + layout.landed;
  out->x = dense_matrix(rows, gmm_x.dtype, most, gmm_x.shape[1]);
  GroupedLinear& grouped = out->grouped;
  grouped.scaling = grouped_scaling(context->problem->dtypes);
  grouped.x = &out->x;
  grouped.w = &tensors[kGmmWeight];
  grouped.y = &tensors[kGmmY];
  grouped.routing = &out->routing;
  grouped.owner = context->rank;
  if (grouped.scaling == Scaling::mx) {
    const std::int64_t pairs = blocks_of(gmm_x.shape[1], 2 * kMxBlock);
    char* scales = memory + layout.own + 2 * layout.landed + layout.own_scales + layout.landed_scales;
    out->x_scale = dense_matrix(scales, BP_E8M0, most, pairs);
    out->x_scale.ndim = 3;
    out->x_scale.shape[2] = 2;
    out->x_scale.stride[0] = pairs * 2;
    out->x_scale.stride[1] = 2;
    out->x_scale.stride[2] = 1;
    grouped.x_scale = &out->x_scale;
    grouped.w_scale = &tensors[kGmmWeightScale];
  }
  return {};
}

Result<void> bring_rows(const bp_context* context, const bp_tensor* tensors, char* memory, const Landed& landed) {
  const Workspace layout = workspace_layout(context->problem);
  const std::int64_t sent = landed.routing.sent(context->rank);
  const auto bring = [&](const char* name, const bp_tensor& from, char* own, char* between,
                         const bp_tensor& to) -> Result<void> {
    const auto rows = contiguous_rows(name, from, sent, own);
    if (!rows) return tl::unexpected<Error>(rows.error());
    return rows_to_experts(context, landed.routing, name, *rows, {between, rows->line},
                           {static_cast<char*>(to.data), rows->line});
  };
  if (landed.grouped.scaling == Scaling::mx) {
    char* scales = memory + layout.own + 2 * layout.landed;
    const Result<void> done =
        bring("gmm_x_scale", tensors[kGmmXScale], scales, scales + layout.own_scales, landed.x_scale);
    if (!done) return done;
  }
  return bring("gmm_x", tensors[kGmmX], memory, memory + layout.own, landed.x);
}

Result<void> exchange_and_multiply(const bp_context* context, const bp_tensor* tensors) {
  if (context->workspace_bytes < workspace_layout(context->problem).bytes()) {
    return fail(Error::Kind::usage, "the workspace is too small");
  }
  char* workspace = static_cast<char*>(context->workspace);
  const bp_tensor& permute_out = tensors[kPermuteOut];
  const bool moved_is_output = permute_out.dtype != BP_NONE;
  if (moved_is_output && permute_out.shape[0] > 1 && permute_out.stride[0] != permute_out.shape[1]) {
    return fail(Error::Kind::usage, "permute_out must be contiguous");
  }
  // Everything is checked before the first rank communicates.
  Landed landed;
  if (const Result<void> done = describe(context, tensors, workspace, moved_is_output, &landed); !done) return done;
  if (const Result<void> fits = check_grouped_linear(landed.grouped); !fits) return fits;
  if (const Result<void> fits = check_shared_expert(context, tensors); !fits) return fits;
  if (const Result<void> done = bring_rows(context, tensors, workspace, landed); !done) return done;
  const GroupedPlan& plan = grouped_plan(context->implementation);
  const Result<void> done = grouped_linear(landed.grouped, plan, *context->implementation, context->threads);
  return done ? shared_expert(context, tensors, plan) : done;
}

bp_status run(const bp_context* context, const bp_tensor* tensors) {
  if (const bp_status refused = begin_run(context); refused != BP_OK) return refused;
  return operator_call(context, [&] { return exchange_and_multiply(context, tensors); });
}

bp_status reference(const bp_context* context, const bp_tensor* tensors) {
  return operator_call(context, [&]() -> Result<void> {
    std::vector<char> memory(workspace_layout(context->problem).bytes());
    Landed landed;
    if (const Result<void> done = describe(context, tensors, memory.data(), false, &landed); !done) return done;
    if (const Result<void> done = bring_rows(context, tensors, memory.data(), landed); !done) return done;
    const bp_tensor& out = tensors[kPermuteOut];
    const std::int64_t elements = landed.routing.received(context->rank) * landed.x.shape[1];
    for (std::int64_t i = 0; out.dtype != BP_NONE && i < elements; ++i)
      static_cast<double*>(out.data)[i] = decode_element(landed.x.dtype, landed.x.data, i);
    if (const Result<void> done = grouped_linear_reference(landed.grouped); !done) return done;
    return shared_expert_reference(context, tensors);
  });
}

uint32_t promises(const bp_implementation* implementation, const bp_problem* /*problem*/, const bp_device* device) {
  return grouped_promises(implementation, device);
}

const bp_operator kOperator = operator_table(
    {.name = "alltoallv_grouped_matmul",
     .summary = "gmm_y = all_to_all_v(gmm_x) . gmm_weight of each row's expert; mm_y = mm_x . mm_weight",
     .rows = "W * M",
     .aliases = "AlltoAllvGroupedMatMul, AlltoAllvGroupedMatmul, AlltoAllvQuantGroupedMatMul, "
                "AlltoAllvQuantGroupedMatMulV2",
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
