// SPDX-License-Identifier: Apache-2.0
//
// The matrix product on sm_90a: y(M, N) = x(M, K) . w(K, N) + bias(N), FP32 accumulation in the order of the Schedule.
//
// Columns of y (rows of the stored weight) are the 64-row side of wgmma and rows of y its N side, so that few rows
// waste no tensor-core work; or the other way round, where that divides the columns more evenly (kByRows). That tile
// width, operand role and position change no byte is what tensor_core_rules.h proves on the device.
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

#include "src/kernels/cuda/gemm_epilogue_sm90.cuh"
#include "src/kernels/cuda/gemm_params.h"
#include "src/kernels/cuda/ptx.h"
#include "src/kernels/cuda/wgmma.h"

namespace batchproof::cuda {

// kN, kGroups, kTree, kOne, kByRows: see GemmTile. kWeightMn: w is stored (K, N).
template <MmaType kType, int kN, int kGroups, bool kTree, bool kWeightMn, bool kOne, bool kByRows>
struct GemmKernel : GemmEpilogue<kN, kGroups, kTree, kByRows> {
  using Epilogue = GemmEpilogue<kN, kGroups, kTree, kByRows>;
  static constexpr GemmTile kTile{kN, kGroups, kTree, kOne, kByRows};
  static_assert(!kByRows || (kOne && !kWeightMn));
  using Item = typename Epilogue::Item;
  static constexpr int kRegs = Epilogue::kRegs;
  static constexpr int kConsumers = 128 * kGroups;
  // Nine warps leave 168 registers a thread, thirteen 128; more needs setmaxnreg, and that a producer warpgroup of its
  // own.
  static constexpr bool kRaise = kTile.moves_registers();
  static constexpr int kThreads = kConsumers + (kRaise ? 128 : 32);
  static constexpr int kBlocksPerSm = kTile.blocks_per_sm();
  static constexpr std::uint32_t kAllConsumers = 8;                // a named barrier; the warpgroups' own are 1, 2, ...
  static constexpr bool kMerges = !kOne && kN <= kMostMergedRows;  // parts of K in one cluster

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
    return {max(0, min(rest / width * kTile.rows(), p.m - kTile.rows())), column, min(p.n, column + p.step)};
  }

  // What the loops over stages need, by value: a copy in memory would be read again behind every asm statement.
  struct Feed {
    std::uint32_t smem, barriers, stage_bytes;
    std::uint32_t second;  // of the operand behind the 64-row side's inside a stage
    std::int32_t stages, deep, whole_blocks;
    __device__ std::uint32_t full(int slot) const { return barriers + static_cast<std::uint32_t>(slot) * 16; }
    __device__ std::uint32_t empty(int slot) const { return full(slot) + 8; }
    __device__ std::uint32_t stage(int slot) const { return smem + static_cast<std::uint32_t>(slot) * stage_bytes; }
  };
  __device__ static Feed feed_of(const GemmParams& p, std::uint32_t smem, const GemmLayout& l) {
    return {smem,
            smem + static_cast<std::uint32_t>(l.barriers),
            static_cast<std::uint32_t>(l.stage_bytes),
            static_cast<std::uint32_t>((kByRows ? p.x_rows : p.step) * p.deep) * 128,
            p.stages,
            p.deep,
            p.whole_blocks};
  }

  // ---- producer: one thread ----

  struct Loader {
    Feed feed;
    const CUtensorMap* w_map;
    const CUtensorMap* x_map;
    std::uint64_t weight_hint;
    std::uint32_t stage_content;  // bytes that arrive in a stage
    std::uint32_t share_at;       // of this block's share of the rows' tile
    std::int32_t share;           // first row of it
    std::uint16_t mask;           // blocks that receive the share; 0: this one alone

    // Where columns k.. of K lie in a map: (column, block).
    __device__ int inner(int k) const { return feed.whole_blocks != 0 ? 0 : k; }
    __device__ int block(int k) const { return feed.whole_blocks != 0 ? k / kBlockK : 0; }

