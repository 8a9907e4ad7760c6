// SPDX-License-Identifier: Apache-2.0
//
// The steps of the mHC operators on a CUDA device, one statement of each for every kernel. The order of operations is
// part of the implementation id `bf16x2fn-v2-block256`; tokens per tile, thread blocks and clusters change time only.
//
// The reduction over K = streams * hidden is cut into blocks of 256 columns of h, all streams of them together.
// * post: o = post * x; o = fma(comb[i], R[i], o) for i = 0..3; R' = bf16(o).
// * product, one block: a part is 128 columns of one stream, in eight steps of 16 (a step's columns: mma_part). fn is
//   split into two BF16 parts, hi = bf16(fn), lo = bf16(fn - hi); a part's sums over hi and over lo are kept by the
//   tensor core in FP32 from +0, then hi + lo. Parts merge t = p0, t = t + p1, ... in the order of (stream, half).
// * squares: the diagonal of the product of a token's part with itself, on the tensor core in the same steps; parts and
//   blocks merge as those of a mix.
// * blocks merge t = b0, t = t + b1, ...
// * mixes: r = rsqrt(fma(q, 1 / D, eps)), rsqrt and every reciprocal correctly rounded; m = m * r;
//   logit = fma(m, scale, base); sigmoid(z) = reciprocal(1 + exp(-z)).
// * Sinkhorn: after the softmax rows and columns are scaled by vectors r and s, from 1; p[i] = 1 / r[i] as it was
// before
//   it was inverted. A row pass: p[i] = eps * p[i], then fma with c[i][j] * s[j] for j = 0..3, r[i] = reciprocal(p[i]);
//   columns likewise with r. comb = (c * r) * s.
// * collapse: u = fma(pre[i], R[i], u), i = 0..3, from +0. The norm's sum of u^2, one block: a lane's 8 columns with
//   fma, lanes as a butterfly; blocks merge as above; out = bf16((bf16(u) * rsqrt(fma(z, 1 / H, eps))) * w).
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_MHC_STEPS_CUH_
#define BATCHPROOF_SRC_KERNELS_CUDA_MHC_STEPS_CUH_

#include "src/kernels/cpu/mhc_math.h"
#include "src/kernels/cuda/convert.h"
#include "src/kernels/cuda/mhc_params.h"

namespace batchproof::cuda {

// Lanes of mhc_math.h: one float.
struct DeviceLane {
  using F = float;
  static __device__ F zero() { return 0.0f; }
  static __device__ F all(float v) { return v; }
  static __device__ F add(F a, F b) { return __fadd_rn(a, b); }
  static __device__ F sub(F a, F b) { return __fsub_rn(a, b); }
  static __device__ F mul(F a, F b) { return __fmul_rn(a, b); }
  static __device__ F div(F a, F b) { return __fdiv_rn(a, b); }
  static __device__ F sqrt(F a) { return __fsqrt_rn(a); }
  static __device__ F fma(F a, F b, F c) { return __fmaf_rn(a, b, c); }
  static __device__ F max(F a, F b) { return a > b ? a : b; }
  static __device__ F min(F a, F b) { return a < b ? a : b; }
  static __device__ F power_of_two(F n) { return __int_as_float((static_cast<int>(n) + 127) << 23); }
  static __device__ F nan_of(F x, F v) { return x != x ? __uint_as_float(0x7FC00000u) : v; }
};

constexpr unsigned kAllLanes = 0xFFFFFFFFu;
constexpr int kMhcThreads = 256;  // of a thread block of the kernels without clusters

__device__ inline float bf16_low(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float bf16_high(std::uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }
// To nearest even; NaN gives 7FFF.
__device__ inline std::uint32_t bf16_pair(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
// What cvt makes of NaN becomes the canonical code.
__device__ inline std::uint32_t canonical_pair(std::uint32_t pair) {
  if ((pair & 0x7FFFu) > 0x7F80u) pair = (pair & 0xFFFF0000u) | 0x7FC0u;
  if ((pair >> 16 & 0x7FFFu) > 0x7F80u) pair = (pair & 0xFFFFu) | 0x7FC00000u;
  return pair;
}

// Every lane's value becomes the sum of all lanes'; of several values at once.
template <int kCount>
__device__ inline void butterflies(float (&v)[kCount]) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = __fadd_rn(v[i], __shfl_xor_sync(kAllLanes, v[i], mask));
  }
}

// Eight BF16 columns; one access where rows are aligned.
__device__ inline uint4 load_columns(const std::uint16_t* at, bool wide) {
  if (wide) return __ldg(reinterpret_cast<const uint4*>(at));
  std::uint32_t word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) word[i] = at[2 * i] | static_cast<std::uint32_t>(at[2 * i + 1]) << 16;
  return make_uint4(word[0], word[1], word[2], word[3]);
}
__device__ inline void store_columns(std::uint16_t* at, uint4 v, bool wide) {
  if (wide) {
    *reinterpret_cast<uint4*>(at) = v;
    return;
  }
  const std::uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    at[2 * i] = static_cast<std::uint16_t>(word[i]);
    at[2 * i + 1] = static_cast<std::uint16_t>(word[i] >> 16);
  }
}
__device__ inline void store_fp32(const MhcDeviceMatrix& m, std::int64_t row, int first, int second, float v) {
  m.data[row * m.row + first * m.first + second * m.second] = __uint_as_float(fp32_code(v));
}
__device__ inline float load_fp32(const MhcDeviceMatrix& m, std::int64_t row, int first, int second) {
  return m.data[row * m.row + first * m.first + second * m.second];
}

