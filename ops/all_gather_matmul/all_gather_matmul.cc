// SPDX-License-Identifier: Apache-2.0
//
// all_gather_matmul: every rank gathers the rows of all ranks and multiplies them by its own weights.
//   gather_out(W * M, K) = rank 0's x1, rank 1's x1, ...
//   y(W * M, N)          = gather_out . x2 + bias, with the scales of quantised inputs
// The invariant implementation has one path: gather the scales and the rows, then one product over all rows, so a row's
// bytes cannot depend on which rank owns it. A row is scaled by the x1_scale of its owner in every mode.
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
  kGatherOut,
  kX1Scale,
  kX2Scale = kX1Scale + kScaleForms,
  kPortCount = kX2Scale + kScaleForms
};
constexpr ScalePorts kScales = {kX1Scale, kX2Scale};
constexpr ScalePlacement kWithRows = {BP_SHARDED, 0};

// Data movement: exact for every dtype.
constexpr bp_port gather_out_port() {
  bp_port port = row_port("gather_out", BP_OUTPUT, "W * M, K", BP_REPLICATED, kLinearInputs, "gatherOut");
  port.reduction_axes = 1u << 1;
  port.reduction_group = "K";
  port.order_exact_dtypes = kLinearInputs;
  port.flags = BP_PORT_OPTIONAL;
  return port;
}

constexpr bp_port kPorts[kPortCount] = {x1_port(BP_SHARDED, "x, input"),
                                        x2_port(BP_PER_RANK, "weight"),
                                        bias_port(BP_PER_RANK, "biasOptional"),
                                        row_port("y", BP_OUTPUT, "W * M, N", BP_PER_RANK, kLinearFloats, "output"),
                                        gather_out_port(),
                                        x1_scale_tensor(BP_PER_RANK),
                                        x1_scale_token(kWithRows),
                                        x1_scale_block(kWithRows),
                                        x1_scale_mx(kWithRows),
                                        x2_scale_tensor(BP_PER_RANK),
                                        x2_scale_channel(BP_PER_RANK),
                                        x2_scale_block(BP_PER_RANK),
                                        x2_scale_mx(BP_PER_RANK)};

constexpr bp_axis_decl kAxes[] = {
    {"M", "rows of x1 on one rank"}, {"K", "reduction length"}, {"N", "columns of x2 on one rank"}};
constexpr bp_attr_decl kAttrs[] = {
    {"transpose_x2", BP_ATTR_BOOL, "false", "x2 is stored as (N, K) and passed as a transposed view"},
    {"strict_limits", BP_ATTR_BOOL, "false", "accept only what AllGatherMatmulV2 documents"},
    {"gather_index", BP_ATTR_INT, "0", "0: gather x1; nothing else is supported"},
    {"comm_turn", BP_ATTR_INT, "0", "0 under strict_limits; does not change the result"},
    {"stream_mode", BP_ATTR_INT, "1", "1 under strict_limits; does not change the result"},
    {"block_size", BP_ATTR_INT, "0", "0 under strict_limits"},
    {"group_size", BP_ATTR_INT, "0",
     "sizes of scale blocks, k + n * 2^16 + m * 2^32; a zero field follows from the shapes"},
    {"bias_after_scale", BP_ATTR_BOOL, "false",
     "per-tensor and per-token: y = scale * sum + bias, not scale * (sum + bias)"}};
// What case files carry and what has no meaning here: names and layouts of other processors.
constexpr const char* kIgnoredAttrs =
    "group, hcom, rank_size, world_size, comm_mode, is_format_nz, use_int64, is_gather_out, is_amax_out, amax_out, "
    "is_trans_a, transpose_x1, y_dtype, quant_scale, use_quant_scale";

