// SPDX-License-Identifier: Apache-2.0
//
// matmul_alltoall: every rank multiplies its own rows and sends column block d of the product to rank d.
//   C = x1 . x2 + bias                       (M, N), scales of quantised inputs applied
//   y on rank d = C of rank 0, C of rank 1, ...: columns [d * N / W, (d + 1) * N / W)    (W * M, N / W)
// No reduction crosses ranks: whatever moves a row's bytes moves them in the product.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "batchproof/operator.h"
#include "batchproof/problem.h"
#include "batchproof/registry.h"
#include "src/kernels/cpu/linear_controls.h"
#include "src/kernels/cpu/linear_ports.h"
#include "src/kernels/cpu/scaled_linear.h"
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
constexpr ScalePorts kScales = {kX1Scale, kX2Scale};

// The documents of this operator write the scales of rows and columns with one axis.
constexpr bp_port one_axis(bp_port port, const char* shape) {
  port.shape = shape;
  return port;
}

constexpr bp_port kPorts[kPortCount] = {
    x1_port(BP_SHARDED, "x, input"),
    x2_port(BP_PER_RANK, "weight"),
    bias_port(BP_PER_RANK, "biasOptional"),
    sharded(row_port("y", BP_OUTPUT, "W * M, N / W", BP_SHARDED, kLinearFloats, "output, out"), 1),
    x1_scale_tensor(BP_PER_RANK),
    one_axis(x1_scale_token({BP_SHARDED, 0}), "M"),
    x1_scale_block({BP_SHARDED, 0}),
    x1_scale_mx({BP_SHARDED, 0}),
    x2_scale_tensor(BP_PER_RANK),
    one_axis(x2_scale_channel(BP_PER_RANK), "N"),
    x2_scale_block(BP_PER_RANK),
    x2_scale_mx(BP_PER_RANK)};

constexpr bp_axis_decl kAxes[] = {
    {"M", "rows of x1 on one rank"}, {"K", "reduction length"}, {"N", "columns of x2, over all ranks of y"}};
constexpr bp_attr_decl kAttrs[] = {
    {"transpose_x2", BP_ATTR_BOOL, "false", "x2 is stored as (N, K) and passed as a transposed view"},
    {"bias_after_scale", BP_ATTR_BOOL, "true", "per-token scales: scale * sum + bias, not scale * (sum + bias)"},
    {"strict_limits", BP_ATTR_BOOL, "false", "accept only what MatmulAlltoAllV2 documents"}};
constexpr const char* kIgnoredAttrs =
    "group, hcom, rank_size, world_size, comm_mode, allto_all_axes_optional, alltoAllAxesOptional, x1_quant_mode, "
    "x2_quant_mode, comm_quant_mode, comm_quant_dtype, group_size, comm_scale_optional, x1_offset_optional, "
    "x2_offset_optional";

using Dtypes = std::array<bp_dtype, kPortCount>;
constexpr Dtypes plain(bp_dtype dtype) { return {dtype, dtype, dtype, dtype}; }
constexpr Dtypes scaled(bp_dtype input, bp_dtype bias, bp_dtype y, Scaling scaling) {
  Dtypes dtypes = {input, input, bias, y};
  const bp_dtype scale = scaling == Scaling::mx ? BP_E8M0 : BP_FP32;
  dtypes[kX1Scale + form_of(scaling)] = scale;
  dtypes[kX2Scale + form_of(scaling)] = scale;
  return dtypes;
}
constexpr Dtypes kFp32Mode = plain(BP_FP32);
constexpr Dtypes kBf16Mode = plain(BP_BF16);
constexpr Dtypes kFp16Mode = plain(BP_FP16);
constexpr Dtypes kMxfp8 = scaled(BP_E4M3, BP_FP32, BP_BF16, Scaling::mx);
constexpr Dtypes kFp8 = scaled(BP_E4M3, BP_FP32, BP_BF16, Scaling::token_channel);
constexpr Dtypes kInt8 = scaled(BP_INT8, BP_FP16, BP_FP16, Scaling::token_channel);
constexpr bp_dtype_mode kDtypeModes[] = {{"fp32", kFp32Mode.data()}, {"bf16", kBf16Mode.data()},
                                         {"fp16", kFp16Mode.data()}, {"mxfp8", kMxfp8.data()},
                                         {"fp8", kFp8.data()},       {"int8", kInt8.data()}};

