// SPDX-License-Identifier: Apache-2.0
//
// Sums in 16 strands, the order that every square sum of the norm and mHC kernels uses. Element k of a segment belongs
// to strand k % 16; a strand starts from +0 and adds its elements with fma in ascending order; strands merge as a fixed
// tree, s[j] += s[j + 8], then + 4, + 2, + 1. A strand is a lane of 16, whatever the width of the registers.
//
// A template over a Lanes type (lanes_plain.h); included by files for one instruction set only.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_STRANDS_H_
#define BATCHPROOF_SRC_KERNELS_CPU_STRANDS_H_

#include <cstdint>

namespace batchproof {
namespace {

constexpr int kStrands = 16;

template <class V>
struct Strands {
  static constexpr int kParts = kStrands / V::kWidth;
  typename V::F part[kParts];

  static Strands zero() {
    Strands out;
    for (int i = 0; i < kParts; ++i) out.part[i] = V::zero();
    return out;
  }
  static Strands load(const float* at) {
    Strands out;
    for (int i = 0; i < kParts; ++i) out.part[i] = V::load(at + i * V::kWidth);
    return out;
  }
  static Strands load_bf16(const std::uint16_t* at) {
    Strands out;
    for (int i = 0; i < kParts; ++i) out.part[i] = V::load_bf16(at + i * V::kWidth);
    return out;
  }
  void store(float* at) const {
    for (int i = 0; i < kParts; ++i) V::store(at + i * V::kWidth, part[i]);
  }
  // this += a * b
  void fma(const Strands& a, const Strands& b) {
    for (int i = 0; i < kParts; ++i) part[i] = V::fma(a.part[i], b.part[i], part[i]);
  }
};

// Merges 16 strands.
inline float merge_strands(float* strand) {
  for (int half = kStrands / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) strand[j] = strand[j] + strand[j + half];
  }
  return strand[0];
}

template <class V>
float merged(const Strands<V>& strands) {
  float at[kStrands];
  strands.store(at);
  return merge_strands(at);
}

// Serial merge of segment sums: t = s0; t = t + s1; ...
struct ChainSum {
  float total = 0.0f;
  bool empty = true;
  void add(float segment) {
    total = empty ? segment : total + segment;
    empty = false;
  }
};

}  // namespace
}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_STRANDS_H_