// x1, x2, bias, y, gather_out; x1_scale: tensor, token, block, mx; x2_scale: tensor, channel, block, mx.
using Dtypes = std::array<bp_dtype, kPortCount>;
constexpr Dtypes plain(bp_dtype dtype) { return {dtype, dtype, dtype, dtype, dtype}; }
constexpr Dtypes scaled(bp_dtype x1, bp_dtype x2, bp_dtype y, Scaling scaling) {
  Dtypes dtypes = {x1, x2, scaling == Scaling::block ? bp_dtype{BP_NONE} : bp_dtype{BP_FP32}, y, x1};
  const bp_dtype scale = scaling == Scaling::mx ? BP_E8M0 : BP_FP32;
  dtypes[kX1Scale + form_of(scaling)] = scale;
  dtypes[kX2Scale + form_of(scaling)] = scale;
  return dtypes;
}

constexpr Dtypes kFp32Mode = plain(BP_FP32);
constexpr Dtypes kBf16Mode = plain(BP_BF16);
constexpr Dtypes kFp16Mode = plain(BP_FP16);
constexpr Dtypes kMxfp8 = scaled(BP_E4M3, BP_E4M3, BP_BF16, Scaling::mx);
constexpr Dtypes kMxfp8E5m2 = scaled(BP_E5M2, BP_E5M2, BP_BF16, Scaling::mx);
constexpr Dtypes kMxfp8E4m3E5m2 = scaled(BP_E4M3, BP_E5M2, BP_BF16, Scaling::mx);
constexpr Dtypes kMxfp8E5m2E4m3 = scaled(BP_E5M2, BP_E4M3, BP_BF16, Scaling::mx);
constexpr Dtypes kFp8 = scaled(BP_E4M3, BP_E4M3, BP_BF16, Scaling::tensor);
constexpr Dtypes kFp8E5m2 = scaled(BP_E5M2, BP_E5M2, BP_BF16, Scaling::tensor);
constexpr Dtypes kFp8Block = scaled(BP_E4M3, BP_E4M3, BP_BF16, Scaling::block);
constexpr Dtypes kInt8 = scaled(BP_INT8, BP_INT8, BP_FP16, Scaling::token_channel);
constexpr bp_dtype_mode kDtypeModes[] = {{"fp32", kFp32Mode.data()},
                                         {"bf16", kBf16Mode.data()},
                                         {"fp16", kFp16Mode.data()},
                                         {"mxfp8", kMxfp8.data()},
                                         {"mxfp8_e5m2", kMxfp8E5m2.data()},
                                         {"mxfp8_e4m3_e5m2", kMxfp8E4m3E5m2.data()},
                                         {"mxfp8_e5m2_e4m3", kMxfp8E5m2E4m3.data()},
                                         {"fp8", kFp8.data()},
                                         {"fp8_e5m2", kFp8E5m2.data()},
                                         {"fp8_block", kFp8Block.data()},
                                         {"int8", kInt8.data()}};

// ---- implementations ----

struct Plan {
  std::int64_t segment = kGemmSegment;
  TwoPathDefect two_path = TwoPathDefect::none;
  LinearDefect linear = LinearDefect::none;
  const CudaGatherPlan* cuda = nullptr;  // of an implementation with BP_IMPL_CUDA
};

constexpr Plan two_path(TwoPathDefect defect) { return {.two_path = defect}; }
constexpr Plan one_path(LinearDefect defect) { return {.linear = defect}; }

constexpr Plan kChain = {};
constexpr Plan kFast = {};
// The shortest segments that differ from one long segment: alive from K = 3 on.
constexpr Plan kWitness = {2};
constexpr Plan kChunkPair = two_path(TwoPathDefect::chunk_pair);
constexpr Plan kTilingRule = two_path(TwoPathDefect::tiling_rule);
constexpr Plan kOtherOrder = two_path(TwoPathDefect::other_order);
constexpr Plan kScaleAddress = two_path(TwoPathDefect::scale_address);
constexpr Plan kNeighbourScale = two_path(TwoPathDefect::neighbour_scale);
constexpr Plan kAlignedSums = two_path(TwoPathDefect::aligned_sums);
constexpr Plan kChunkFollowsRows = one_path(LinearDefect::chunk_follows_rows);
constexpr Plan kPromotionInterval = one_path(LinearDefect::promotion_interval);
constexpr Plan kBatchScale = one_path(LinearDefect::batch_scale);
constexpr Plan kThreadSplit = one_path(LinearDefect::thread_split);
constexpr Plan kStaleMemo = one_path(LinearDefect::stale_memo);
constexpr Plan kZeroNanLeak = one_path(LinearDefect::zero_nan_leak);
constexpr Plan kStaleWorkspaceLeak = one_path(LinearDefect::stale_workspace_leak);
constexpr Plan kArrivalOrder = one_path(LinearDefect::arrival_order);

