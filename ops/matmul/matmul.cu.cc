// SPDX-License-Identifier: Apache-2.0
//
// matmul on CUDA: its implementations and its controls.
#include "ops/matmul/matmul.h"

#include <cuda_runtime.h>

#include <atomic>
#include <mutex>
#include <set>
#include <tuple>

#include "batchproof/problem.h"
#include "src/kernels/cuda/linear.h"

namespace batchproof {
namespace {

using cuda::CudaGemmCall;

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

// Even (0) or odd (1) rows.
CudaGemmCall every_second_row(const CudaGemmCall& call, std::int64_t first) {
  return cuda::cuda_linear_rows(call, first, call.m > first ? (call.m - first + 1) / 2 : 0, 2);
}

Result<void> leak(CudaMatmulDefect defect, const CudaGemmCall& call, const bp_context& context) {
  if (defect == CudaMatmulDefect::workspace_leak)
    return cuda::cuda_add_leak(call, call.m, context.workspace, BP_FP32, 0, 0.0f, context.stream);
  const void* next = static_cast<const char*>(call.x) + call.x_row_stride * 2;
  const float factor = defect == CudaMatmulDefect::neighbour_leak ? 0.0625f : 0.0f;
  return cuda::cuda_add_leak(call, call.m - 1, next, call.dtype, call.x_row_stride, factor, context.stream);
}

}  // namespace

std::uint32_t cuda_matmul_promises(const CudaMatmulPlan& plan, bp_mode mode, const bp_problem* problem,
                                   const bp_device* device) {
  if (!cuda::cuda_linear_suits(plan.linear, problem->dtypes[0], bp_axis_value(problem, "K"), *device)) return 0;
  constexpr std::uint32_t kAlways = BP_REPEAT | BP_NEIGHBOURS | BP_POSITION | BP_POISON | BP_ALIGNMENT | BP_THREADS;
  if (mode == BP_MODE_FAST) return kAlways;
  return kAlways | BP_BATCH_SIZE | BP_HISTORY | BP_STREAM | BP_GRAPH | BP_PROCESSORS;
}

Result<void> cuda_matmul(const CudaMatmulPlan& plan, const bp_context* context, const bp_tensor* tensors) {
  const bp_tensor* bias = tensors[2].dtype == BP_NONE ? nullptr : &tensors[2];
  const Result<CudaGemmCall> call = cuda::cuda_linear_call(tensors[0], tensors[1], bias, tensors[3]);
  if (!call) return tl::unexpected<Error>(call.error());
  if (auto fits = cuda::check_cuda_linear(plan.linear, *call, *context); !fits) return fits;
  const auto multiply = [&](const CudaGemmCall& part, std::int64_t other_segment) {
    return cuda::cuda_linear(plan.linear, part, *context, other_segment);
  };
  switch (plan.defect) {
    case CudaMatmulDefect::none:
      return multiply(*call, 0);
    case CudaMatmulDefect::segment_follows_position: {
      auto even = multiply(every_second_row(*call, 0), 0);
      return even ? multiply(every_second_row(*call, 1), cuda::kCudaOtherSegment) : even;
    }
    case CudaMatmulDefect::neighbour_leak:
    case CudaMatmulDefect::nan_leak:
    case CudaMatmulDefect::workspace_leak: {
      auto done = multiply(*call, 0);
      return done ? leak(plan.defect, *call, *context) : done;
    }
    default:
      return multiply(*call, takes_other_segment(plan.defect, *call, *context) ? cuda::kCudaOtherSegment : 0);
  }
}

}  // namespace batchproof