// ---- implementations ----

struct Plan {
  std::int64_t segment = kGemmSegment;
  LinearDefect defect = LinearDefect::none;
};
constexpr Plan kChain = {};
constexpr Plan kFast = {};
constexpr Plan kWitness = {2};
constexpr Plan kChunkFollowsRows = {kGemmSegment, LinearDefect::chunk_follows_rows};
constexpr Plan kZeroNanLeak = {kGemmSegment, LinearDefect::zero_nan_leak};
constexpr Plan kBatchScale = {kGemmSegment, LinearDefect::batch_scale};

constexpr const char* kWitnessId = "cpu-fp32fma-chain2";
constexpr bp_implementation control(const char* id, const char* defect, const Plan& plan,
                                    const char* witness = kWitnessId) {
  return {id, "a deliberately variant product and all-to-all", defect, BP_MODE_INVARIANT, 0, witness, &plan};
}
constexpr bp_implementation kImplementations[] = {
    {"cpu-fp32fma-chain256", "FP32 FMA, segments of 256 along K merged in order, then the exchange", nullptr,
     BP_MODE_INVARIANT, 0, kWitnessId, &kChain},
    {"cpu-fast", "segment length chosen from M: not batch invariant", nullptr, BP_MODE_FAST, 0, kWitnessId, &kFast},
    control("control-d-chunk-follows-rows",
            "the K block shrinks as M * N grows: 2048 up to 8192, 1024 up to 32768, ...", kChunkFollowsRows),
    control("control-g-batch-scale", "rows are scaled by the largest magnitude of the rank's batch", kBatchScale,
            nullptr),
    control("control-zero-nan-leak", "an unmasked tail adds 0 * (element of the next row)", kZeroNanLeak),
    {kWitnessId, "as chain256 with segments of 2", nullptr, BP_MODE_INVARIANT, BP_IMPL_WITNESS, nullptr, &kWitness}};
constexpr std::int64_t kThresholds[] = {13, 129};

const Plan& plan_of(const bp_implementation* implementation) { return *static_cast<const Plan*>(implementation->data); }

// ---- validate ----

// What MatmulAlltoAllV2 and QuantMatmulAlltoAllV2 document (CANN ops-transformer, mc2/matmul_allto_all/docs).
std::string strict_error(const bp_problem* problem, Scaling scaling) {
  const std::int64_t k = bp_axis_value(problem, "K");
  if (k > 65535) return fmt::format("K = {} is outside the strict limits; it must be 1 to 65535", k);
  constexpr std::array<int, 4> kWorlds = {2, 4, 8, 16};
  if (std::find(kWorlds.begin(), kWorlds.end(), problem->world) == kWorlds.end()) {
    return fmt::format("W = {} is outside the strict limits; it must be 2, 4, 8 or 16", problem->world);
  }
  const bp_dtype* dtypes = problem->dtypes;
  if (dtypes[kX1] == BP_FP32) return "x1 has the dtype fp32; under strict_limits it must be bf16 or fp16";
  if (scaling == Scaling::none && dtypes[kY] != dtypes[kX1]) {
    return fmt::format("y has the dtype {}; under strict_limits it must be that of x1, {}", dtype_name(dtypes[kY]),
                       dtype_name(dtypes[kX1]));
  }
  if (dtypes[kX1] == BP_INT8 && dtypes[kBias] == BP_NONE) return "int8 needs a bias under strict_limits; give bias";
  if (scaling == Scaling::mx && bp_attr_int(problem, "transpose_x2") == 0) {
    return "MX scaling under strict_limits takes x2 transposed; set transpose_x2";
  }
  return "";
}