// ---- one token's 256 columns, by a warp: lane l has columns [8 l, 8 l + 8) of every stream -----------------------

template <int kStreams, bool kPost>
struct MhcColumns {
  uint4 stream[kStreams];
  uint4 x;

  __device__ void load(const MhcLaunch& g, std::int64_t token, int block, int lane, bool wide) {
    const int h = block * kMhcColumns + lane * 8;
    const bool inside = h < g.hidden;
    const uint4 none = make_uint4(0, 0, 0, 0);
    if constexpr (kPost) x = inside ? load_columns(g.x + token * g.x_row + h, wide) : none;
#pragma unroll
    for (int i = 0; i < kStreams; ++i)
      stream[i] = inside ? load_columns(g.residual + token * g.residual_row + i * g.residual_stream + h, wide) : none;
  }
};

__device__ inline std::uint32_t& word_of(uint4& v, int i) { return reinterpret_cast<std::uint32_t*>(&v)[i]; }
__device__ inline std::uint32_t word_of(const uint4& v, int i) { return reinterpret_cast<const std::uint32_t*>(&v)[i]; }

// A token's post[4], then comb[i][j] at 4 + 4 i + j.
__device__ inline void load_post(const float* from, float (&k)[20]) {
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    const float4 four = reinterpret_cast<const float4*>(from)[i];
    k[4 * i] = four.x;
    k[4 * i + 1] = four.y;
    k[4 * i + 2] = four.z;
    k[4 * i + 3] = four.w;
  }
}

// The streams after post, in place.
__device__ inline void apply_post(MhcColumns<4, true>& c, const float (&k)[20], bool reversed) {
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    float in[4][2], o[4][2];
    const float x[2] = {bf16_low(word_of(c.x, w)), bf16_high(word_of(c.x, w))};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      in[i][0] = bf16_low(word_of(c.stream[i], w));
      in[i][1] = bf16_high(word_of(c.stream[i], w));
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (!reversed) {
          o[j][e] = __fmul_rn(k[j], x[e]);
#pragma unroll
          for (int i = 0; i < 4; ++i) o[j][e] = __fmaf_rn(k[4 + 4 * i + j], in[i][e], o[j][e]);
        } else {
          o[j][e] = __fmul_rn(k[16 + j], in[3][e]);
#pragma unroll
          for (int i = 2; i >= 0; --i) o[j][e] = __fmaf_rn(k[4 + 4 * i + j], in[i][e], o[j][e]);
          o[j][e] = __fmaf_rn(k[j], x[e], o[j][e]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) word_of(c.stream[j], w) = bf16_pair(o[j][0], o[j][1]);
  }
}

// Whether a lane has a NaN or an infinity: 0 times it is not 0.
template <int kStreams>
__device__ inline bool not_finite(const uint4 (&stream)[kStreams]) {
  std::uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
#pragma unroll
    for (int w = 0; w < 4; ++w) asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(word_of(stream[i], w)), "r"(0u));
  }
  return (sum & 0x7FFF7FFFu) != 0;
}

template <int kStreams>
__device__ inline void canonical_columns(uint4 (&stream)[kStreams]) {
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
#pragma unroll
    for (int w = 0; w < 4; ++w) word_of(stream[j], w) = canonical_pair(word_of(stream[j], w));
  }
}

