// SPDX-License-Identifier: Apache-2.0
//
// matmul: y(M, N) = x1(M, K) . x2(K, N) + bias(N) on one rank, with the scales of quantised inputs. The table, its CPU
// implementations and its controls.
#include "ops/matmul/matmul.h"

#include <fmt/format.h>

#include <string>

#include "batchproof/operator.h"
#include "batchproof/problem.h"
#include "batchproof/registry.h"
#include "src/kernels/cpu/linear.h"
#include "src/kernels/cpu/linear_controls.h"
#include "src/kernels/cpu/linear_ports.h"
#include "src/kernels/cpu/scaled_linear.h"
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

constexpr bp_port kPorts[kPortCount] = {x1_port(BP_REPLICATED, "x, a, self, input"),
                                        x2_port(BP_REPLICATED, "w, b, weight, mat2"),
                                        bias_port(BP_REPLICATED, "biasOptional, bias_optional"),
                                        row_port("y", BP_OUTPUT, "M, N", BP_REPLICATED, kLinearFloats, "output, out"),
                                        x1_scale_tensor(BP_REPLICATED),
                                        x1_scale_token({}),
                                        x1_scale_block({}),
                                        x1_scale_mx({}),
                                        x2_scale_tensor(BP_REPLICATED),
                                        x2_scale_channel(BP_REPLICATED),
                                        x2_scale_block(BP_REPLICATED),
                                        x2_scale_mx(BP_REPLICATED)};

constexpr bp_axis_decl kAxes[] = {{"M", "rows of x1"}, {"K", "reduction length"}, {"N", "columns of x2"}};
constexpr bp_attr_decl kAttrs[] = {
    {"transpose_x2", BP_ATTR_BOOL, "false", "x2 is stored as (N, K) and passed as a transposed view"},
    {"bias_after_scale", BP_ATTR_BOOL, "false",
     "per-tensor and per-token: y = scale * sum + bias, not scale * (sum + bias)"}};

constexpr bp_dtype kFp32Mode[kPortCount] = {BP_FP32, BP_FP32, BP_FP32, BP_FP32};
constexpr bp_dtype kBf16Mode[kPortCount] = {BP_BF16, BP_BF16, BP_BF16, BP_BF16};
constexpr bp_dtype kFp16Mode[kPortCount] = {BP_FP16, BP_FP16, BP_FP16, BP_FP16};
// x1, x2, bias, y; x1_scale: tensor, token, block, mx; x2_scale: tensor, channel, block, mx.
constexpr bp_dtype kInt8Mode[kPortCount] = {BP_INT8, BP_INT8, BP_FP32, BP_FP16, BP_NONE, BP_FP32,
                                            BP_NONE, BP_NONE, BP_NONE, BP_FP32, BP_NONE, BP_NONE};
constexpr bp_dtype kFp8Mode[kPortCount] = {BP_E4M3, BP_E4M3, BP_FP32, BP_BF16, BP_FP32, BP_NONE,
                                           BP_NONE, BP_NONE, BP_FP32, BP_NONE, BP_NONE, BP_NONE};
constexpr bp_dtype kFp8BlockMode[kPortCount] = {BP_E4M3, BP_E4M3, BP_NONE, BP_BF16, BP_NONE, BP_NONE,
                                                BP_FP32, BP_NONE, BP_NONE, BP_NONE, BP_FP32, BP_NONE};
constexpr bp_dtype kMxfp8Mode[kPortCount] = {BP_E4M3, BP_E4M3, BP_FP32, BP_BF16, BP_NONE, BP_NONE,
                                             BP_NONE, BP_E8M0, BP_NONE, BP_NONE, BP_NONE, BP_E8M0};
constexpr bp_dtype_mode kDtypeModes[] = {{"fp32", kFp32Mode},   {"bf16", kBf16Mode}, {"fp16", kFp16Mode},
                                         {"mxfp8", kMxfp8Mode}, {"fp8", kFp8Mode},   {"fp8_block", kFp8BlockMode},
                                         {"int8", kInt8Mode}};

