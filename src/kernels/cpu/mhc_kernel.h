// SPDX-License-Identifier: Apache-2.0
//
// The mHC kernels over one block of rows, as templates over a Lanes type V (lanes_plain.h). Included by mhc_plain.cc,
// mhc_avx2.cc and mhc_avx512.cc only. Nothing of the standard library is called here, and everything is local to the
// including file, so code built for a newer processor cannot be linked into the plain path.
//
// Order of operations, whatever V, the tile and the number of rows:
// * post: o = post * x; o = fma(comb[i], R[i], o) for i = 0..3; bf16(o).
// * product, a segment: acc = +0; acc = fma(value, fn, acc) for ascending columns. Segments merge t = s0; t = t + s1;
// ...
// * squares, a segment: 16 strands (strands.h). Segments merge as above.
// * mixes: r = 1 / sqrt(q / D + eps); m = m * r; logit = fma(m, scale, base).
// * Sinkhorn: sums of four in the order 0..3.
// * collapse: u = fma(pre[i], R[i], u) for i = 0..3 from +0; the norm's sum of u^2 in strands and segments of 256.
// Lanes are outputs (rows or columns); only strands run along a sum, and there are always 16 of them.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_MHC_KERNEL_H_
#define BATCHPROOF_SRC_KERNELS_CPU_MHC_KERNEL_H_

#include <cstdint>
#include <cstring>

#include "src/kernels/cpu/mhc_math.h"
#include "src/kernels/cpu/mhc_region.h"
#include "src/kernels/cpu/strands.h"

