// SPDX-License-Identifier: Apache-2.0
//
// The steps of the mHC operators on a CUDA device, one statement of each for every kernel. The order of operations is
// part of the implementation id `bf16x2fn-block256`; tokens per tile, thread blocks and clusters change time only.
//
// The reduction over K = streams * hidden is cut into blocks of 256 columns of h, all streams of them together.
// * post: o = post * x; o = fma(comb[i], R[i], o) for i = 0..3; R' = bf16(o).
// * product, one block: a part is 128 columns of one stream, in eight steps of 16 (a step's columns: mma_part). fn is
//   split into two BF16 parts, hi = bf16(fn), lo = bf16(fn - hi); a part's sums over hi and over lo are kept by the
//   tensor core in FP32 from +0, then hi + lo. Parts merge t = p0, t = t + p1, ... in the order of (stream, half).
// * squares, one block: a lane adds its 8 columns of a stream with fma, streams merge ((0 + 1) + 2) + 3, lanes merge as
//   a butterfly (16, 8, 4, 2, 1).
// * blocks merge t = b0, t = t + b1, ...
// * mixes: r = rsqrt(fma(q, 1 / D, eps)), rsqrt and every reciprocal correctly rounded; m = m * r;
//   logit = fma(m, scale, base); sigmoid(z) = reciprocal(1 + exp(-z)).
// * Sinkhorn: after the softmax rows and columns are scaled by vectors r and s, from 1. A row pass:
//   d = c[i][0] * s[0], then fma for j = 1..3; r[i] = r[i] * reciprocal(fma(r[i], d, eps)); columns likewise with r.
//   comb = (c * r) * s.
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

__device__ inline float butterfly(float v) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) v = __fadd_rn(v, __shfl_xor_sync(kAllLanes, v, mask));
  return v;
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

// The streams after post, in place. coefficient: post[4], then comb[i][j] at 4 + 4 i + j.
__device__ inline void apply_post(MhcColumns<4, true>& c, const float* coefficient, bool reversed) {
  float k[20];
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    const float4 four = reinterpret_cast<const float4*>(coefficient)[i];
    k[4 * i] = four.x;
    k[4 * i + 1] = four.y;
    k[4 * i + 2] = four.z;
    k[4 * i + 3] = four.w;
  }
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

// The block's square sum, in every lane.
template <int kStreams>
__device__ float square_block(const uint4 (&stream)[kStreams], bool reversed) {
  float part[kStreams];
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float low = bf16_low(word_of(stream[i], w)), high = bf16_high(word_of(stream[i], w));
      sum = __fmaf_rn(low, low, sum);
      sum = __fmaf_rn(high, high, sum);
    }
    part[i] = sum;
  }
  float total = part[0];
  if constexpr (kStreams == 4) {
    total = reversed ? __fadd_rn(__fadd_rn(__fadd_rn(part[3], part[2]), part[1]), part[0])
                     : __fadd_rn(__fadd_rn(__fadd_rn(part[0], part[1]), part[2]), part[3]);
  }
  return butterfly(total);
}

