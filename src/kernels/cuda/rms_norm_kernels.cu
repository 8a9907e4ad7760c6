// SPDX-License-Identifier: Apache-2.0
//
// One to sixteen warps walk a row; what a warp holds of it stays in registers between the two passes.
#include "src/kernels/cuda/convert.h"
#include "src/kernels/cuda/rms_norm_kernels.h"

namespace batchproof::cuda {
namespace {

constexpr int kChunk = static_cast<int>(kCudaRmsChunk);

struct Bf16 {
  using Stored = std::uint16_t;
  static constexpr int kVector = 8;  // elements of 16 bytes
  __device__ static float at(const uint4& v, int e) {
    const std::uint32_t word = e < 2 ? v.x : e < 4 ? v.y : e < 6 ? v.z : v.w;
    return __uint_as_float(e % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
  }
  __device__ static std::uint32_t code(float v) { return bf16_code(v); }
};

struct Fp32 {
  using Stored = std::uint32_t;
  static constexpr int kVector = 4;
  __device__ static float at(const uint4& v, int e) {
    return __uint_as_float(e == 0 ? v.x : e == 1 ? v.y : e == 2 ? v.z : v.w);
  }
  __device__ static std::uint32_t code(float v) { return fp32_code(v); }
};

template <class T>
__device__ std::uint32_t element(const uint4& v, int e) {
  const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
  if constexpr (T::kVector == 4) return words[e];
  return words[e / 2] >> (e % 2 * 16) & 0xFFFFu;
}

template <class T>
__device__ uint4 vector_of(const std::uint32_t (&codes)[T::kVector]) {
  if constexpr (T::kVector == 4)
    return make_uint4(codes[0], codes[1], codes[2], codes[3]);
  else
    return make_uint4(codes[0] | codes[1] << 16, codes[2] | codes[3] << 16, codes[4] | codes[5] << 16,
                      codes[6] | codes[7] << 16);
}

// Read once by this multiprocessor: not worth a place in L1, where the weight should stay.
__device__ uint4 load_streamed(const void* at) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}

// The 16 bytes from `column` on; +0 beyond the row. `whole`: rows begin at multiples of 16 bytes.
template <class T, bool kStreamed>
__device__ uint4 load_vector(const typename T::Stored* row, int column, int columns, bool whole) {
  if (whole && column + T::kVector <= columns)
    return kStreamed ? load_streamed(row + column) : *reinterpret_cast<const uint4*>(row + column);
  std::uint32_t codes[T::kVector];
#pragma unroll
  for (int e = 0; e < T::kVector; ++e) codes[e] = column + e < columns ? row[column + e] : 0u;
  return vector_of<T>(codes);
}

template <class T>
__device__ void store_vector(typename T::Stored* row, int column, int columns, bool whole, const uint4& v) {
  if (whole && column + T::kVector <= columns) {
    *reinterpret_cast<uint4*>(row + column) = v;
    return;
  }
#pragma unroll
  for (int e = 0; e < T::kVector; ++e) {
    if (column + e < columns) row[column + e] = static_cast<typename T::Stored>(element<T>(v, e));
  }
}

__device__ float merge_lanes(float sum) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, distance));
  return sum;
}

