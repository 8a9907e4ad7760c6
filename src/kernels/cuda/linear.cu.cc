// SPDX-License-Identifier: Apache-2.0
//
// Tensors of the operator table as a matrix product on CUDA.
#include "src/kernels/cuda/linear.h"

#include <fmt/format.h>

#include "src/kernels/cuda/leak_kernel.h"
#include "src/kernels/cuda/tensor_core_rules.h"
#include "src/runtime/cuda_device.h"

namespace batchproof::cuda {
namespace {

constexpr std::int64_t kAtom = 16;  // one tensor-core step

Result<Schedule> schedule_of(const CudaLinearPlan& plan, const CudaGemmCall& call, std::int64_t other_segment) {
  if (other_segment > 0) return Schedule::make(call.k, ChainPolicy{other_segment});
  if (plan.slices > 0) return Schedule::make(call.k, TreePolicy{plan.slices, kAtom, plan.segment});
  if (plan.segment == 0) return fast_gemm_schedule(call);
  if (plan.segment == kCudaGemmSegment) return cuda_gemm_schedule(call.k);
  return Schedule::make(call.k, ChainPolicy{plan.segment});
}

Result<void> check_tensor(const char* name, const bp_tensor& tensor, int ndim, std::int64_t rows,
                          std::int64_t columns) {
  if (tensor.memory != BP_MEMORY_CUDA)
    return fail(Error::Kind::environment, fmt::format("{} must lie in CUDA memory for a CUDA implementation", name));
  if (tensor.ndim != ndim || tensor.shape[0] != rows || (ndim == 2 && tensor.shape[1] != columns))
    return fail(Error::Kind::usage, ndim == 1 ? fmt::format("{} must have the shape ({})", name, rows)
                                              : fmt::format("{} must have the shape ({}, {})", name, rows, columns));
  if (tensor.data == nullptr && rows > 0 && columns > 0)
    return fail(Error::Kind::usage, fmt::format("{} has no memory", name));
  return {};
}

}  // namespace

std::string cuda_linear_refusal(const CudaLinearPlan& plan, bp_dtype dtype) {
  const Result<DeviceInfo> device = current_device();
  if (!device) return device.error().message;
  if (device->major != plan.generation)
    return fmt::format("it is for compute capability {}.x, {} is {}.{}", plan.generation, device->name, device->major,
                       device->minor);
  const Result<void> rules = tensor_core_rules_hold(dtype);
  return rules ? "" : rules.error().message;
}

bool cuda_linear_suits(const CudaLinearPlan& plan, bp_dtype dtype, std::int64_t k, const bp_device& device) {
  if (device.memory != BP_MEMORY_CUDA || (dtype != BP_BF16 && dtype != BP_FP16)) return false;
  if (plan.slices > 0 && k % (plan.slices * kAtom) != 0) return false;
  return cuda_linear_refusal(plan, dtype).empty();
}

Result<void> check_cuda_linear(const CudaLinearPlan& plan, const CudaGemmCall& call, const bp_context& context) {
  const char* id = context.implementation->id;
  if (call.dtype != BP_BF16 && call.dtype != BP_FP16)
    return fail(Error::Kind::usage, fmt::format("{} multiplies BF16 and FP16 only", id));
  if (const std::string why = cuda_linear_refusal(plan, call.dtype); !why.empty())
    return fail(Error::Kind::operation, fmt::format("{} refuses this device: {}", id, why));
  return {};
}

Result<void> cuda_linear(const CudaLinearPlan& plan, const CudaGemmCall& call, const bp_context& context,
                         std::int64_t other_segment) {
  if (call.m == 0 || call.n == 0) return {};  // the planner of fast mode needs a tile
  const Result<Schedule> schedule = schedule_of(plan, call, other_segment);
  if (!schedule) return tl::unexpected<Error>(schedule.error());
  CudaGemmOptions options;
  options.stream = context.stream;
  options.processors = context.processors;
  if (plan.portable) options.path = CudaGemmPath::portable;
  const Result<CudaGemmPath> done = cuda_gemm(call, *schedule, options);
  if (!done) return tl::unexpected<Error>(done.error());
  return {};
}

CudaGemmCall cuda_linear_rows(const CudaGemmCall& call, std::int64_t first, std::int64_t count, std::int64_t step) {
  CudaGemmCall part = call;
  part.m = count;
  const std::int64_t y_bytes = call.y_dtype == BP_FP32 ? 4 : 2;
  part.x = static_cast<const char*>(call.x) + first * call.x_row_stride * 2;
  part.y = static_cast<char*>(call.y) + first * call.y_row_stride * y_bytes;
  part.x_row_stride = call.x_row_stride * step;
  part.y_row_stride = call.y_row_stride * step;
  return part;
}

Result<CudaGemmCall> cuda_linear_call(const bp_tensor& x, const bp_tensor& w, const bp_tensor* bias,
                                      const bp_tensor& y) {
  CudaGemmCall call;
  call.m = x.shape[0];
  call.k = x.shape[1];
  call.n = w.shape[1];
  for (const Result<void>& checked :
       {check_tensor("x1", x, 2, call.m, call.k), check_tensor("x2", w, 2, call.k, call.n),
        bias == nullptr ? Result<void>() : check_tensor("bias", *bias, 1, call.n, 1),
        check_tensor("y", y, 2, call.m, call.n)}) {
    if (!checked) return tl::unexpected<Error>(checked.error());
  }
  if (w.dtype != x.dtype) return fail(Error::Kind::usage, "x1 and x2 must have one dtype");
  if (call.n > 1 && y.stride[1] != 1)
    return fail(Error::Kind::usage, fmt::format("y has the column stride {}; it must be 1", y.stride[1]));
  call.dtype = x.dtype;
  call.x = x.data;
  // One column has no stride: take the one that reads it as contiguous.
  call.x_row_stride = x.stride[0];
  call.x_column_stride = call.k == 1 ? 1 : x.stride[1];
  call.w = w.data;
  call.w_row_stride = call.k == 1 && w.stride[1] != 1 ? 1 : w.stride[0];
  call.w_column_stride = w.stride[1];
  if (bias != nullptr) {
    call.bias = bias->data;
    call.bias_dtype = bias->dtype;
    call.bias_stride = bias->stride[0];
  }
  call.y = y.data;
  call.y_dtype = y.dtype;
  call.y_row_stride = y.stride[0];
  return call;
}

Result<void> cuda_add_leak(const CudaGemmCall& call, std::int64_t rows, const void* source, bp_dtype source_dtype,
                           std::int64_t source_stride, float factor, void* stream) {
  const auto store = [](bp_dtype dtype) {
    return dtype == BP_FP32 ? Store::fp32 : dtype == BP_BF16 ? Store::bf16 : Store::fp16;
  };
  return cuda_check("launching a control", launch_leak({call.y, store(call.y_dtype), call.y_row_stride, rows, call.n,
                                                        source, store(source_dtype), source_stride, factor},
                                                       static_cast<cudaStream_t>(stream)));
}

}  // namespace batchproof::cuda
