// SPDX-License-Identifier: Apache-2.0
//
// What controls add to a correct product.
#include "src/kernels/cuda/convert.h"
#include "src/kernels/cuda/leak_kernel.h"

namespace batchproof::cuda {
namespace {

__global__ void leak_kernel(LeakLaunch l) {
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < l.rows * l.columns;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t row = i / l.columns, at = row * l.y_stride + i % l.columns;
    const float addend = __fmul_rn(l.factor, load_bias(l.source, l.source_type, row * l.source_stride));
    store_one(l.y, l.y_type, at, __fadd_rn(load_bias(l.y, l.y_type, at), addend));
  }
}

}  // namespace

cudaError_t launch_leak(const LeakLaunch& leak, cudaStream_t stream) {
  if (leak.rows <= 0 || leak.columns <= 0) return cudaSuccess;
  leak_kernel<<<264, 256, 0, stream>>>(leak);
  return cudaGetLastError();
}

}  // namespace batchproof::cuda