// kHeld: chunks that a warp keeps in registers; 0: none, the row is read twice.
template <class T, CudaRmsOrder kOrder, int kHeld>
__global__ void __launch_bounds__(kRmsMostWarps * 32) rms_norm_kernel(const __grid_constant__ RmsNormLaunch p) {
  using Stored = typename T::Stored;
  constexpr int kVectors = kChunk / 32 / T::kVector;  // of one lane and chunk
  constexpr int kBatch = kHeld > 0 ? kHeld : 1;
  constexpr bool kDescending = kOrder == CudaRmsOrder::descending;
  constexpr bool kByWarps = kOrder == CudaRmsOrder::warps;
  __shared__ float sums[2][kRmsMostWarps * kBatch];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int groups = static_cast<int>(blockDim.x) / 32 / p.warps;
  const int group = warp / p.warps, part = warp % p.warps;
  const int chunks = (p.columns + kChunk - 1) / kChunk;
  const int rounds = (chunks + p.warps - 1) / p.warps;
  int buffer = 0;

  // Of a row's `turn`th chunk in the order of summation.
  const auto column_of = [&](int turn, int v) {
    return (kDescending ? chunks - 1 - turn : turn) * kChunk + (v * 32 + lane) * T::kVector;
  };
  const auto add_squares = [](float sum, const uint4(&x)[kVectors]) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int e = 0; e < T::kVector; ++e) {
        const float value = kDescending ? T::at(x[kVectors - 1 - v], T::kVector - 1 - e) : T::at(x[v], e);
        sum = __fmaf_rn(value, value, sum);
      }
    }
    return sum;
  };

  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * groups; first < p.rows;
       first += static_cast<std::int64_t>(gridDim.x) * groups) {
    const std::int64_t row = first + group;
    const bool active = row < p.rows;
    const Stored* x = static_cast<const Stored*>(p.x) + row * p.x_row;
    uint4 held[kBatch][kVectors];
    float total = 0.0f, own = 0.0f;
    for (int base = 0; base < rounds; base += kBatch) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int turn = (base + i) * p.warps + part;
        if (!active || turn >= chunks) continue;
#pragma unroll
        for (int v = 0; v < kVectors; ++v)
          held[i][v] = load_vector<T, (kHeld > 0)>(x, column_of(turn, v), p.columns, p.vector_x);
      }
      float* shared = &sums[buffer][group * p.warps * kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int turn = (base + i) * p.warps + part;
        if (!active || turn >= chunks) continue;
        if constexpr (kByWarps) {
          own = add_squares(own, held[i]);
        } else {
          const float sum = merge_lanes(add_squares(0.0f, held[i]));
          if (p.warps == 1)
            total = turn == 0 ? sum : __fadd_rn(total, sum);
          else if (lane == 0)
            shared[turn - base * p.warps] = sum;
        }
      }
      if (kByWarps || p.warps == 1) continue;
      __syncthreads();
      const int end = min(chunks - base * p.warps, kBatch * p.warps);
      for (int s = 0; s < end; ++s) total = base + s == 0 ? shared[0] : __fadd_rn(total, shared[s]);
      buffer ^= 1;  // a slower warp may still read this one
    }
    if constexpr (kByWarps) {
      total = merge_lanes(own);
      if (p.warps > 1) {
        float* shared = &sums[buffer][group * p.warps * kBatch];
        if (lane == 0) shared[part] = total;
        __syncthreads();
        total = shared[0];
        for (int s = 1; s < p.warps; ++s) total = __fadd_rn(total, shared[s]);
        buffer ^= 1;
      }
    }
    if (!active) continue;

    const float mean = __fdiv_rn(total, static_cast<float>(p.columns));
    const float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, p.eps)));
    const auto* weight = static_cast<const Stored*>(p.weight);
    Stored* y = static_cast<Stored*>(p.y) + row * p.y_row;
    for (int base = 0; base < rounds; base += kBatch) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int turn = (base + i) * p.warps + part;
        if (turn >= chunks) continue;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          const int column = column_of(turn, v);
          if (kHeld == 0) held[i][v] = load_vector<T, false>(x, column, p.columns, p.vector_x);
          uint4 w = make_uint4(0, 0, 0, 0);
          if (weight != nullptr) w = load_vector<T, false>(weight, column, p.columns, p.vector_weight);
          std::uint32_t codes[T::kVector];
#pragma unroll
          for (int e = 0; e < T::kVector; ++e) {
            float value = __fmul_rn(T::at(held[i][v], e), scale);
            if (weight != nullptr) value = __fmul_rn(value, T::at(w, e));
            codes[e] = T::code(value);
          }
          store_vector<T>(y, column, p.columns, p.vector_y, vector_of<T>(codes));
        }
      }
    }
  }
}

template <class T, CudaRmsOrder kOrder, int kHeld>
void launch(const RmsNormLaunch& p, cudaStream_t stream) {
  const int warps = p.warps > kRmsBlockWarps ? p.warps : kRmsBlockWarps;
  rms_norm_kernel<T, kOrder, kHeld><<<p.blocks, warps * 32, 0, stream>>>(p);
}

template <class T, CudaRmsOrder kOrder>
void launch_order(const RmsNormLaunch& p, cudaStream_t stream) {
  const int chunks = (p.columns + kChunk - 1) / kChunk;
  if constexpr (kOrder == CudaRmsOrder::descending) {
    launch<T, kOrder, 0>(p, stream);
  } else {
    switch ((chunks + p.warps - 1) / p.warps) {
      case 1:
        return launch<T, kOrder, 1>(p, stream);
      case 2:
        return launch<T, kOrder, 2>(p, stream);
      case 3:
        return launch<T, kOrder, 3>(p, stream);
      case 4:
        return launch<T, kOrder, 4>(p, stream);
      default:
        break;
    }
    // Twice as many registers for each chunk of FP32.
    if constexpr (T::kVector == 8) {
      switch ((chunks + p.warps - 1) / p.warps) {
        case 5:
          return launch<T, kOrder, 5>(p, stream);
        case 6:
          return launch<T, kOrder, 6>(p, stream);
        case 7:
          return launch<T, kOrder, 7>(p, stream);
        case kRmsMostHeld:
          return launch<T, kOrder, kRmsMostHeld>(p, stream);
        default:
          break;
      }
    }
    launch<T, kOrder, 0>(p, stream);
  }
}

template <class T>
void launch_dtype(const RmsNormLaunch& p, cudaStream_t stream) {
  switch (p.order) {
    case CudaRmsOrder::chunks:
      return launch_order<T, CudaRmsOrder::chunks>(p, stream);
    case CudaRmsOrder::descending:
      return launch_order<T, CudaRmsOrder::descending>(p, stream);
    case CudaRmsOrder::warps:
      return launch_order<T, CudaRmsOrder::warps>(p, stream);
  }
}

}  // namespace

cudaError_t launch_rms_norm(const RmsNormLaunch& launch, cudaStream_t stream) {
  if (launch.bf16)
    launch_dtype<Bf16>(launch, stream);
  else
    launch_dtype<Fp32>(launch, stream);
  return cudaGetLastError();
}

}  // namespace batchproof::cuda