// ---- implementations ----

struct Plan {
  LinearSchedule schedule;
  LinearDefect defect = LinearDefect::none;
  const CudaMatmulPlan* cuda = nullptr;  // of an implementation with BP_IMPL_CUDA
};

constexpr std::int64_t kTreeSlices = 16;
constexpr Plan kChain = {{kGemmSegment, 0}, LinearDefect::none};
constexpr Plan kTree = {{kGemmSegment, kTreeSlices}, LinearDefect::none};
// The shortest segments that differ from one long segment: alive from K = 3 on.
constexpr Plan kWitness = {{2, 0}, LinearDefect::none};
constexpr Plan kFast = {{0, 0}, LinearDefect::none};
constexpr Plan kThreadSplit = {{}, LinearDefect::thread_split};
constexpr Plan kChunkFollowsRows = {{}, LinearDefect::chunk_follows_rows};
constexpr Plan kStaleMemo = {{}, LinearDefect::stale_memo};
constexpr Plan kZeroNanLeak = {{}, LinearDefect::zero_nan_leak};
constexpr Plan kStaleWorkspaceLeak = {{}, LinearDefect::stale_workspace_leak};
constexpr Plan kPromotionInterval = {{}, LinearDefect::promotion_interval};
constexpr Plan kArrivalOrder = {{}, LinearDefect::arrival_order};

constexpr const char* kWitnessId = "cpu-fp32fma-chain2";

// On CUDA the generation is part of the id: its tensor cores sum one step in their own way.
struct CudaPlans {
  CudaMatmulPlan chain{};
  CudaMatmulPlan tree{{.segment = cuda::kCudaTreeSegment, .slices = kTreeSlices}};
  CudaMatmulPlan portable{{.portable = true}};
  CudaMatmulPlan portable_tree{{.segment = cuda::kCudaTreeSegment, .slices = kTreeSlices, .portable = true}};
  CudaMatmulPlan older{{.generation = 8, .portable = true}};
  CudaMatmulPlan fast{{.segment = 0}};
  CudaMatmulPlan witness{{.segment = cuda::kCudaWitnessSegment}};
  CudaMatmulPlan older_witness{{.segment = cuda::kCudaWitnessSegment, .generation = 8, .portable = true}};
};
constexpr CudaPlans kCudaPlans;

template <CudaMatmulDefect kDefect>
struct CudaControl {
  static constexpr CudaMatmulPlan kCuda{{}, kDefect};
  static constexpr Plan kPlan{{0, 0}, LinearDefect::none, &kCuda};
};
constexpr Plan kCudaChain{{0, 0}, LinearDefect::none, &kCudaPlans.chain};
constexpr Plan kCudaTree{{0, 0}, LinearDefect::none, &kCudaPlans.tree};
constexpr Plan kCudaPortable{{0, 0}, LinearDefect::none, &kCudaPlans.portable};
constexpr Plan kCudaPortableTree{{0, 0}, LinearDefect::none, &kCudaPlans.portable_tree};
constexpr Plan kCudaOlder{{0, 0}, LinearDefect::none, &kCudaPlans.older};
constexpr Plan kCudaFast{{0, 0}, LinearDefect::none, &kCudaPlans.fast};
constexpr Plan kCudaWitness{{0, 0}, LinearDefect::none, &kCudaPlans.witness};
constexpr Plan kCudaOlderWitness{{0, 0}, LinearDefect::none, &kCudaPlans.older_witness};

constexpr const char* kCudaWitnessId = "cuda-sm90-chain16";
constexpr const char* kCudaOlderWitnessId = "cuda-sm80-mma-chain16";

constexpr bp_implementation control(const char* id, const char* defect, const Plan& plan) {
  return {id, "a deliberately variant matrix product", defect, BP_MODE_INVARIANT, 0, kWitnessId, &plan};
}

