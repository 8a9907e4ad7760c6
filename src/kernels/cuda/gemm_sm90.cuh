// SPDX-License-Identifier: Apache-2.0
//
// The matrix product on sm_90a: y(M, N) = x(M, K) . w(K, N) + bias(N), FP32 accumulation in the order of the Schedule.
//
// Operands are swapped for every batch: columns of y (rows of the stored weight) are the 64-row side of wgmma, rows of
// y its N side, so that few rows waste no tensor-core work and many rows use wide instructions. That tile width,
// operand role and position change no byte is what tensor_core_rules.h proves on the device.
//
// A cluster owns cluster_n neighbouring tiles of columns and one tile of rows. Its blocks are cluster_k parts of the
// reduction axis times cluster_n tiles. One producer warp fills a ring of stages with the bulk tensor copy engine
// (rows shared by multicast); each consumer warpgroup holds 64 columns of y. Every segment starts from zero
// accumulators; its k16 steps ascend. The block that holds the prefix merges as it goes; the others hand over every
// segment sum unmerged, through shared memory, and the cluster adds them in ascending order. Same bytes for every
// tile, cluster and grid (C1).
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_GEMM_SM90_CUH_
#define BATCHPROOF_SRC_KERNELS_CUDA_GEMM_SM90_CUH_

#include <cuda.h>

#include "src/kernels/cuda/convert.h"
#include "src/kernels/cuda/gemm_params.h"
#include "src/kernels/cuda/ptx.h"
#include "src/kernels/cuda/wgmma.h"

namespace batchproof::cuda {

// kN: rows of y per tile. kGroups: consumer warpgroups of 64 columns each. kTree: slices merge in a balanced tree.
// kWeightMn: w is stored (K, N). kOne: the reduction is one segment, so that there is nothing to merge and the
// registers of the second accumulator set serve a wider tile.
template <MmaType kType, int kN, int kGroups, bool kTree, bool kWeightMn, bool kOne>
struct GemmKernel {
  static constexpr int kColumns = 64 * kGroups;
  static constexpr int kRegs = kN / 2;
  static constexpr int kConsumers = 128 * kGroups;
  static constexpr int kStackLevels = kTree ? 4 : 0;  // tree(16)
  static constexpr int kLiveRegs = kRegs * (kOne ? 1 : 2 + kStackLevels);
  // Nine warps leave 168 registers a thread; more needs setmaxnreg, and that a producer warpgroup of its own.
  static constexpr bool kRaise = kGroups == 2 && kLiveRegs > 120;
  static constexpr int kThreads = kConsumers + (kRaise ? 128 : 32);
  static constexpr int kBlocksPerSm = gemm_blocks_per_sm(kN, kGroups, kTree);
  static constexpr bool kMerges = kN <= kMostMergedRows;  // parts of K in one cluster
  static constexpr bool kBf16 = kType == MmaType::bf16;

  struct Item {
    int row, column;  // of y, first of this block's tile
    int limit;        // one past the last column that it stores
  };

  struct Ring {
    int slot = 0;
    std::uint32_t phase = 0;
    __device__ void advance(int stages) {
      if (++slot == stages) {
        slot = 0;
        phase ^= 1;
      }
    }
  };

  __device__ static Item item_at(const GemmParams& p, int item, int n_index) {
    const int per = p.raster * p.tiles_m;
    const int first = item / per * p.raster;
    const int width = min(p.raster, p.groups_n - first);
    const int rest = item % per;
    const int column = ((first + rest % width) * p.cluster_n + n_index) * p.step;
    // The last tile ends with the last row: rows that two tiles share get the same bytes twice, and no copy runs past
    // the tensor, which is slow.
    return {max(0, min(rest / width * kN, p.m - kN)), column, min(p.n, column + p.step)};
  }

  // ---- producer: one thread ----

  struct Loader {
    const GemmParams& p;
    const CUtensorMap& w_map;
    const CUtensorMap& x_map;
    std::uint32_t smem;
    const GemmLayout& l;
    int n_index, k_index;