// One token's block on its way to shared memory: post where the form has it, squares, the streams to `tile` (a token's
// streams, 512 bytes each) and to residual_out. Returns the square sum.
template <int kStreams, bool kPost>
__device__ float make_block(const MhcLaunch& g, MhcColumns<kStreams, kPost>& c, std::int64_t token, int block, int lane,
                            const float* coefficient, char* tile, bool wide, bool reversed) {
  const int h = block * kMhcColumns + lane * 8;
  if constexpr (kPost) {
    apply_post(c, coefficient, reversed);
    if (h >= g.hidden) {  // coefficients may be infinite: 0 * inf is not 0
#pragma unroll
      for (int j = 0; j < kStreams; ++j) c.stream[j] = make_uint4(0, 0, 0, 0);
    }
  }
  const float square = square_block<kStreams>(c.stream, reversed);
  if constexpr (kPost) {
    if (square != square) {  // in all lanes: a NaN in any makes it NaN
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
#pragma unroll
        for (int w = 0; w < 4; ++w) word_of(c.stream[j], w) = canonical_pair(word_of(c.stream[j], w));
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    if (tile != nullptr) *reinterpret_cast<uint4*>(tile + j * 512 + lane * 16) = c.stream[j];
    if (kPost && h < g.hidden)
      store_columns(g.residual_out + token * g.residual_out_row + j * g.residual_out_stream + h, c.stream[j], wide);
  }
  if constexpr (kStreams == 1) {  // broadcast: the four streams are the embedding
    if (g.residual_out != nullptr && h < g.hidden) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        store_columns(g.residual_out + token * g.residual_out_row + j * g.residual_out_stream + h, c.stream[0], wide);
    }
  }
  return square;
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
__device__ inline void split_weights(const MhcWeights& w, std::uint32_t (&a)[2][4]) {
  split_pair(w.low.x, w.low.y, &a[0][0], &a[0][1]);
  split_pair(w.low.z, w.low.w, &a[0][2], &a[0][3]);
  split_pair(w.high.x, w.high.y, &a[1][0], &a[1][1]);
  split_pair(w.high.z, w.high.w, &a[1][2], &a[1][3]);
}

// What one warp multiplies with in one block of the reduction: its part (128 columns of one stream), in four pieces of
// 32 columns. Lane (r, q) = (lane / 4, lane % 4) has rows r, 8 + r, 16 + r of fn and, of every piece, columns
// [8 q, 8 q + 8). kKept pieces are in registers at a time.
template <int kMixTiles, int kKept>
struct MhcPart {
  MhcWeights kept[kKept][kMixTiles];

  static __device__ void load_piece(const MhcLaunch& g, int mixes, int block, int part, int piece, int lane,
                                    MhcWeights (&to)[kMixTiles], bool wide) {
    const int at = part % 2 * 128 + piece * 32 + lane % 4 * 8;
    const bool inside = block * kMhcColumns + at < g.hidden;
    const std::int64_t column = static_cast<std::int64_t>(part / 2) * g.hidden + block * kMhcColumns + at;
#pragma unroll
    for (int j = 0; j < kMixTiles; ++j)
      to[j].load(g, 8 * j + lane / 4, column, inside && 8 * j + lane / 4 < mixes, wide);
  }
  __device__ void load(const MhcLaunch& g, int mixes, int block, int part, int lane, bool wide) {
#pragma unroll
    for (int p = 0; p < kKept; ++p) load_piece(g, mixes, block, part, p, lane, kept[p], wide);
  }
};

// Adds one piece. The tensor core's 16 rows are 8 rows of fn as hi and the same as lo, its columns are eight tokens;
// its first step takes the first four of a lane's eight columns.
//   tile: the piece's columns of token 0    groups: that exist    first, step: which of them this warp takes
template <int kMixTiles, int kMine>
__device__ void mma_piece(const MhcWeights (&weights)[kMixTiles], const char* tile, int token_bytes, int groups,
                          int first, int step, int lane, float (&sum)[kMine][kMixTiles][4]) {
  std::uint32_t a[kMixTiles][2][4];
#pragma unroll
  for (int j = 0; j < kMixTiles; ++j) split_weights(weights[j], a[j]);
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int group = first + i * step;
    if (group >= groups) break;
    const uint4 b = *reinterpret_cast<const uint4*>(tile + (group * 8 + lane / 4) * token_bytes + lane % 4 * 16);
#pragma unroll
    for (int j = 0; j < kMixTiles; ++j) mma_bf16(sum[i][j], a[j][0], b.x, b.y);
#pragma unroll
    for (int j = 0; j < kMixTiles; ++j) mma_bf16(sum[i][j], a[j][1], b.z, b.w);
  }
}