__device__ inline uint4 canonical_of(const uint4& v) {
  uint4 one[1] = {v};
  canonical_columns<1>(one);
  return one[0];
}

// A lane's columns from h on to residual_out. Broadcast: the four streams are the embedding.
template <int kStreams>
__device__ inline void write_streams(const MhcLaunch& g, const uint4 (&stream)[kStreams], std::int64_t token, int h,
                                     bool wide) {
  std::uint16_t* const to = g.residual_out + token * g.residual_out_row + h;
#pragma unroll
  for (int j = 0; j < 4; ++j) store_columns(to + j * g.residual_out_stream, stream[kStreams == 4 ? j : 0], wide);
}

// One token's block: post where the form has it, the streams to residual_out.
template <int kStreams, bool kPost>
__device__ void make_block(const MhcLaunch& g, MhcColumns<kStreams, kPost>& c, std::int64_t token, int block, int lane,
                           const float* coefficient, bool wide, bool reversed) {
  const int h = block * kMhcColumns + lane * 8;
  if constexpr (kPost) {
    float k[20];
    load_post(coefficient, k);
    apply_post(c, k, reversed);
    if (h >= g.hidden) {  // coefficients may be infinite: 0 * inf is not 0
#pragma unroll
      for (int j = 0; j < kStreams; ++j) c.stream[j] = make_uint4(0, 0, 0, 0);
    }
    if (not_finite<kStreams>(c.stream)) canonical_columns<kStreams>(c.stream);
    if (h < g.hidden) write_streams<kStreams>(g, c.stream, token, h, wide);
  } else if constexpr (kStreams == 1) {
    if (g.residual_out != nullptr && h < g.hidden) write_streams<kStreams>(g, c.stream, token, h, wide);
  }
}

// ---- product -----------------------------------------------------------------------------------------------------

__device__ inline void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Eight columns of one row of fn.
struct MhcWeights {
  float4 low, high;
  __device__ void load(const MhcLaunch& g, int row, std::int64_t column, bool inside, bool wide) {
    low = high = make_float4(0, 0, 0, 0);
    if (!inside) return;
    const float* at = g.fn + row * g.fn_row + column;
    if (wide) {
      low = __ldg(reinterpret_cast<const float4*>(at));
      high = __ldg(reinterpret_cast<const float4*>(at) + 1);
    } else {
      low = make_float4(at[0], at[1], at[2], at[3]);
      high = make_float4(at[4], at[5], at[6], at[7]);
    }
  }
};

// Two weights as BF16 pairs: hi, and what hi leaves.
__device__ inline void split_pair(float a, float b, std::uint32_t* hi, std::uint32_t* lo) {
  *hi = bf16_pair(a, b);
  *lo = bf16_pair(__fsub_rn(a, bf16_low(*hi)), __fsub_rn(b, bf16_high(*hi)));
}

// Eight columns of a row as the tensor core's first operand in two steps of four: hi in row r, lo in row r + 8.
__device__ inline void split_weights(const MhcWeights& w, std::uint32_t (&first)[4], std::uint32_t (&second)[4]) {
  split_pair(w.low.x, w.low.y, &first[0], &first[1]);
  split_pair(w.low.z, w.low.w, &first[2], &first[3]);
  split_pair(w.high.x, w.high.y, &second[0], &second[1]);
  split_pair(w.high.z, w.high.w, &second[2], &second[3]);
}

// A piece is 32 columns of a part, two steps. Lane (r, q) = (lane / 4, lane % 4) has rows r, 8 + r, 16 + r of fn and of
// a piece columns [8 q, 8 q + 8); its first four are the first step's. So a part's weights as the tensor core takes
// them: a lane's columns of its four pieces.
template <int kMixTiles>
__device__ void load_piece(const MhcLaunch& g, int mixes, int block, int part, int piece, int lane, bool wide,
                           MhcWeights (&to)[kMixTiles]) {
  const int at = part % 2 * 128 + piece * 32 + lane % 4 * 8;
  const bool inside = block * kMhcColumns + at < g.hidden;
  const std::int64_t column = static_cast<std::int64_t>(part / 2) * g.hidden + block * kMhcColumns + at;
#pragma unroll
  for (int j = 0; j < kMixTiles; ++j) to[j].load(g, 8 * j + lane / 4, column, inside && 8 * j + lane / 4 < mixes, wide);
}

