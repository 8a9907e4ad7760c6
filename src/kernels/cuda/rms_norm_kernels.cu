// SPDX-License-Identifier: Apache-2.0
//
// One to sixteen warps walk a row; what a warp holds of it stays in registers between the two passes.
#include "src/kernels/cuda/convert.h"
#include "src/kernels/cuda/rms_norm_kernels.h"

namespace batchproof::cuda {
namespace {

constexpr int kChunk = static_cast<int>(kCudaRmsChunk);

// Of 16 bytes: the elements, and the codes that are stored. `number`: none of the values is a NaN.
struct Bf16 {
  using Stored = std::uint16_t;
  static constexpr int kVector = 8;
  __device__ static float at(const uint4& v, int e) {
    const std::uint32_t word = e < 2 ? v.x : e < 4 ? v.y : e < 6 ? v.z : v.w;
    return __uint_as_float(e % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
  }
  __device__ static std::uint32_t pair(float low, float high, bool number) {
    if (!number) return code16x2<true>(low, high);
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&both);
  }
  __device__ static uint4 codes(const float (&v)[kVector], bool number) {
    return make_uint4(pair(v[0], v[1], number), pair(v[2], v[3], number), pair(v[4], v[5], number),
                      pair(v[6], v[7], number));
  }
  __device__ static std::uint16_t element(const uint4& v, int e) {
    const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
    return static_cast<std::uint16_t>(words[e / 2] >> (e % 2 * 16));
  }
  __device__ static uint4 vector_of(const Stored (&c)[kVector]) {
    const auto word = [&](int e) { return c[e] | static_cast<std::uint32_t>(c[e + 1]) << 16; };
    return make_uint4(word(0), word(2), word(4), word(6));
  }
};

struct Fp32 {
  using Stored = std::uint32_t;
  static constexpr int kVector = 4;
  __device__ static float at(const uint4& v, int e) { return __uint_as_float(element(v, e)); }
  __device__ static uint4 codes(const float (&v)[kVector], bool number) {
    if (!number) return make_uint4(fp32_code(v[0]), fp32_code(v[1]), fp32_code(v[2]), fp32_code(v[3]));
    return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
  }
  __device__ static std::uint32_t element(const uint4& v, int e) {
    return e == 0 ? v.x : e == 1 ? v.y : e == 2 ? v.z : v.w;
  }
  __device__ static uint4 vector_of(const Stored (&c)[kVector]) { return make_uint4(c[0], c[1], c[2], c[3]); }
};

// A sum is a NaN where one of its addends is; it may be one where none is (infinities), which costs time only.
template <int kCount>
__device__ bool all_numbers(const float (&v)[kCount]) {
  float sum[kCount / 2];
#pragma unroll
  for (int e = 0; e < kCount / 2; ++e) sum[e] = v[e] + v[e + kCount / 2];
  if constexpr (kCount == 2)
    return sum[0] == sum[0];
  else
    return all_numbers(sum);
}

// Read once by this multiprocessor: not worth a place in L1, where the weight should stay.
__device__ uint4 load_streamed(const void* at) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}

// The 16 bytes from `column` on; +0 beyond the row. `whole`: rows begin at multiples of 16 bytes. kWhole: known to be
// so, and that no chunk ends early.
template <class T, bool kWhole, bool kStreamed>
__device__ uint4 load_vector(const typename T::Stored* row, int column, int columns, bool whole) {
  if constexpr (!kWhole) {
    if (!whole || column + T::kVector > columns) {
      typename T::Stored codes[T::kVector];
#pragma unroll
      for (int e = 0; e < T::kVector; ++e) codes[e] = column + e < columns ? row[column + e] : typename T::Stored{0};
      return T::vector_of(codes);
    }
  }
  return kStreamed ? load_streamed(row + column) : *reinterpret_cast<const uint4*>(row + column);
}

template <class T, bool kWhole>
__device__ void store_vector(typename T::Stored* row, int column, int columns, bool whole, const uint4& v) {
  if constexpr (!kWhole) {
    if (!whole || column + T::kVector > columns) {
#pragma unroll
      for (int e = 0; e < T::kVector; ++e) {
        if (column + e < columns) row[column + e] = T::element(v, e);
      }
      return;
    }
  }
  *reinterpret_cast<uint4*>(row + column) = v;
}

__device__ float merge_lanes(float sum) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, distance));
  return sum;
}

