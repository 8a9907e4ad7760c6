// SPDX-License-Identifier: Apache-2.0
//
// Products by one named instruction form, and their comparison.
#include "src/kernels/cuda/ptx.h"
#include "src/kernels/cuda/tensor_core_products.h"
#include "src/kernels/cuda/wgmma.h"

namespace batchproof::cuda {
namespace {

template <MmaType T>
struct Accumulator {
  using Type = float;
};
template <>
struct Accumulator<MmaType::s8> {
  using Type = std::int32_t;
};

__device__ std::uint32_t bits_of(float v) { return __float_as_uint(v); }
__device__ std::uint32_t bits_of(std::int32_t v) { return static_cast<std::uint32_t>(v); }

// rows x 32 bytes from global memory into core matrices of 8 rows x 16 bytes.
__device__ void stage(std::uint8_t* to, const std::uint8_t* from, int rows, int pitch) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * 2; i += static_cast<int>(blockDim.x)) {
    const int row = i / 2, half = i % 2;
    *reinterpret_cast<uint4*>(to + row / 8 * 256 + half * 128 + row % 8 * 16) =
        *reinterpret_cast<const uint4*>(from + static_cast<std::int64_t>(row) * pitch + half * 16);
  }
}

template <MmaType T, int N, bool kFromRegisters>
__global__ void __launch_bounds__(128) wgmma_product(Product p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
  __shared__ __align__(128) std::uint8_t as[64 * 32];
  __shared__ __align__(128) std::uint8_t bs[N * 32];
  const int row0 = static_cast<int>(blockIdx.x) * 64, column0 = static_cast<int>(blockIdx.y) * N;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  typename Accumulator<T>::Type acc[N / 2] = {};
  for (int k = 0; k < p.bytes; k += 32) {
    __syncthreads();
    stage(as, p.a + static_cast<std::int64_t>(row0) * p.bytes + k, 64, p.bytes);
    stage(bs, p.b + static_cast<std::int64_t>(column0) * p.bytes + k, N, p.bytes);
    fence_async_proxy();
    __syncthreads();
    const std::uint64_t b = matrix_descriptor(shared_address(bs), 128, 256, 0);
    const int accumulate = k > 0 || !p.start_fresh;
    wgmma_fence();
    if constexpr (kFromRegisters) {
      std::uint32_t a[4];
      const std::uint8_t* row =
          p.a + static_cast<std::int64_t>(row0 + warp * 16 + lane / 4) * p.bytes + k + lane % 4 * 4;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[i] =
            *reinterpret_cast<const std::uint32_t*>(row + i % 2 * 8 * static_cast<std::int64_t>(p.bytes) + i / 2 * 16);
      wgmma_fence();
      Wgmma<N>::template rs<T>(acc, a, b, accumulate);
    } else {
      Wgmma<N>::template ss<T>(acc, matrix_descriptor(shared_address(as), 128, 256, 0), b, accumulate);
    }
    wgmma_commit();
    wgmma_wait<0>();
  }
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    pin(acc[i]);
    const int row = row0 + warp * 16 + lane / 4 + i % 4 / 2 * 8;
    const int column = column0 + i / 4 * 8 + lane % 4 * 2 + i % 2;
    p.c[static_cast<std::int64_t>(row) * p.columns + column] = bits_of(acc[i]);
  }
#endif
}

