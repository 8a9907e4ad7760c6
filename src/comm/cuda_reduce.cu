// SPDX-License-Identifier: Apache-2.0
//
// One thread per element: an element's sum depends on nothing but its addends.
#include "src/comm/cuda_reduce.h"
#include "src/comm/reduce_types.h"

namespace batchproof::cuda {
namespace {

constexpr int kLevels = 8;  // of a tree over kMostReducedRanks
static_assert(1 << kLevels == kMostReducedRanks);

// Nobody promised that elements lie at multiples of their size.
template <class Type>
__device__ typename Type::Sum load_at(const void* source, std::size_t index, bool aligned) {
  typename Type::Stored stored;
  if (aligned)
    stored = static_cast<const typename Type::Stored*>(source)[index];
  else
    memcpy(&stored, static_cast<const unsigned char*>(source) + index * sizeof(stored), sizeof(stored));
  return Type::load(stored);
}

template <class Type>
__device__ void store_at(void* out, std::size_t index, typename Type::Sum sum, bool aligned) {
  const typename Type::Stored stored = Type::store(sum);
  if (aligned)
    static_cast<typename Type::Stored*>(out)[index] = stored;
  else
    memcpy(static_cast<unsigned char*>(out) + index * sizeof(stored), &stored, sizeof(stored));
}

template <class Type, bool kTree>
__global__ void reduce_kernel(const __grid_constant__ ReduceLaunch r, bool aligned) {
  using Sum = typename Type::Sum;
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < r.count; i += stride) {
    Sum sum{0};
    if constexpr (kTree) {
      // A sum waits at its level for its right neighbour, as a carry does.
      Sum waiting[kLevels];
      for (int q = 0; q < r.world; ++q) {
        sum = load_at<Type>(r.sources[q], i, aligned);
        bool carry = true;
#pragma unroll
        for (int level = 0; level < kLevels; ++level) {
          if (!carry) continue;
          if ((q >> level & 1) != 0) {
            sum = waiting[level] + sum;
          } else {
            waiting[level] = sum;
            carry = false;
          }
        }
      }
    } else {
      for (int q = 0; q < r.world; ++q) sum = sum + load_at<Type>(r.sources[q], i, aligned);
    }
    store_at<Type>(r.out, i, sum, aligned);
  }
}

bool all_aligned(const ReduceLaunch& r, std::size_t size) {
  bool aligned = reinterpret_cast<std::uintptr_t>(r.out) % size == 0;
  for (int q = 0; q < r.world; ++q) aligned = aligned && reinterpret_cast<std::uintptr_t>(r.sources[q]) % size == 0;
  return aligned;
}

}  // namespace

cudaError_t launch_reduce(const ReduceLaunch& reduce, cudaStream_t stream) {
  constexpr std::size_t kThreads = 256, kMostBlocks = 1056;
  const std::size_t needed = (reduce.count + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(needed < kMostBlocks ? needed : kMostBlocks);
  if (blocks == 0) return cudaSuccess;
  reduction::with_type(reduce.dtype, [&](auto type) {
    using Type = decltype(type);
    const bool aligned = all_aligned(reduce, sizeof(typename Type::Stored));
    if (reduce.tree)
      reduce_kernel<Type, true><<<blocks, kThreads, 0, stream>>>(reduce, aligned);
    else
      reduce_kernel<Type, false><<<blocks, kThreads, 0, stream>>>(reduce, aligned);
  });
  return cudaGetLastError();
}

}  // namespace batchproof::cuda
