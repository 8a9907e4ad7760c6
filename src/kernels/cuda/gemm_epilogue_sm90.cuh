// SPDX-License-Identifier: Apache-2.0
//
// What happens to sums behind the main loop of gemm_sm90.cuh: they are merged in the order of the schedule, get the
// bias, are rounded and stored.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_GEMM_EPILOGUE_SM90_CUH_
#define BATCHPROOF_SRC_KERNELS_CUDA_GEMM_EPILOGUE_SM90_CUH_

#include "src/kernels/cuda/convert.h"
#include "src/kernels/cuda/gemm_params.h"
#include "src/kernels/cuda/ptx.h"

namespace batchproof::cuda {

// Warpgroups hold 64 x kN sums each; 64 columns and kN rows of y, or with kByRows 64 rows and kN columns.
template <int kN, int kGroups, bool kTree, bool kByRows>
struct GemmEpilogue {
  static constexpr GemmTile kTile{kN, kGroups, kTree, false, kByRows};
  static constexpr int kRegs = kN / 2;
  static constexpr int kSumThreads = 128 * kGroups;

  struct Item {
    int row, column;  // of y, first of this block's tile
    int limit;        // one past the last column that it stores
  };

  // Segment sums in shared memory: [8 rows of y][thread] of four accumulators, as the thread holds them.
  __device__ static void write_sums(std::uint32_t at, const float (&v)[kRegs]) {
#pragma unroll
    for (int i = 0; i < kRegs / 4; ++i)
      asm volatile(
          "st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(
              at + static_cast<std::uint32_t>(i * kSumThreads + static_cast<int>(threadIdx.x % kSumThreads)) * 16),
          "f"(v[4 * i]), "f"(v[4 * i + 1]), "f"(v[4 * i + 2]), "f"(v[4 * i + 3])
          : "memory");
  }

  __device__ static void add(float4& a, const float4& b) {
    a.x = __fadd_rn(a.x, b.x);
    a.y = __fadd_rn(a.y, b.y);
    a.z = __fadd_rn(a.z, b.z);
    a.w = __fadd_rn(a.w, b.w);
  }

