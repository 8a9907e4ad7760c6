// SPDX-License-Identifier: Apache-2.0
//
// matmul on CUDA: its implementations and its controls.
#include "ops/matmul/matmul.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <atomic>
#include <mutex>
#include <set>
#include <tuple>

#include "batchproof/problem.h"
#include "src/kernels/cuda/gemm.h"
#include "src/kernels/cuda/linear.h"
#include "src/kernels/cuda/tensor_core_rules.h"
#include "src/runtime/cuda_device.h"

namespace batchproof {
namespace {

using cuda::CudaGemmCall;
using cuda::CudaGemmOptions;
using cuda::CudaGemmPath;

constexpr std::int64_t kAtom = 16;          // one tensor-core step
constexpr std::int64_t kOtherSegment = 64;  // what a control takes instead

Result<Schedule> chain(std::int64_t k, std::int64_t segment) { return Schedule::make(k, ChainPolicy{segment}); }

Result<Schedule> schedule_of(const CudaMatmulPlan& plan, const CudaGemmCall& call) {
  if (plan.slices > 0) return Schedule::make(call.k, TreePolicy{plan.slices, kAtom, plan.segment});
  if (plan.segment == 0) return cuda::fast_gemm_schedule(call);
  if (plan.segment == cuda::kCudaGemmSegment) return cuda::cuda_gemm_schedule(call.k);
  return chain(call.k, plan.segment);
}

bool captures(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status);
  return status == cudaStreamCaptureStatusActive;
}

// The first stream that the process multiplied on.
bool first_stream(void* stream) {
  static std::atomic<void*> first{nullptr};
  void* none = nullptr;
  return first.compare_exchange_strong(none, stream) || none == stream;
}

// The plan that fast mode stored for a shape: true once.
bool reuses_memo(const CudaGemmCall& call, bp_mode mode) {
  static std::mutex mutex;
  static std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>> memo;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto key = std::make_tuple(call.m, call.n, call.k);
  if (mode != BP_MODE_FAST) return memo.erase(key) != 0;
  memo.insert(key);
  return false;
}

// The schedule that the defect leads to.
bool takes_other_segment(CudaMatmulDefect defect, const CudaGemmCall& call, const bp_context& context) {
  static std::atomic<unsigned> calls{0};
  switch (defect) {
    case CudaMatmulDefect::segment_follows_rows:
      return call.m > 16;
    case CudaMatmulDefect::segment_follows_alignment:
      return reinterpret_cast<std::uintptr_t>(call.x) % 64 != 0;
    case CudaMatmulDefect::segment_follows_calls:
      return calls.fetch_add(1) % 2 != 0;
    case CudaMatmulDefect::segment_follows_stream:
      return !first_stream(context.stream);
    case CudaMatmulDefect::segment_follows_capture:
      return captures(context.stream);
    case CudaMatmulDefect::segment_follows_processors:
      return context.processors > 0 && context.processors < 100;
    case CudaMatmulDefect::stale_memo:
      return reuses_memo(call, context.mode);
    default:
      return false;
  }
}

CudaGemmCall every_second_row(const CudaGemmCall& call, std::int64_t first) {
  CudaGemmCall part = call;
  part.m = call.m > first ? (call.m - first + 1) / 2 : 0;
  const std::int64_t y_bytes = call.y_dtype == BP_FP32 ? 4 : 2;
  part.x = static_cast<const char*>(call.x) + first * call.x_row_stride * 2;
  part.y = static_cast<char*>(call.y) + first * call.y_row_stride * y_bytes;
  part.x_row_stride = call.x_row_stride * 2;
  part.y_row_stride = call.y_row_stride * 2;
  return part;
}

Result<void> multiply(const CudaGemmCall& call, const Result<Schedule>& schedule, const CudaGemmOptions& options) {
  if (!schedule) return tl::unexpected<Error>(schedule.error());
  const Result<CudaGemmPath> done = cuda::cuda_gemm(call, *schedule, options);
  if (!done) return tl::unexpected<Error>(done.error());
  return {};
}

Result<void> leak(CudaMatmulDefect defect, const CudaGemmCall& call, const bp_context& context) {
  if (defect == CudaMatmulDefect::workspace_leak)
    return cuda::cuda_add_leak(call, call.m, context.workspace, BP_FP32, 0, 0.0f, context.stream);
  const void* next = static_cast<const char*>(call.x) + call.x_row_stride * 2;
  const float factor = defect == CudaMatmulDefect::neighbour_leak ? 0.0625f : 0.0f;
  return cuda::cuda_add_leak(call, call.m - 1, next, call.dtype, call.x_row_stride, factor, context.stream);
}

// Why the current device cannot run the plan; empty: it can.
std::string refusal(const CudaMatmulPlan& plan, bp_dtype dtype) {
  const Result<cuda::DeviceInfo> device = cuda::current_device();
  if (!device) return device.error().message;
  if (device->major != plan.generation)
    return fmt::format("it is for compute capability {}.x, {} is {}.{}", plan.generation, device->name, device->major,
                       device->minor);
  const Result<void> rules = cuda::tensor_core_rules_hold(dtype);
  return rules ? "" : rules.error().message;
}

}  // namespace