template <std::int64_t kSegment, int kGeneration, bool kPortable, CudaGatherDefect kDefect = CudaGatherDefect::none>
struct Cuda {
  static constexpr CudaGatherPlan kCuda{{.segment = kSegment, .generation = kGeneration, .portable = kPortable},
                                        kDefect};
  static constexpr Plan kPlan{.cuda = &kCuda};
};

constexpr const char* kWitnessId = "cpu-fp32fma-chain2";
constexpr const char* kCudaWitnessId = "cuda-sm90-chain16";
constexpr const char* kCudaOlderWitnessId = "cuda-sm80-mma-chain16";

constexpr bp_implementation control(const char* id, const char* defect, const Plan& plan,
                                    const char* witness = kWitnessId) {
  return {id, "a deliberately variant all-gather and matrix product", defect, BP_MODE_INVARIANT, 0, witness, &plan};
}

template <class Plan>
constexpr bp_implementation on_cuda(const char* id, const char* summary, const char* witness = kCudaWitnessId,
                                    std::uint32_t flags = 0, bp_mode mode = BP_MODE_INVARIANT) {
  return {id, summary, nullptr, mode, BP_IMPL_CUDA | flags, witness, &Plan::kPlan};
}

template <CudaGatherDefect kDefect>
constexpr bp_implementation cuda_control(const char* id, const char* defect) {
  return {id,
          "a deliberately variant all-gather and matrix product on CUDA",
          defect,
          BP_MODE_INVARIANT,
          BP_IMPL_CUDA,
          kCudaWitnessId,
          &Cuda<cuda::kCudaGemmSegment, 9, false, kDefect>::kPlan};
}