  // Stores `count` (at most 4) groups of eight rows of y, from `first` on.
  __device__ static void store_groups(const GemmParams& p, std::uint32_t staging, int group, const Item& item,
                                      const float4 (&v)[4], int first, int count) {
    const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
    named_sync(1 + threadIdx.x / 128, 128);  // the last groups have been read
    if (p.y_type == Store::fp32) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (j >= count) break;
        const float e[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
#pragma unroll
        for (int i = 0; i < 4; ++i)
          asm volatile(
              "st.shared.f32 [%0], %1;" ::"r"(staging + static_cast<std::uint32_t>((j * 8 + lane % 4 * 2 + i % 2) * 68 +
                                                                                   warp * 16 + i / 2 * 8 + lane / 4) *
                                                            4),
              "f"(e[i])
              : "memory");
      }
      named_sync(1 + threadIdx.x / 128, 128);
      flush32(p, staging, count * 8, first * 8, group, item);
    } else {
      const std::uint32_t at =
          staging + static_cast<std::uint32_t>(lane % 8 * 144 + (warp * 16 + lane / 8 % 2 * 8) * 2);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (j >= count) break;
        const bool bf16 = p.y_type == Store::bf16;
        const std::uint32_t low = bf16 ? code16x2<true>(v[j].x, v[j].y) : code16x2<false>(v[j].x, v[j].y);
        const std::uint32_t high = bf16 ? code16x2<true>(v[j].z, v[j].w) : code16x2<false>(v[j].z, v[j].w);
        store_two_matrices_transposed(at + static_cast<std::uint32_t>(j * 8 * 144), low, high);
      }
      named_sync(1 + threadIdx.x / 128, 128);
      flush16(p, staging, count * 8, first * 8, group, item);
    }
  }

  // Who holds part `part` of `parts` adds its share of the rows from all segment sums, ascending, and stores it.
  __device__ static void merge_share(const GemmParams& p, const std::uint32_t* sources, int count,
                                     std::uint32_t staging, int group, const Item& item, int part, int parts) {
    const int used = (min(kN, p.m - item.row) + 7) / 8;
    const int end = used * (part + 1) / parts;
    const std::uint32_t mine = threadIdx.x % kSumThreads * 16;
    float low = 0.0f, high = 0.0f;
    if (p.bias_type != Store::none) load_biases(p, item, group, low, high);
    for (int first = used * part / parts; first < end; first += 4) {
      const int groups = min(4, end - first);
      float4 sum[4];
      if constexpr (kTree) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (j >= groups) break;
          float4 v[8];
#pragma unroll
          for (int i = 0; i < 8; ++i)
            if (i < count)
              v[i] = load_cluster(sources[i] + static_cast<std::uint32_t>((first + j) * kSumThreads * 16) + mine);
#pragma unroll
          for (int half = 1; half < 8; half *= 2) {
#pragma unroll
            for (int i = 0; i + half < 8; i += 2 * half)
              if (i + half < count) add(v[i], v[i + half]);
          }
          sum[j] = v[0];
        }
      } else {
        // Two sources of four groups in flight at once.
        for (int s = 0; s < count; s += 2) {
          float4 v[2][4];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (s + i >= count) break;
            const std::uint32_t from = sources[s + i] + static_cast<std::uint32_t>(first * kSumThreads * 16) + mine;
#pragma unroll
            for (int j = 0; j < 4; ++j)
              if (j < groups) v[i][j] = load_cluster(from + static_cast<std::uint32_t>(j * kSumThreads * 16));
          }
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (s + i >= count) break;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              if (j >= groups) break;
              if (s + i == 0)
                sum[j] = v[i][j];
              else
                add(sum[j], v[i][j]);
            }
          }
        }
      }
      if (p.bias_type != Store::none) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (j < groups) add(sum[j], make_float4(low, low, high, high));
      }
      store_groups(p, staging, group, item, sum, first, groups);
    }
  }

  __device__ static void load_biases(const GemmParams& p, const Item& item, int group, float& low, float& high) {
    const int column = item.column + group * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    low = column < p.n ? load_bias(p.bias, p.bias_type, column * p.bias_stride) : 0.0f;
    high = column + 8 < p.n ? load_bias(p.bias, p.bias_type, (column + 8) * p.bias_stride) : 0.0f;
  }

  // Rows of 64 codes of 16 bits, 144 bytes apart, to rows `first`... of the tile.
  __device__ static void flush16(const GemmParams& p, std::uint32_t buffer, int rows, int first, int group,
                                 const Item& item) {
    for (int piece = threadIdx.x % 128; piece < rows * 8; piece += 128) {
      const int row = item.row + first + piece / 8;
      const int column = item.column + group * 64 + piece % 8 * 8;
      if (row >= p.m || column >= item.limit) continue;
      uint4 c;
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(c.x), "=r"(c.y), "=r"(c.z), "=r"(c.w)
                   : "r"(buffer + static_cast<std::uint32_t>(piece / 8 * 144 + piece % 8 * 16))
                   : "memory");
      std::uint16_t* to = static_cast<std::uint16_t*>(p.y) + row * p.y_stride + column;
      if (column + 8 <= p.n && p.vector_store) {
        *reinterpret_cast<uint4*>(to) = c;
      } else {
        const std::uint32_t word[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
        for (int i = 0; i < 8; ++i)
          if (column + i < p.n) to[i] = static_cast<std::uint16_t>(word[i / 2] >> (i % 2 * 16));
      }
    }
  }

  // Rows of 64 FP32 sums, 68 apart.
  __device__ static void flush32(const GemmParams& p, std::uint32_t buffer, int rows, int first, int group,
                                 const Item& item) {
    for (int piece = threadIdx.x % 128; piece < rows * 16; piece += 128) {
      const int row = item.row + first + piece / 16;
      const int column = item.column + group * 64 + piece % 16 * 4;
      if (row >= p.m || column >= item.limit) continue;
      float4 e;
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(e.x), "=f"(e.y), "=f"(e.z), "=f"(e.w)
                   : "r"(buffer + static_cast<std::uint32_t>(piece / 16 * 68 + piece % 16 * 4) * 4)
                   : "memory");
      const float f[4] = {e.x, e.y, e.z, e.w};
      std::uint32_t* to = static_cast<std::uint32_t*>(p.y) + row * p.y_stride + column;
      if (column + 4 <= p.n && p.vector_store) {
        *reinterpret_cast<uint4*>(to) = make_uint4(fp32_code(f[0]), fp32_code(f[1]), fp32_code(f[2]), fp32_code(f[3]));
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (column + i < p.n) to[i] = fp32_code(f[i]);
      }
    }
  }

  // 16-bit outputs of one block: through shared memory, transposed, 32 rows of y at a time.
  template <bool kToBf16>
  __device__ static void store_tile16(const GemmParams& p, std::uint32_t staging, int group, const Item& item,
                                      const float (&v)[kRegs]) {
    constexpr int kChunk = kN % 32 == 0 ? 32 : 16;
    const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
#pragma unroll
    for (int chunk = 0; chunk < kN / kChunk; ++chunk) {
      if (item.row + chunk * kChunk >= p.m) break;
      const std::uint32_t buffer = staging + static_cast<std::uint32_t>(chunk % 2) * (kTile.staging_bytes() / 2);
      {
        const int matrix = lane / 8;
        const std::uint32_t at =
            buffer + static_cast<std::uint32_t>((matrix / 2 * 8 + lane % 8) * 144 + (warp * 16 + matrix % 2 * 8) * 2);
#pragma unroll
        for (int j = 0; j < kChunk / 16; ++j) {
          const int i = (chunk * kChunk / 8 + 2 * j) * 4;
          const std::uint32_t codes[4] = {code16x2<kToBf16>(v[i], v[i + 1]), code16x2<kToBf16>(v[i + 2], v[i + 3]),
                                          code16x2<kToBf16>(v[i + 4], v[i + 5]), code16x2<kToBf16>(v[i + 6], v[i + 7])};
          store_matrix_transposed(at + static_cast<std::uint32_t>(j * 16 * 144), codes);
        }
      }
      named_sync(1 + threadIdx.x / 128, 128);
      flush16(p, buffer, kChunk, chunk * kChunk, group, item);
    }
    named_sync(1 + threadIdx.x / 128, 128);
  }

  __device__ static void store_tile32(const GemmParams& p, std::uint32_t staging, int group, const Item& item,
                                      const float (&v)[kRegs]) {
    constexpr int kChunk = kN < 16 ? kN : 16;
    constexpr int kPitch = 68;
    const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
#pragma unroll
    for (int chunk = 0; chunk < kN / kChunk; ++chunk) {
      if (item.row + chunk * kChunk >= p.m) break;
      const std::uint32_t buffer = staging + static_cast<std::uint32_t>(chunk % 2) * (kTile.staging_bytes() / 2);
#pragma unroll
      for (int i = 0; i < kChunk / 2; ++i) {
        const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
        const int column = warp * 16 + i % 4 / 2 * 8 + lane / 4;
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(buffer + static_cast<std::uint32_t>(token * kPitch + column) * 4),
                     "f"(v[chunk * kChunk / 2 + i])
                     : "memory");
      }
      named_sync(1 + threadIdx.x / 128, 128);
      flush32(p, buffer, kChunk, chunk * kChunk, group, item);
    }
    named_sync(1 + threadIdx.x / 128, 128);
  }

  // 16-bit outputs of one block by the copy engine: a warpgroup writes them into its staging area as boxes of
  // kBulkColumns columns, hands them over and goes on; the store ends while the next tile is multiplied.
  static constexpr int kBulkColumns = kTile.bulk_columns();
  static constexpr int kBulkRows = kByRows ? 64 : kN;

  // Where the eight columns from 8 * `piece` of a row lie. Rows of 128 bytes are swizzled, as the tensor map says.
  __device__ static std::uint32_t piece_at(int row, int piece) {
    constexpr int kPieces = kBulkColumns / 8;
    const int box = piece / kPieces, inside = piece % kPieces;
    return static_cast<std::uint32_t>((box * kBulkRows + row) * kPieces * 16 +
                                      (kPieces == 8 ? inside ^ row % 8 : inside) * 16);
  }

  // Sums 8 * i to 8 * i + 7 of the thread: 16 of the kN.
  template <bool kToBf16>
  __device__ static void stage_codes(std::uint32_t staging, const float (&v)[kRegs], int i) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, matrix = lane / 8;
    std::uint32_t codes[4];
    bool nan = false;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float low = v[8 * i + 2 * j], high = v[8 * i + 2 * j + 1];
      codes[j] = number16x2<kToBf16>(low, high);
      nan = nan || low != low || high != high;
    }
    if (nan) {
#pragma unroll
      for (int j = 0; j < 4; ++j) codes[j] = code16x2<kToBf16>(v[8 * i + 2 * j], v[8 * i + 2 * j + 1]);
    }
    if constexpr (kByRows)
      store_matrix(staging + piece_at(warp * 16 + matrix % 2 * 8 + lane % 8, 2 * i + matrix / 2), codes);
    else
      store_matrix_transposed(staging + piece_at(i * 16 + matrix / 2 * 8 + lane % 8, warp * 2 + matrix % 2), codes);
  }

  __device__ static void store_tile_bulk(const GemmParams& p, const void* y_map, std::uint32_t staging, int group,
                                         const Item& item, const float (&v)[kRegs]) {
    const bool leads = threadIdx.x % 128 == 0;
    const std::uint32_t barrier = 1 + threadIdx.x / 128;
    if (leads) bulk_wait_read<0>();  // of the last tile
    named_sync(barrier, 128);
    if (p.y_type == Store::bf16) {
#pragma unroll
      for (int i = 0; i < kN / 16; ++i) stage_codes<true>(staging, v, i);
    } else {
#pragma unroll
      for (int i = 0; i < kN / 16; ++i) stage_codes<false>(staging, v, i);
    }
    fence_async_proxy();
    named_sync(barrier, 128);
    if (!leads) return;
    if constexpr (kByRows) {
#pragma unroll
      for (int box = 0; box < kN / kBulkColumns; ++box)
        tensor_store(y_map, item.column + box * kBulkColumns, item.row + group * 64,
                     staging + static_cast<std::uint32_t>(box * kBulkRows * kBulkColumns * 2));
    } else {
      tensor_store(y_map, item.column + group * 64, item.row, staging);
    }
    bulk_commit();
  }

  // Rows of y as warpgroups hold them, element by element: what the copy engine does not store.
  __device__ static void store_rows(const GemmParams& p, int group, const Item& item, const float (&v)[kRegs]) {
    const int lane = threadIdx.x % 32;
    const int row = item.row + group * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < kRegs; ++i) {
      const int r = row + i % 4 / 2 * 8, column = item.column + i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (r < p.m && column < p.n) store_one(p.y, p.y_type, r * p.y_stride + column, v[i]);
    }
  }

  __device__ static void store_tile(const GemmParams& p, const void* y_map, std::uint32_t staging, int group,
                                    const Item& item, float (&v)[kRegs]) {
    if (p.bias_type != Store::none) {
      if constexpr (kByRows) {
#pragma unroll
        for (int i = 0; i < kRegs; ++i) {
          const int column = item.column + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
          v[i] = __fadd_rn(v[i], column < p.n ? load_bias(p.bias, p.bias_type, column * p.bias_stride) : 0.0f);
        }
      } else {
        float low, high;
        load_biases(p, item, group, low, high);
#pragma unroll
        for (int i = 0; i < kRegs; ++i) v[i] = __fadd_rn(v[i], i % 4 < 2 ? low : high);
      }
    }
    if constexpr (kTile.stores_bulk()) {
      if (p.bulk_store) {
        store_tile_bulk(p, y_map, staging, group, item, v);
        return;
      }
    }
    if constexpr (kByRows) {
      store_rows(p, group, item, v);
      return;
    } else if (p.y_type == Store::bf16)
      store_tile16<true>(p, staging, group, item, v);
    else if (p.y_type == Store::fp16)
      store_tile16<false>(p, staging, group, item, v);
    else
      store_tile32(p, staging, group, item, v);
  }
};

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_GEMM_EPILOGUE_SM90_CUH_