template <CudaMatmulDefect kDefect>
constexpr bp_implementation cuda_control(const char* id, const char* defect) {
  return {id,
          "a deliberately variant matrix product on CUDA",
          defect,
          BP_MODE_INVARIANT,
          BP_IMPL_CUDA,
          kCudaWitnessId,
          &CudaControl<kDefect>::kPlan};
}

constexpr bp_implementation kImplementations[] = {
    {"cpu-fp32fma-chain256", "FP32 FMA, segments of 256 along K merged one after the other", nullptr, BP_MODE_INVARIANT,
     0, kWitnessId, &kChain},
    {"cpu-fp32fma-tree16-chain256", "FP32 FMA, 16 slices of K merged as a balanced tree; K a multiple of 16", nullptr,
     BP_MODE_INVARIANT, 0, kWitnessId, &kTree},
    {"cpu-fast", "FP32 FMA, segment length chosen from M: not batch invariant", nullptr, BP_MODE_FAST, 0, kWitnessId,
     &kFast},
    control("control-d-chunk-follows-rows",
            "the K block shrinks as M * N grows: 2048 up to 8192, 1024 up to 32768, ...", kChunkFollowsRows),
    control("control-thread-split", "K is cut into as many segments as there are threads", kThreadSplit),
    control("control-stale-memo", "the key of the plan memo lacks the mode: a plan of fast mode is reused", kStaleMemo),
    control("control-zero-nan-leak", "an unmasked tail adds 0 * (element of the next row)", kZeroNanLeak),
    control("control-stale-workspace-leak", "0 * (workspace that nothing wrote) is added", kStaleWorkspaceLeak),
    control("control-promotion-interval", "partial sums join the FP32 sum every 128 up to 16 rows and every 512 above",
            kPromotionInterval),
    control("control-arrival-order", "segment sums merge in an order that changes from call to call", kArrivalOrder),
    {kWitnessId, "as chain256 with segments of 2", nullptr, BP_MODE_INVARIANT, BP_IMPL_WITNESS, nullptr, &kWitness},
    {"cuda-sm90-even8192",
     "tensor cores (wgmma, else mma.sync), FP32 sums, equal segments up to 8192 merged one by one", nullptr,
     BP_MODE_INVARIANT, BP_IMPL_CUDA, kCudaWitnessId, &kCudaChain},
    {"cuda-sm90-tree16-chain2048", "the same in 16 slices merged as a balanced tree; K a multiple of 256", nullptr,
     BP_MODE_INVARIANT, BP_IMPL_CUDA, kCudaWitnessId, &kCudaTree},
    {"cuda-sm90-mma-even8192", "as cuda-sm90-even8192, through mma.sync alone: the same bytes", nullptr,
     BP_MODE_INVARIANT, BP_IMPL_CUDA, kCudaWitnessId, &kCudaPortable},
    {"cuda-sm90-mma-tree16-chain2048", "as cuda-sm90-tree16-chain2048, through mma.sync alone: the same bytes", nullptr,
     BP_MODE_INVARIANT, BP_IMPL_CUDA, kCudaWitnessId, &kCudaPortableTree},
    {"cuda-sm80-mma-even8192", "the same through mma.sync on compute capability 8.x: other bytes", nullptr,
     BP_MODE_INVARIANT, BP_IMPL_CUDA, kCudaOlderWitnessId, &kCudaOlder},
    {"cuda-fast", "segments chosen from M and the device: not batch invariant", nullptr, BP_MODE_FAST, BP_IMPL_CUDA,
     kCudaWitnessId, &kCudaFast},
    cuda_control<CudaMatmulDefect::segment_follows_rows>("cuda-control-rows", "other segments from 17 rows on"),
    cuda_control<CudaMatmulDefect::segment_follows_position>("cuda-control-position", "odd rows take other segments"),
    cuda_control<CudaMatmulDefect::segment_follows_alignment>(
        "cuda-control-alignment", "other segments where x1 does not begin at a multiple of 64 bytes"),
    cuda_control<CudaMatmulDefect::segment_follows_calls>("cuda-control-calls",
                                                          "every second call takes other segments"),
    cuda_control<CudaMatmulDefect::segment_follows_stream>("cuda-control-stream",
                                                           "other segments on every stream but the first"),
    cuda_control<CudaMatmulDefect::segment_follows_capture>("cuda-control-capture", "other segments while captured"),
    cuda_control<CudaMatmulDefect::segment_follows_processors>("cuda-control-processors",
                                                               "other segments below 100 processors"),
    cuda_control<CudaMatmulDefect::stale_memo>(
        "cuda-control-stale-memo", "the key of the plan memo lacks the mode: a plan of fast mode is reused"),
    cuda_control<CudaMatmulDefect::neighbour_leak>("cuda-control-neighbour-leak",
                                                   "1/16 of the next row's first element is added"),
    cuda_control<CudaMatmulDefect::nan_leak>("cuda-control-nan-leak", "0 * (element of the next row) is added"),
    cuda_control<CudaMatmulDefect::workspace_leak>("cuda-control-workspace-leak",
                                                   "0 * (workspace that nothing wrote) is added"),
    {kCudaWitnessId, "as cuda-sm90-even8192 with segments of 16", nullptr, BP_MODE_INVARIANT,
     BP_IMPL_WITNESS | BP_IMPL_CUDA, nullptr, &kCudaWitness},
    {kCudaOlderWitnessId, "as cuda-sm80-mma-even8192 with segments of 16", nullptr, BP_MODE_INVARIANT,
     BP_IMPL_WITNESS | BP_IMPL_CUDA, nullptr, &kCudaOlderWitness}};