constexpr bp_implementation kImplementations[] = {
    {"cpu-fp32fma-chain256", "gather, then one product over all rows: FP32 FMA, segments of 256 merged in order",
     nullptr, BP_MODE_INVARIANT, 0, kWitnessId, &kChain},
    {"cpu-fast", "own rows from x1 at once, the others after the gather, segment lengths by row counts: not invariant",
     nullptr, BP_MODE_FAST, 0, kWitnessId, &kFast},
    {"cpu-unfused", "the composition that the operator replaces: all-gather, then a product in fast order", nullptr,
     BP_MODE_FAST, BP_IMPL_PEER, kWitnessId, &kFast},
    control("control-a-chunk-pair", "a rank sums K in chunks of 128 for its own rows and of 256 for gathered rows",
            kChunkPair),
    control("control-a-tiling-rule",
            "the K chunk of either path follows from its number of rows by the adaptive tiling rule of 32 cores",
            kTilingRule),
    control("control-b-other-order", "gathered rows merge their chunks of 128 from the last to the first", kOtherOrder),
    control("control-c-scale-address", "gathered rows read x2_scale at half the column offset of their column block",
            kScaleAddress, nullptr),
    control("control-d-chunk-follows-rows",
            "the K block shrinks as W * M * N grows: 2048 up to 8192, 1024 up to 32768, ...", kChunkFollowsRows),
    // No witness of its own: rescaling in another order would move bytes for two reasons. K is permuted instead.
    control("control-g-batch-scale", "rows are scaled by the largest magnitude of the whole gathered batch",
            kBatchScale, nullptr),
    control("control-h-neighbour-scale", "gathered rows take the x1_scale of the row behind them", kNeighbourScale,
            nullptr),
    control("control-i-aligned-sums",
            "gathered rows align the partial sums of a chunk to the largest exponent of their tile", kAlignedSums),
    control("control-promotion-interval",
            "partial sums join the FP32 sum every 128 up to 16 gathered rows and every 512 above", kPromotionInterval),
    control("control-thread-split", "K is cut into as many segments as there are threads", kThreadSplit),
    control("control-stale-memo", "the key of the plan memo lacks the mode: a plan of fast mode is reused", kStaleMemo),
    control("control-zero-nan-leak", "an unmasked tail adds 0 * (element of the next row)", kZeroNanLeak),
    control("control-stale-workspace-leak", "0 * (workspace that nothing wrote) is added", kStaleWorkspaceLeak),
    control("control-arrival-order", "chunk sums merge in an order that changes from call to call", kArrivalOrder),
    {kWitnessId, "as chain256 with segments of 2", nullptr, BP_MODE_INVARIANT, BP_IMPL_WITNESS, nullptr, &kWitness},
    on_cuda<Cuda<cuda::kCudaGemmSegment, 9, false>>(
        "cuda-sm90-even8192", "gather, then one product over all rows: tensor cores (wgmma, else mma.sync), FP32 sums"),
    on_cuda<Cuda<cuda::kCudaGemmSegment, 9, true>>("cuda-sm90-mma-even8192",
                                                   "as cuda-sm90-even8192, through mma.sync alone: the same bytes"),
    on_cuda<Cuda<cuda::kCudaGemmSegment, 8, true>>("cuda-sm80-mma-even8192",
                                                   "the same through mma.sync on compute capability 8.x: other bytes",
                                                   kCudaOlderWitnessId),
    on_cuda<Cuda<0, 9, false>>("cuda-fast",
                               "own rows and the others as two products, segments chosen from their number: not "
                               "invariant",
                               kCudaWitnessId, 0, BP_MODE_FAST),
    cuda_control<CudaGatherDefect::two_paths>("cuda-control-two-paths",
                                              "a rank sums its own rows in other segments than gathered rows"),
    cuda_control<CudaGatherDefect::segment_follows_rows>("cuda-control-rows",
                                                         "other segments from 17 gathered rows on"),
    cuda_control<CudaGatherDefect::ring_order>("cuda-control-ring-order",
                                               "gather_out begins with the rows of the rank itself"),
    cuda_control<CudaGatherDefect::nan_leak>("cuda-control-nan-leak", "0 * (element of the next row) is added"),
    cuda_control<CudaGatherDefect::workspace_leak>("cuda-control-workspace-leak",
                                                   "0 * (workspace that nothing wrote) is added"),
    on_cuda<Cuda<cuda::kCudaWitnessSegment, 9, false>>(kCudaWitnessId, "as cuda-sm90-even8192 with segments of 16",
                                                       nullptr, BP_IMPL_WITNESS),
    on_cuda<Cuda<cuda::kCudaWitnessSegment, 8, true>>(
        kCudaOlderWitnessId, "as cuda-sm80-mma-even8192 with segments of 16", nullptr, BP_IMPL_WITNESS)};

// Rows over all ranks at which the CPU product takes another path.
constexpr std::int64_t kThresholds[] = {13, 129};

const Plan& plan_of(const bp_implementation* implementation) { return *static_cast<const Plan*>(implementation->data); }

// ---- validate ----