// A step's split weights out of shared memory; 512 bytes are eight rows of fn, 16 of them a lane's.
template <int kMixTiles>
__device__ inline void load_step(const char* from, std::uint32_t (&a)[kMixTiles][4]) {
#pragma unroll
  for (int j = 0; j < kMixTiles; ++j) {
    const uint4 four = *reinterpret_cast<const uint4*>(from + j * 512);
    a[j][0] = four.x, a[j][1] = four.y, a[j][2] = four.z, a[j][3] = four.w;
  }
}

// Sums of one part and eight tokens: the mixes, and the tokens' products with one another, of which the diagonal is
// kept.
template <int kMixTiles>
struct MhcSums {
  float mix[kMixTiles][4], square[4];

  __device__ void clear() {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int j = 0; j < kMixTiles; ++j) mix[j][e] = 0.0f;
      square[e] = 0.0f;
    }
  }
  // One step. The tensor core's 16 rows are 8 rows of fn as hi and the same as lo, its columns are eight tokens.
  __device__ void add(const std::uint32_t (&a)[kMixTiles][4], std::uint32_t b0, std::uint32_t b1) {
#pragma unroll
    for (int j = 0; j < kMixTiles; ++j) mma_bf16(mix[j], a[j], b0, b1);
    const std::uint32_t tokens[4] = {b0, 0, b1, 0};
    mma_bf16(square, tokens, b0, b1);
  }
  // Into the rows of the tokens, kMhcSumStride floats each.
  __device__ void store(float* to, int lane) const {
    const int r = lane / 4, q = lane % 4;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int j = 0; j < kMixTiles; ++j)
        to[(2 * q + e) * kMhcSumStride + 8 * j + r] = __fadd_rn(mix[j][e], mix[j][2 + e]);
    }
    if (q == r / 2) to[r * kMhcSumStride + kMhcSquare] = r % 2 == 0 ? square[0] : square[1];
  }
};

// The parts' sums, `step` floats apart, merged.
template <int kParts>
__device__ inline float merge_parts(const float* from, int step, bool reversed) {
  float total = from[reversed ? (kParts - 1) * step : 0];
#pragma unroll
  for (int p = 1; p < kParts; ++p) total = __fadd_rn(total, from[(reversed ? kParts - 1 - p : p) * step]);
  return total;
}

// ---- coefficients ------------------------------------------------------------------------------------------------

// The correctly rounded reciprocal. kPlain: of a value that is known to lie far from the ends of the exponent's range,
// where the unit's estimate and one step of Newton give it (mhc_check compares them over every significand).
template <bool kPlain>
__device__ inline float reciprocal(float v) {
  if constexpr (!kPlain) return __frcp_rn(v);
  float estimate;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(v));
  return __fmaf_rn(estimate, __fmaf_rn(-v, estimate, 1.0f), estimate);
}

__device__ inline float sigmoid(float v) {
  const float below = __fadd_rn(1.0f, exp_fp32<DeviceLane>(-v));
  return below < 0x1p+100f ? reciprocal<true>(below) : reciprocal<false>(below);
}

// Merges `blocks` sums, `stride` floats apart; eight at a time are on their way.
template <class Stride>
__device__ inline float merge_blocks(const float* from, int blocks, Stride stride, bool reversed) {
  if (reversed) {
    from += (blocks - 1) * stride;
    stride = -stride;
  }
  float total = *from;
#pragma unroll 1
  for (int b = 1; b < blocks; b += 8) {
    float next[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) next[i] = b + i < blocks ? from[(b + i) * stride] : 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (b + i < blocks) total = __fadd_rn(total, next[i]);
    }
  }
  return total;
}

__device__ inline float mix_scale(const MhcLaunch& g, int mixes, int lane) {
  return lane < mixes ? g.scale[(lane < 4 ? 0 : lane < 8 ? 1 : 2) * g.scale_step] : 0.0f;
}
__device__ inline float mix_base(const MhcLaunch& g, int mixes, int lane) {
  return lane < mixes ? g.base[lane * g.base_step] : 0.0f;
}