// Row counts at which the CPU product takes another path.
constexpr std::int64_t kThresholds[] = {13, 129};

const Plan& plan_of(const bp_implementation* implementation) { return *static_cast<const Plan*>(implementation->data); }

// ---- functions ----

bp_status validate(const bp_problem* problem, char* error, size_t error_size) {
  const auto refuse = [&](const std::string& sentence) {
    return bp_fail(error, error_size, BP_INVALID, "%s", sentence.c_str());
  };
  if (problem->world != 1) return refuse(fmt::format("matmul runs on one rank, not on {}", problem->world));
  for (const char* name : {"M", "K", "N"}) {
    if (const std::string wrong = extent_error(name, bp_axis_value(problem, name), 0); !wrong.empty()) {
      return refuse(wrong);
    }
  }
  const bp_dtype* dtypes = problem->dtypes;
  const Scaling scaling = scaling_of(dtypes, kScales);
  const std::string wrong = scaled_dtype_error(scaling, {{dtypes[kX1], dtypes[kX2], dtypes[kBias], dtypes[kY]},
                                                         scale_dtype(dtypes, kX1Scale, scaling),
                                                         scale_dtype(dtypes, kX2Scale, scaling)});
  if (!wrong.empty()) return refuse(wrong);
  if (scaling == Scaling::token_channel && bp_axis_value(problem, "K") > kInt8LongestK) {
    return refuse(fmt::format("K = {} is out of range; an INT32 accumulator holds {}", bp_axis_value(problem, "K"),
                              kInt8LongestK));
  }
  return BP_OK;
}

// Only the workspace controls read any: N floats, on a device one.
size_t workspace_size(const bp_implementation* implementation, const bp_problem* problem, int32_t /*rank*/) {
  const CudaMatmulPlan* cuda = plan_of(implementation).cuda;
  if (cuda != nullptr) return cuda->defect == CudaMatmulDefect::workspace_leak ? sizeof(float) : 0;
  if (plan_of(implementation).defect != LinearDefect::stale_workspace_leak) return 0;
  return static_cast<size_t>(bp_axis_value(problem, "N")) * sizeof(float);
}