// What AllGatherMatmulV2 documents (CANN ops-transformer, mc2/all_gather_matmul_v2/docs).
std::string strict_error(const bp_problem* problem, Scaling scaling) {
  const std::int64_t k = bp_axis_value(problem, "K");
  if (k < 256 || k >= 65535) return fmt::format("K = {} is outside the strict limits; it must be 256 to 65534", k);
  constexpr std::array<int, 6> kWorlds = {2, 4, 8, 16, 32, 64};
  if (std::find(kWorlds.begin(), kWorlds.end(), problem->world) == kWorlds.end()) {
    return fmt::format("W = {} is outside the strict limits; it must be 2, 4, 8, 16, 32 or 64", problem->world);
  }
  const bp_dtype x1 = problem->dtypes[kX1];
  const bp_dtype bias = problem->dtypes[kBias];
  const bp_dtype y = problem->dtypes[kY];
  if (x1 == BP_FP32) return "x1 has the dtype fp32; under strict_limits it must be bf16 or fp16";
  for (const auto& [dtype, name] : {std::pair(bias, "bias"), std::pair(y, "y")}) {
    if (scaling == Scaling::none && dtype != BP_NONE && dtype != x1) {
      return fmt::format("{} has the dtype {}; under strict_limits it must be that of x1, {}", name, dtype_name(dtype),
                         dtype_name(x1));
    }
  }
  if (scaling == Scaling::token_channel) {
    if (bias != BP_NONE) return "int8 takes no bias under strict_limits; leave bias out";
    if (y == BP_FP32) return "y has the dtype fp32; under strict_limits int8 gives fp16 or bf16";
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
  const bool has_blocks = scaling == Scaling::block || scaling == Scaling::mx;
  if (const std::int64_t group = bp_attr_int(problem, "group_size"); group != 0 && !has_blocks) {
    return fmt::format("group_size = {}; under strict_limits it must be 0 where scales have no blocks", group);
  }
  return "";
}

std::string problem_error(const bp_problem* problem) {
  if (problem->world < 1) return fmt::format("W = {} is out of range; it must be at least 1", problem->world);
  for (const auto& [name, least] : {std::pair("M", 0), std::pair("K", 1), std::pair("N", 0)}) {
    if (std::string wrong = extent_error(name, bp_axis_value(problem, name), least); !wrong.empty()) return wrong;
  }
  const std::int64_t m = bp_axis_value(problem, "M");
  if (std::string wrong = extent_error("W * M", problem->world * m, 0); !wrong.empty()) return wrong;
  const bp_dtype* dtypes = problem->dtypes;
  const Scaling scaling = scaling_of(dtypes, kScales);
  const ScaledDtypes of_product = {{dtypes[kX1], dtypes[kX2], dtypes[kBias], dtypes[kY]},
                                   scale_dtype(dtypes, kX1Scale, scaling),
                                   scale_dtype(dtypes, kX2Scale, scaling)};
  if (std::string wrong = scaled_dtype_error(scaling, of_product); !wrong.empty()) return wrong;
  if (scaling == Scaling::block && m % kScaleBlock != 0) {
    return fmt::format("M = {} must be a multiple of 128: a scale block may not cross ranks", m);
  }
  if (const std::int64_t k = bp_axis_value(problem, "K"); scaling == Scaling::token_channel && k > kInt8LongestK) {
    return fmt::format("K = {} is out of range; an INT32 accumulator holds {}", k, kInt8LongestK);
  }
  if (dtypes[kGatherOut] != BP_NONE && dtypes[kGatherOut] != dtypes[kX1]) {
    return fmt::format("gather_out has the dtype {}; it must be that of x1, {}", dtype_name(dtypes[kGatherOut]),
                       dtype_name(dtypes[kX1]));
  }
  if (const std::int64_t index = bp_attr_int(problem, "gather_index"); index != 0) {
    return fmt::format("gather_index = {} is not supported; it must be 0 (gather x1)", index);
  }
  if (std::string wrong = group_size_error(bp_attr_int(problem, "group_size"), scaling); !wrong.empty()) return wrong;
  return bp_attr_int(problem, "strict_limits") != 0 ? strict_error(problem, scaling) : "";
}

bp_status validate(const bp_problem* problem, char* error, size_t error_size) {
  const std::string wrong = problem_error(problem);
  return wrong.empty() ? BP_OK : bp_fail(error, error_size, BP_INVALID, "%s", wrong.c_str());
}

// ---- workspace: [own rows, contiguous][gathered rows][gathered scales][N floats that nothing writes] ----

struct Workspace {
  std::size_t gathered = 0;
  std::size_t scales = 0;
  std::size_t stale = 0;
  std::size_t bytes = 0;
};

// Entries of one rank's x1_scale.
std::int64_t scale_entries(const bp_problem* problem, Scaling scaling) {
  const std::int64_t m = bp_axis_value(problem, "M");
  const std::int64_t k = bp_axis_value(problem, "K");
  switch (scaling) {
    case Scaling::none:
      return 0;
    case Scaling::tensor:
      return 1;
    case Scaling::token_channel:
      return m;
    case Scaling::block:
      return blocks_of(m, kScaleBlock) * blocks_of(k, kScaleBlock);
    case Scaling::mx:
      return m * blocks_of(k, 2 * kMxBlock) * 2;
  }
  return 0;
}

Workspace workspace_layout(const bp_problem* problem) {
  constexpr std::size_t kAlign = 64;
  const auto round = [](std::size_t bytes) { return align_up(bytes, kAlign); };
  const std::int64_t elements = bp_axis_value(problem, "M") * bp_axis_value(problem, "K");
  const std::size_t own = round(dtype_bytes(problem->dtypes[kX1], elements));
  const Scaling scaling = scaling_of(problem->dtypes, kScales);
  const bp_dtype scale = scale_dtype(problem->dtypes, kX1Scale, scaling);
  Workspace out;
  out.gathered = own;
  out.scales = own + round(dtype_bytes(problem->dtypes[kX1], elements * problem->world));
  out.stale = out.scales + round(dtype_bytes(scale, scale_entries(problem, scaling) * problem->world));
  out.bytes = out.stale + static_cast<std::size_t>(bp_axis_value(problem, "N")) * sizeof(float);
  return out;
}

size_t workspace_size(const bp_implementation* /*implementation*/, const bp_problem* problem, int32_t /*rank*/) {
  return workspace_layout(problem).bytes;
}

// ---- run ----

}  // namespace