    __device__ void weights(int slot, int column, int k) const {
      if constexpr (kWeightMn) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
          tensor_load(feed.stage(slot) + static_cast<std::uint32_t>(g * feed.deep) * 8192, w_map, column + g * 64, k, 0,
                      feed.full(slot), weight_hint);
      } else {
        tensor_load(feed.stage(slot) + (kByRows ? feed.second : 0), w_map, inner(k), column, block(k), feed.full(slot),
                    weight_hint);
      }
    }
    __device__ void rows(int slot, int row, int k) const {
      const std::uint32_t to = feed.stage(slot) + share_at;
      if (mask == 0)
        tensor_load(to, x_map, inner(k), row, block(k), feed.full(slot), kEvictLast);
      else
        tensor_load_multicast(to, x_map, inner(k), row + share, block(k), feed.full(slot), mask, kEvictLast);
    }
    __device__ void prefetch_weights(int column, int k) const {
      if constexpr (!kWeightMn) tensor_prefetch(w_map, inner(k), column, block(k));
    }
  };
  __device__ static Loader loader_of(const GemmParams& p, const Feed& feed, const CUtensorMap& w_map,
                                     const CUtensorMap& x_map, int n_index, int k_index) {
    // With neighbours: this block's share, to every block of the cluster that walks the same part of K.
    const int share = p.cluster_n == 1 ? 0 : n_index * (kN / p.cluster_n);
    const std::uint32_t mask = p.cluster_n == 1 ? 0 : ((1u << p.cluster_n) - 1) << (k_index * p.cluster_n);
    return {feed,
            &w_map,
            &x_map,
            p.keep_weights ? kEvictLast : kEvictFirst,
            static_cast<std::uint32_t>((p.step + p.x_rows) * 128 * p.deep),
            (kByRows ? 0 : feed.second) + static_cast<std::uint32_t>(share) * 128,
            share,
            static_cast<std::uint16_t>(mask)};
  }

  // `early`: stages whose barrier expects its bytes and whose weights are under way already.
  __device__ static void produce(const GemmParams& p, const Loader& load, const Item& item, int s0, int s1, int early,
                                 Ring& ring) {
    const KAxis axis = p.axis;
    const int stride = load.feed.deep * kBlockK;
    for (int s = s0; s < s1; ++s) {
      const int end = kOne ? axis.length : axis.end(s);
      for (int k = kOne ? 0 : axis.begin(s); k < end; k += stride) {
        if (early > 0) {
          --early;
        } else {
          barrier_wait(load.feed.empty(ring.slot), ring.phase ^ 1);
          barrier_expect_bytes(load.feed.full(ring.slot), load.stage_content);
          load.weights(ring.slot, item.column, k);
        }
        load.rows(ring.slot, item.row, k);
        ring.advance(load.feed.stages);
      }
    }
  }

  // The weights of the first stages, before the prior kernel has ended. Only where no other block writes this one's
  // stages: then nothing but the weight is read.
  __device__ static int prefetch(const GemmParams& p, const Loader& load, const Item& item, int s0, int s1) {
    int slot = 0;
    for (int s = s0; s < s1; ++s) {
      const int end = kOne ? p.axis.length : p.axis.end(s);
      for (int k = kOne ? 0 : p.axis.begin(s); k < end; k += p.deep * kBlockK) {
        if (slot == load.feed.stages) return slot;
        barrier_expect_bytes(load.feed.full(slot), load.stage_content);
        load.weights(slot, item.column, k);
        ++slot;
      }
    }
    return slot;
  }

  // ---- consumers ----

  // a: the operand of the 64-row side, columns of y or with kByRows rows; b: the other.
  struct Reader {
    Feed feed;
    std::uint32_t a, b;            // low halves of stage 0's descriptors; the high half is the same everywhere
    std::uint32_t a_next, b_next;  // from one block of a stage to the next
    std::int32_t cluster_n;
    std::uint32_t first_rank;  // of the blocks that share this one's rows

    __device__ std::uint32_t at(std::uint32_t base, int slot) const {
      return base + (static_cast<std::uint32_t>(slot) * feed.stage_bytes >> 4);
    }
    __device__ void release(int slot) const {
      const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
      if (cluster_n == 1) {
        if (lane == 0) barrier_arrive(feed.empty(slot));
      } else if (lane < cluster_n) {
        barrier_arrive_at(feed.empty(slot), first_rank + static_cast<std::uint32_t>(lane));
      }
    }
  };
  __device__ static Reader reader_of(const GemmParams& p, const Feed& feed, int group, int k_index) {
    const std::uint32_t group_bytes = 8192u * static_cast<std::uint32_t>(kWeightMn ? p.deep : 1);
    const std::uint32_t w_next = kWeightMn ? 8192 >> 4 : static_cast<std::uint32_t>(p.step) * 128 >> 4;
    const std::uint32_t x_next = static_cast<std::uint32_t>(p.x_rows) * 128 >> 4;
    return {feed,
            static_cast<std::uint32_t>(
                matrix_descriptor(feed.smem + static_cast<std::uint32_t>(group) * group_bytes, 16, 1024, 1)),
            static_cast<std::uint32_t>(matrix_descriptor(feed.smem + feed.second, 16, 1024, 1)),
            kByRows ? x_next : w_next,
            kByRows ? w_next : x_next,
            p.cluster_n,
            static_cast<std::uint32_t>(k_index * p.cluster_n)};
  }

  // accumulate 0: acc = the step's product alone, which has the bytes of a start from +0 (tensor_core_rules.h).
  __device__ static void step(float (&acc)[kRegs], std::uint32_t a, std::uint32_t b, int index, int accumulate) {
    constexpr std::uint64_t kHigh = std::uint64_t{1} << 62 | std::uint64_t{1024 >> 4} << 32;
    // A K-major step is 32 bytes of each row; an MN-major one is 16 rows of 128 bytes.
    Wgmma<kN>::template ss<kType, kWeightMn>(acc,
                                             kHigh | (a + static_cast<std::uint32_t>(index * (kWeightMn ? 128 : 2))),
                                             kHigh | (b + static_cast<std::uint32_t>(index * 2)), accumulate);
  }

  // acc = sum over a segment of `length` columns. A block of 64 is issued before the one ahead of it is waited for;
  // each is a group of its own, for a group that holds a loop costs an empty instruction and a full wait. A tail of
  // less than a block comes only where a stage is one block.
  __device__ static void segment(const Reader& read, int length, float (&acc)[kRegs], Ring& ring) {
    const int blocks = length / kBlockK;
    const int tail = (length % kBlockK + 15) / 16;
    Ring done = ring;  // the stage that is released next
    // A start from +0 and a first step that ignores the accumulator give the same bytes. With two accumulator sets
    // ptxas spills a kilobyte for the second, and nothing for the first.
    if constexpr (!kOne) {
#pragma unroll
      for (int i = 0; i < kRegs; ++i) acc[i] = 0.0f;
    }
    std::uint32_t a = 0, b = 0;
    int inside = 0;  // blocks of this stage that are issued
    for (int block = 0; block < blocks; ++block) {
      if (inside == 0) {
        a = read.at(read.a, ring.slot);
        b = read.at(read.b, ring.slot);
        barrier_wait(read.feed.full(ring.slot), ring.phase);
      }
      wgmma_fence();
      step(acc, a, b, 0, !kOne || block > 0);
#pragma unroll
      for (int i = 1; i < 4; ++i) step(acc, a, b, i, 1);
      wgmma_commit();
      wgmma_wait<1>();
      if (inside == 0 && block > 0) {
        read.release(done.slot);
        done.advance(read.feed.stages);
      }
      a += read.a_next;
      b += read.b_next;
      if (++inside == read.feed.deep) {
        inside = 0;
        ring.advance(read.feed.stages);
      }
    }
    if (inside != 0) ring.advance(read.feed.stages);
    if (tail != 0) {
      a = read.at(read.a, ring.slot);
      b = read.at(read.b, ring.slot);
      barrier_wait(read.feed.full(ring.slot), ring.phase);
      for (int i = 0; i < tail; ++i) {
        wgmma_fence();
        step(acc, a, b, i, !kOne || i > 0 || blocks > 0);
        wgmma_commit();
        wgmma_wait<0>();
      }
      ring.advance(read.feed.stages);
    }
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < kRegs; ++i) pin(acc[i]);
    for (int held = min(blocks, 1) + (tail != 0); held > 0; --held) {
      read.release(done.slot);
      done.advance(read.feed.stages);
    }
  }

  // Walks segments [s0, s1) of one item; leaves the last merged or unmerged sum in `total`.
  __device__ static void walk(const GemmParams& p, const Reader& read, const GemmLayout& l, int s0, int s1, int k_index,
                              Ring& ring, float (&total)[kRegs]) {
    const std::uint32_t smem = read.feed.smem;
    const KAxis axis = p.axis;
    if constexpr (kOne) {
      segment(read, axis.length, total, ring);
    } else if constexpr (kTree) {
      float acc[kRegs];
      float stack[4][kRegs];
      for (int s = s0; s < s1; ++s) {
        const bool starts = s % p.axis.per_slice == 0;
        segment(read, axis.end(s) - axis.begin(s), acc, ring);
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
        segment(read, axis.end(s) - axis.begin(s), acc, ring);
        if (s == s0) {
#pragma unroll
          for (int i = 0; i < kRegs; ++i) total[i] = acc[i];
        } else if (!kMerges || k_index == 0) {
#pragma unroll
          for (int i = 0; i < kRegs; ++i) total[i] = __fadd_rn(total[i], acc[i]);
        } else {
          // Not the prefix: every sum is handed over unmerged. The last two may lie over the idle stages.
          if (s == s1 - 1) named_sync(kAllConsumers, kConsumers);
          Epilogue::write_sums(smem + sum_offset(l, s - 1 - s0, s1 - s0), total);
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

  __device__ static void consume(const GemmParams& p, const Reader& read, const GemmLayout& l, const void* y_map,
                                 const std::uint32_t* sources, int source_count, const Item& item, int s0, int s1,
                                 int k_index, Ring& ring) {
    const std::uint32_t smem = read.feed.smem;
    const auto staging = smem + static_cast<std::uint32_t>(l.staging + warp_index() / 4 * kTile.staging_bytes());
    const int group = warp_index() / 4;
    float total[kRegs];
    walk(p, read, l, s0, s1, k_index, ring, total);
    if (!kMerges || p.cluster_k == 1) {
      Epilogue::store_tile(p, y_map, staging, group, item, total);
      return;
    }
    if constexpr (kMerges) {
      const int count = buffers(p, k_index);
      if (kTree || k_index == 0 || count == 1) named_sync(kAllConsumers, kConsumers);  // the stages are idle from here
      Epilogue::write_sums(smem + sum_offset(l, count - 1, count), total);
      cluster_sync();
      Epilogue::merge_share(p, sources, source_count, staging, group, item, k_index, p.cluster_k);
      fence_async_proxy();  // the copy engine fills the stages next
      cluster_sync_relaxed();
    }
  }

  __device__ static void run(const GemmParams& p, const CUtensorMap& w_map, const CUtensorMap& x_map,
                             const CUtensorMap& y_map) {
    extern __shared__ std::uint8_t dynamic[];
    // The same offset in every block of the cluster: the base is aligned alike.
    const std::uint32_t raw = shared_address(dynamic);
    const std::uint32_t smem = (raw + 1023) & ~1023u;
    const GemmLayout l =
        gemm_layout(GemmTile{kN, kGroups, kTree, kOne, kByRows}, p.step, p.deep, p.stages, p.extra_sums);
    std::uint32_t* sources = reinterpret_cast<std::uint32_t*>(dynamic + (smem - raw) + l.sources);
    const int cluster_size = p.cluster_n * p.cluster_k;
    const int rank = cluster_size == 1 ? 0 : static_cast<int>(cluster_rank());
    const int n_index = rank % p.cluster_n, k_index = rank / p.cluster_n;

    int source_count = 0, s0 = 0, s1 = 1;
    if constexpr (!kOne) {
      for (int part = 0; part < p.cluster_k; ++part) source_count += buffers(p, part);
      s0 = p.axis.part_begin(k_index, p.cluster_k);
      s1 = p.axis.part_begin(k_index + 1, p.cluster_k);
    }
    if (threadIdx.x == kConsumers) {
      tensor_map_prefetch(&w_map);
      tensor_map_prefetch(&x_map);
      if (p.bulk_store) tensor_map_prefetch(&y_map);
    }
    if (threadIdx.x == 0) {
      for (int i = 0; i < p.stages; ++i) {
        barrier_init(smem + l.barriers + i * 16, 1);
        barrier_init(smem + l.barriers + i * 16 + 8, static_cast<std::uint32_t>(p.cluster_n * kGroups * 4));
      }
      barrier_init_fence();
      if (!kOne && p.cluster_k > 1) {
        int at = 0;
        for (int part = 0; part < p.cluster_k; ++part) {
          const int count = buffers(p, part);
          for (int b = 0; b < count; ++b)
            sources[at++] = cluster_address(smem + static_cast<std::uint32_t>(sum_offset(l, b, count)),
                                            static_cast<std::uint32_t>(part * p.cluster_n + n_index));
        }
      }
    }
    __syncthreads();
    if (cluster_size > 1) cluster_sync_relaxed();
    const int items = p.tiles_m * p.groups_n;
    const int first = static_cast<int>(blockIdx.x) / cluster_size;
    Ring ring;
    const Feed feed = feed_of(p, smem, l);
    if (warp_index() >= kConsumers / 32) {
      if constexpr (kRaise) registers_lower<kGroups == 3 ? 56 : 40>();
      const Loader load = loader_of(p, feed, w_map, x_map, n_index, k_index);
      const bool produces = threadIdx.x == kConsumers;
      int early = 0;
      if (produces && first < items) {
        const Item item = item_at(p, first, n_index);
        if (p.weights_ready) {
          early = prefetch(p, load, item, s0, s1);
        } else {
          const int begin = kOne ? 0 : p.axis.begin(s0);
          for (int i = 0; i < p.prefetch; ++i) load.prefetch_weights(item.column, begin + i * p.deep * kBlockK);
        }
      }
      wait_for_prior_grid();
      for (int i = first; i < items; i += p.clusters) {
        if (produces) produce(p, load, item_at(p, i, n_index), s0, s1, i == first ? early : 0, ring);
        __syncwarp();
        if (!kOne && p.cluster_k > 1) {
          cluster_sync();
          cluster_sync_relaxed();
        }
      }
      // All loads are under way: the next kernel's blocks may take the places that end first.
      if (produces) let_next_grid_start();
    } else {
      if constexpr (kRaise) registers_raise<kGroups == 3 ? 152 : 232>();
      const Reader read = reader_of(p, feed, warp_index() / 4, k_index);
      wait_for_prior_grid();
      for (int i = first; i < items; i += p.clusters)
        consume(p, read, l, &y_map, sources, source_count, item_at(p, i, n_index), s0, s1, k_index, ring);
      if (p.bulk_store && threadIdx.x % 128 == 0) bulk_wait_read<0>();
    }
    // No block leaves while a neighbour may still arrive at its barriers.
    if (cluster_size > 1 && p.cluster_k == 1) cluster_sync_relaxed();
  }
};

template <MmaType kType, int kN, int kGroups, bool kTree, bool kWeightMn, bool kOne, bool kByRows>
__global__ void __launch_bounds__(GemmKernel<kType, kN, kGroups, kTree, kWeightMn, kOne, kByRows>::kThreads,
                                  GemmKernel<kType, kN, kGroups, kTree, kWeightMn, kOne, kByRows>::kBlocksPerSm)
    gemm_sm90(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
              const __grid_constant__ CUtensorMap y_map, const __grid_constant__ GemmParams p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
  GemmKernel<kType, kN, kGroups, kTree, kWeightMn, kOne, kByRows>::run(p, w_map, x_map, y_map);
#endif
}

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_GEMM_SM90_CUH_