// One block of the reduction for a tile of tokens, by eight warps: the parts' sums in groups of 16 tokens through
// `parts` ([8][16][kMhcSumStride] floats; a stream of the tile is stream_bytes behind the one before it), then
// emit(token of the tile, mix, sum). All of them call it, with its weights loaded; where not all pieces are kept it
// loads the others. The tile must be complete, and `parts` is free again after the next sync(), a barrier of the 256
// threads. then(): called once the weights were used.
template <int kStreams, int kMixTiles, int kGroups, int kKept, class Sync, class Emit, class Then>
__device__ void product_block(const MhcLaunch& g, int block, MhcPart<kMixTiles, kKept>& weights, const char* tile,
                              int token_bytes, int stream_bytes, int tokens, float* parts, bool wide, bool reversed,
                              const Sync& sync, const Emit& emit, const Then& then) {
  constexpr int kMixes = kMixTiles == 3 ? 24 : 4;
  constexpr int kParts = 2 * kStreams;
  constexpr int kShare = 8 / kParts;  // warps per part
  constexpr int kMine = (kGroups + kShare - 1) / kShare;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int part = warp % kParts, share = warp / kParts;
  const int groups = (tokens + kMhcTokenGroup - 1) / kMhcTokenGroup;
  float sum[kMine][kMixTiles][4];
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
#pragma unroll
    for (int j = 0; j < kMixTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[i][j][e] = 0.0f;
    }
  }
  const char* const columns = tile + part / 2 * stream_bytes + part % 2 * 256;
  if constexpr (kKept == 4) {
#pragma unroll
    for (int p = 0; p < 4; ++p)
      mma_piece<kMixTiles, kMine>(weights.kept[p], columns + p * 64, token_bytes, groups, share, kShare, lane, sum);
  } else {
#pragma unroll
    for (int p = 0; p < 4; ++p) {  // the next piece is on its way while this one is multiplied
      MhcWeights next[kMixTiles];
      if (p < 3) MhcPart<kMixTiles, kKept>::load_piece(g, kMixes, block, part, p + 1, lane, next, wide);
      mma_piece<kMixTiles, kMine>(weights.kept[0], columns + p * 64, token_bytes, groups, share, kShare, lane, sum);
      if (p < 3) {
#pragma unroll
        for (int j = 0; j < kMixTiles; ++j) weights.kept[0][j] = next[j];
      }
    }
  }
  then();
#pragma unroll
  for (int round = 0; round < (kGroups + 1) / 2; ++round) {
    if (2 * round >= groups) break;
    if (round > 0) sync();
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int group = share + i * kShare;
      if (group / 2 != round || group >= groups) continue;
      float* to = parts + (part * 16 + group % 2 * 8 + lane % 4 * 2) * kMhcSumStride + lane / 4;
#pragma unroll
      for (int j = 0; j < kMixTiles; ++j) {
        to[8 * j] = __fadd_rn(sum[i][j][0], sum[i][j][2]);
        to[8 * j + kMhcSumStride] = __fadd_rn(sum[i][j][1], sum[i][j][3]);
      }
    }
    sync();
    for (int i = threadIdx.x; i < 16 * kMixes; i += kMhcThreads) {
      const int token = i / kMixes, mix = i % kMixes;
      if (round * 16 + token >= tokens) continue;
      const float* from = parts + token * kMhcSumStride + mix;
      constexpr int kStep = 16 * kMhcSumStride;
      float total = from[reversed ? (kParts - 1) * kStep : 0];
#pragma unroll
      for (int p = 1; p < kParts; ++p) total = __fadd_rn(total, from[(reversed ? kParts - 1 - p : p) * kStep]);
      emit(round * 16 + token, mix, total);
    }
  }
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