// A warp has one token: lane c its merged sum of mix c, lane 24 the square sum. Returns the coefficient in lane c < 8
// (pre, post) and the logit in lane 8 + 4 i + j (comb); writes post_out, mixes and the square sum.
// scale, base: those of the lane's mix. write: whether anything is written.
__device__ inline float coefficients(const MhcLaunch& g, std::int64_t token, float sum, int mixes, int lane,
                                     float scale, float base, bool write = true) {
  const float square = __shfl_sync(kAllLanes, sum, kMhcSquare);
  if (write && g.mixes_out.data != nullptr && lane < mixes) store_fp32(g.mixes_out, token, lane, 0, sum);
  if (write && g.square_out.data != nullptr && lane == kMhcSquare) store_fp32(g.square_out, token, 0, 0, sum);
  const float r = __frsqrt_rn(__fmaf_rn(square, g.per_element, g.rms_eps));
  if (lane >= mixes) return 0.0f;
  const float logit = __fmaf_rn(__fmul_rn(sum, r), scale, base);
  if (lane >= 8) return logit;
  const float gate = sigmoid(logit);
  if (lane < 4) return __fadd_rn(gate, g.pre_eps);
  const float post = __fmul_rn(gate, g.post_mult);
  if (write) store_fp32(g.post_out, token, lane - 4, 0, post);
  return post;
}

// Lane 8 + 4 i + j has logit (i, j); gives exp(logit - the row's largest).
__device__ inline float comb_exponential(float logit) {
  float top = DeviceLane::max(logit, __shfl_xor_sync(kAllLanes, logit, 1));
  top = DeviceLane::max(top, __shfl_xor_sync(kAllLanes, top, 2));
  return exp_fp32<DeviceLane>(__fsub_rn(logit, top));
}

// Sinkhorn of up to eight tokens by one warp: four lanes have a token, lane j of them row j and column j of its matrix.
struct MhcComb {
  float row[4] = {}, column[4] = {};

  // Lane 8 + 4 i + j has exp(logit (i, j) - the row's largest) of one token, which is `mine` in the four lanes of it.
  __device__ void take(float exponential, bool mine) {
    const int j = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float right = __shfl_sync(kAllLanes, exponential, 8 + 4 * j + k);
      const float below = __shfl_sync(kAllLanes, exponential, 8 + 4 * k + j);
      row[k] = mine ? right : row[k];
      column[k] = mine ? below : column[k];
    }
  }
};

// The values of the four lanes to all of them.
__device__ inline void share_quad(float mine, float (&all)[4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) all[k] = __shfl_sync(kAllLanes, mine, k, 4);
}

__device__ inline bool moved_bits(float a, float b) { return __float_as_uint(a) != __float_as_uint(b); }

// Rows and columns of the fixed matrix c are scaled by r and s in turn. The iteration divides row i by its sum + eps,
// and the row's sum is r[i] * d for d the sum over j of c[i][j] * s[j]: r[i] / (r[i] * d + eps) = 1 / (d + eps / r[i]).
// A pass is a function of s, p and q, and s of q: once p and q stay as they are, nothing changes any more, and the
// passes that are left are left out. What a pass asks is whether the one before it moved anything: that answer is there
// already.
//   mine: the lane's r
template <bool kPlain>
__device__ inline void sinkhorn_passes(const MhcComb& c, float& mine, float (&s)[4], float eps, int repeat) {
  float p = 1.0f, q = 1.0f, r[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  bool moved = true;
#pragma unroll 1
  for (int pass = 0; pass < repeat && __any_sync(kAllLanes, moved); ++pass) {
    const float last_p = p, last_q = q;
    if (pass > 0) {
      p = __fmul_rn(eps, p);
#pragma unroll
      for (int k = 0; k < 4; ++k) p = __fmaf_rn(c.row[k], s[k], p);
      mine = reciprocal<kPlain>(p);
      share_quad(mine, r);
    }
    q = __fmul_rn(eps, q);
#pragma unroll
    for (int k = 0; k < 4; ++k) q = __fmaf_rn(c.column[k], r[k], q);
    share_quad(reciprocal<kPlain>(q), s);
    moved = pass == 0 || moved_bits(p, last_p) || moved_bits(q, last_q);
  }
}

// c.row, in lane j, becomes row j of comb.
__device__ inline void sinkhorn(const MhcLaunch& g, MhcComb& c) {
  // A row's sum is at least 1, at most 4.
  const float mine = reciprocal<true>(__fadd_rn(__fadd_rn(c.row[0], c.row[1]), __fadd_rn(c.row[2], c.row[3])));
  float by[4], r = 1.0f, s[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  share_quad(mine, by);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    c.row[k] = __fadd_rn(__fmul_rn(c.row[k], mine), g.sinkhorn_eps);
    c.column[k] = __fadd_rn(__fmul_rn(c.column[k], by[k]), g.sinkhorn_eps);
  }
  // Entries of c lie between eps and 1 + eps, so factors that bring sums to 1 lie within about 1 / eps of 1.
  if (g.sinkhorn_eps >= 0x1p-40f && g.sinkhorn_eps <= 0x1p+40f) {
    sinkhorn_passes<true>(c, r, s, g.sinkhorn_eps, g.sinkhorn_repeat);
  } else {
    sinkhorn_passes<false>(c, r, s, g.sinkhorn_eps, g.sinkhorn_repeat);
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) c.row[k] = __fmul_rn(__fmul_rn(c.row[k], r), s[k]);
}

// ---- collapse ----------------------------------------------------------------------------------------------------

// The coefficients that the collapse of the delayed form uses.
__device__ inline float carried_coefficient(const MhcLaunch& g, std::int64_t token, int i) {
  if (g.carried.data == nullptr) return i == 0 ? 1.0f : 0.0f;
  return load_fp32(g.carried, token, i, 0);
}

// A lane's eight columns: u rounded to BF16, and its sum of u^2.
template <int kStreams>
__device__ inline uint4 collapse_columns(const uint4 (&stream)[kStreams], const float (&k)[4], float* square) {
  uint4 rounded;
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    float u[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      u[e] = 0.0f;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t word = word_of(stream[kStreams == 4 ? i : 0], w);
        u[e] = __fmaf_rn(k[i], e == 0 ? bf16_low(word) : bf16_high(word), u[e]);
      }
      sum = __fmaf_rn(u[e], u[e], sum);
    }
    word_of(rounded, w) = bf16_pair(u[0], u[1]);
  }
  *square = sum;
  return rounded;
}