#define BP_MMA_WHOLE(SHAPE, D, AB, C, AS)                                  \
  asm volatile("mma.sync.aligned." SHAPE ".row.col." D "." AB "." AB "." C \
               " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"    \
               : AS(d[0]), AS(d[1]), AS(d[2]), AS(d[3])                    \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define BP_MMA_HALF(SHAPE, D, AB, C, AS)                                   \
  asm volatile("mma.sync.aligned." SHAPE ".row.col." D "." AB "." AB "." C \
               " {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"             \
               : AS(d[0]), AS(d[1]), AS(d[2]), AS(d[3])                    \
               : "r"(a[0]), "r"(a[1]), "r"(b[0]))
#define BP_F(x) "+f"(x)
#define BP_I(x) "+r"(x)

template <MmaType T, class Acc>
__device__ void mma_whole(Acc (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  if constexpr (T == MmaType::bf16) BP_MMA_WHOLE("m16n8k16", "f32", "bf16", "f32", BP_F);
  if constexpr (T == MmaType::fp16) BP_MMA_WHOLE("m16n8k16", "f32", "f16", "f32", BP_F);
  if constexpr (T == MmaType::tf32) BP_MMA_WHOLE("m16n8k8", "f32", "tf32", "f32", BP_F);
  if constexpr (T == MmaType::e4m3) BP_MMA_WHOLE("m16n8k32", "f32", "e4m3", "f32", BP_F);
  if constexpr (T == MmaType::e5m2) BP_MMA_WHOLE("m16n8k32", "f32", "e5m2", "f32", BP_F);
  if constexpr (T == MmaType::s8) BP_MMA_WHOLE("m16n8k32", "s32", "s8", "s32", BP_I);
}

// Half a step: 16 bytes along K. FP8 has none.
template <MmaType T, class Acc>
__device__ void mma_half(Acc (&d)[4], const std::uint32_t (&a)[2], const std::uint32_t (&b)[1]) {
  if constexpr (T == MmaType::bf16) BP_MMA_HALF("m16n8k8", "f32", "bf16", "f32", BP_F);
  if constexpr (T == MmaType::fp16) BP_MMA_HALF("m16n8k8", "f32", "f16", "f32", BP_F);
  if constexpr (T == MmaType::tf32) BP_MMA_HALF("m16n8k4", "f32", "tf32", "f32", BP_F);
  if constexpr (T == MmaType::s8) BP_MMA_HALF("m16n8k16", "s32", "s8", "s32", BP_I);
}

template <MmaType T, bool kHalf>
__global__ void __launch_bounds__(32) mma_product(Product p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  const int row0 = static_cast<int>(blockIdx.x) * 16, column0 = static_cast<int>(blockIdx.y) * 8;
  const int g = static_cast<int>(threadIdx.x) / 4, t = static_cast<int>(threadIdx.x) % 4;
  const auto word = [&](const std::uint8_t* from, int row, int byte) {
    return *reinterpret_cast<const std::uint32_t*>(from + static_cast<std::int64_t>(row) * p.bytes + byte);
  };
  typename Accumulator<T>::Type d[4] = {};
  for (int k = 0; k < p.bytes; k += 32) {
    if constexpr (kHalf) {
      for (int half = 0; half < 32; half += 16) {
        const std::uint32_t a[2] = {word(p.a, row0 + g, k + half + 4 * t), word(p.a, row0 + g + 8, k + half + 4 * t)};
        const std::uint32_t b[1] = {word(p.b, column0 + g, k + half + 4 * t)};
        mma_half<T>(d, a, b);
      }
    } else {
      const std::uint32_t a[4] = {word(p.a, row0 + g, k + 4 * t), word(p.a, row0 + g + 8, k + 4 * t),
                                  word(p.a, row0 + g, k + 16 + 4 * t), word(p.a, row0 + g + 8, k + 16 + 4 * t)};
      const std::uint32_t b[2] = {word(p.b, column0 + g, k + 4 * t), word(p.b, column0 + g, k + 16 + 4 * t)};
      mma_whole<T>(d, a, b);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    p.c[static_cast<std::int64_t>(row0 + g + i / 2 * 8) * p.columns + column0 + 2 * t + i % 2] = bits_of(d[i]);
#endif
}

__global__ void compare(const std::uint32_t* x, const std::uint32_t* y, int rows, int columns, bool transposed,
                        int row_shift, int column_shift, unsigned long long* count) {
  unsigned long long differing = 0;
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < rows * columns;
       i += static_cast<int>(gridDim.x * blockDim.x)) {
    const int row = (i / columns + row_shift) % rows, column = (i % columns + column_shift) % columns;
    differing += x[i] != (transposed ? y[column * rows + row] : y[row * columns + column]);
  }
  if (differing != 0) atomicAdd(count, differing);
}

template <MmaType T, int N>
void launch_wgmma_product(const Product& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(p.rows / 64), static_cast<unsigned>(p.columns / N));
  if (p.form == ProductForm::wgmma_ss)
    wgmma_product<T, N, false><<<grid, 128, 0, stream>>>(p);
  else
    wgmma_product<T, N, true><<<grid, 128, 0, stream>>>(p);
}

template <MmaType T>
cudaError_t launch_type(const Product& p, cudaStream_t stream) {
  const dim3 tiles(static_cast<unsigned>(p.rows / 16), static_cast<unsigned>(p.columns / 8));
  if (p.form == ProductForm::mma_whole) {
    mma_product<T, false><<<tiles, 32, 0, stream>>>(p);
  } else if (p.form == ProductForm::mma_half) {
    if constexpr (T == MmaType::e4m3 || T == MmaType::e5m2)
      return cudaErrorNotSupported;
    else
      mma_product<T, true><<<tiles, 32, 0, stream>>>(p);
  } else {
    switch (p.width) {
      case 8:
        launch_wgmma_product<T, 8>(p, stream);
        break;
      case 16:
        launch_wgmma_product<T, 16>(p, stream);
        break;
      case 32:
        launch_wgmma_product<T, 32>(p, stream);
        break;
      case 64:
        launch_wgmma_product<T, 64>(p, stream);
        break;
      case 96:
        launch_wgmma_product<T, 96>(p, stream);
        break;
      case 112:
        launch_wgmma_product<T, 112>(p, stream);
        break;
      case 128:
        launch_wgmma_product<T, 128>(p, stream);
        break;
      case 144:
        launch_wgmma_product<T, 144>(p, stream);
        break;
      case 176:
        launch_wgmma_product<T, 176>(p, stream);
        break;
      case 192:
        launch_wgmma_product<T, 192>(p, stream);
        break;
      case 256:
        launch_wgmma_product<T, 256>(p, stream);
        break;
      default:
        return cudaErrorInvalidValue;
    }
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_product(const Product& p, cudaStream_t stream) {
  switch (static_cast<MmaType>(p.type)) {
    case MmaType::bf16:
      return launch_type<MmaType::bf16>(p, stream);
    case MmaType::fp16:
      return launch_type<MmaType::fp16>(p, stream);
    case MmaType::tf32:
      return launch_type<MmaType::tf32>(p, stream);
    case MmaType::e4m3:
      return launch_type<MmaType::e4m3>(p, stream);
    case MmaType::e5m2:
      return launch_type<MmaType::e5m2>(p, stream);
    case MmaType::s8:
      return launch_type<MmaType::s8>(p, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_compare(const std::uint32_t* x, const std::uint32_t* y, int rows, int columns, bool transposed,
                           int row_shift, int column_shift, unsigned long long* count, cudaStream_t stream) {
  compare<<<64, 256, 0, stream>>>(x, y, rows, columns, transposed, row_shift, column_shift, count);
  return cudaGetLastError();
}

}  // namespace batchproof::cuda