namespace batchproof {
namespace {

inline std::int64_t mhc_smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// ---- post -------------------------------------------------------------------------------------------------------

// Columns [h, h + kWidth) of stream j of one row, unrounded.
template <class V>
inline typename V::F post_lanes(const MhcPostArgs& g, const std::uint16_t* x, const std::uint16_t* const* streams,
                                const typename V::F& post, const typename V::F* comb, std::int64_t h) {
  if (!g.reversed) {
    typename V::F o = V::mul(post, V::load_bf16(x + h));
    for (int i = 0; i < kMhcStreams; ++i) o = V::fma(comb[i], V::load_bf16(streams[i] + h), o);
    return o;
  }
  typename V::F o = V::mul(comb[kMhcStreams - 1], V::load_bf16(streams[kMhcStreams - 1] + h));
  for (int i = kMhcStreams - 2; i >= 0; --i) o = V::fma(comb[i], V::load_bf16(streams[i] + h), o);
  return V::fma(post, V::load_bf16(x + h), o);
}

// One stream of one row over [h0, h1): FP32 to `values` (may be null), BF16 to the output.
template <class V>
void post_piece(const MhcPostArgs& g, std::int64_t row, int j, std::int64_t h0, std::int64_t h1, float* values) {
  const std::uint16_t* x = g.x + row * g.x_row;
  const std::uint16_t* streams[kMhcStreams];
  typename V::F comb[kMhcStreams];
  for (int i = 0; i < kMhcStreams; ++i) {
    streams[i] = g.residual.data + row * g.residual.row + i * g.residual.stream;
    comb[i] = V::all(g.comb[row * g.comb_row + i * g.comb_i + j * g.comb_j]);
  }
  const typename V::F post = V::all(g.post[row * g.post_row + j * g.post_stream]);
  std::uint16_t* out = g.out + row * g.out_row + j * g.out_stream;
  for (std::int64_t h = h0; h < h1; h += V::kWidth) {
    const typename V::F o = post_lanes<V>(g, x, streams, post, comb, h);
    if (values != nullptr) V::store(values + (h - h0), o);
    V::store_bf16(out + h, o);
  }
}

// All four streams from one pass over the inputs.
template <class V>
void post_row(const MhcPostArgs& g, std::int64_t row) {
  using F = typename V::F;
  const std::uint16_t* x = g.x + row * g.x_row;
  const std::uint16_t* from = g.residual.data + row * g.residual.row;
  std::uint16_t* out = g.out + row * g.out_row;
  float comb[kMhcStreams][kMhcStreams], post[kMhcStreams];
  for (int j = 0; j < kMhcStreams; ++j) {
    post[j] = g.post[row * g.post_row + j * g.post_stream];
    for (int i = 0; i < kMhcStreams; ++i) comb[i][j] = g.comb[row * g.comb_row + i * g.comb_i + j * g.comb_j];
  }
  for (std::int64_t h = 0; h < g.hidden; h += V::kWidth) {
    const F in = V::load_bf16(x + h);
    F o[kMhcStreams];
    for (int j = 0; j < kMhcStreams; ++j) o[j] = V::mul(V::all(post[j]), in);
    for (int i = 0; i < kMhcStreams; ++i) {
      const F stream = V::load_bf16(from + i * g.residual.stream + h);
      for (int j = 0; j < kMhcStreams; ++j) o[j] = V::fma(V::all(comb[i][j]), stream, o[j]);
    }
    for (int j = 0; j < kMhcStreams; ++j) V::store_bf16(out + j * g.out_stream + h, o[j]);
  }
}

template <class V>
void mhc_post(const MhcPostArgs& g) {
  for (std::int64_t row = 0; row < g.rows; ++row) {
    if (!g.reversed) {
      post_row<V>(g, row);
    } else {
      for (int j = 0; j < kMhcStreams; ++j) post_piece<V>(g, row, j, 0, g.hidden, nullptr);
    }
  }
}

// ---- product ----------------------------------------------------------------------------------------------------

// Round to nearest, ties away from zero, to the 10 fraction bits of TF32. Truncating hardware then changes nothing.
inline float tf32(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return value;  // NaN: the carry would reach the sign
  bits = (bits + 0x1000u) & 0xFFFFE000u;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class V>
void mhc_pack(const MhcPackArgs& g) {
  constexpr std::int64_t kBlock = 16;
  for (std::int64_t k = g.begin; k < g.end; k += kBlock) {
    const std::int64_t count = mhc_smaller(kBlock, g.end - k);
    for (int c = 0; c < kMhcMixes; ++c) {
      const float* row = g.fn + c * g.fn_row;
      float* to = g.packed + k * kMhcMixes + c;
      for (std::int64_t i = 0; i < count; ++i) {
        const float value = row[g.descending ? g.columns - 1 - k - i : k + i];
        to[i * kMhcMixes] = g.tf32 ? tf32(value) : value;
      }
    }
  }
}

// Columns [k, k + count) of one row as FP32; pieces end where a stream ends.
template <class V>
void widen_columns(const MhcStreams& residual, const MhcPostArgs* post, std::int64_t hidden, std::int64_t row,
                   std::int64_t k, std::int64_t count, float* to) {
  while (count > 0) {
    const std::int64_t stream = k / hidden;
    const std::int64_t h = k - stream * hidden;
    const std::int64_t piece = mhc_smaller(count, hidden - h);
    if (post != nullptr) {
      post_piece<V>(*post, row, static_cast<int>(stream), h, h + piece, to);
    } else {
      const std::uint16_t* from = residual.data + row * residual.row + stream * residual.stream + h;
      for (std::int64_t i = 0; i < piece; i += V::kWidth) V::store(to + i, V::load_bf16(from + i));
    }
    k += piece;
    to += piece;
    count -= piece;
  }
}

// Columns [k, k + count) of a row on their way into the cache; a piece behind the end of a stream is left out.
inline void fetch_columns(const MhcProductArgs& g, std::int64_t row, std::int64_t k, std::int64_t count) {
  const std::int64_t stream = k / g.hidden;
  const std::int64_t h = k - stream * g.hidden;
  const std::int64_t piece = mhc_smaller(count, g.hidden - h);
  constexpr std::int64_t kLine = 32;  // BF16 elements
  if (g.post == nullptr) {
    const std::uint16_t* from = g.residual.data + row * g.residual.row + stream * g.residual.stream + h;
    for (std::int64_t i = 0; i < piece; i += kLine) __builtin_prefetch(from + i);
    return;
  }
  const MhcPostArgs& post = *g.post;
  for (std::int64_t i = 0; i < piece; i += kLine) {
    __builtin_prefetch(post.x + row * post.x_row + h + i);
    for (int s = 0; s < kMhcStreams; ++s)
      __builtin_prefetch(post.residual.data + row * post.residual.row + s * post.residual.stream + h + i);
  }
}

inline void reverse(float* values, std::int64_t count) {
  for (std::int64_t i = 0, j = count - 1; i < j; ++i, --j) {
    const float kept = values[i];
    values[i] = values[j];
    values[j] = kept;
  }
}

// acc[r] += values[r] . packed over `length` columns, R rows.
template <class V, int R>
void product_tile(std::int64_t length, const float* values, const float* packed, float* const* from, bool first,
                  float* const* to, bool add) {
  typename V::C24 acc[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) acc[r] = first ? V::zero24() : V::load24(from[r]);
  for (std::int64_t k = 0; k < length; ++k) {
    const typename V::C24 weights = V::load24(packed);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) V::fma24(values + r * kMhcChunk + k, weights, &acc[r]);
    packed += kMhcMixes;
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) V::store24(to[r], add ? V::add24(V::load24(to[r]), acc[r]) : acc[r]);
}

template <class V, int R>
void product_rows(std::int64_t rows, std::int64_t length, const float* values, const float* packed, float* const* from,
                  bool first, float* const* to, bool add) {
  if (rows == R) return product_tile<V, R>(length, values, packed, from, first, to, add);
  if constexpr (R > 1) product_rows<V, R - 1>(rows, length, values, packed, from, first, to, add);
}

template <class V>
void square_strands(const float* values, std::int64_t length, bool first, bool last, float* strands, float* sum,
                    bool add) {
  Strands<V> acc = first ? Strands<V>::zero() : Strands<V>::load(strands);
  for (std::int64_t k = 0; k < length; k += kStrands) {
    const Strands<V> value = Strands<V>::load(values + k);
    acc.fma(value, value);
  }
  if (!last) {
    acc.store(strands);
    return;
  }
  const float segment = merged<V>(acc);
  *sum = add ? *sum + segment : segment;
}

template <class V>
void mhc_product(const MhcProductArgs& g) {
  for (std::int64_t c = 0; c < g.chunk_count; ++c) {
    const MhcProductChunk& chunk = g.chunks[c];
    const std::int64_t length = chunk.end - chunk.begin;
    const std::int64_t column = g.descending ? g.columns - chunk.end : chunk.begin;
    float* sums = g.merge ? g.sums : g.sums + chunk.segment * g.segment_sums;
    float* squares = g.merge ? g.squares : g.squares + chunk.segment * g.segment_squares;
    const bool add = g.merge && chunk.segment > 0;
    for (std::int64_t row = 0; row < g.rows; row += V::kTokens) {
      const std::int64_t rows = mhc_smaller(V::kTokens, g.rows - row);
      float* from[V::kTokens];
      float* to[V::kTokens];
      for (std::int64_t r = 0; r < rows; ++r) {
        float* values = g.values + r * kMhcChunk;
        // The next columns of this row are needed after the chunk's other rows: too far for the hardware to guess.
        if (c + 1 < g.chunk_count && !g.descending) fetch_columns(g, row + r, column + length, length);
        widen_columns<V>(g.residual, g.post, g.hidden, row + r, column, length, values);
        if (g.descending) reverse(values, length);
        square_strands<V>(values, length, chunk.first, chunk.last, g.strands + (row + r) * kStrands, squares + row + r,
                          add);
        from[r] = g.partial + (row + r) * kMhcMixes;
        to[r] = chunk.last ? sums + (row + r) * kMhcMixes : from[r];
      }
      product_rows<V, V::kTokens>(rows, length, g.values, g.packed + chunk.begin * kMhcMixes, from, chunk.first, to,
                                  add && chunk.last);
    }
  }
}

// ---- mixes, Sinkhorn --------------------------------------------------------------------------------------------

template <class V>
inline typename V::F sum4(const typename V::F& a, const typename V::F& b, const typename V::F& c,
                          const typename V::F& d) {
  return V::add(V::add(V::add(a, b), c), d);
}

// The 4x4 matrix of logits becomes (nearly) doubly stochastic.
template <class V>
void sinkhorn(typename V::F (&c)[16], float eps, int repeat) {
  using F = typename V::F;
  const F e = V::all(eps);
  for (int i = 0; i < 4; ++i) {
    F* row = c + 4 * i;
    const F top = V::max(V::max(V::max(row[0], row[1]), row[2]), row[3]);
    for (int j = 0; j < 4; ++j) row[j] = exp_fp32<V>(V::sub(row[j], top));
    const F sum = sum4<V>(row[0], row[1], row[2], row[3]);
    for (int j = 0; j < 4; ++j) row[j] = V::add(V::div(row[j], sum), e);
  }
  for (int pass = 0; pass < repeat; ++pass) {
    for (int i = 0; pass > 0 && i < 4; ++i) {
      F* row = c + 4 * i;
      const F sum = V::add(sum4<V>(row[0], row[1], row[2], row[3]), e);
      for (int j = 0; j < 4; ++j) row[j] = V::div(row[j], sum);
    }
    for (int j = 0; j < 4; ++j) {
      const F sum = V::add(sum4<V>(c[j], c[4 + j], c[8 + j], c[12 + j]), e);
      for (int i = 0; i < 4; ++i) c[4 * i + j] = V::div(c[4 * i + j], sum);
    }
  }
}

// Lane t of `value` to at[t * step], one canonical NaN.
template <class V>
void scatter(const typename V::F& value, std::int64_t count, float* at, std::int64_t step) {
  float lanes[V::kWidth];
  V::store(lanes, V::nan_of(value, value));
  for (std::int64_t t = 0; t < count; ++t) at[t * step] = lanes[t];
}

template <class V>
void mhc_coefficients(const MhcCoefficientArgs& g) {
  using F = typename V::F;
  const int mixes = g.pre_only ? kMhcStreams : kMhcMixes;
  for (std::int64_t row = 0; row < g.rows; row += V::kWidth) {
    const std::int64_t count = mhc_smaller(V::kWidth, g.rows - row);
    float staged[kMhcMixes + 1][V::kWidth];
    for (std::int64_t t = 0; t < V::kWidth; ++t) {
      const std::int64_t from = row + mhc_smaller(t, count - 1);  // surplus lanes repeat the last row
      for (int c = 0; c < mixes; ++c) staged[c][t] = g.sums[from * mixes + c];
      staged[kMhcMixes][t] = g.squares[from];
    }
    const F mean = V::div(V::load(staged[kMhcMixes]), V::all(g.count));
    const F r = rsqrt_fp32<V>(V::add(mean, V::all(g.rms_eps)));
    F logit[kMhcMixes];
    for (int c = 0; c < mixes; ++c) {
      const float scale = g.scale[c < 4 ? 0 : c < 8 ? 1 : 2];
      logit[c] = V::fma(V::mul(V::load(staged[c]), r), V::all(scale), V::all(g.base[c]));
    }
    for (int i = 0; i < kMhcStreams; ++i) {
      scatter<V>(V::add(sigmoid_fp32<V>(logit[i]), V::all(g.pre_eps)), count, g.pre + row * 4 + i, 4);
      if (g.pre_only) continue;
      scatter<V>(V::mul(sigmoid_fp32<V>(logit[4 + i]), V::all(g.post_mult)), count,
                 g.post + row * g.post_row + i * g.post_stream, g.post_row);
    }
    if (g.pre_only) continue;
    F comb[16];
    for (int c = 0; c < 16; ++c) comb[c] = logit[8 + c];
    sinkhorn<V>(comb, g.sinkhorn_eps, g.sinkhorn_repeat);
    for (int c = 0; c < 16; ++c)
      scatter<V>(comb[c], count, g.comb + row * g.comb_row + c / 4 * g.comb_i + c % 4 * g.comb_j, g.comb_row);
  }
}

// ---- collapse ---------------------------------------------------------------------------------------------------

template <class V>
inline typename V::F collapse_lanes(const std::uint16_t* from, std::int64_t stream, const typename V::F* pre,
                                    bool identity) {
  if (identity) return V::load_bf16(from);
  typename V::F u = V::zero();
  for (int i = 0; i < kMhcStreams; ++i) u = V::fma(pre[i], V::load_bf16(from + i * stream), u);
  return u;
}

template <class V>
void collapse_row(const MhcCollapseArgs& g, std::int64_t row) {
  using F = typename V::F;
  const std::uint16_t* from = g.residual.data + row * g.residual.row;
  std::uint16_t* out = g.out + row * g.out_row;
  const bool identity = g.pre == nullptr;
  F pre[kMhcStreams];
  for (int i = 0; i < kMhcStreams; ++i)
    pre[i] = identity ? V::zero() : V::all(g.pre[row * g.pre_row + i * g.pre_stream]);
  if (g.mean != nullptr) {
    std::uint16_t* mean = g.mean + row * g.mean_row;
    for (std::int64_t h = 0; h < g.hidden; h += V::kWidth) {
      const std::uint16_t* at = from + h;
      const F sum = sum4<V>(V::load_bf16(at), V::load_bf16(at + g.residual.stream),
                            V::load_bf16(at + 2 * g.residual.stream), V::load_bf16(at + 3 * g.residual.stream));
      V::store_bf16(mean + h, V::mul(sum, V::all(0.25f)));
    }
  }
  if (g.norm_weight == nullptr) {
    for (std::int64_t h = 0; h < g.hidden; h += V::kWidth)
      V::store_bf16(out + h, collapse_lanes<V>(from + h, g.residual.stream, pre, identity));
    return;
  }
  // Statistics from the unrounded u; the rounded one is kept in the output.
  ChainSum squares;
  for (std::int64_t begin = 0; begin < g.hidden; begin += kMhcChunk) {
    const std::int64_t start = g.descending ? (g.hidden - 1 - begin) / kMhcChunk * kMhcChunk : begin;
    const std::int64_t end = mhc_smaller(start + kMhcChunk, g.hidden);
    Strands<V> acc = Strands<V>::zero();
    for (std::int64_t k = start; k < end; k += kStrands) {
      const std::int64_t at = g.descending ? start + end - kStrands - k : k;
      Strands<V> u;
      for (int i = 0; i < Strands<V>::kParts; ++i) {
        const std::int64_t h = at + i * V::kWidth;
        u.part[i] = collapse_lanes<V>(from + h, g.residual.stream, pre, identity);
        V::store_bf16(out + h, u.part[i]);
      }
      acc.fma(u, u);
    }
    squares.add(merged<V>(acc));
  }
  const F mean = V::div(V::all(squares.total), V::all(static_cast<float>(g.hidden)));
  const F scale = rsqrt_fp32<V>(V::add(mean, V::all(g.norm_eps)));
  for (std::int64_t h = 0; h < g.hidden; h += V::kWidth)
    V::store_bf16(out + h, V::mul(V::mul(V::load_bf16(out + h), scale), V::load_bf16(g.norm_weight + h)));
}

template <class V>
void mhc_collapse(const MhcCollapseArgs& g) {
  for (std::int64_t row = 0; row < g.rows; ++row) collapse_row<V>(g, row);
}

}  // namespace
}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_MHC_KERNEL_H_