// The same where nothing is carried yet: u is stream 0.
__device__ inline uint4 first_columns(const uint4& stream, float* square) {
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const std::uint32_t word = word_of(stream, w);
    sum = __fmaf_rn(bf16_low(word), bf16_low(word), sum);
    sum = __fmaf_rn(bf16_high(word), bf16_high(word), sum);
  }
  *square = sum;
  return stream;
}

// The mean of the streams.
template <int kStreams>
__device__ inline uint4 mean_columns(const uint4 (&stream)[kStreams]) {
  uint4 mean;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    float low[4], high[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t word = word_of(stream[kStreams == 4 ? i : 0], w);
      low[i] = bf16_low(word);
      high[i] = bf16_high(word);
    }
    word_of(mean, w) = canonical_pair(
        bf16_pair(__fmul_rn(__fadd_rn(__fadd_rn(__fadd_rn(low[0], low[1]), low[2]), low[3]), 0.25f),
                  __fmul_rn(__fadd_rn(__fadd_rn(__fadd_rn(high[0], high[1]), high[2]), high[3]), 0.25f)));
  }
  return mean;
}

// A token's columns of one block, a lane's from h on: u, and the lane's sum of u^2. Of the mean, columns from `limit`
// on are not written.
template <int kStreams>
__device__ inline uint4 collapse_block(const MhcLaunch& g, const uint4 (&stream)[kStreams], std::int64_t token, int h,
                                       int limit, const float (&k)[4], bool wide, float* square) {
  uint4 u[1] = {collapse_columns<kStreams>(stream, k, square)};
  if (g.delayed && g.carried.data == nullptr) u[0] = first_columns(stream[0], square);
  if (*square != *square) canonical_columns<1>(u);
  if (g.mean != nullptr && h < limit)
    store_columns(g.mean + token * g.mean_row + h, mean_columns<kStreams>(stream), wide);
  return u[0];
}

__device__ inline float norm_factor(const MhcLaunch& g, float z) {
  return __frsqrt_rn(__fmaf_rn(z, g.per_column, g.norm_eps));
}

__device__ inline uint4 norm_columns(const uint4& u, float factor, const uint4& weight) {
  uint4 out[1];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const std::uint32_t in = word_of(u, w), by = word_of(weight, w);
    word_of(out[0], w) = bf16_pair(__fmul_rn(__fmul_rn(bf16_low(in), factor), bf16_low(by)),
                                   __fmul_rn(__fmul_rn(bf16_high(in), factor), bf16_high(by)));
  }
  if (not_finite<1>(out)) canonical_columns<1>(out);
  return out[0];
}

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_MHC_STEPS_CUH_
