// SPDX-License-Identifier: Apache-2.0
//
// all_gather_matmul: every rank gathers the rows of all ranks and multiplies them by its own weights.
//   gather_out(W * M, K) = rank 0's x1, rank 1's x1, ...
//   y(W * M, N)          = gather_out . x2 + bias
// The invariant implementation has one path: gather, then one product over all rows, so a row's bytes cannot depend on
// which rank owns it.
//
// Scales of quantised inputs will be ports of their own behind bias; ports are found by the enumeration.
#include "ops/all_gather_matmul/all_gather_matmul.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "batchproof/operator.h"
#include "batchproof/problem.h"
#include "batchproof/registry.h"
#include "src/kernels/cpu/linear.h"
#include "src/kernels/cpu/linear_controls.h"
#include "src/numeric/dtype.h"

namespace batchproof {
namespace {

enum Port : std::uint32_t { kX1, kX2, kBias, kY, kGatherOut, kPortCount };

constexpr std::uint32_t kFloats = BP_DTYPE_BIT(BP_FP32) | BP_DTYPE_BIT(BP_BF16) | BP_DTYPE_BIT(BP_FP16);

constexpr bp_port kPorts[kPortCount] = {{.name = "x1",
                                         .kind = BP_ROW_INPUT,
                                         .shape = "M, K",
                                         .row_axis = 0,
                                         .reduction_axes = 1u << 1,
                                         .reduction_block = 1,
                                         .reduction_group = "K",
                                         .scale_of = nullptr,
                                         .distribution = BP_SHARDED,
                                         .sharded_axis = 0,
                                         .dtypes = kFloats,
                                         .order_exact_dtypes = 0,
                                         .flags = BP_PORT_PADDED,
                                         .transposed_by = nullptr,
                                         .transposed_axes = 0,
                                         .aliases = "x, input"},
                                        {.name = "x2",
                                         .kind = BP_WEIGHT,
                                         .shape = "K, N",
                                         .row_axis = -1,
                                         .reduction_axes = 1u << 0,
                                         .reduction_block = 1,
                                         .reduction_group = "K",
                                         .scale_of = nullptr,
                                         .distribution = BP_PER_RANK,
                                         .sharded_axis = 0,
                                         .dtypes = kFloats,
                                         .order_exact_dtypes = 0,
                                         .flags = BP_PORT_PADDED,
                                         .transposed_by = "transpose_x2",
                                         .transposed_axes = 1u << 0 | 1u << 1,
                                         .aliases = "weight"},
                                        {.name = "bias",
                                         .kind = BP_WEIGHT,
                                         .shape = "N",
                                         .row_axis = -1,
                                         .reduction_axes = 0,
                                         .reduction_block = 1,
                                         .reduction_group = nullptr,
                                         .scale_of = nullptr,
                                         .distribution = BP_PER_RANK,
                                         .sharded_axis = 0,
                                         .dtypes = kFloats,
                                         .order_exact_dtypes = 0,
                                         .flags = BP_PORT_OPTIONAL,
                                         .transposed_by = nullptr,
                                         .transposed_axes = 0,
                                         .aliases = "biasOptional"},
                                        {.name = "y",
                                         .kind = BP_OUTPUT,
                                         .shape = "W * M, N",
                                         .row_axis = 0,
                                         .reduction_axes = 0,
                                         .reduction_block = 1,
                                         .reduction_group = nullptr,
                                         .scale_of = nullptr,
                                         .distribution = BP_PER_RANK,
                                         .sharded_axis = 0,
                                         .dtypes = kFloats,
                                         .order_exact_dtypes = 0,
                                         .flags = BP_PORT_PADDED,
                                         .transposed_by = nullptr,
                                         .transposed_axes = 0,
                                         .aliases = "output"},
                                        {.name = "gather_out",
                                         .kind = BP_OUTPUT,
                                         .shape = "W * M, K",
                                         .row_axis = 0,
                                         .reduction_axes = 1u << 1,
                                         .reduction_block = 1,
                                         .reduction_group = "K",
                                         .scale_of = nullptr,
                                         .distribution = BP_REPLICATED,
                                         .sharded_axis = 0,
                                         .dtypes = kFloats,
                                         .order_exact_dtypes = kFloats,
                                         .flags = BP_PORT_OPTIONAL,
                                         .transposed_by = nullptr,
                                         .transposed_axes = 0,
                                         .aliases = "gatherOut"}};

constexpr bp_axis_decl kAxes[] = {
    {"M", "rows of x1 on one rank"}, {"K", "reduction length"}, {"N", "columns of x2 on one rank"}};
constexpr bp_attr_decl kAttrs[] = {
    {"transpose_x2", BP_ATTR_BOOL, "false", "x2 is stored as (N, K) and passed as a transposed view"},
    {"strict_limits", BP_ATTR_BOOL, "false", "accept only what AllGatherMatmulV2 documents"},
    {"gather_index", BP_ATTR_INT, "0", "0: gather x1; nothing else is supported"},
    {"comm_turn", BP_ATTR_INT, "0", "0 under strict_limits; does not change the result"},
    {"stream_mode", BP_ATTR_INT, "1", "1 under strict_limits; does not change the result"},
    {"block_size", BP_ATTR_INT, "0", "0 under strict_limits"},
    {"group_size", BP_ATTR_INT, "0", "0 under strict_limits: there are no scales"}};
// What case files carry and what has no meaning here: names, layouts of other processors, and scales, which the dtypes
// of this operator do not use.
constexpr const char* kIgnoredAttrs =
    "group, hcom, rank_size, world_size, comm_mode, is_format_nz, use_int64, is_gather_out, is_amax_out, amax_out, "
    "is_trans_a, transpose_x1, y_dtype, x1_scale, x2_scale, quant_scale, use_x1_scale, use_x2_scale";

constexpr bp_dtype kFp32Mode[kPortCount] = {BP_FP32, BP_FP32, BP_FP32, BP_FP32, BP_FP32};
constexpr bp_dtype kBf16Mode[kPortCount] = {BP_BF16, BP_BF16, BP_BF16, BP_BF16, BP_BF16};
constexpr bp_dtype kFp16Mode[kPortCount] = {BP_FP16, BP_FP16, BP_FP16, BP_FP16, BP_FP16};
constexpr bp_dtype_mode kDtypeModes[] = {{"fp32", kFp32Mode}, {"bf16", kBf16Mode}, {"fp16", kFp16Mode}};

// ---- implementations ----

struct Plan {
  std::int64_t segment = kGemmSegment;
  TwoPathDefect two_path = TwoPathDefect::none;
  LinearDefect linear = LinearDefect::none;
};

constexpr Plan kChain = {};
constexpr Plan kFast = {};
// The shortest segments that differ from one long segment: alive from K = 3 on.
constexpr Plan kWitness = {2};
constexpr Plan kChunkPair = {0, TwoPathDefect::chunk_pair};
constexpr Plan kOtherOrder = {0, TwoPathDefect::other_order};
constexpr Plan kChunkFollowsRows = {0, TwoPathDefect::none, LinearDefect::chunk_follows_rows};
constexpr Plan kBatchScale = {0, TwoPathDefect::none, LinearDefect::batch_scale};
constexpr Plan kThreadSplit = {0, TwoPathDefect::none, LinearDefect::thread_split};
constexpr Plan kStaleMemo = {0, TwoPathDefect::none, LinearDefect::stale_memo};
constexpr Plan kZeroNanLeak = {0, TwoPathDefect::none, LinearDefect::zero_nan_leak};
constexpr Plan kStaleWorkspaceLeak = {0, TwoPathDefect::none, LinearDefect::stale_workspace_leak};
constexpr Plan kArrivalOrder = {0, TwoPathDefect::none, LinearDefect::arrival_order};

constexpr const char* kWitnessId = "cpu-fp32fma-chain2";

constexpr bp_implementation control(const char* id, const char* defect, const Plan& plan,
                                    const char* witness = kWitnessId) {
  return {id, "a deliberately variant all-gather and matrix product", defect, BP_MODE_INVARIANT, 0, witness, &plan};
}

constexpr bp_implementation kImplementations[] = {
    {"cpu-fp32fma-chain256", "gather, then one product over all rows: FP32 FMA, segments of 256 merged in order",
     nullptr, BP_MODE_INVARIANT, 0, kWitnessId, &kChain},
    {"cpu-fast", "own rows from x1 at once, the others after the gather, segment lengths by row counts: not invariant",
     nullptr, BP_MODE_FAST, 0, kWitnessId, &kFast},
    control("control-a-chunk-pair", "a rank sums K in chunks of 128 for its own rows and of 256 for gathered rows",
            kChunkPair),
    control("control-b-other-order", "gathered rows merge their chunks of 128 from the last to the first", kOtherOrder),
    control("control-d-chunk-follows-rows",
            "the K block shrinks as W * M * N grows: 2048 up to 8192, 1024 up to 32768, ...", kChunkFollowsRows),
    // No witness of its own: rescaling in another order would move bytes for two reasons. K is permuted instead.
    control("control-g-batch-scale", "rows are scaled by the largest magnitude of the whole gathered batch",
            kBatchScale, nullptr),
    control("control-thread-split", "K is cut into as many segments as there are threads", kThreadSplit),
    control("control-stale-memo", "the key of the plan memo lacks the mode: a plan of fast mode is reused", kStaleMemo),
    control("control-zero-nan-leak", "an unmasked tail adds 0 * (element of the next row)", kZeroNanLeak),
    control("control-stale-workspace-leak", "0 * (workspace that nothing wrote) is added", kStaleWorkspaceLeak),
    control("control-arrival-order", "chunk sums merge in an order that changes from call to call", kArrivalOrder),
    {kWitnessId, "as chain256 with segments of 2", nullptr, BP_MODE_INVARIANT, BP_IMPL_WITNESS, nullptr, &kWitness}};

// Rows over all ranks at which the CPU product takes another path.
constexpr std::int64_t kThresholds[] = {13, 129};

const Plan& plan_of(const bp_implementation* implementation) { return *static_cast<const Plan*>(implementation->data); }

// ---- validate ----

// What AllGatherMatmulV2 documents (CANN ops-transformer, mc2/all_gather_matmul_v2/docs).
std::string strict_error(const bp_problem* problem) {
  const std::int64_t k = bp_axis_value(problem, "K");
  if (k < 256 || k >= 65535) return fmt::format("K = {} is outside the strict limits; it must be 256 to 65534", k);
  constexpr std::array<int, 6> kWorlds = {2, 4, 8, 16, 32, 64};
  if (std::find(kWorlds.begin(), kWorlds.end(), problem->world) == kWorlds.end()) {
    return fmt::format("W = {} is outside the strict limits; it must be 2, 4, 8, 16, 32 or 64", problem->world);
  }
  const bp_dtype x1 = problem->dtypes[kX1];
  if (x1 == BP_FP32) return "x1 has the dtype fp32; under strict_limits it must be bf16 or fp16";
  for (const auto& [port, name] : {std::pair(kBias, "bias"), std::pair(kY, "y")}) {
    const bp_dtype dtype = problem->dtypes[port];
    if (dtype != BP_NONE && dtype != x1) {
      return fmt::format("{} has the dtype {}; under strict_limits it must be that of x1, {}", name, dtype_name(dtype),
                         dtype_name(x1));
    }
  }
  struct Fixed {
    const char* name;
    std::int64_t value;
  };
  for (const Fixed& fixed :
       {Fixed{"comm_turn", 0}, Fixed{"stream_mode", 1}, Fixed{"block_size", 0}, Fixed{"group_size", 0}}) {
    const std::int64_t value = bp_attr_int(problem, fixed.name);
    if (value != fixed.value) {
      return fmt::format("{} = {}; under strict_limits it must be {}", fixed.name, value, fixed.value);
    }
  }
  return "";
}

std::string problem_error(const bp_problem* problem) {
  if (problem->world < 1) return fmt::format("W = {} is out of range; it must be at least 1", problem->world);
  for (const auto& [name, least] : {std::pair("M", 0), std::pair("K", 1), std::pair("N", 0)}) {
    if (std::string wrong = extent_error(name, bp_axis_value(problem, name), least); !wrong.empty()) return wrong;
  }
  const std::int64_t rows = problem->world * bp_axis_value(problem, "M");
  if (std::string wrong = extent_error("W * M", rows, 0); !wrong.empty()) return wrong;
  const bp_dtype* dtypes = problem->dtypes;
  if (std::string wrong = linear_dtype_error({dtypes[kX1], dtypes[kX2], dtypes[kBias], dtypes[kY]}); !wrong.empty()) {
    return wrong;
  }
  if (dtypes[kGatherOut] != BP_NONE && dtypes[kGatherOut] != dtypes[kX1]) {
    return fmt::format("gather_out has the dtype {}; it must be that of x1, {}", dtype_name(dtypes[kGatherOut]),
                       dtype_name(dtypes[kX1]));
  }
  if (const std::int64_t index = bp_attr_int(problem, "gather_index"); index != 0) {
    return fmt::format("gather_index = {} is not supported; it must be 0 (gather x1)", index);
  }
  return bp_attr_int(problem, "strict_limits") != 0 ? strict_error(problem) : "";
}

bp_status validate(const bp_problem* problem, char* error, size_t error_size) {
  const std::string wrong = problem_error(problem);
  return wrong.empty() ? BP_OK : bp_fail(error, error_size, BP_INVALID, "%s", wrong.c_str());
}

// ---- workspace: [own rows, contiguous][gathered rows][N floats that nothing writes] ----

struct Workspace {
  std::size_t gathered = 0;
  std::size_t stale = 0;
  std::size_t bytes = 0;
};

Workspace workspace_layout(const bp_problem* problem) {
  constexpr std::size_t kAlign = 64;
  const auto round = [](std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; };
  const std::int64_t elements = bp_axis_value(problem, "M") * bp_axis_value(problem, "K");
  const std::size_t own = round(dtype_bytes(problem->dtypes[kX1], elements));
  Workspace out;
  out.gathered = own;
  out.stale = own + round(dtype_bytes(problem->dtypes[kX1], elements * problem->world));
  out.bytes = out.stale + static_cast<std::size_t>(bp_axis_value(problem, "N")) * sizeof(float);
  return out;
}

size_t workspace_size(const bp_implementation* /*implementation*/, const bp_problem* problem, int32_t /*rank*/) {
  return workspace_layout(problem).bytes;
}

// ---- run ----

bool is_contiguous(const bp_tensor& tensor) {
  return (tensor.shape[1] <= 1 || tensor.stride[1] == 1) &&
         (tensor.shape[0] <= 1 || tensor.stride[0] == tensor.shape[1]);
}

// Row-major copy of a matrix with any strides.
void copy_matrix(const bp_tensor& from, void* to) {
  const std::size_t size = dtype_bytes(from.dtype, 1);
  char* out = static_cast<char*>(to);
  for (std::int64_t i = 0; i < from.shape[0]; ++i) {
    for (std::int64_t j = 0; j < from.shape[1]; ++j, out += size) {
      const std::int64_t at = i * from.stride[0] + j * from.stride[1];
      std::memcpy(out, static_cast<const char*>(from.data) + at * static_cast<std::int64_t>(size), size);
    }
  }
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

Result<void> gather(const bp_context* context, const bp_tensor& x1, void* own, void* all) {
  const std::size_t bytes = dtype_bytes(x1.dtype, x1.shape[0] * x1.shape[1]);
  if (bytes == 0) return {};
  const void* send = x1.data;
  if (!is_contiguous(x1)) {
    copy_matrix(x1, own);
    send = own;
  }
  const bp_status status = context->comm->all_gather(context->comm, send, all, bytes, context->stream);
  if (status == BP_OK) return {};
  return fail(Error::Kind::operation, fmt::format("rank {}: the all-gather of x1 failed", context->rank));
}

// Fast mode sees the batch twice: in the segment lengths, and in which rows are its own.
Result<void> run_fast(const bp_context* context, const GemmCall& all, const bp_tensor& x1) {
  const std::int64_t m = x1.shape[0];
  const std::int64_t begin = context->rank * m;
  const auto part = [&](GemmCall call, std::int64_t rows_of_path) -> Result<void> {
    const Result<Schedule> schedule = make_schedule({fast_segment(rows_of_path, call.k), 0}, call.k);
    if (!schedule) return tl::unexpected<Error>(schedule.error());
    return gemm(call, *schedule, {context->threads, std::nullopt});
  };
  GemmCall own = rows_of(all, begin, m);
  own.a = {x1.data, x1.dtype, x1.stride[0], x1.stride[1]};
  if (const Result<void> done = part(own, m); !done) return done;
  if (const Result<void> done = part(rows_of(all, 0, begin), all.m - m); !done) return done;
  return part(rows_of(all, begin + m, all.m - begin - m), all.m - m);
}

Result<void> gather_and_multiply(const bp_context* context, const bp_tensor* tensors) {
  const bp_tensor& x1 = tensors[kX1];
  const bp_tensor& gather_out = tensors[kGatherOut];
  const bp_problem* problem = context->problem;
  const std::int64_t rows = problem->world * x1.shape[0];
  const Workspace layout = workspace_layout(problem);
  if (context->workspace_bytes < layout.bytes) {
    return fail(Error::Kind::usage,
                fmt::format("the workspace has {} bytes; {} are needed", context->workspace_bytes, layout.bytes));
  }
  char* workspace = static_cast<char*>(context->workspace);
  void* all = workspace + layout.gathered;
  if (gather_out.dtype != BP_NONE) {
    if (!is_contiguous(gather_out)) return fail(Error::Kind::usage, "gather_out must be contiguous");
    all = gather_out.data;
  }
  // Everything is checked before the first rank communicates.
  const bp_tensor gathered = dense_matrix(all, x1.dtype, rows, x1.shape[1]);
  const bp_tensor* bias = tensors[kBias].dtype == BP_NONE ? nullptr : &tensors[kBias];
  const Result<GemmCall> call = linear_call(gathered, tensors[kX2], bias, tensors[kY]);
  if (!call) return tl::unexpected<Error>(call.error());
  if (x1.memory != BP_MEMORY_HOST) {
    return fail(Error::Kind::environment, "x1 must lie in host memory for a CPU implementation");
  }
  if (x1.data == nullptr && rows > 0) return fail(Error::Kind::usage, "x1 has no memory");
  if (const Result<void> done = gather(context, x1, workspace, all); !done) return done;

  const Plan& plan = plan_of(context->implementation);
  if (context->implementation->mode == BP_MODE_FAST) return run_fast(context, *call, x1);
  if (plan.two_path != TwoPathDefect::none) {
    return run_two_path_control(plan.two_path, *call, x1.shape[0], context->rank, context->threads);
  }
  if (plan.linear != LinearDefect::none) {
    return run_linear_control(plan.linear, {*call, context->threads, context->rank, context->mode,
                                            reinterpret_cast<const float*>(workspace + layout.stale)});
  }
  const Result<Schedule> schedule = make_schedule({plan.segment, 0}, call->k);
  if (!schedule) return tl::unexpected<Error>(schedule.error());
  return gemm(*call, *schedule, {context->threads, std::nullopt});
}

bp_status run(const bp_context* context, const bp_tensor* tensors) {
  if (const bp_status refused = begin_run(context); refused != BP_OK) return refused;
  return operator_call(context, [&] { return gather_and_multiply(context, tensors); });
}

bp_status reference(const bp_context* context, const bp_tensor* tensors) {
  return operator_call(context, [&]() -> Result<void> {
    const bp_tensor& x1 = tensors[kX1];
    const std::int64_t rows = context->world * x1.shape[0];
    std::vector<char> own(dtype_bytes(x1.dtype, x1.shape[0] * x1.shape[1]));
    std::vector<char> all(own.size() * static_cast<std::size_t>(context->world));
    if (const Result<void> done = gather(context, x1, own.data(), all.data()); !done) return done;
    const bp_tensor& out = tensors[kGatherOut];
    for (std::int64_t i = 0; out.dtype != BP_NONE && i < rows; ++i) {
      for (std::int64_t k = 0; k < x1.shape[1]; ++k) {
        static_cast<double*>(out.data)[i * out.stride[0] + k * out.stride[1]] =
            decode_element(x1.dtype, all.data(), i * x1.shape[1] + k);
      }
    }
    const bp_tensor* bias = tensors[kBias].dtype == BP_NONE ? nullptr : &tensors[kBias];
    return linear_reference(dense_matrix(all.data(), x1.dtype, rows, x1.shape[1]), tensors[kX2], bias, tensors[kY]);
  });
}

// Controls claim what the invariant implementation promises: that is their lie.
uint32_t promises(const bp_implementation* implementation, const bp_problem* /*problem*/, const bp_device* device) {
  if (device->memory != BP_MEMORY_HOST) return 0;
  constexpr uint32_t kAlways = BP_REPEAT | BP_NEIGHBOURS | BP_COMM_MODE | BP_POISON | BP_ALIGNMENT | BP_THREADS;
  if (implementation->mode == BP_MODE_FAST) return kAlways;
  return kAlways | BP_BATCH_SIZE | BP_POSITION | BP_CROSS_RANK | BP_WORLD_SIZE | BP_HISTORY;
}

const bp_operator kAllGatherMatmul = {.abi_version = BP_ABI_VERSION,
                                      .struct_size = sizeof(bp_operator),
                                      .name = "all_gather_matmul",
                                      .summary = "y = all_gather(x1) . x2 + bias",
                                      .rows = "W * M",
                                      .row_count_axis = "M",
                                      .aliases = "AllGatherMatmul, AllGatherMatmulV2",
                                      .ignored_attrs = kIgnoredAttrs,
                                      .flags = BP_OP_THREAD_SAFE,
                                      .port_count = kPortCount,
                                      .ports = kPorts,
                                      .axis_count = std::size(kAxes),
                                      .axes = kAxes,
                                      .attr_count = std::size(kAttrs),
                                      .attrs = kAttrs,
                                      .dtype_mode_count = std::size(kDtypeModes),
                                      .dtype_modes = kDtypeModes,
                                      .implementation_count = std::size(kImplementations),
                                      .implementations = kImplementations,
                                      .threshold_count = std::size(kThresholds),
                                      .thresholds = kThresholds,
                                      .validate = validate,
                                      .workspace_size = workspace_size,
                                      .run = run,
                                      .reference = reference,
                                      .promises = promises,
                                      .infer_shapes = nullptr,
                                      .locate = nullptr,
                                      .alloc = nullptr,
                                      .release = nullptr,
                                      .copy = nullptr,
                                      .synchronise = nullptr};

BATCHPROOF_REGISTER(kAllGatherMatmul);

}  // namespace
}  // namespace batchproof