std::string problem_error(const bp_problem* problem) {
  if (problem->world < 1) return fmt::format("W = {} is out of range; it must be at least 1", problem->world);
  for (const auto& [name, least] : {std::pair("M", 0), std::pair("K", 1), std::pair("N", 1)}) {
    if (std::string wrong = extent_error(name, bp_axis_value(problem, name), least); !wrong.empty()) return wrong;
  }
  const std::int64_t n = bp_axis_value(problem, "N");
  if (n % problem->world != 0) {
    return fmt::format("N = {} must be a multiple of W = {}: every rank gets N / W columns", n, problem->world);
  }
  const bp_dtype* dtypes = problem->dtypes;
  const Scaling scaling = scaling_of(dtypes, kScales);
  if (scaling == Scaling::tensor || scaling == Scaling::block) return "scales are per token and channel, or MX";
  const std::string wrong = scaled_dtype_error(scaling, {{dtypes[kX1], dtypes[kX2], dtypes[kBias], dtypes[kY]},
                                                         scale_dtype(dtypes, kX1Scale, scaling),
                                                         scale_dtype(dtypes, kX2Scale, scaling)});
  if (!wrong.empty()) return wrong;
  if (const std::int64_t k = bp_axis_value(problem, "K"); dtypes[kX1] == BP_INT8 && k > kInt8LongestK) {
    return fmt::format("K = {} is out of range; an INT32 accumulator holds {}", k, kInt8LongestK);
  }
  return bp_attr_int(problem, "strict_limits") != 0 ? strict_error(problem, scaling) : "";
}

bp_status validate(const bp_problem* problem, char* error, size_t error_size) {
  const std::string wrong = problem_error(problem);
  return wrong.empty() ? BP_OK : bp_fail(error, error_size, BP_INVALID, "%s", wrong.c_str());
}

// ---- run: workspace is [product (M, N)][column blocks (W, M, N / W)][received (W * M, N / W)] of y's dtype ----

size_t workspace_size(const bp_implementation* /*implementation*/, const bp_problem* problem, int32_t /*rank*/) {
  const std::int64_t elements = bp_axis_value(problem, "M") * bp_axis_value(problem, "N");
  return 3 * dtype_bytes(problem->dtypes[kY], elements);
}

// (M) as (M, 1), (N) as (1, N).
bp_tensor matrix_scale(const bp_tensor& scale, bool of_rows) {
  if (scale.ndim != 1) return scale;
  bp_tensor matrix = scale;
  matrix.ndim = 2;
  matrix.shape[of_rows ? 0 : 1] = scale.shape[0];
  matrix.shape[of_rows ? 1 : 0] = 1;
  matrix.stride[of_rows ? 0 : 1] = scale.stride[0];
  matrix.stride[of_rows ? 1 : 0] = 1;
  return matrix;
}

struct Local {
  ScaledLinear linear;
  bp_tensor x_scale = {}, w_scale = {}, c = {};
};

// The product of this rank into the dense (M, N) matrix `c`.
void describe(const bp_context* context, const bp_tensor* tensors, bp_dtype dtype, void* c, Local* local) {
  ScaledLinear& linear = local->linear;
  linear.scaling = scaling_of(context->problem->dtypes, kScales);
  linear.x = &tensors[kX1];
  linear.w = &tensors[kX2];
  linear.bias = tensors[kBias].dtype == BP_NONE ? nullptr : &tensors[kBias];
  if (const bp_tensor* scale = scale_tensor(tensors, kX1Scale, linear.scaling)) {
    local->x_scale = matrix_scale(*scale, true);
    linear.x_scale = &local->x_scale;
  }
  if (const bp_tensor* scale = scale_tensor(tensors, kX2Scale, linear.scaling)) {
    local->w_scale = matrix_scale(*scale, false);
    linear.w_scale = &local->w_scale;
  }
  local->c = dense_matrix(c, dtype, tensors[kX1].shape[0], tensors[kX2].shape[1]);
  linear.y = &local->c;
  linear.bias_after_scale = bp_attr_int(context->problem, "bias_after_scale") != 0;
}

// Column block d of c goes to rank d; the blocks of all sources land in y.
Result<void> exchange(const bp_context* context, const bp_tensor& c, char* blocks, char* received, const bp_tensor& y) {
  const std::int64_t world = context->world;
  const std::size_t size = dtype_bytes(c.dtype, 1);
  const std::int64_t width = c.shape[1] / world;
  const std::size_t line = static_cast<std::size_t>(width) * size;
  const char* from = static_cast<const char*>(c.data);
  for (std::int64_t d = 0; d < world; ++d) {
    for (std::int64_t i = 0; i < c.shape[0]; ++i)
      std::memcpy(blocks + static_cast<std::size_t>(d * c.shape[0] + i) * line,
                  from + static_cast<std::size_t>(i * c.shape[1] + d * width) * size, line);
  }
  const std::size_t bytes = static_cast<std::size_t>(c.shape[0]) * line;
  if (bytes > 0) {
    const bp_status status = context->comm->all_to_all(context->comm, blocks, received, bytes, context->stream);
    if (status != BP_OK) {
      return fail(Error::Kind::operation, fmt::format("rank {}: the all-to-all failed", context->rank));
    }
  }
  for (std::int64_t i = 0; i < y.shape[0]; ++i)
    std::memcpy(static_cast<char*>(y.data) + static_cast<std::size_t>(i * y.stride[0]) * size,
                received + static_cast<std::size_t>(i) * line, line);
  return {};
}

