// SPDX-License-Identifier: Apache-2.0
//
// Inputs made on the device and byte comparison.
#include "src/kernels/cuda/fill_kernels.h"

namespace batchproof::cuda {
namespace {

__device__ void store_code(void* out, int bits, std::int64_t at, std::uint64_t code) {
  switch (bits) {
    case 8:
      static_cast<std::uint8_t*>(out)[at] = static_cast<std::uint8_t>(code);
      return;
    case 16:
      static_cast<std::uint16_t*>(out)[at] = static_cast<std::uint16_t>(code);
      return;
    case 32:
      static_cast<std::uint32_t*>(out)[at] = static_cast<std::uint32_t>(code);
      return;
    default:
      static_cast<std::uint64_t*>(out)[at] = code;
  }
}

// One thread makes the four elements of one Philox block.
__global__ void fill_kernel(const __grid_constant__ FillLaunch f) {
  const std::int64_t blocks = (f.columns + 3) / 4;
  const PhiloxKey key = element_key(f.seed, f.name);
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < f.rows * blocks;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t row = i / blocks, block = i % blocks;
    const std::uint64_t identity = f.row + static_cast<std::uint64_t>(row);
    const auto draw = [&](std::uint64_t of_row, std::uint32_t stream) {
      return philox4x32(element_counter(of_row, static_cast<std::uint64_t>(block), stream), key);
    };
    const PhiloxBlock words = draw(identity, kValueStream);
    PhiloxBlock exponents{}, varying{};
    if (f.plan.spread) exponents = draw(identity, kExponentStream);
    if (f.plan.varying) varying = draw(identity / kWideSpan, kVaryingStream);
    const auto place = static_cast<std::uint32_t>(identity % kWideSpan);
    std::uint64_t code[4];
#pragma unroll
    for (int q = 0; q < 4; ++q)
      code[q] = element_code(f.dtype, element_value(f.plan, words.word[q], exponents.word[q], varying.word[q], place));
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const std::int64_t column = block * 4 + q;
      if (column >= f.columns) break;
      const std::int64_t at = row * f.row_stride + column * f.column_stride;
      if (f.bits != 4)
        store_code(f.out, f.bits, at, code[q]);
      else if (q % 2 == 0)
        store_code(f.out, 8, at / 2, code[q] | code[q + 1] << 4);
    }
  }
}

__global__ void copy_kernel(const uint4* from, uint4* to, std::int64_t count) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {
    const uint4 a = from[i], b = from[i + stride], c = from[i + 2 * stride], d = from[i + 3 * stride];
    to[i] = a;
    to[i + stride] = b;
    to[i + 2 * stride] = c;
    to[i + 3 * stride] = d;
  }
  for (; i < count; i += stride) to[i] = from[i];
}

template <class Word>
__global__ void count_kernel(const Word* a, std::int64_t a_stride, const Word* b, std::int64_t b_stride,
                             std::int64_t rows, std::int64_t columns, unsigned long long* count) {
  unsigned long long differing = 0;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < rows * columns;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t row = i / columns, column = i % columns;
    differing += a[row * a_stride + column] != b[row * b_stride + column];
  }
  if (differing != 0) atomicAdd(count, differing);
}

}  // namespace

cudaError_t launch_fill(const FillLaunch& fill, cudaStream_t stream) {
  if (fill.rows == 0 || fill.columns == 0) return cudaSuccess;
  fill_kernel<<<1056, 256, 0, stream>>>(fill);
  return cudaGetLastError();
}

cudaError_t launch_copy(const void* from, void* to, std::int64_t bytes, cudaStream_t stream) {
  copy_kernel<<<132 * 8, 512, 0, stream>>>(static_cast<const uint4*>(from), static_cast<uint4*>(to), bytes / 16);
  return cudaGetLastError();
}

cudaError_t launch_count_differing(const void* a, std::int64_t a_stride, const void* b, std::int64_t b_stride,
                                   std::int64_t rows, std::int64_t columns, int element_bytes,
                                   unsigned long long* count, cudaStream_t stream) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  if (element_bytes == 4)
    count_kernel<<<1056, 256, 0, stream>>>(static_cast<const std::uint32_t*>(a), a_stride,
                                           static_cast<const std::uint32_t*>(b), b_stride, rows, columns, count);
  else
    count_kernel<<<1056, 256, 0, stream>>>(static_cast<const std::uint16_t*>(a), a_stride,
                                           static_cast<const std::uint16_t*>(b), b_stride, rows, columns, count);
  return cudaGetLastError();
}

}  // namespace batchproof::cuda