// Merges `blocks` sums, `stride` floats apart.
__device__ inline float merge_blocks(const float* from, int blocks, int stride, bool reversed) {
  float total = from[reversed ? (blocks - 1) * stride : 0];
#pragma unroll 4
  for (int b = 1; b < blocks; ++b) total = __fadd_rn(total, from[(reversed ? blocks - 1 - b : b) * stride]);
  return total;
}

// A warp has one token: lane c its merged sum of mix c, lane 24 the square sum. Returns the coefficient in lane c < 8
// (pre, post) and the logit in lane 8 + 4 i + j (comb); writes post_out, mixes and the square sum.
__device__ inline float coefficients(const MhcLaunch& g, std::int64_t token, float sum, int mixes, int lane) {
  const float square = __shfl_sync(kAllLanes, sum, kMhcSquare);
  if (g.mixes_out.data != nullptr && lane < mixes) store_fp32(g.mixes_out, token, lane, 0, sum);
  if (g.square_out.data != nullptr && lane == kMhcSquare) store_fp32(g.square_out, token, 0, 0, sum);
  const float r = __frsqrt_rn(__fmaf_rn(square, g.per_element, g.rms_eps));
  if (lane >= mixes) return 0.0f;
  const float scale = g.scale[(lane < 4 ? 0 : lane < 8 ? 1 : 2) * g.scale_step];
  const float logit = __fmaf_rn(__fmul_rn(sum, r), scale, g.base[lane * g.base_step]);
  if (lane >= 8) return logit;
  const float gate = sigmoid(logit);
  if (lane < 4) return __fadd_rn(gate, g.pre_eps);
  const float post = __fmul_rn(gate, g.post_mult);
  store_fp32(g.post_out, token, lane - 4, 0, post);
  return post;
}

// Lane 8 + 4 i + j has logit (i, j); gives exp(logit - the row's largest).
__device__ inline float comb_exponential(float logit) {
  float top = DeviceLane::max(logit, __shfl_xor_sync(kAllLanes, logit, 1));
  top = DeviceLane::max(top, __shfl_xor_sync(kAllLanes, top, 2));
  return exp_fp32<DeviceLane>(__fsub_rn(logit, top));
}

// Rows and columns of the fixed matrix c are scaled by r and s in turn: the iteration divides row i by its sum + eps,
// and the row's sum is r[i] * sum over j of c[i][j] * s[j].
template <bool kPlain>
__device__ inline void sinkhorn_passes(const float (&c)[16], float (&r)[4], float (&s)[4], float eps, int repeat) {
#pragma unroll 1
  for (int pass = 0; pass < repeat; ++pass) {
    if (pass > 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float sum = __fmul_rn(c[4 * i], s[0]);
#pragma unroll
        for (int j = 1; j < 4; ++j) sum = __fmaf_rn(c[4 * i + j], s[j], sum);
        r[i] = __fmul_rn(r[i], reciprocal<kPlain>(__fmaf_rn(r[i], sum, eps)));
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float sum = __fmul_rn(c[j], r[0]);
#pragma unroll
      for (int i = 1; i < 4; ++i) sum = __fmaf_rn(c[4 * i + j], r[i], sum);
      s[j] = __fmul_rn(s[j], reciprocal<kPlain>(__fmaf_rn(s[j], sum, eps)));
    }
  }
}

