// SPDX-License-Identifier: Apache-2.0
//
// The matrix product through mma.sync m16n8k16 (sm_80 and later): any strides and alignments, both ways of storing the
// weight. Order of summation as in gemm_sm90.cuh: k16 steps ascending in a segment that starts from zero accumulators,
// FP32 merge in the schedule's order. On sm_90 its bytes equal those of the wgmma kernels (tensor_core_rules.h).
#include "src/kernels/cuda/convert.h"
#include "src/kernels/cuda/gemm_kernels.h"

namespace batchproof::cuda {
namespace {

constexpr int kTile = 64;   // rows and columns of y of one block
constexpr int kDepth = 32;  // columns of K in shared memory
constexpr int kPitch = kDepth + 8;
constexpr int kThreads = 128;

template <bool kBf16>
__device__ void mma_k16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  if constexpr (kBf16)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// tile[row][k] = source(row0 + row, k0 + k), zero outside. `fast`: neighbours along K are neighbours in memory and
// eight of them are one aligned load.
__device__ void load_tile(std::uint16_t* tile, const std::uint16_t* source, std::int64_t row_stride,
                          std::int64_t k_stride, std::int64_t row0, std::int64_t rows, std::int64_t k0, std::int64_t k1,
                          bool fast) {
  if (fast && k0 + kDepth <= k1) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int piece = static_cast<int>(threadIdx.x) + i * kThreads;
      const int row = piece / 4, k = piece % 4 * 8;
      uint4 v = make_uint4(0, 0, 0, 0);
      if (row0 + row < rows) v = *reinterpret_cast<const uint4*>(source + (row0 + row) * row_stride + k0 + k);
      *reinterpret_cast<uint4*>(tile + row * kPitch + k) = v;
    }
    return;
  }
  const bool along_k = k_stride == 1;
#pragma unroll 4
  for (int i = 0; i < kTile * kDepth / kThreads; ++i) {
    const int e = static_cast<int>(threadIdx.x) + i * kThreads;
    const int row = along_k ? e / kDepth : e % kTile;
    const int k = along_k ? e % kDepth : e / kTile;
    const bool inside = row0 + row < rows && k0 + k < k1;
    tile[row * kPitch + k] = inside ? source[(row0 + row) * row_stride + (k0 + k) * k_stride] : std::uint16_t{0};
  }
}

template <bool kBf16, bool kTree>
__global__ void __launch_bounds__(kThreads) gemm_portable(PortableOperands o, GemmParams p, bool fast_x, bool fast_w) {
  __shared__ __align__(16) std::uint16_t xs[kTile * kPitch];
  __shared__ __align__(16) std::uint16_t ws[kTile * kPitch];
  const std::int64_t row0 = std::int64_t{blockIdx.x} * kTile, column0 = std::int64_t{blockIdx.y} * kTile;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int wrow = warp / 2 * 32, wcolumn = warp % 2 * 32;
  const int g = lane / 4, t = lane % 4;
  float total[2][4][4] = {};
  float stack[kTree ? 4 : 1][2][4][4];
  for (int s = 0; s < p.axis.segments(); ++s) {
    float acc[2][4][4] = {};
    const int end = p.axis.end(s);
    for (int k = p.axis.begin(s); k < end; k += kDepth) {
      __syncthreads();
      load_tile(xs, static_cast<const std::uint16_t*>(o.x), o.x_row, o.x_column, row0, p.m, k, end, fast_x);
      load_tile(ws, static_cast<const std::uint16_t*>(o.w), o.w_column, o.w_row, column0, p.n, k, end, fast_w);
      __syncthreads();
#pragma unroll
      for (int step = 0; step < kDepth / 16; ++step) {
        if (k + step * 16 >= end) break;  // a step of zeros alone is no step
        std::uint32_t a[2][4], b[4][2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int q = 0; q < 4; ++q)
            a[i][q] = *reinterpret_cast<const std::uint32_t*>(xs + (wrow + i * 16 + g + q % 2 * 8) * kPitch +
                                                              step * 16 + t * 2 + q / 2 * 8);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int q = 0; q < 2; ++q)
            b[j][q] = *reinterpret_cast<const std::uint32_t*>(ws + (wcolumn + j * 8 + g) * kPitch + step * 16 + t * 2 +
                                                              q * 8);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) mma_k16<kBf16>(acc[i][j], a[i], b[j]);
        }
      }
    }
    const bool starts = s % p.axis.per_slice == 0;
    const bool closes = kTree && (s + 1) % p.axis.per_slice == 0;
    const int slice = s / p.axis.per_slice;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          float& v = total[i][j][q];
          v = starts ? acc[i][j][q] : __fadd_rn(v, acc[i][j][q]);
          if constexpr (kTree) {
            bool carry = closes;
#pragma unroll
            for (int level = 0; level < 4; ++level) {
              if (!carry) continue;
              if ((slice >> level & 1) != 0) {
                v = __fadd_rn(stack[level][i][j][q], v);
              } else {
                stack[level][i][j][q] = v;
                carry = false;
              }
            }
          }
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const std::int64_t row = row0 + wrow + i * 16 + g + q / 2 * 8;
        const std::int64_t column = column0 + wcolumn + j * 8 + t * 2 + q % 2;
        if (row >= p.m || column >= p.n) continue;
        float v = total[i][j][q];
        if (p.bias_type != Store::none) v = __fadd_rn(v, load_bias(p.bias, p.bias_type, column * p.bias_stride));
        store_one(p.y, p.y_type, row * p.y_stride + column, v);
      }
    }
  }
}

bool vector_loads(const void* data, std::int64_t row_stride, std::int64_t k_stride, const KAxis& axis) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && row_stride % 8 == 0 && k_stride == 1;
  return aligned && axis.segment % 8 == 0 && axis.slice % 8 == 0;
}

}  // namespace

cudaError_t launch_gemm_portable(const PortableOperands& operands, const GemmParams& params, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((params.m + kTile - 1) / kTile),
                  static_cast<unsigned>((params.n + kTile - 1) / kTile));
  const bool fast_x = vector_loads(operands.x, operands.x_row, operands.x_column, params.axis);
  const bool fast_w = vector_loads(operands.w, operands.w_column, operands.w_row, params.axis);
  const bool tree = params.axis.slices > 1;
  if (operands.bf16 && tree)
    gemm_portable<true, true><<<grid, kThreads, 0, stream>>>(operands, params, fast_x, fast_w);
  else if (operands.bf16)
    gemm_portable<true, false><<<grid, kThreads, 0, stream>>>(operands, params, fast_x, fast_w);
  else if (tree)
    gemm_portable<false, true><<<grid, kThreads, 0, stream>>>(operands, params, fast_x, fast_w);
  else
    gemm_portable<false, false><<<grid, kThreads, 0, stream>>>(operands, params, fast_x, fast_w);
  return cudaGetLastError();
}

}  // namespace batchproof::cuda
