// SPDX-License-Identifier: Apache-2.0
//
// What the mHC driver (mhc.cc) hands to the kernels of one instruction set: plain data only. The kernels' files are
// compiled with flags of their own, so nothing here may drag in a shared inline function.
//
// Strides count elements; the last axis (columns) is contiguous. `rows` are tokens. K = streams * hidden, flattened
// column k = stream * hidden + h. hidden is a multiple of 16.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_MHC_REGION_H_
#define BATCHPROOF_SRC_KERNELS_CPU_MHC_REGION_H_

#include <cstdint>

namespace batchproof {

constexpr int kMhcStreams = 4;
constexpr int kMhcMixes = 24;     // 4 pre, 4 post, 16 comb (row-major)
constexpr int kMhcChunk = 256;    // columns that a product tile walks at a time
constexpr int kMhcTileRows = 16;  // at least the row tile of every kernel

// BF16 [rows, streams, hidden]. Four equal streams have stream_stride 0.
struct MhcStreams {
  const std::uint16_t* data;
  std::int64_t row, stream;
};

// out[t, j, h] = bf16(post[t, j] * x[t, h] + sum_i comb[t, i, j] * residual[t, i, h]).
struct MhcPostArgs {
  std::int64_t rows, hidden;
  const std::uint16_t* x;
  std::int64_t x_row;
  MhcStreams residual;
  const float* post;
  std::int64_t post_row, post_stream;
  const float* comb;
  std::int64_t comb_row, comb_i, comb_j;  // comb_i: the index that is summed over
  std::uint16_t* out;
  std::int64_t out_row, out_stream;
  bool reversed;  // witness: streams 3..0, the post term last
};

struct MhcPackArgs {
  const float* fn;  // [24, columns]
  std::int64_t fn_row, columns;
  std::int64_t begin, end;  // positions to pack
  bool descending;          // position k holds column columns - 1 - k
  bool tf32;                // round to nearest, ties away from zero, to 10 fraction bits
  float* packed;            // [columns, 24]
};

// Positions [begin, end) of one segment; end - begin <= kMhcChunk, a multiple of 16.
struct MhcProductChunk {
  std::int64_t begin, end;
  std::int64_t segment;
  bool first, last;  // of its segment
};

// Sums over segments: acc = +0, then fma for ascending positions; squares in 16 strands, see mhc_kernel.h.
struct MhcProductArgs {
  std::int64_t rows, hidden, columns;
  MhcStreams residual;
  const MhcPostArgs* post;  // not null: the unrounded FP32 result of post is the input; post->out is written as well
  const float* packed;
  const MhcProductChunk* chunks;
  std::int64_t chunk_count;
  bool descending;
  bool merge;   // segments merge serially into sums [rows, 24] and squares [rows]; else they are
  float* sums;  // kept: sums [segment][rows, 24], squares [segment][rows]
  float* squares;
  std::int64_t segment_sums, segment_squares;  // strides between segments where they are kept
  float* values;                               // scratch [kMhcTileRows, kMhcChunk]
  float* partial;                              // scratch [rows, 24]
  float* strands;                              // scratch [rows, 16]
};

// The order of a GPU kernel with `threads` threads per row: thread i handles column steps[n] + i for n = 0, 1, ...;
// the 32 threads of a warp merge as a butterfly, warps merge serially from 0.
struct MhcThreadsArgs {
  std::int64_t rows, hidden, columns;
  MhcStreams residual;
  const MhcPostArgs* post;  // as in MhcProductArgs
  const float* fn;
  std::int64_t fn_row;
  int threads;
  const std::int64_t* steps;  // [splits][steps_per_split]
  std::int64_t splits, steps_per_split;
  bool pairs;      // two rows per pass, as the block-M variant; the order of a row's sum is the same
  float* sums;     // [splits][rows, 24]
  float* squares;  // [splits][rows]
  float* values;   // scratch [2, columns]
  float* partial;  // scratch [4, threads]
};

struct MhcCoefficientArgs {
  std::int64_t rows;
  const float* sums;  // [rows, 24], or [rows, 4] where pre_only
  const float* squares;
  float count;  // elements of a row's square sum
  float rms_eps, pre_eps, sinkhorn_eps, post_mult;
  int sinkhorn_repeat;
  const float* scale;  // 3, or 1
  const float* base;   // 24, or 4
  bool pre_only;
  float* pre;  // [rows, 4]
  float* post;
  std::int64_t post_row, post_stream;
  float* comb;
  std::int64_t comb_row, comb_i, comb_j;
};

struct MhcCollapseArgs {
  std::int64_t rows, hidden;
  MhcStreams residual;
  const float* pre;  // [rows, 4] with stride pre_row; null: the collapse is stream 0
  std::int64_t pre_row, pre_stream;
  const std::uint16_t* norm_weight;  // null: no norm
  float norm_eps;
  std::uint16_t* out;
  std::int64_t out_row;
  std::uint16_t* mean;  // null, or bf16 of the mean of the four streams
  std::int64_t mean_row;
  bool descending;  // witness: the norm's square sum in descending order
};

// Four products and the square sum in strands, segments of `segment` columns.
struct MhcHeadArgs {
  std::int64_t rows, hidden, columns;
  MhcStreams residual;
  const float* fn;  // [4, columns]
  std::int64_t fn_row;
  std::int64_t segment;
  bool descending;
  float* sums;  // [rows, 4]
  float* squares;
};

struct MhcKernel {
  void (*post)(const MhcPostArgs&);
  void (*pack)(const MhcPackArgs&);
  void (*product)(const MhcProductArgs&);
  void (*threads)(const MhcThreadsArgs&);
  void (*coefficients)(const MhcCoefficientArgs&);
  void (*collapse)(const MhcCollapseArgs&);
  void (*head)(const MhcHeadArgs&);
  int tile_rows;
};

extern const MhcKernel kMhcPlain;
#if defined(__x86_64__)
extern const MhcKernel kMhcAvx2;
extern const MhcKernel kMhcAvx512;
#endif

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_MHC_REGION_H_