    __device__ void weights(int slot, int column, int k) const {
      const std::uint32_t full = smem + l.barriers + slot * 16, stage = smem + slot * l.stage_bytes;
      const std::uint64_t hint = p.keep_weights ? kEvictLast : kEvictFirst;
      if constexpr (kWeightMn) {
        for (int g = 0; g < kGroups; ++g) tensor_load(stage + g * 8192, &w_map, column + g * 64, k, full, hint);
      } else {
        tensor_load(stage, &w_map, k, column, full, hint);
      }
    }
    __device__ void rows(int slot, int row, int k) const {
      const std::uint32_t full = smem + l.barriers + slot * 16;
      const std::uint32_t stage = smem + slot * l.stage_bytes + static_cast<std::uint32_t>(p.step) * 128;
      if (p.cluster_n == 1) {
        tensor_load(stage, &x_map, k, row, full, kEvictLast);
      } else {  // this block's share, to every block of the cluster that walks the same part of K
        const int share = kN / p.cluster_n;
        const auto mask = static_cast<std::uint16_t>(((1u << p.cluster_n) - 1) << (k_index * p.cluster_n));
        tensor_load_multicast(stage + n_index * share * 128, &x_map, k, row + n_index * share, full, mask, kEvictLast);
      }
    }
    __device__ void expect(int slot) const {
      barrier_expect_bytes(smem + l.barriers + slot * 16, static_cast<std::uint32_t>((p.step + p.x_rows) * 128));
    }
  };

  // `early`: stages whose barrier expects its bytes and whose weights are under way already.
  __device__ static void produce(const Loader& load, const Item& item, int s0, int s1, int early, Ring& ring) {
    const GemmParams& p = load.p;
    for (int s = s0; s < s1; ++s) {
      const int end = p.axis.end(s);
      for (int k = p.axis.begin(s); k < end; k += kBlockK) {
        if (early > 0) {
          --early;
        } else {
          barrier_wait(load.smem + load.l.barriers + ring.slot * 16 + 8, ring.phase ^ 1);
          load.expect(ring.slot);
          load.weights(ring.slot, item.column, k);
        }
        load.rows(ring.slot, item.row, k);
        ring.advance(p.stages);
      }
    }
  }

  // The weights of the first stages, before the prior kernel has ended. Only where no other block writes this one's
  // stages: then nothing but the weight is read.
  __device__ static int prefetch(const Loader& load, const Item& item, int s0, int s1) {
    const GemmParams& p = load.p;
    int slot = 0;
    for (int s = s0; s < s1; ++s) {
      const int end = p.axis.end(s);
      for (int k = p.axis.begin(s); k < end; k += kBlockK) {
        if (slot == p.stages) return slot;
        load.expect(slot);
        load.weights(slot, item.column, k);
        ++slot;
      }
    }
    return slot;
  }

  // ---- consumers ----

  __device__ static void release(const GemmParams& p, std::uint32_t empty, int k_index) {
    const int lane = threadIdx.x % 32;
    if (p.cluster_n == 1) {
      if (lane == 0) barrier_arrive(empty);
    } else if (lane < p.cluster_n) {
      barrier_arrive_at(empty, static_cast<std::uint32_t>(k_index * p.cluster_n + lane));
    }
  }

  // accumulate 0: acc = the step's product alone, which has the bytes of a start from +0 (tensor_core_rules.h).
  __device__ static void step(float (&acc)[kRegs], std::uint64_t w, std::uint64_t x, int index, int accumulate) {
    // A K-major step is 32 bytes of each row; an MN-major one is 16 rows of 128 bytes.
    const std::uint64_t w_at = w + static_cast<std::uint64_t>(kWeightMn ? index * 128 : index * 2);
    Wgmma<kN>::template ss<kType, kWeightMn>(acc, w_at, x + static_cast<std::uint64_t>(index * 2), accumulate);
  }