// A warp, one token: lane 8 + 4 i + j has the logit (i, j) of comb. All lanes do the same.
__device__ inline void sinkhorn(const MhcLaunch& g, std::int64_t token, float logit) {
  const int lane = threadIdx.x % 32;
  const float exponential = comb_exponential(logit);
  float c[16], r[4], s[4];
#pragma unroll
  for (int i = 0; i < 16; ++i) c[i] = __shfl_sync(kAllLanes, exponential, 8 + i);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float* row = c + 4 * i;
    // At least 1, at most 4.
    const float by = reciprocal<true>(__fadd_rn(__fadd_rn(row[0], row[1]), __fadd_rn(row[2], row[3])));
#pragma unroll
    for (int j = 0; j < 4; ++j) row[j] = __fadd_rn(__fmul_rn(row[j], by), g.sinkhorn_eps);
    r[i] = s[i] = 1.0f;
  }
  // Entries of the scaled matrix lie between 0 and 1 + eps, so a sum + eps lies between eps and 4 + 5 eps.
  if (g.sinkhorn_eps >= 0x1p-60f && g.sinkhorn_eps <= 0x1p+60f) {
    sinkhorn_passes<true>(c, r, s, g.sinkhorn_eps, g.sinkhorn_repeat);
  } else {
    sinkhorn_passes<false>(c, r, s, g.sinkhorn_eps, g.sinkhorn_repeat);
  }
  float mine = 0.0f;  // lane 4 i + j: entry (i, j)
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if (lane == i) mine = __fmul_rn(__fmul_rn(c[i], r[i / 4]), s[i % 4]);
  }
  if (lane < 16) store_fp32(g.comb_out, token, lane / 4, lane % 4, mine);
}

// ---- collapse ----------------------------------------------------------------------------------------------------

// The coefficients that the collapse of the delayed form uses.
__device__ inline float carried_coefficient(const MhcLaunch& g, std::int64_t token, int i) {
  if (g.carried.data == nullptr) return i == 0 ? 1.0f : 0.0f;
  return load_fp32(g.carried, token, i, 0);
}

// Columns of one token's block: u rounded to BF16, and the block's sum of u^2 in every lane. Writes the mean.
//   stream: the lane's eight columns of every stream (broadcast: one)
template <int kStreams>
__device__ uint4 collapse_block(const MhcLaunch& g, const uint4 (&stream)[kStreams], std::int64_t token, int block,
                                int lane, const float* pre, float* square, bool wide) {
  const bool identity = g.delayed && g.carried.data == nullptr;
  const int h = block * kMhcColumns + lane * 8;
  const float k[4] = {pre[0], pre[1], pre[2], pre[3]};
  uint4 rounded;
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    float u[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t word = word_of(stream[kStreams == 4 ? i : 0], w);
        v[i] = e == 0 ? bf16_low(word) : bf16_high(word);
      }
      u[e] = 0.0f;
#pragma unroll
      for (int i = 0; i < 4; ++i) u[e] = __fmaf_rn(k[i], v[i], u[e]);
      if (identity) u[e] = v[0];
      sum = __fmaf_rn(u[e], u[e], sum);
    }
    word_of(rounded, w) = bf16_pair(u[0], u[1]);
  }
  if (sum != sum) {
#pragma unroll
    for (int w = 0; w < 4; ++w) word_of(rounded, w) = canonical_pair(word_of(rounded, w));
  }
  if (g.mean != nullptr && h < g.hidden) {
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
    store_columns(g.mean + token * g.mean_row + h, mean, wide);
  }
  *square = g.norm_weight != nullptr ? butterfly(sum) : 0.0f;
  return rounded;
}

__device__ inline float norm_factor(const MhcLaunch& g, float z) {
  return __frsqrt_rn(__fmaf_rn(z, g.per_column, g.norm_eps));
}

__device__ inline uint4 normed(uint4 u, float factor, const uint4& weight) {
  uint4 out;
  float sum = 0.0f;  // NaN where one of the eight is
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const float low = __fmul_rn(__fmul_rn(bf16_low(word_of(u, w)), factor), bf16_low(word_of(weight, w)));
    const float high = __fmul_rn(__fmul_rn(bf16_high(word_of(u, w)), factor), bf16_high(word_of(weight, w)));
    word_of(out, w) = bf16_pair(low, high);
    sum = __fadd_rn(sum, __fadd_rn(low, high));
  }
  if (sum != sum) {
#pragma unroll
    for (int w = 0; w < 4; ++w) word_of(out, w) = canonical_pair(word_of(out, w));
  }
  return out;
}

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_MHC_STEPS_CUH_