bool is_contiguous(const bp_tensor& matrix) {
  return (matrix.shape[1] <= 1 || matrix.stride[1] == 1) &&
         (matrix.shape[0] <= 1 || matrix.stride[0] == matrix.shape[1]);
}

Result<void> gather_bytes(const bp_context& context, const char* what, const void* send, void* all, std::size_t bytes) {
  if (bytes == 0) return {};
  const bp_status status = context.comm->all_gather(context.comm, send, all, bytes, context.stream);
  if (status == BP_OK) return {};
  return fail(Error::Kind::operation, fmt::format("rank {}: the all-gather of {} failed", context.rank, what));
}

namespace {

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

Result<void> gather_rows(const bp_context* context, const bp_tensor& x1, void* own, void* all) {
  const std::size_t bytes = dtype_bytes(x1.dtype, x1.shape[0] * x1.shape[1]);
  if (bytes > 0 && !is_contiguous(x1)) copy_matrix(x1, own);
  return gather_bytes(*context, "x1", is_contiguous(x1) ? x1.data : own, all, bytes);
}

// The whole product on gathered rows and scales.
struct Gathered {
  bp_tensor rows;
  bp_tensor scale;
  ScaledLinear linear;
};

// Describes the product; `rows` and `scales` are the memory of the gathered tensors. Nothing is communicated yet.
Result<void> describe(const bp_context* context, const bp_tensor* tensors, void* rows, void* scales, Gathered* out) {
  const bp_tensor& x1 = tensors[kX1];
  if (x1.memory != BP_MEMORY_HOST) {
    return fail(Error::Kind::environment, "x1 must lie in host memory for a CPU implementation");
  }
  if (x1.data == nullptr && x1.shape[0] * x1.shape[1] > 0) return fail(Error::Kind::usage, "x1 has no memory");
  const int world = context->problem->world;
  ScaledLinear& linear = out->linear;
  linear.scaling = scaling_of(context->problem->dtypes, kScales);
  out->rows = dense_matrix(rows, x1.dtype, world * x1.shape[0], x1.shape[1]);
  linear.x = &out->rows;
  linear.w = &tensors[kX2];
  linear.bias = tensors[kBias].dtype == BP_NONE ? nullptr : &tensors[kBias];
  linear.w_scale = scale_tensor(tensors, kX2Scale, linear.scaling);
  linear.y = &tensors[kY];
  linear.rows_per_scale = linear.scaling == Scaling::tensor ? std::max<std::int64_t>(x1.shape[0], 1) : 0;
  linear.bias_after_scale = bp_attr_int(context->problem, "bias_after_scale") != 0;
  if (const bp_tensor* own = scale_tensor(tensors, kX1Scale, linear.scaling)) {
    std::int64_t stride = 1;
    for (int axis = own->ndim - 1; axis >= 0; --axis) {
      if (own->shape[axis] > 1 && own->stride[axis] != stride)
        return fail(Error::Kind::usage, "x1_scale must be contiguous");
      stride *= own->shape[axis];
    }
    if (own->memory != BP_MEMORY_HOST) {
      return fail(Error::Kind::environment, "x1_scale must lie in host memory for a CPU implementation");
    }
    out->scale = *own;
    out->scale.data = scales;
    out->scale.shape[0] = own->shape[0] * world;
    linear.x_scale = &out->scale;
  }
  return {};
}

// All scales first, in one transfer, then the rows: as the kernels that this operator stands for do.
Result<void> gather(const bp_context* context, const bp_tensor* tensors, void* own, const Gathered& gathered) {
  const Scaling scaling = gathered.linear.scaling;
  if (const bp_tensor* scale = scale_tensor(tensors, kX1Scale, scaling)) {
    const std::size_t bytes = dtype_bytes(scale->dtype, scale_entries(context->problem, scaling));
    if (const Result<void> done = gather_bytes(*context, "x1_scale", scale->data, gathered.scale.data, bytes); !done) {
      return done;
    }
  }
  return gather_rows(context, tensors[kX1], own, gathered.rows.data);
}

// Fast mode sees the batch twice: in the segment lengths, and in which rows are its own.
Result<void> run_fast(const bp_context* context, const GemmCall& all) {
  const std::int64_t m = bp_axis_value(context->problem, "M");
  const std::int64_t begin = context->rank * m;
  const auto part = [&](std::int64_t first, std::int64_t count, std::int64_t rows_of_path) {
    return run_scheduled(rows_of(all, first, count), {fast_segment(rows_of_path, all.k), 0}, context->threads);
  };
  Result<void> done = part(begin, m, m);
  if (done) done = part(0, begin, all.m - m);
  return done ? part(begin + m, all.m - begin - m, all.m - m) : done;
}

Result<void> gather_and_multiply(const bp_context* context, const bp_tensor* tensors) {
  const bp_tensor& gather_out = tensors[kGatherOut];
  const Workspace layout = workspace_layout(context->problem);
  if (context->workspace_bytes < layout.bytes) {
    return fail(Error::Kind::usage,
                fmt::format("the workspace has {} bytes; {} are needed", context->workspace_bytes, layout.bytes));
  }
  char* workspace = static_cast<char*>(context->workspace);
  if (gather_out.dtype != BP_NONE && !is_contiguous(gather_out))
    return fail(Error::Kind::usage, "gather_out must be contiguous");
  if (const CudaGatherPlan* cuda = plan_of(context->implementation).cuda) {
#ifdef BATCHPROOF_HAVE_CUDA
    const auto present = [&](Port port) { return tensors[port].dtype == BP_NONE ? nullptr : &tensors[port]; };
    return cuda_all_gather_matmul(*cuda, *context,
                                  {&tensors[kX1], &tensors[kX2], present(kBias), &tensors[kY], present(kGatherOut),
                                   workspace, workspace + layout.gathered, workspace + layout.stale});
#else
    (void)cuda;
    return fail(Error::Kind::environment,
                fmt::format("{} is not in this build: it has no CUDA", context->implementation->id));
#endif
  }
  void* all = gather_out.dtype != BP_NONE ? gather_out.data : workspace + layout.gathered;
  // Everything is checked before the first rank communicates.
  Gathered gathered;
  if (const Result<void> done = describe(context, tensors, all, workspace + layout.scales, &gathered); !done)
    return done;
  if (const Result<void> fits = check_scaled_linear(gathered.linear); !fits) return fits;
  if (const Result<void> done = gather(context, tensors, workspace, gathered); !done) return done;

  const Plan& plan = plan_of(context->implementation);
  const LinearSchedule order = {plan.segment, 0};
  if (plan.two_path != TwoPathDefect::none) {
    return run_two_path_control(
        plan.two_path, gathered.linear,
        {bp_axis_value(context->problem, "M"), context->rank, context->world, context->threads});
  }
  const Product product = [&](const GemmCall& call, const LinearSchedule& schedule) -> Result<void> {
    if ((context->implementation->flags & BP_IMPL_PEER) != 0) {
      return run_scheduled(call, {fast_segment(call.m, call.k), 0}, context->threads);
    }
    if (context->implementation->mode == BP_MODE_FAST) return run_fast(context, call);
    if (plan.linear == LinearDefect::none) return run_scheduled(call, schedule, context->threads);
    return run_linear_control(plan.linear, {call, context->threads, context->rank, context->mode,
                                            reinterpret_cast<const float*>(workspace + layout.stale)});
  };
  return scaled_linear(gathered.linear, order, context->threads, product);
}

bp_status run(const bp_context* context, const bp_tensor* tensors) {
  if (const bp_status refused = begin_run(context); refused != BP_OK) return refused;
  return operator_call(context, [&] { return gather_and_multiply(context, tensors); });
}

bp_status reference(const bp_context* context, const bp_tensor* tensors) {
  return operator_call(context, [&]() -> Result<void> {
    const bp_tensor& x1 = tensors[kX1];
    const Workspace layout = workspace_layout(context->problem);
    std::vector<char> memory(layout.bytes);
    Gathered gathered;
    const Result<void> described =
        describe(context, tensors, memory.data() + layout.gathered, memory.data() + layout.scales, &gathered);
    if (!described) return described;
    if (const Result<void> done = gather(context, tensors, memory.data(), gathered); !done) return done;
    const bp_tensor& out = tensors[kGatherOut];
    for (std::int64_t i = 0; out.dtype != BP_NONE && i < gathered.rows.shape[0]; ++i) {
      for (std::int64_t k = 0; k < x1.shape[1]; ++k) {
        static_cast<double*>(out.data)[i * out.stride[0] + k * out.stride[1]] =
            decode_element(x1.dtype, gathered.rows.data, i * x1.shape[1] + k);
      }
    }
    return scaled_linear_reference(gathered.linear);
  });
}

uint32_t promises(const bp_implementation* implementation, const bp_problem* problem, const bp_device* device) {
  if (const CudaGatherPlan* cuda = plan_of(implementation).cuda) {
#ifdef BATCHPROOF_HAVE_CUDA
    return cuda_gather_promises(*cuda, implementation->mode, problem, device);
#else
    (void)cuda, (void)problem;
    return 0;
#endif
  }
  return gathered_promises(implementation, device);
}

const bp_operator kAllGatherMatmul = operator_table(
    {.name = "all_gather_matmul",
     .summary = "y = all_gather(x1) . x2 + bias",
     .rows = "W * M",
     .aliases = "AllGatherMatmul, AllGatherMatmulV2",
     .ignored_attrs = kIgnoredAttrs},
    BP_OP_THREAD_SAFE, kPorts, kAxes, kAttrs, kDtypeModes, kImplementations, kThresholds,
    {.validate = validate, .workspace_size = workspace_size, .run = run, .reference = reference, .promises = promises});

BATCHPROOF_REGISTER(kAllGatherMatmul);

}  // namespace
}  // namespace batchproof
