// SPDX-License-Identifier: Apache-2.0
//
// alltoall_matmul: the columns of x1 are divided over ranks; every rank gathers the whole rows that it owns and
// multiplies them by its own weights.
//   all2all_out(M / W, W * K) on rank r = rows [r * M / W, (r + 1) * M / W) of x1, slices of all ranks side by side
//   y(M / W, N)               = all2all_out . x2 + bias, scales of quantised inputs applied
// Modes with dynamic per-token scales quantise a gathered row by its own largest magnitude: row-local.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "batchproof/operator.h"
#include "batchproof/problem.h"
#include "batchproof/registry.h"
#include "src/kernels/cpu/elements.h"
#include "src/kernels/cpu/linear_controls.h"
#include "src/kernels/cpu/linear_ports.h"
#include "src/kernels/cpu/scaled_linear.h"
#include "src/kernels/cpu/scaled_operand.h"
#include "src/numeric/divide.h"
#include "src/numeric/dtype.h"
#include "src/runtime/operator_table.h"

namespace batchproof {
namespace {

enum Port : std::uint32_t {
  kX1,
  kX2,
  kBias,
  kY,
  kAll2AllOut,
  kX1Scale,  // MX
  kX2Scale,  // per channel
  kX2ScaleMx,
  kPortCount
};

constexpr bp_port whole_k(bp_port port, const char* shape) {
  port.shape = shape;
  return port;
}

// Rows are quantised to the dtype of x2: INT8 weights make every sum exact.
constexpr bp_port whole_x2() {
  bp_port port = whole_k(x2_port(BP_PER_RANK, "weight"), "W * K, N");
  port.order_exact_dtypes = BP_DTYPE_BIT(BP_INT8);
  return port;
}

// Data movement: exact for every dtype.
constexpr bp_port all2all_out_port() {
  bp_port port =
      sharded(row_port("all2all_out", BP_OUTPUT, "M / W, W * K", BP_SHARDED, kLinearInputs, "alltoAllOut"), 0);
  port.reduction_axes = 1u << 1;
  port.reduction_group = "K";
  port.order_exact_dtypes = kLinearInputs;
  port.flags = BP_PORT_OPTIONAL;
  return port;
}

constexpr bp_port kPorts[kPortCount] = {
    sharded(x1_port(BP_SHARDED, "x, input"), 1),
    whole_x2(),
    bias_port(BP_PER_RANK, "biasOptional"),
    sharded(row_port("y", BP_OUTPUT, "M / W, N", BP_SHARDED, kLinearFloats, "output, out"), 0),
    all2all_out_port(),
    x1_scale_mx({BP_SHARDED, 1}),
    x2_scale_channel(BP_PER_RANK),
    whole_k(x2_scale_mx(BP_PER_RANK), "ceil_div(W * K, 64), N, 2")};

constexpr bp_axis_decl kAxes[] = {
    {"M", "rows of x1, and of y over all ranks"}, {"K", "columns of x1 on one rank"}, {"N", "columns of x2"}};
constexpr bp_attr_decl kAttrs[] = {
    {"transpose_x2", BP_ATTR_BOOL, "false", "x2 is stored as (N, W * K) and passed as a transposed view"},
    {"bias_after_scale", BP_ATTR_BOOL, "false", "per-token scales: scale * sum + bias, not scale * (sum + bias)"},
    {"strict_limits", BP_ATTR_BOOL, "false", "accept only what AlltoAllMatmulV2 documents"}};
constexpr const char* kIgnoredAttrs =
    "group, hcom, rank_size, world_size, comm_mode, allto_all_axes_optional, alltoAllAxesOptional, x1_quant_mode, "
    "x2_quant_mode, comm_quant_mode, comm_quant_dtype, group_size";

// x1, x2, bias, y, all2all_out, x1_scale (MX), x2_scale (per channel, MX). x1 in bf16 with quantised x2: dynamic.
constexpr bp_dtype kFp32Mode[kPortCount] = {BP_FP32, BP_FP32, BP_FP32, BP_FP32, BP_FP32};
constexpr bp_dtype kBf16Mode[kPortCount] = {BP_BF16, BP_BF16, BP_FP32, BP_BF16, BP_BF16};
constexpr bp_dtype kFp16Mode[kPortCount] = {BP_FP16, BP_FP16, BP_FP16, BP_FP16, BP_FP16};
constexpr bp_dtype kMxfp8Mode[kPortCount] = {BP_E4M3, BP_E4M3, BP_FP32, BP_BF16, BP_E4M3, BP_E8M0, BP_NONE, BP_E8M0};
constexpr bp_dtype kFp8DynamicMode[kPortCount] = {BP_BF16, BP_E4M3, BP_FP32, BP_BF16, BP_BF16, BP_NONE, BP_FP32};
constexpr bp_dtype kInt8DynamicMode[kPortCount] = {BP_BF16, BP_INT8, BP_FP32, BP_BF16, BP_BF16, BP_NONE, BP_FP32};
constexpr bp_dtype_mode kDtypeModes[] = {{"fp32", kFp32Mode},
                                         {"bf16", kBf16Mode},
                                         {"fp16", kFp16Mode},
                                         {"mxfp8", kMxfp8Mode},
                                         {"fp8_dynamic", kFp8DynamicMode},
                                         {"int8_dynamic", kInt8DynamicMode}};

// ---- implementations ----

struct Plan {
  std::int64_t segment = kGemmSegment;
  LinearDefect defect = LinearDefect::none;
  bool starts_at_own_rank = false;  // control: the K walk begins with the slice that needed no transfer
  bool batch_dynamic = false;       // control: one dynamic scale for all rows of a rank
};
constexpr Plan kChain = {};
constexpr Plan kFast = {};
constexpr Plan kWitness = {2};
constexpr Plan kChunkFollowsRows = {kGemmSegment, LinearDefect::chunk_follows_rows};
constexpr Plan kZeroNanLeak = {kGemmSegment, LinearDefect::zero_nan_leak};
constexpr Plan kOwnFirst = {kGemmSegment, LinearDefect::none, true};
constexpr Plan kBatchDynamic = {kGemmSegment, LinearDefect::none, false, true};

constexpr const char* kWitnessId = "cpu-fp32fma-chain2";
constexpr bp_implementation control(const char* id, const char* defect, const Plan& plan,
                                    const char* witness = kWitnessId) {
  return {id, "a deliberately variant all-to-all and product", defect, BP_MODE_INVARIANT, 0, witness, &plan};
}
constexpr bp_implementation kImplementations[] = {
    {"cpu-fp32fma-chain256", "the exchange, then FP32 FMA, segments of 256 along W * K merged in order", nullptr,
     BP_MODE_INVARIANT, 0, kWitnessId, &kChain},
    {"cpu-fast", "segment length chosen from M: not batch invariant", nullptr, BP_MODE_FAST, 0, kWitnessId, &kFast},
    control("control-d-chunk-follows-rows",
            "the K block shrinks as M * N grows: 2048 up to 8192, 1024 up to 32768, ...", kChunkFollowsRows),
    control("control-k-starts-at-own-rank", "a rank sums the slices of K from its own one on", kOwnFirst),
    control("control-batch-dynamic-scale", "one dynamic scale for all rows of a rank", kBatchDynamic, nullptr),
    control("control-zero-nan-leak", "an unmasked tail adds 0 * (element of the next row)", kZeroNanLeak),
    {kWitnessId, "as chain256 with segments of 2", nullptr, BP_MODE_INVARIANT, BP_IMPL_WITNESS, nullptr, &kWitness}};
constexpr std::int64_t kThresholds[] = {13, 129};

const Plan& plan_of(const bp_implementation* implementation) { return *static_cast<const Plan*>(implementation->data); }

// ---- validate ----

bool is_dynamic(const bp_dtype* dtypes) { return dtypes[kX2Scale] != BP_NONE; }

Scaling scaling_of(const bp_dtype* dtypes) {
  if (is_dynamic(dtypes)) return Scaling::token_channel;
  return dtypes[kX1Scale] != BP_NONE || dtypes[kX2ScaleMx] != BP_NONE ? Scaling::mx : Scaling::none;
}

// What AlltoAllMatmulV2 and AlltoAllQuantMatmulV2 document (CANN ops-transformer, mc2/allto_all_matmul/docs).
std::string strict_error(const bp_problem* problem) {
  const std::int64_t k = problem->world * bp_axis_value(problem, "K");
  if (k > 65535) return fmt::format("W * K = {} is outside the strict limits; it must be 1 to 65535", k);
  constexpr std::array<int, 4> kWorlds = {2, 4, 8, 16};
  if (std::find(kWorlds.begin(), kWorlds.end(), problem->world) == kWorlds.end()) {
    return fmt::format("W = {} is outside the strict limits; it must be 2, 4, 8 or 16", problem->world);
  }
  const bp_dtype* dtypes = problem->dtypes;
  if (dtypes[kX1] == BP_FP32) return "x1 has the dtype fp32; under strict_limits it must be bf16 or fp16";
  if (scaling_of(dtypes) == Scaling::none && dtypes[kY] != dtypes[kX1]) {
    return fmt::format("y has the dtype {}; under strict_limits it must be that of x1, {}", dtype_name(dtypes[kY]),
                       dtype_name(dtypes[kX1]));
  }
  if (dtypes[kX1] == BP_FP16 && dtypes[kBias] == BP_FP32 && !is_dynamic(dtypes)) {
    return "bias has the dtype fp32; under strict_limits it must be fp16 with fp16";
  }
  if (scaling_of(dtypes) == Scaling::mx && bp_attr_int(problem, "transpose_x2") == 0) {
    return "MX scaling under strict_limits takes x2 transposed; set transpose_x2";
  }
  return "";
}

std::string problem_error(const bp_problem* problem) {
  if (problem->world < 1) return fmt::format("W = {} is out of range; it must be at least 1", problem->world);
  for (const auto& [name, least] : {std::pair("M", 0), std::pair("K", 1), std::pair("N", 1)}) {
    if (std::string wrong = extent_error(name, bp_axis_value(problem, name), least); !wrong.empty()) return wrong;
  }
  const std::int64_t m = bp_axis_value(problem, "M");
  const std::int64_t k = bp_axis_value(problem, "K");
  if (m % problem->world != 0) {
    return fmt::format("M = {} must be a multiple of W = {}: every rank keeps M / W rows", m, problem->world);
  }
  if (std::string wrong = extent_error("W * K", problem->world * k, 1); !wrong.empty()) return wrong;
  const bp_dtype* dtypes = problem->dtypes;
  const Scaling scaling = scaling_of(dtypes);
  if (is_dynamic(dtypes) && dtypes[kX1] != BP_BF16 && dtypes[kX1] != BP_FP16) {
    return fmt::format("x1 has the dtype {}; with dynamic scales it must be bf16 or fp16", dtype_name(dtypes[kX1]));
  }
  // Dynamic: the product sees the codes, in the dtype of x2.
  const ScaledDtypes of_product = {
      {is_dynamic(dtypes) ? dtypes[kX2] : dtypes[kX1], dtypes[kX2], dtypes[kBias], dtypes[kY]},
      scaling == Scaling::mx ? dtypes[kX1Scale] : bp_dtype{BP_FP32},
      scaling == Scaling::mx ? dtypes[kX2ScaleMx] : dtypes[kX2Scale]};
  if (std::string wrong = scaled_dtype_error(scaling, of_product); !wrong.empty()) return wrong;
  if (scaling == Scaling::mx && problem->world > 1 && k % (2 * kMxBlock) != 0) {
    return fmt::format("K = {} must be a multiple of 64: scales may not cross ranks", k);
  }
  if (dtypes[kX2] == BP_INT8 && problem->world * k > kInt8LongestK) {
    return fmt::format("W * K = {} is out of range; an INT32 accumulator holds {}", problem->world * k, kInt8LongestK);
  }
  if (dtypes[kAll2AllOut] != BP_NONE && dtypes[kAll2AllOut] != dtypes[kX1]) {
    return fmt::format("all2all_out has the dtype {}; it must be that of x1, {}", dtype_name(dtypes[kAll2AllOut]),
                       dtype_name(dtypes[kX1]));
  }
  return bp_attr_int(problem, "strict_limits") != 0 ? strict_error(problem) : "";
}

bp_status validate(const bp_problem* problem, char* error, size_t error_size) {
  const std::string wrong = problem_error(problem);
  return wrong.empty() ? BP_OK : bp_fail(error, error_size, BP_INVALID, "%s", wrong.c_str());
}

// ---- run ----

// Workspace: [x1, dense][received slices][rows (M / W, W * K)], the same for the scales, [codes of the rows][their
// scales].
struct Workspace {
  std::size_t slices = 0;  // bytes of one copy of x1
  std::size_t scales = 0;  // bytes of one copy of x1_scale
  std::size_t codes = 0;
  std::size_t row_scales = 0;
  std::size_t bytes() const { return 3 * slices + 3 * scales + codes + row_scales; }
};

Workspace workspace_layout(const bp_problem* problem) {
  constexpr std::size_t kAlign = 64;
  const auto round = [](std::size_t bytes) { return align_up(bytes, kAlign); };
  const std::int64_t m = bp_axis_value(problem, "M");
  const std::int64_t k = bp_axis_value(problem, "K");
  Workspace out;
  out.slices = round(dtype_bytes(problem->dtypes[kX1], m * k));
  if (problem->dtypes[kX1Scale] != BP_NONE) {
    out.scales = round(static_cast<std::size_t>(m * blocks_of(k, 2 * kMxBlock) * 2));
  }
  if (is_dynamic(problem->dtypes)) {
    out.codes = round(static_cast<std::size_t>(m * k));
    out.row_scales = round(static_cast<std::size_t>(m / problem->world) * sizeof(float));
  }
  return out;
}

size_t workspace_size(const bp_implementation* /*implementation*/, const bp_problem* problem, int32_t /*rank*/) {
  return workspace_layout(problem).bytes();
}

// Rows of this rank from the slices of all ranks. `from` is (M, width) with any row stride and contiguous columns; `to`
// becomes (M / W, W * width).
Result<void> gather_rows(const bp_context* context, const char* what, const bp_tensor& from, std::int64_t width,
                         char* dense, char* received, void* to) {
  const std::size_t line = dtype_bytes(from.dtype, width);
  const std::int64_t m = from.shape[0];
  const std::int64_t own = m / context->world;
  if (m == 0) return {};
  for (std::int64_t i = 0; i < m; ++i)
    std::memcpy(dense + static_cast<std::size_t>(i) * line,
                static_cast<const char*>(from.data) + dtype_bytes(from.dtype, i * from.stride[0]), line);
  const bp_status status =
      context->comm->all_to_all(context->comm, dense, received, static_cast<std::size_t>(own) * line, context->stream);
  if (status != BP_OK) {
    return fail(Error::Kind::operation, fmt::format("rank {}: the all-to-all of {} failed", context->rank, what));
  }
  for (std::int64_t s = 0; s < context->world; ++s) {
    for (std::int64_t t = 0; t < own; ++t)
      std::memcpy(static_cast<char*>(to) + static_cast<std::size_t>(t * context->world + s) * line,
                  received + static_cast<std::size_t>(s * own + t) * line, line);
  }
  return {};
}

// Codes of `rows` in `dtype` and the scale of each row: its largest magnitude over the largest code. A row of zeros has
// the scale 1; a row with a NaN has the scale NaN. `shared`: one scale for all rows.
void quantise_rows(const bp_tensor& rows, bp_dtype dtype, bool shared, void* codes, float* scales) {
  const auto largest_code = static_cast<float>(largest_value(dtype));
  const std::int64_t k = rows.shape[1];
  const auto element = [&](std::int64_t i, std::int64_t j) { return read_float(rows.data, i * k + j, rows.dtype); };
  float of_all = 0.0f;
  for (std::int64_t i = 0; i < rows.shape[0]; ++i) {
    float largest = 0.0f;
    for (std::int64_t j = 0; j < k; ++j) {
      const float magnitude = std::fabs(element(i, j));
      if (!(magnitude <= largest)) largest = magnitude;
    }
    scales[i] = largest;
    if (!(largest <= of_all)) of_all = largest;
  }
  for (std::int64_t i = 0; i < rows.shape[0]; ++i) {
    const float largest = shared ? of_all : scales[i];
    scales[i] = largest == 0.0f ? 1.0f : largest / largest_code;
    for (std::int64_t j = 0; j < k; ++j) {
      const float code = element(i, j) / scales[i];
      encode_element(dtype, static_cast<double>(code), codes, i * k + j);
    }
  }
}

// The product on gathered rows; `memory` as workspace_layout.
struct Gathered {
  ScaledLinear linear;
  bp_tensor rows = {}, codes = {}, x_scale = {};
};

void describe(const bp_context* context, const bp_tensor* tensors, char* memory, Gathered* out) {
  const bp_dtype* dtypes = context->problem->dtypes;
  const Workspace layout = workspace_layout(context->problem);
  const std::int64_t m = tensors[kX1].shape[0] / context->world;
  const std::int64_t k = tensors[kX1].shape[1] * context->world;
  void* rows = dtypes[kAll2AllOut] != BP_NONE && tensors[kAll2AllOut].dtype == dtypes[kX1] ? tensors[kAll2AllOut].data
                                                                                           : memory + 2 * layout.slices;
  out->rows = dense_matrix(rows, dtypes[kX1], m, k);
  char* after_slices = memory + 3 * layout.slices;
  char* codes = after_slices + 3 * layout.scales;
  ScaledLinear& linear = out->linear;
  linear.scaling = scaling_of(dtypes);
  linear.x = &out->rows;
  linear.w = &tensors[kX2];
  linear.bias = tensors[kBias].dtype == BP_NONE ? nullptr : &tensors[kBias];
  linear.y = &tensors[kY];
  linear.bias_after_scale = bp_attr_int(context->problem, "bias_after_scale") != 0;
  if (linear.scaling == Scaling::mx) {
    out->x_scale = dense_matrix(after_slices + 2 * layout.scales, BP_E8M0, m, k / (2 * kMxBlock));
    out->x_scale.ndim = 3;
    out->x_scale.shape[1] = blocks_of(k, 2 * kMxBlock);
    out->x_scale.shape[2] = 2;
    out->x_scale.stride[0] = out->x_scale.shape[1] * 2;
    out->x_scale.stride[1] = 2;
    out->x_scale.stride[2] = 1;
    linear.x_scale = &out->x_scale;
    linear.w_scale = &tensors[kX2ScaleMx];
  }
  if (is_dynamic(dtypes)) {
    out->codes = dense_matrix(codes, dtypes[kX2], m, k);
    out->x_scale = dense_matrix(codes + layout.codes, BP_FP32, m, 1);
    linear.x = &out->codes;
    linear.x_scale = &out->x_scale;
    linear.w_scale = &tensors[kX2Scale];
  }
}

Result<void> check_tensors(const bp_tensor* tensors) {
  for (const auto& [port, name] : {std::pair(kX1, "x1"), std::pair(kX1Scale, "x1_scale"), std::pair(kY, "y")}) {
    const bp_tensor& tensor = tensors[port];
    if (tensor.dtype == BP_NONE) continue;
    if (tensor.memory != BP_MEMORY_HOST) {
      return fail(Error::Kind::environment, fmt::format("{} must lie in host memory for a CPU implementation", name));
    }
    if (tensor.shape[tensor.ndim - 1] > 1 && tensor.stride[tensor.ndim - 1] != 1) {
      return fail(Error::Kind::usage, fmt::format("the columns of {} must be contiguous", name));
    }
  }
  const bp_tensor& out = tensors[kAll2AllOut];
  if (out.dtype != BP_NONE && out.shape[0] > 1 && out.stride[0] != out.shape[1]) {
    return fail(Error::Kind::usage, "all2all_out must be contiguous");
  }
  return {};
}

Result<void> gather(const bp_context* context, const bp_tensor* tensors, char* memory, bool shared_scale,
                    Gathered* gathered) {
  const Workspace layout = workspace_layout(context->problem);
  const bp_tensor& x1 = tensors[kX1];
  if (gathered->linear.scaling == Scaling::mx) {
    const bp_tensor& scale = tensors[kX1Scale];
    char* scales = memory + 3 * layout.slices;
    const Result<void> done = gather_rows(context, "x1_scale", scale, scale.shape[1] * 2, scales,
                                          scales + layout.scales, gathered->x_scale.data);
    if (!done) return done;
  }
  const Result<void> done =
      gather_rows(context, "x1", x1, x1.shape[1], memory, memory + layout.slices, gathered->rows.data);
  if (!done) return done;
  if (is_dynamic(context->problem->dtypes)) {
    quantise_rows(gathered->rows, gathered->codes.dtype, shared_scale, gathered->codes.data,
                  static_cast<float*>(gathered->x_scale.data));
  }
  return {};
}

// Slices of K in the order own rank, next rank, ...
Result<void> multiply_from_own_rank(const bp_context* context, const GemmCall& call) {
  const std::int64_t slice = call.k / context->world;
  std::vector<std::int64_t> order;
  for (std::int64_t step = 0; step < context->world; ++step) order.push_back((context->rank + step) % context->world);
  return gemm_in_order(call, slice, order, context->threads);
}

Result<void> exchange_and_multiply(const bp_context* context, const bp_tensor* tensors) {
  if (const Result<void> fits = check_tensors(tensors); !fits) return fits;
  if (context->workspace_bytes < workspace_layout(context->problem).bytes()) {
    return fail(Error::Kind::usage, "the workspace is too small");
  }
  char* workspace = static_cast<char*>(context->workspace);
  Gathered gathered;
  describe(context, tensors, workspace, &gathered);
  if (const Result<void> fits = check_scaled_linear(gathered.linear); !fits) return fits;
  const Plan& plan = plan_of(context->implementation);
  if (const Result<void> done = gather(context, tensors, workspace, plan.batch_dynamic, &gathered); !done) return done;
  const bool fast = context->implementation->mode == BP_MODE_FAST;
  const LinearSchedule order = {fast ? fast_segment(gathered.rows.shape[0], gathered.rows.shape[1]) : plan.segment, 0};
  const Product product = [&](const GemmCall& call, const LinearSchedule& schedule) -> Result<void> {
    if (plan.starts_at_own_rank && call.k % context->world == 0) return multiply_from_own_rank(context, call);
    if (plan.defect == LinearDefect::none) return run_scheduled(call, schedule, context->threads);
    return run_linear_control(plan.defect, {call, context->threads, context->rank, context->mode, nullptr});
  };
  return scaled_linear(gathered.linear, order, context->threads, product);
}

bp_status run(const bp_context* context, const bp_tensor* tensors) {
  if (const bp_status refused = begin_run(context); refused != BP_OK) return refused;
  return operator_call(context, [&] { return exchange_and_multiply(context, tensors); });
}

bp_status reference(const bp_context* context, const bp_tensor* tensors) {
  return operator_call(context, [&]() -> Result<void> {
    std::vector<char> memory(workspace_layout(context->problem).bytes());
    Gathered gathered;
    describe(context, tensors, memory.data(), &gathered);
    if (const Result<void> done = gather(context, tensors, memory.data(), false, &gathered); !done) return done;
    const bp_tensor& out = tensors[kAll2AllOut];
    for (std::int64_t i = 0; out.dtype != BP_NONE && i < gathered.rows.shape[0] * gathered.rows.shape[1]; ++i)
      static_cast<double*>(out.data)[i] = decode_element(gathered.rows.dtype, gathered.rows.data, i);
    return scaled_linear_reference(gathered.linear);
  });
}

uint32_t promises(const bp_implementation* implementation, const bp_problem* /*problem*/, const bp_device* device) {
  return gathered_promises(implementation, device);
}

const bp_operator kOperator = operator_table(
    {.name = "alltoall_matmul",
     .summary = "y = all_to_all(x1) . x2 + bias",
     .aliases = "AlltoAllMatmul, AlltoAllMatmulV2, AlltoAllQuantMatmul, AlltoAllQuantMatmulV2",
     .ignored_attrs = kIgnoredAttrs},
    BP_OP_THREAD_SAFE, kPorts, kAxes, kAttrs, kDtypeModes, kImplementations, kThresholds,
    {.validate = validate, .workspace_size = workspace_size, .run = run, .reference = reference, .promises = promises});

BATCHPROOF_REGISTER(kOperator);

}  // namespace
}  // namespace batchproof
