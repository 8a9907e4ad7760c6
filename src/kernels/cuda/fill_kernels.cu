// SPDX-License-Identifier: Apache-2.0
//
// Inputs made on the device and byte comparison.
#include "src/kernels/cuda/fill_kernels.h"
#include "src/numeric/bf16.h"
#include "src/numeric/fp16.h"
#include "src/numeric/normal.h"
#include "src/numeric/philox.h"

namespace batchproof::cuda {
namespace {

// As recipe_fill.cc: streams of an element's draws, and the binades of wide_exponent.
constexpr std::uint32_t kValueStream = 0;
constexpr std::uint32_t kExponentStream = 1;

// One thread makes the four elements of one Philox block.
__global__ void fill_kernel(FillLaunch f) {
  const std::int64_t blocks = (f.columns + 3) / 4;
  const PhiloxKey key = element_key(f.seed, f.name);
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < f.rows * blocks;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t row = i / blocks, block = i % blocks;
    const std::uint64_t identity = f.row + static_cast<std::uint64_t>(row);
    const PhiloxBlock words =
        philox4x32(element_counter(identity, static_cast<std::uint64_t>(block), kValueStream), key);
    PhiloxBlock exponents{};
    if (f.wide)
      exponents = philox4x32(element_counter(identity, static_cast<std::uint64_t>(block), kExponentStream), key);
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const std::int64_t column = block * 4 + q;
      if (column >= f.columns) break;
      double value = normal_from_word(words.word[q]);
      if (f.wide) {
        const int low = f.width == 2 ? -12 : -16;
        const std::uint32_t span = f.width == 2 ? 12 : 24;
        value = mul_rn(value, power_of_two(low + static_cast<int>(below(exponents.word[q], span))));
      }
      const float rounded = __double2float_rn(value);
      const std::int64_t at = row * f.row_stride + column * f.column_stride;
      if (f.width == 0)
        static_cast<float*>(f.out)[at] = rounded;
      else
        static_cast<std::uint16_t*>(f.out)[at] = f.width == 1 ? float_to_bf16(rounded) : float_to_fp16(rounded);
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
