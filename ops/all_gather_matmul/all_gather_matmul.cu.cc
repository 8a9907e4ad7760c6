// SPDX-License-Identifier: Apache-2.0
//
// all_gather_matmul on CUDA: its implementations and its controls.
#include "ops/all_gather_matmul/all_gather_matmul.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include "batchproof/problem.h"
#include "src/kernels/cpu/linear.h"
#include "src/runtime/cuda_device.h"

namespace batchproof {
namespace {

using cuda::cuda_check;
using cuda::CudaGemmCall;

constexpr std::size_t kElement = 2;  // BF16 and FP16
constexpr std::int64_t kFewRows = 16;

cudaStream_t stream_of(const bp_context& context) { return static_cast<cudaStream_t>(context.stream); }

// x1's rows of every rank, one behind the other in `all`.
Result<void> gather_rows(const bp_context& context, const CudaGatherCall& call, void* all) {
  const bp_tensor& x1 = *call.x1;
  const std::size_t row = static_cast<std::size_t>(x1.shape[1]) * kElement;
  const auto rows = static_cast<std::size_t>(x1.shape[0]);
  const void* send = x1.data;
  if (!is_contiguous(x1) && rows > 0) {
    if (auto packed =
            cuda_check("packing the rows of x1",
                       cudaMemcpy2DAsync(call.own, row, x1.data, static_cast<std::size_t>(x1.stride[0]) * kElement, row,
                                         rows, cudaMemcpyDeviceToDevice, stream_of(context)));
        !packed)
      return packed;
    send = call.own;
  }
  return gather_bytes(context, "x1", send, all, row * rows);
}

// Gathered rows as a ring receives them: the rank's own first, then those of the next rank.
Result<void> rotate(const bp_context& context, const CudaGatherCall& call) {
  const std::size_t block = static_cast<std::size_t>(call.x1->shape[0] * call.x1->shape[1]) * kElement;
  for (int q = 0; q < context.world && block > 0; ++q) {
    const auto from = static_cast<std::size_t>((context.rank + q) % context.world);
    if (auto done =
            cuda_check("rotating gather_out", cudaMemcpyAsync(static_cast<char*>(call.gather_out->data) + block * q,
                                                              static_cast<const char*>(call.gathered) + block * from,
                                                              block, cudaMemcpyDeviceToDevice, stream_of(context)));
        !done)
      return done;
  }
  return {};
}

// LOCAL and GATHER: a product for the rank's own rows and one on either side of them.
Result<void> multiply_in_parts(const CudaGatherPlan& plan, const bp_context& context, const CudaGemmCall& all,
                               std::int64_t m) {
  const std::int64_t other = plan.defect == CudaGatherDefect::two_paths ? cuda::kCudaOtherSegment : 0;
  const std::int64_t begin = context.rank * m;
  const auto part = [&](std::int64_t first, std::int64_t count, std::int64_t segment) {
    return cuda::cuda_linear(plan.linear, cuda::cuda_linear_rows(all, first, count), context, segment);
  };
  Result<void> done = part(begin, m, 0);
  if (done) done = part(0, begin, other);
  return done ? part(begin + m, all.m - begin - m, other) : done;
}

Result<void> multiply(const CudaGatherPlan& plan, const bp_context& context, const CudaGatherCall& call,
                      const CudaGemmCall& all) {
  const bool fast = plan.linear.segment == 0;
  if (fast || plan.defect == CudaGatherDefect::two_paths)
    return multiply_in_parts(plan, context, all, call.x1->shape[0]);
  const bool other = plan.defect == CudaGatherDefect::segment_follows_rows && all.m > kFewRows;
  if (auto done = cuda::cuda_linear(plan.linear, all, context, other ? cuda::kCudaOtherSegment : 0); !done) return done;
  switch (plan.defect) {
    case CudaGatherDefect::ring_order:
      return call.gather_out != nullptr ? rotate(context, call) : Result<void>();
    case CudaGatherDefect::nan_leak: {
      const void* next = static_cast<const char*>(all.x) + all.x_row_stride * static_cast<std::int64_t>(kElement);
      return cuda::cuda_add_leak(all, all.m - 1, next, all.dtype, all.x_row_stride, 0.0f, context.stream);
    }
    case CudaGatherDefect::workspace_leak:
      return cuda::cuda_add_leak(all, all.m, call.stale, BP_FP32, 0, 0.0f, context.stream);
    default:
      return {};
  }
}

}  // namespace

std::uint32_t cuda_gather_promises(const CudaGatherPlan& plan, bp_mode mode, const bp_problem* problem,
                                   const bp_device* device) {
  if (!cuda::cuda_linear_suits(plan.linear, problem->dtypes[0], bp_axis_value(problem, "K"), *device)) return 0;
  constexpr std::uint32_t kAlways = BP_REPEAT | BP_NEIGHBOURS | BP_COMM_MODE | BP_POISON | BP_ALIGNMENT | BP_THREADS;
  if (mode == BP_MODE_FAST) return kAlways;
  return kAlways | BP_BATCH_SIZE | BP_POSITION | BP_CROSS_RANK | BP_WORLD_SIZE | BP_HISTORY | BP_STREAM | BP_PROCESSORS;
}

Result<void> cuda_all_gather_matmul(const CudaGatherPlan& plan, const bp_context& context, const CudaGatherCall& call) {
  const bp_tensor& x1 = *call.x1;
  // Everything is checked before the first rank communicates.
  for (const auto& [name, tensor] : {std::pair("x1", call.x1), std::pair("gather_out", call.gather_out)}) {
    if (tensor != nullptr && tensor->memory != BP_MEMORY_CUDA)
      return fail(Error::Kind::environment, fmt::format("{} must lie in CUDA memory for a CUDA implementation", name));
  }
  if (x1.data == nullptr && x1.shape[0] * x1.shape[1] > 0) return fail(Error::Kind::usage, "x1 has no memory");
  if (x1.shape[1] > 1 && x1.stride[1] != 1)
    return fail(Error::Kind::usage, fmt::format("x1 has the column stride {}; it must be 1", x1.stride[1]));
  const bool into_output = call.gather_out != nullptr && plan.defect != CudaGatherDefect::ring_order;
  void* all = into_output ? call.gather_out->data : call.gathered;
  bp_tensor rows = dense_matrix(all, x1.dtype, context.world * x1.shape[0], x1.shape[1]);
  rows.memory = BP_MEMORY_CUDA;
  const Result<CudaGemmCall> product = cuda::cuda_linear_call(rows, *call.x2, call.bias, *call.y);
  if (!product) return tl::unexpected<Error>(product.error());
  if (auto fits = cuda::check_cuda_linear(plan.linear, *product, context); !fits) return fits;
  if (auto gathered = gather_rows(context, call, all); !gathered) return gathered;
  return multiply(plan, context, call, *product);
}

}  // namespace batchproof