  // acc = sum over segment s, from zero.
  __device__ static void segment(const GemmParams& p, std::uint32_t smem, const GemmLayout& l, int group, int s,
                                 int k_index, float (&acc)[kRegs], Ring& ring) {
    const int length = p.axis.end(s) - p.axis.begin(s);
    const int blocks = length / kBlockK;
    const int tail = (length % kBlockK + 15) / 16;
    std::uint32_t previous = 0;
    for (int b = 0; b < blocks; ++b) {
      const std::uint32_t full = smem + l.barriers + ring.slot * 16;
      const std::uint32_t stage = smem + ring.slot * l.stage_bytes;
      const std::uint64_t w = matrix_descriptor(stage + group * 8192, 16, 1024, 1);
      const std::uint64_t x = matrix_descriptor(stage + p.step * 128, 16, 1024, 1);
      barrier_wait(full, ring.phase);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) step(acc, w, x, i, i > 0 || b > 0);
      wgmma_commit();
      wgmma_wait<1>();
      if (previous != 0) release(p, previous, k_index);
      previous = full + 8;
      ring.advance(p.stages);
    }
    if (tail != 0) {
      const std::uint32_t full = smem + l.barriers + ring.slot * 16;
      const std::uint32_t stage = smem + ring.slot * l.stage_bytes;
      const std::uint64_t w = matrix_descriptor(stage + group * 8192, 16, 1024, 1);
      const std::uint64_t x = matrix_descriptor(stage + p.step * 128, 16, 1024, 1);
      barrier_wait(full, ring.phase);
      for (int i = 0; i < tail; ++i) {
        wgmma_fence();
        step(acc, w, x, i, i > 0 || blocks > 0);
        wgmma_commit();
        wgmma_wait<0>();
      }
      if (previous != 0) release(p, previous, k_index);
      previous = full + 8;
      ring.advance(p.stages);
    }
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < kRegs; ++i) pin(acc[i]);
    if (previous != 0) release(p, previous, k_index);
  }

  // Segment sums in shared memory: [8 rows of y][thread] of four accumulators, as the thread holds them.
  __device__ static void write_sums(std::uint32_t at, const float (&v)[kRegs]) {
#pragma unroll
    for (int i = 0; i < kRegs / 4; ++i)
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(
                       at + static_cast<std::uint32_t>(i * kConsumers + static_cast<int>(threadIdx.x)) * 16),
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
    named_sync(1 + group, 128);  // the last groups have been read
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
      named_sync(1 + group, 128);
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
      named_sync(1 + group, 128);
      flush16(p, staging, count * 8, first * 8, group, item);
    }
  }

  // The cluster's merge: every block adds its share of the rows from all parts' segment sums, ascending.
  __device__ static void merge_in_cluster(const GemmParams& p, const std::uint32_t* sources, int count,
                                          std::uint32_t staging, int group, const Item& item, int k_index) {
    const int used = (min(kN, p.m - item.row) + 7) / 8;
    const int end = used * (k_index + 1) / p.cluster_k;
    const std::uint32_t mine = threadIdx.x * 16;
    float low = 0.0f, high = 0.0f;
    if (p.bias_type != Store::none) load_biases(p, item, group, low, high);
    for (int first = used * k_index / p.cluster_k; first < end; first += 4) {
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
              v[i] = load_cluster(sources[i] + static_cast<std::uint32_t>((first + j) * kConsumers * 16) + mine);
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
            const std::uint32_t from = sources[s + i] + static_cast<std::uint32_t>(first * kConsumers * 16) + mine;
#pragma unroll
            for (int j = 0; j < 4; ++j)
              if (j < groups) v[i][j] = load_cluster(from + static_cast<std::uint32_t>(j * kConsumers * 16));
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
      const std::uint32_t buffer = staging + static_cast<std::uint32_t>(chunk % 2) * (kStagingBytes / 2);
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
      named_sync(1 + group, 128);
      flush16(p, buffer, kChunk, chunk * kChunk, group, item);
    }
    named_sync(1 + group, 128);
  }

  __device__ static void store_tile32(const GemmParams& p, std::uint32_t staging, int group, const Item& item,
                                      const float (&v)[kRegs]) {
    constexpr int kChunk = kN < 16 ? kN : 16;
    constexpr int kPitch = 68;
    const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
#pragma unroll
    for (int chunk = 0; chunk < kN / kChunk; ++chunk) {
      if (item.row + chunk * kChunk >= p.m) break;
      const std::uint32_t buffer = staging + static_cast<std::uint32_t>(chunk % 2) * (kStagingBytes / 2);
#pragma unroll
      for (int i = 0; i < kChunk / 2; ++i) {
        const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
        const int column = warp * 16 + i % 4 / 2 * 8 + lane / 4;
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(buffer + static_cast<std::uint32_t>(token * kPitch + column) * 4),
                     "f"(v[chunk * kChunk / 2 + i])
                     : "memory");
      }
      named_sync(1 + group, 128);
      flush32(p, buffer, kChunk, chunk * kChunk, group, item);
    }
    named_sync(1 + group, 128);
  }

  __device__ static void store_tile(const GemmParams& p, std::uint32_t staging, int group, const Item& item,
                                    float (&v)[kRegs]) {
    if (p.bias_type != Store::none) {
      float low, high;
      load_biases(p, item, group, low, high);
#pragma unroll
      for (int i = 0; i < kRegs; ++i) v[i] = __fadd_rn(v[i], i % 4 < 2 ? low : high);
    }
    if (p.y_type == Store::bf16)
      store_tile16<true>(p, staging, group, item, v);
    else if (p.y_type == Store::fp16)
      store_tile16<false>(p, staging, group, item, v);
    else
      store_tile32(p, staging, group, item, v);
  }

  // Walks segments [s0, s1) of one item; leaves the last merged or unmerged sum in `total`.
  __device__ static void walk(const GemmParams& p, std::uint32_t smem, const GemmLayout& l, int group, int s0, int s1,
                              int k_index, Ring& ring, float (&total)[kRegs]) {
    if constexpr (kOne) {
      segment(p, smem, l, group, s0, k_index, total, ring);
    } else if constexpr (kTree) {
      float acc[kRegs];
      float stack[4][kRegs];
      for (int s = s0; s < s1; ++s) {
        const bool starts = s % p.axis.per_slice == 0;
        segment(p, smem, l, group, s, k_index, acc, ring);
#pragma unroll
        for (int i = 0; i < kRegs; ++i) total[i] = starts ? acc[i] : __fadd_rn(total[i], acc[i]);
        if ((s + 1) % p.axis.per_slice != 0) continue;
        // A binary counter: slice j closes as many subtrees as j has trailing ones.
        const int j = (s - s0) / p.axis.per_slice;
        bool carry = true;
#pragma unroll
        for (int level = 0; level < 4; ++level) {
          if (!carry) continue;
          if ((j >> level & 1) != 0) {
#pragma unroll
            for (int i = 0; i < kRegs; ++i) total[i] = __fadd_rn(stack[level][i], total[i]);
          } else {
#pragma unroll
            for (int i = 0; i < kRegs; ++i) stack[level][i] = total[i];
            carry = false;
          }
        }
      }
    } else {
      float acc[kRegs];
      for (int s = s0; s < s1; ++s) {
        segment(p, smem, l, group, s, k_index, acc, ring);
        if (s == s0) {
#pragma unroll
          for (int i = 0; i < kRegs; ++i) total[i] = acc[i];
        } else if (!kMerges || k_index == 0) {
#pragma unroll
          for (int i = 0; i < kRegs; ++i) total[i] = __fadd_rn(total[i], acc[i]);
        } else {
          // Not the prefix: every sum is handed over unmerged. The last two may lie over the idle stages.
          if (s == s1 - 1) named_sync(4, kConsumers);
          write_sums(smem + sum_offset(l, s - 1 - s0, s1 - s0), total);
#pragma unroll
          for (int i = 0; i < kRegs; ++i) total[i] = acc[i];
        }
      }
    }
  }

  __device__ static int buffers(const GemmParams& p, int part) {
    if (kTree || part == 0) return 1;
    return p.axis.part_begin(part + 1, p.cluster_k) - p.axis.part_begin(part, p.cluster_k);
  }

  __device__ static void consume(const GemmParams& p, std::uint32_t smem, const GemmLayout& l,
                                 const std::uint32_t* sources, int source_count, const Item& item, int s0, int s1,
                                 int k_index, Ring& ring) {
    const int group = threadIdx.x / 128;
    float total[kRegs];
    walk(p, smem, l, group, s0, s1, k_index, ring, total);
    if (!kMerges || p.cluster_k == 1) {
      store_tile(p, smem + l.staging + group * kStagingBytes, group, item, total);
      return;
    }
    if constexpr (kMerges) {
      const int count = buffers(p, k_index);
      if (kTree || k_index == 0 || count == 1) named_sync(4, kConsumers);  // the stages are idle from here
      write_sums(smem + sum_offset(l, count - 1, count), total);
      cluster_sync();
      merge_in_cluster(p, sources, source_count, smem + l.staging + group * kStagingBytes, group, item, k_index);
      fence_async_proxy();  // the copy engine fills the stages next
      cluster_sync_relaxed();
    }
  }

  __device__ static void run(const GemmParams& p, const CUtensorMap& w_map, const CUtensorMap& x_map) {
    extern __shared__ std::uint8_t dynamic[];
    // The same offset in every block of the cluster: the base is aligned alike.
    const std::uint32_t raw = shared_address(dynamic);
    const std::uint32_t smem = (raw + 1023) & ~1023u;
    const GemmLayout l = gemm_layout(p.step, kN, kGroups, p.stages, p.extra_sums);
    std::uint32_t* sources = reinterpret_cast<std::uint32_t*>(dynamic + (smem - raw) + l.sources);
    const int cluster_size = p.cluster_n * p.cluster_k;
    const int rank = cluster_size == 1 ? 0 : static_cast<int>(cluster_rank());
    const int n_index = rank % p.cluster_n, k_index = rank / p.cluster_n;

    int source_count = 0;
    for (int part = 0; part < p.cluster_k; ++part) source_count += buffers(p, part);
    if (threadIdx.x == 0) {
      for (int i = 0; i < p.stages; ++i) {
        barrier_init(smem + l.barriers + i * 16, 1);
        barrier_init(smem + l.barriers + i * 16 + 8, static_cast<std::uint32_t>(p.cluster_n * kGroups * 4));
      }
      barrier_init_fence();
      if (p.cluster_k > 1) {
        int at = 0;
        for (int part = 0; part < p.cluster_k; ++part) {
          const int count = buffers(p, part);
          for (int b = 0; b < count; ++b)
            sources[at++] = cluster_address(smem + static_cast<std::uint32_t>(sum_offset(l, b, count)),
                                            static_cast<std::uint32_t>(part * p.cluster_n + n_index));
        }
      }
    }
    if (threadIdx.x == kConsumers) {
      tensor_map_prefetch(&w_map);
      tensor_map_prefetch(&x_map);
    }
    if (cluster_size == 1)
      __syncthreads();
    else {
      __syncthreads();  // the table of sources is written by one thread
      cluster_sync_relaxed();
    }
    const int s0 = p.axis.part_begin(k_index, p.cluster_k), s1 = p.axis.part_begin(k_index + 1, p.cluster_k);
    const int items = p.tiles_m * p.groups_n;
    const int first = static_cast<int>(blockIdx.x) / cluster_size;
    Ring ring;
    let_next_grid_start();
    if (threadIdx.x >= kConsumers) {
      if constexpr (kRaise) registers_lower<40>();
      const Loader load{p, w_map, x_map, smem, l, n_index, k_index};
      int early = 0;
      if (p.weights_ready && threadIdx.x == kConsumers && first < items)
        early = prefetch(load, item_at(p, first, n_index), s0, s1);
      wait_for_prior_grid();
      for (int i = first; i < items; i += p.clusters) {
        if (threadIdx.x == kConsumers) produce(load, item_at(p, i, n_index), s0, s1, i == first ? early : 0, ring);
        __syncwarp();
        if (p.cluster_k > 1) {
          cluster_sync();
          cluster_sync_relaxed();
        }
      }
    } else {
      if constexpr (kRaise) registers_raise<232>();
      wait_for_prior_grid();
      for (int i = first; i < items; i += p.clusters)
        consume(p, smem, l, sources, source_count, item_at(p, i, n_index), s0, s1, k_index, ring);
    }
    // No block leaves while a neighbour may still arrive at its barriers.
    if (cluster_size > 1 && p.cluster_k == 1) cluster_sync_relaxed();
  }
};

template <MmaType kType, int kN, int kGroups, bool kTree, bool kWeightMn, bool kOne>
__global__ void __launch_bounds__(GemmKernel<kType, kN, kGroups, kTree, kWeightMn, kOne>::kThreads,
                                  GemmKernel<kType, kN, kGroups, kTree, kWeightMn, kOne>::kBlocksPerSm)
    gemm_sm90(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
              const __grid_constant__ GemmParams p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
  GemmKernel<kType, kN, kGroups, kTree, kWeightMn, kOne>::run(p, w_map, x_map);
#endif
}

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_GEMM_SM90_CUH_
