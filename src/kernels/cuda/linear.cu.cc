// SPDX-License-Identifier: Apache-2.0
//
// Tensors of the operator table as a matrix product on CUDA.
#include "src/kernels/cuda/linear.h"

#include <fmt/format.h>

#include "src/kernels/cuda/leak_kernel.h"
#include "src/runtime/cuda_device.h"

namespace batchproof::cuda {
namespace {

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