Result<void> check_y(const bp_tensor& y) {
  if (y.memory != BP_MEMORY_HOST) {
    return fail(Error::Kind::environment, "y must lie in host memory for a CPU implementation");
  }
  if (y.shape[1] > 1 && y.stride[1] != 1) {
    return fail(Error::Kind::usage, fmt::format("y has the column stride {}; it must be 1", y.stride[1]));
  }
  return {};
}

Result<void> multiply_and_exchange(const bp_context* context, const bp_tensor* tensors) {
  const bp_tensor& y = tensors[kY];
  if (const Result<void> fits = check_y(y); !fits) return fits;
  if (context->workspace_bytes < workspace_size(nullptr, context->problem, context->rank)) {
    return fail(Error::Kind::usage, "the workspace is too small");
  }
  const std::size_t part = workspace_size(nullptr, context->problem, context->rank) / 3;
  char* workspace = static_cast<char*>(context->workspace);
  Local local;
  describe(context, tensors, y.dtype, workspace, &local);
  if (const Result<void> fits = check_scaled_linear(local.linear); !fits) return fits;
  const Plan& plan = plan_of(context->implementation);
  const bool fast = context->implementation->mode == BP_MODE_FAST;
  const LinearSchedule order = {fast ? fast_segment(local.linear.x->shape[0], local.linear.x->shape[1]) : plan.segment,
                                0};
  const Product product = [&](const GemmCall& call, const LinearSchedule& schedule) -> Result<void> {
    if (plan.defect == LinearDefect::none) return run_scheduled(call, schedule, context->threads);
    return run_linear_control(plan.defect, {call, context->threads, context->rank, context->mode, nullptr});
  };
  const Result<void> done = scaled_linear(local.linear, order, context->threads, product);
  if (!done) return done;
  return exchange(context, local.c, workspace + part, workspace + 2 * part, y);
}

bp_status run(const bp_context* context, const bp_tensor* tensors) {
  if (const bp_status refused = begin_run(context); refused != BP_OK) return refused;
  return operator_call(context, [&] { return multiply_and_exchange(context, tensors); });
}

bp_status reference(const bp_context* context, const bp_tensor* tensors) {
  return operator_call(context, [&]() -> Result<void> {
    const auto elements = static_cast<std::size_t>(tensors[kX1].shape[0] * tensors[kX2].shape[1]);
    std::vector<double> memory(3 * elements);
    Local local;
    describe(context, tensors, BP_FP64, memory.data(), &local);
    if (const Result<void> done = scaled_linear_reference(local.linear); !done) return done;
    return exchange(context, local.c, reinterpret_cast<char*>(memory.data() + elements),
                    reinterpret_cast<char*>(memory.data() + 2 * elements), tensors[kY]);
  });
}

uint32_t promises(const bp_implementation* implementation, const bp_problem* /*problem*/, const bp_device* device) {
  return gathered_promises(implementation, device);
}

const bp_operator kOperator = operator_table(
    {.name = "matmul_alltoall",
     .summary = "y = all_to_all(x1 . x2 + bias) by columns",
     .rows = "W * M",
     .aliases = "MatmulAlltoAll, MatmulAlltoAllV2, QuantMatmulAlltoAll, QuantMatmulAlltoAllV2",
     .ignored_attrs = kIgnoredAttrs},
    BP_OP_THREAD_SAFE, kPorts, kAxes, kAttrs, kDtypeModes, kImplementations, kThresholds,
    {.validate = validate, .workspace_size = workspace_size, .run = run, .reference = reference, .promises = promises});

BATCHPROOF_REGISTER(kOperator);

}  // namespace
}  // namespace batchproof