std::uint32_t cuda_matmul_promises(const CudaMatmulPlan& plan, bp_mode mode, const bp_problem* problem,
                                   const bp_device* device) {
  const bp_dtype dtype = problem->dtypes[0];
  if (device->memory != BP_MEMORY_CUDA || (dtype != BP_BF16 && dtype != BP_FP16)) return 0;
  if (!refusal(plan, dtype).empty()) return 0;
  if (plan.slices > 0 && bp_axis_value(problem, "K") % (plan.slices * kAtom) != 0) return 0;
  constexpr std::uint32_t kAlways = BP_REPEAT | BP_NEIGHBOURS | BP_POSITION | BP_POISON | BP_ALIGNMENT | BP_THREADS;
  if (mode == BP_MODE_FAST) return kAlways;
  return kAlways | BP_BATCH_SIZE | BP_HISTORY | BP_STREAM | BP_GRAPH | BP_PROCESSORS;
}

Result<void> cuda_matmul(const CudaMatmulPlan& plan, const bp_context* context, const bp_tensor* tensors) {
  const bp_tensor* bias = tensors[2].dtype == BP_NONE ? nullptr : &tensors[2];
  const Result<CudaGemmCall> call = cuda::cuda_linear_call(tensors[0], tensors[1], bias, tensors[3]);
  if (!call) return tl::unexpected<Error>(call.error());
  if (call->dtype != BP_BF16 && call->dtype != BP_FP16)
    return fail(Error::Kind::usage, fmt::format("{} multiplies BF16 and FP16 only", context->implementation->id));
  if (const std::string why = refusal(plan, call->dtype); !why.empty())
    return fail(Error::Kind::operation, fmt::format("{} refuses this device: {}", context->implementation->id, why));
  CudaGemmOptions options;
  options.stream = context->stream;
  options.processors = context->processors;
  if (plan.portable) options.path = CudaGemmPath::portable;
  const Result<Schedule> schedule = schedule_of(plan, *call);
  switch (plan.defect) {
    case CudaMatmulDefect::none:
      return multiply(*call, schedule, options);
    case CudaMatmulDefect::segment_follows_position: {
      auto even = multiply(every_second_row(*call, 0), schedule, options);
      return even ? multiply(every_second_row(*call, 1), chain(call->k, kOtherSegment), options) : even;
    }
    case CudaMatmulDefect::neighbour_leak:
    case CudaMatmulDefect::nan_leak:
    case CudaMatmulDefect::workspace_leak: {
      auto done = multiply(*call, schedule, options);
      return done ? leak(plan.defect, *call, *context) : done;
    }
    default:
      return multiply(
          *call, takes_other_segment(plan.defect, *call, *context) ? chain(call->k, kOtherSegment) : schedule, options);
  }
}

}  // namespace batchproof