// kHeld: chunks that a warp keeps in registers; 0: none, the row is read twice.
template <class T, CudaRmsOrder kOrder, int kHeld, bool kWhole>
__global__ void __launch_bounds__(kRmsMostWarps * 32) rms_norm_kernel(const __grid_constant__ RmsNormLaunch p) {
  using Stored = typename T::Stored;
  constexpr int kVectors = kChunk / 32 / T::kVector;  // of one lane and chunk
  constexpr int kBatch = kHeld > 0 ? kHeld : 1;
  constexpr bool kDescending = kOrder == CudaRmsOrder::descending;
  constexpr bool kByWarps = kOrder == CudaRmsOrder::warps;
  __shared__ float sums[2][kRmsMostWarps * kBatch];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = 1 << p.warps_log2;  // of one row
  const int groups = static_cast<int>(blockDim.x) / 32 >> p.warps_log2;
  const int group = warp >> p.warps_log2, part = warp & (warps - 1);
  const int chunks = (p.columns + kChunk - 1) / kChunk;
  const int rounds = (chunks + warps - 1) >> p.warps_log2;
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
        const int turn = (base + i) * warps + part;
        if (!active || turn >= chunks) continue;
#pragma unroll
        for (int v = 0; v < kVectors; ++v)
          held[i][v] = load_vector<T, kWhole, (kHeld > 0)>(x, column_of(turn, v), p.columns, p.vector_x);
      }
      float* shared = &sums[buffer][group * warps * kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int turn = (base + i) * warps + part;
        if (!active || turn >= chunks) continue;
        if constexpr (kByWarps) {
          own = add_squares(own, held[i]);
        } else {
          const float sum = merge_lanes(add_squares(0.0f, held[i]));
          if (warps == 1)
            total = turn == 0 ? sum : __fadd_rn(total, sum);
          else if (lane == 0)
            shared[turn - base * warps] = sum;
        }
      }
      if (kByWarps || warps == 1) continue;
      __syncthreads();
      const int end = min(chunks - base * warps, kBatch * warps);
      for (int s = 0; s < end; ++s) total = base + s == 0 ? shared[0] : __fadd_rn(total, shared[s]);
      buffer ^= 1;  // a slower warp may still read this one
    }
    if constexpr (kByWarps) {
      total = merge_lanes(own);
      if (warps > 1) {
        float* shared = &sums[buffer][group * warps * kBatch];
        if (lane == 0) shared[part] = total;
        __syncthreads();
        total = shared[0];
        for (int s = 1; s < warps; ++s) total = __fadd_rn(total, shared[s]);
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
        const int turn = (base + i) * warps + part;
        if (turn >= chunks) continue;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          const int column = column_of(turn, v);
          if (kHeld == 0) held[i][v] = load_vector<T, kWhole, false>(x, column, p.columns, p.vector_x);
          uint4 w = make_uint4(0, 0, 0, 0);
          if (weight != nullptr) w = load_vector<T, kWhole, false>(weight, column, p.columns, p.vector_weight);
          float values[T::kVector];
#pragma unroll
          for (int e = 0; e < T::kVector; ++e) {
            values[e] = __fmul_rn(T::at(held[i][v], e), scale);
            if (weight != nullptr) values[e] = __fmul_rn(values[e], T::at(w, e));
          }
          store_vector<T, kWhole>(y, column, p.columns, p.vector_y, T::codes(values, all_numbers(values)));
        }
      }
    }
  }
}

template <class T, CudaRmsOrder kOrder, int kHeld>
void launch(const RmsNormLaunch& p, cudaStream_t stream) {
  const int threads = 32 * max(1 << p.warps_log2, kRmsBlockWarps);
  const bool whole = p.columns % kChunk == 0 && p.vector_x && p.vector_y && p.vector_weight;
  if (whole)
    rms_norm_kernel<T, kOrder, kHeld, true><<<p.blocks, threads, 0, stream>>>(p);
  else
    rms_norm_kernel<T, kOrder, kHeld, false><<<p.blocks, threads, 0, stream>>>(p);
}

// The instance that keeps a warp's chunks in registers, else the one that keeps none.
template <class T, CudaRmsOrder kOrder, int kHeld = 1>
void launch_held(const RmsNormLaunch& p, int chunks_of_warp, cudaStream_t stream) {
  // A chunk of FP32 takes twice the registers.
  constexpr int kMost = kOrder == CudaRmsOrder::descending ? 0 : kRmsMostHeld * T::kVector / 8;
  if constexpr (kHeld <= kMost) {
    if (chunks_of_warp == kHeld) return launch<T, kOrder, kHeld>(p, stream);
    launch_held<T, kOrder, kHeld + 1>(p, chunks_of_warp, stream);
  } else {
    launch<T, kOrder, 0>(p, stream);
  }
}

template <class T>
void launch_dtype(const RmsNormLaunch& p, cudaStream_t stream) {
  const int chunks = (p.columns + kChunk - 1) / kChunk, warps = 1 << p.warps_log2;
  const int of_warp = (chunks + warps - 1) / warps;
  switch (p.order) {
    case CudaRmsOrder::chunks:
      return launch_held<T, CudaRmsOrder::chunks>(p, of_warp, stream);
    case CudaRmsOrder::descending:
      return launch_held<T, CudaRmsOrder::descending>(p, of_warp, stream);
    case CudaRmsOrder::warps:
      return launch_held<T, CudaRmsOrder::warps>(p, of_warp, stream);
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