ScaledLinear linear_of(const bp_context* context, const bp_tensor* tensors) {
  ScaledLinear linear;
  linear.scaling = scaling_of(context->problem->dtypes, kScales);
  linear.x = &tensors[kX1];
  linear.w = &tensors[kX2];
  linear.bias = tensors[kBias].dtype == BP_NONE ? nullptr : &tensors[kBias];
  linear.x_scale = scale_tensor(tensors, kX1Scale, linear.scaling);
  linear.w_scale = scale_tensor(tensors, kX2Scale, linear.scaling);
  linear.y = &tensors[kY];
  linear.bias_after_scale = bp_attr_int(context->problem, "bias_after_scale") != 0;
  return linear;
}

Result<void> multiply(const bp_context* context, const bp_tensor* tensors) {
  if (const CudaMatmulPlan* cuda = plan_of(context->implementation).cuda) {
#ifdef BATCHPROOF_HAVE_CUDA
    return cuda_matmul(*cuda, context, tensors);
#else
    (void)cuda;
    return fail(Error::Kind::environment,
                fmt::format("{} is not in this build: it has no CUDA", context->implementation->id));
#endif
  }
  const Plan& plan = plan_of(context->implementation);
  LinearSchedule order = plan.schedule;
  if (context->implementation->mode == BP_MODE_FAST) {
    order.segment = fast_segment(tensors[kX1].shape[0], tensors[kX1].shape[1]);
  }
  const Product product = [&](const GemmCall& call, const LinearSchedule& schedule) -> Result<void> {
    if (plan.defect != LinearDefect::none) {
      return run_linear_control(plan.defect, {call, context->threads, context->rank, context->mode,
                                              static_cast<const float*>(context->workspace)});
    }
    return run_scheduled(call, schedule, context->threads);
  };
  return scaled_linear(linear_of(context, tensors), order, context->threads, product);
}

bp_status run(const bp_context* context, const bp_tensor* tensors) {
  if (const bp_status refused = begin_run(context); refused != BP_OK) return refused;
  return operator_call(context, [&] { return multiply(context, tensors); });
}

bp_status reference(const bp_context* context, const bp_tensor* tensors) {
  return operator_call(context, [&] { return scaled_linear_reference(linear_of(context, tensors)); });
}

// Controls claim what the invariant implementations promise: that is their lie.
uint32_t promises(const bp_implementation* implementation, const bp_problem* problem, const bp_device* device) {
  if (const CudaMatmulPlan* cuda = plan_of(implementation).cuda) {
#ifdef BATCHPROOF_HAVE_CUDA
    return cuda_matmul_promises(*cuda, implementation->mode, problem, device);
#else
    (void)cuda;
    return 0;
#endif
  }
  if (device->memory != BP_MEMORY_HOST) return 0;
  constexpr uint32_t kAlways = BP_REPEAT | BP_NEIGHBOURS | BP_POSITION | BP_POISON | BP_ALIGNMENT | BP_THREADS;
  if (implementation->mode == BP_MODE_FAST) return kAlways;
  const LinearSchedule& schedule = plan_of(implementation).schedule;
  if (schedule.slices > 0) {
    const bool blocks = scaling_of(problem->dtypes, kScales) == Scaling::block;
    if (bp_axis_value(problem, "K") % (schedule.slices * (blocks ? kScaleBlock : 1)) != 0) return 0;
  }
  return kAlways | BP_BATCH_SIZE | BP_HISTORY;
}

const bp_operator kMatmul = operator_table(
    {.name = "matmul", .summary = "y = x1 . x2 + bias", .aliases = "Matmul, MatMul, Mm"},
    BP_OP_THREAD_SAFE | BP_OP_GRAPH_SAFE, kPorts, kAxes, kAttrs, kDtypeModes, kImplementations, kThresholds,
    {.validate = validate, .workspace_size = workspace_size, .run = run, .reference = reference, .promises = promises});

BATCHPROOF_REGISTER(kMatmul);

}  // namespace
}  // namespace batchproof
