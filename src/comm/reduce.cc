// SPDX-License-Identifier: Apache-2.0
//
// Blocks of elements, so that the sums of a block stay in cache while the ranks pass by. Lanes are independent.
#include "src/comm/reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "src/comm/reduce_types.h"
#include "src/numeric/dtype.h"

namespace batchproof {
namespace {

constexpr std::size_t kBlock = 256;
constexpr int kMaxTreeWorld = 1024;
constexpr std::size_t kTreeLevels = 11;  // log2 of that, and one for the rank that comes in

// memcpy: the bytes come from a caller who promised no alignment.
template <class Type>
typename Type::Sum load_at(const void* source, std::size_t index) {
  typename Type::Stored stored;
  std::memcpy(&stored, static_cast<const unsigned char*>(source) + index * sizeof(stored), sizeof(stored));
  return Type::load(stored);
}

template <class Type>
void store_block(const typename Type::Sum* sums, std::size_t begin, std::size_t size, void* out) {
  for (std::size_t i = 0; i < size; ++i) {
    const typename Type::Stored stored = Type::store(sums[i]);
    std::memcpy(static_cast<unsigned char*>(out) + (begin + i) * sizeof(stored), &stored, sizeof(stored));
  }
}

template <class Type>
void reduce_in_rank_order(const std::vector<const void*>& sources, std::size_t count, void* out) {
  typename Type::Sum sums[kBlock];
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t size = std::min(kBlock, count - begin);
    std::fill(sums, sums + size, typename Type::Sum{0});
    for (const void* source : sources) {
      for (std::size_t i = 0; i < size; ++i) sums[i] = sums[i] + load_at<Type>(source, begin + i);
    }
    store_block<Type>(sums, begin, size, out);
  }
}

// Ranks come in ascending order onto a stack; two neighbours of one level merge as soon as both are there: after rank q
// as many merges as q + 1 has factors of two.
template <class Type>
void reduce_in_tree(const std::vector<const void*>& sources, std::size_t count, void* out) {
  using Sum = typename Type::Sum;
  Sum stack[kTreeLevels * kBlock];
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t size = std::min(kBlock, count - begin);
    std::size_t depth = 0;
    for (std::size_t q = 0; q < sources.size(); ++q) {
      Sum* top = stack + depth * kBlock;
      for (std::size_t i = 0; i < size; ++i) top[i] = load_at<Type>(sources[q], begin + i);
      ++depth;
      for (std::size_t rest = q + 1; rest % 2 == 0; rest /= 2) {
        Sum* right = stack + (depth - 1) * kBlock;
        Sum* left = right - kBlock;
        for (std::size_t i = 0; i < size; ++i) left[i] = left[i] + right[i];
        --depth;
      }
    }
    store_block<Type>(stack, begin, size, out);
  }
}

template <class Type>
void reduce_as(bp_reduce_order order, const std::vector<const void*>& sources, std::size_t count, void* out) {
  if (order == BP_REDUCE_TREE) {
    reduce_in_tree<Type>(sources, count, out);
  } else {
    reduce_in_rank_order<Type>(sources, count, out);
  }
}

}  // namespace

std::string reduce_error(bp_dtype dtype, bp_reduce_order order, int world) {
  constexpr bp_dtype kReducible[] = {BP_FP64, BP_FP32, BP_BF16, BP_FP16, BP_INT32, BP_INT64};
  if (std::find(std::begin(kReducible), std::end(kReducible), dtype) == std::end(kReducible)) {
    return fmt::format("dtype {} cannot be summed; fp64, fp32, bf16, fp16, int32 and int64 can", dtype_name(dtype));
  }
  if (order != BP_REDUCE_RANK_ORDER && order != BP_REDUCE_TREE) return fmt::format("unknown order {}", order);
  if (order == BP_REDUCE_TREE && world > kMaxTreeWorld) {
    return fmt::format("a tree over {} ranks is beyond the limit of {}", world, kMaxTreeWorld);
  }
  if (order == BP_REDUCE_TREE && (world & (world - 1)) != 0) {
    return fmt::format("a tree over {} ranks does not exist, the world must be a power of two", world);
  }
  return {};
}

void reduce(bp_dtype dtype, bp_reduce_order order, const std::vector<const void*>& sources, std::size_t count,
            void* out) noexcept {
  reduction::with_type(dtype, [&](auto type) { reduce_as<decltype(type)>(order, sources, count, out); });
}

}  // namespace batchproof
