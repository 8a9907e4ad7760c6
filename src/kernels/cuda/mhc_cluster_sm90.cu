// SPDX-License-Identifier: Apache-2.0
//
// An mHC operator as one launch that reads each token's streams once (sm_90a).
//
// A cluster has a tile of tokens; each of its thread blocks holds some blocks of the reduction, 256 columns of every
// stream, and keeps them in shared memory from the product to the collapse. What crosses between thread blocks is
// small: a token's 25 partial sums per block go to the token's owner, its four coefficients come back to all, the
// norm's partial sums go to all. They are sent by asynchronous copies that count their bytes at a barrier of the
// receiver: nobody waits for the memory traffic of others, as a barrier of the whole cluster would, and a copy of many
// bytes costs no more than a store of four (about 20 cycles of the sender's, measured).
//
//   streams in, post, squares, streams to residual_out
//   product, sums to the owners
//   owners, a warp a token: merge, coefficients, pre to every thread block
//   collapse, layer_input or, with norm, the sums of u^2 to all
//   owners: Sinkhorn, while the sums are under way
//   the normed layer_input
// A token of a tile is always the same warp's, from its copy in to its layer_input: no barrier is needed between tiles.
//
// Rows are aligned and the order is the usual one; the portable kernels serve the rest, with the same bytes.
//
// What may be overwritten when: a thread block sends sums of tile t + 1 only after it has all coefficients of tile t,
// and those are sent after the owners have read the sums of tile t; coefficients of t + 1 need sums of t + 1 from every
// thread block, which it sends after its collapse of t; likewise the norm's sums.
#include "src/kernels/cuda/mhc_steps.cuh"
#include "src/kernels/cuda/ptx.h"

namespace batchproof::cuda {
namespace {

constexpr int kWarps = kMhcWarps;
constexpr int kTurns = kMhcTurns;
static_assert(kTurns == 4);  // what one store sends
constexpr int kGroupsMost = kMhcMostTokens / kMhcTokenGroup;

// ---- one instruction each ---------------------------------------------------------------------------------------

// Stores to another thread block's shared memory; its barrier counts the bytes.
__device__ inline void send(std::uint32_t address, std::uint32_t barrier, float a, float b, float c, float d) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "r"(__float_as_uint(a)), "r"(__float_as_uint(b)), "r"(__float_as_uint(c)), "r"(__float_as_uint(d)), "r"(barrier)
      : "memory");
}
__device__ inline void copy_in(void* to, const void* from) {  // 16 bytes
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ inline void copy_in_4(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ inline void copies_arrived() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// `bytes` of this block's shared memory to another's.
__device__ inline void copy_out(std::uint32_t to, std::uint32_t from, std::uint32_t bytes, std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "r"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
// The copies of this thread have read their source.
__device__ inline void copies_read() {
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ inline void prefetch_l2(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at) : "memory"); }

// ---- the kernel -------------------------------------------------------------------------------------------------

template <bool kPost, int kStreams, int kMixTiles, int kGroups>
__global__ void __launch_bounds__(kMhcThreads, kGroups > 2 ? 2 : 1)
    mhc_cluster_kernel(const __grid_constant__ MhcLaunch g, const __grid_constant__ MhcShape s) {
  extern __shared__ __align__(128) char shared[];
  constexpr int kMixes = kMixTiles == 3 ? 24 : 4;
  constexpr int kParts = 2 * kStreams;
  const int stream_bytes = s.local_blocks * 512;
  const int bytes_of_token = mhc_token_bytes(kStreams, s.local_blocks);
  const MhcLayout l = mhc_layout(kStreams, kPost, s, g.blocks);
  float* const parts = reinterpret_cast<float*>(shared + l.parts);
  float* const exchange = reinterpret_cast<float*>(shared + l.exchange);
  float* const pre = reinterpret_cast<float*>(shared + l.pre);
  float* const carried = reinterpret_cast<float*>(shared + l.carried);
  float* const outbox = reinterpret_cast<float*>(shared + l.outbox);
  int* const places = reinterpret_cast<int*>(shared + l.places);                    // of a token's sums in the outbox
  float* const block_squares = reinterpret_cast<float*>(shared + l.block_squares);  // [local][tile_tokens]
  float* const squares = reinterpret_cast<float*>(shared + l.squares);              // [blocks][kWarps][kTurns]
  float* const comb = reinterpret_cast<float*>(shared + l.comb);                    // logits of owned tokens
  float* const coefficient = reinterpret_cast<float*>(shared + l.coefficients);
  const std::uint32_t shared_at = shared_address(shared);
  const auto barrier = [&](int i) { return shared_at + static_cast<std::uint32_t>(l.barriers + i * 8); };

  const int warp = warp_index(), lane = threadIdx.x % 32;
  const int rank = static_cast<int>(cluster_rank());
  const int share = g.blocks / s.cluster, surplus = g.blocks % s.cluster;
  const int first_block = rank * share + min(rank, surplus);
  const int local = share + (rank < surplus ? 1 : 0);
  const int first_column = first_block * kMhcColumns;
  const bool norm = g.norm_weight != nullptr;

  constexpr bool kEarly = kGroups == 2;  // registers are left for all weights of a block, on their way from the start
  MhcPart<kMixTiles, kEarly ? 4 : 1> weights;
  const auto load_weights = [&](int block) { weights.load(g, kMixes, block, warp % kParts, lane, true); };

  if (threadIdx.x == 0) {
    for (int i = 0; i < kMhcBarriers; ++i) barrier_init(barrier(i), 1);
    barrier_init_fence();
  }
  const int owned_most = (s.tile_tokens + s.cluster - 1) / s.cluster;
  for (int token = threadIdx.x; token < s.tile_tokens; token += kMhcThreads)
    places[token] = (token % s.cluster * owned_most + token / s.cluster) * kMhcSumStride;
  if (g.hidden % kMhcColumns != 0) {  // columns beyond the end stay zero
    for (int i = threadIdx.x; i < l.parts / 16; i += kMhcThreads)
      reinterpret_cast<uint4*>(shared)[i] = make_uint4(0, 0, 0, 0);
  }
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  let_next_grid_start();
  __syncthreads();
  wait_for_prior_grid();

  std::uint32_t parity = 0;
  for (int tile = static_cast<int>(blockIdx.x) / s.cluster; tile < s.tiles; tile += s.clusters, parity ^= 1) {
    const std::int64_t start = static_cast<std::int64_t>(tile) * s.tile_tokens;
    const int tokens = static_cast<int>(min(static_cast<std::int64_t>(s.tile_tokens), g.rows - start));
    if constexpr (kEarly) load_weights(first_block);

    // ---- streams in, post, squares ----
    for (int token = warp; token < tokens; token += kWarps) {
      for (int b = 0; b < local; ++b) {
        const int h = first_column + b * kMhcColumns + lane * 8;
        if (h >= g.hidden) continue;
        const std::uint16_t* const from = g.residual + (start + token) * g.residual_row + h;
        char* const to = shared + token * bytes_of_token + b * 512 + lane * 16;
#pragma unroll
        for (int i = 0; i < kStreams; ++i) copy_in(to + i * stream_bytes, from + i * g.residual_stream);
        if constexpr (kPost)
          copy_in(shared + l.x + token * stream_bytes + b * 512 + lane * 16, g.x + (start + token) * g.x_row + h);
      }
    }
    if (threadIdx.x == 0) {
      const int owned = tokens > rank ? (tokens - rank + s.cluster - 1) / s.cluster : 0;
      barrier_expect_bytes(barrier(kMhcSums), static_cast<std::uint32_t>(owned * g.blocks * kMhcSumStride * 4));
      barrier_expect_bytes(barrier(kMhcPre), static_cast<std::uint32_t>(tokens * 16));
      if (norm)
        barrier_expect_bytes(barrier(kMhcSquares),
                             static_cast<std::uint32_t>(min(tokens, kWarps) * g.blocks * kTurns * 4));
    }
    if constexpr (kPost) {
      for (int token = warp; token < tokens; token += kWarps) {
        if (lane < 20) {
          const MhcDeviceMatrix& m = lane < 4 ? g.post_in : g.comb_in;
          const int first = lane < 4 ? lane : (lane - 4) / 4, second = lane < 4 ? 0 : lane % 4;
          copy_in_4(coefficient + token * 20 + lane,
                    m.data + (start + token) * m.row + first * m.first + second * m.second);
        }
      }
    }
    copies_arrived();
    __syncwarp();
#pragma unroll 1
    for (int token = warp; token < tokens; token += kWarps) {
#pragma unroll 1
      for (int b = 0; b < local; ++b) {
        char* const at = shared + token * bytes_of_token + b * 512 + lane * 16;
        MhcColumns<kStreams, kPost> columns;
#pragma unroll
        for (int i = 0; i < kStreams; ++i) columns.stream[i] = *reinterpret_cast<const uint4*>(at + i * stream_bytes);
        if constexpr (kPost)
          columns.x = *reinterpret_cast<const uint4*>(shared + l.x + token * stream_bytes + b * 512 + lane * 16);
        const float square = make_block<kStreams, kPost>(g, columns, start + token, first_block + b, lane,
                                                         coefficient + token * 20, nullptr, true, false);
        if constexpr (kPost) {
#pragma unroll
          for (int i = 0; i < kStreams; ++i) *reinterpret_cast<uint4*>(at + i * stream_bytes) = columns.stream[i];
        }
        if (lane == 0) block_squares[b * s.tile_tokens + token] = square;
      }
    }
    if constexpr (!kEarly) load_weights(first_block);
    __syncthreads();
    // Before the first bytes to another thread block: all of them run.
    if (tile < s.clusters) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    if (g.delayed) {  // the collapse of the tile before this one is over; the product has barriers
      for (int i = threadIdx.x; i < tokens * 4; i += kMhcThreads)
        carried[i] = carried_coefficient(g, start + i / 4, i % 4);
    }

    // ---- product ----
    for (int b = 0; b < local; ++b) {
      if (b > 0) __syncthreads();
      const int block = first_block + b;
      product_block<kStreams, kMixTiles, kGroups>(
          g, block, weights, shared + b * 512, bytes_of_token, stream_bytes, tokens, parts, true, false,
          [] { __syncthreads(); }, [&](int token, int mix, float sum) { outbox[places[token] + mix] = sum; },
          [&] {
            if (b + 1 < local) load_weights(block + 1);
          });
      for (int token = threadIdx.x; token < tokens; token += kMhcThreads)
        outbox[places[token] + kMhcSquare] = block_squares[b * s.tile_tokens + token];
      fence_async_proxy();
      __syncthreads();
      if (warp == kWarps - 1) {
        const int owned = tokens > lane ? (tokens - lane + s.cluster - 1) / s.cluster : 0;  // by thread block `lane`
        if (lane < s.cluster && owned > 0) {
          constexpr int kBytes = kMhcSumStride * 4;
          copy_out(cluster_address(shared_at + l.exchange + block * owned_most * kBytes, lane),
                   shared_at + l.outbox + lane * owned_most * kBytes, static_cast<std::uint32_t>(owned * kBytes),
                   cluster_address(barrier(kMhcSums), lane));
          copies_read();
        }
        __syncwarp();
      }
    }
    // The memory would idle until the next tile's turn.
    if (const std::int64_t next = static_cast<std::int64_t>(tile + s.clusters) * s.tile_tokens; next < g.rows) {
      const int count = static_cast<int>(min(static_cast<std::int64_t>(s.tile_tokens), g.rows - next));
      const int h = first_column + lane % 8 * 64;  // 128 bytes a lane
      if (lane % 8 < local * 4 && h < g.hidden) {
        for (int token = warp * 4 + lane / 8; token < count; token += kWarps * 4) {
          const std::uint16_t* const from = g.residual + (next + token) * g.residual_row + h;
#pragma unroll
          for (int i = 0; i < kStreams; ++i) prefetch_l2(from + i * g.residual_stream);
          if constexpr (kPost) prefetch_l2(g.x + (next + token) * g.x_row + h);
        }
      }
    }

    // ---- coefficients, by the owner of a token ----
    // From the last warp down: where tokens are few, the first ones have the rows.
    int slot = kWarps - 1 - warp;
    for (int token = rank + slot * s.cluster; token < tokens; token += kWarps * s.cluster, slot += kWarps) {
      barrier_wait(barrier(kMhcSums), parity);
      const float* from = exchange + slot * kMhcSumStride + min(lane, kMhcSquare);
      const float sum = merge_blocks(from, g.blocks, owned_most * kMhcSumStride, false);
      const float value = coefficients(g, start + token, sum, kMixes, lane);
      float each[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) each[i] = __shfl_sync(kAllLanes, value, i);
      if (lane < s.cluster)
        send(cluster_address(shared_at + l.pre + token * 16, lane), cluster_address(barrier(kMhcPre), lane), each[0],
             each[1], each[2], each[3]);
      if (g.delayed && lane < 4) store_fp32(g.pre_out, start + token, lane, 0, value);
      if (kMixTiles == 3 && lane >= 8 && lane < 24) comb[slot * 16 + lane - 8] = value;
    }

    // ---- collapse ----
    barrier_wait(barrier(kMhcPre), parity);
#pragma unroll 1
    for (int b = 0; b < local; ++b) {
      const int block = first_block + b;
      float sums[kTurns] = {};  // of the warp's tokens, in every lane
      int turn = 0;
#pragma unroll 1
      for (int token = warp; token < tokens; token += kWarps, ++turn) {
        char* const from = shared + token * bytes_of_token + b * 512 + lane * 16;
        uint4 stream[kStreams];
#pragma unroll
        for (int i = 0; i < kStreams; ++i) stream[i] = *reinterpret_cast<const uint4*>(from + i * stream_bytes);
        float square;
        const uint4 u = collapse_block<kStreams>(g, stream, start + token, block, lane,
                                                 (g.delayed ? carried : pre) + token * 4, &square, true);
        if (norm) {
          *reinterpret_cast<uint4*>(from) = u;
#pragma unroll
          for (int i = 0; i < kTurns; ++i) sums[i] = i == turn ? square : sums[i];
        } else if (const int h = block * kMhcColumns + lane * 8; h < g.hidden) {
          store_columns(g.out + (start + token) * g.out_row + h, u, true);
        }
      }
      if (norm && warp < tokens && lane < s.cluster)
        send(cluster_address(shared_at + l.squares + (block * kWarps + warp) * kTurns * 4, lane),
             cluster_address(barrier(kMhcSquares), lane), sums[0], sums[1], sums[2], sums[3]);
    }
    if constexpr (kMixTiles == 3) {
      __syncwarp();
      slot = kWarps - 1 - warp;
      for (int token = rank + slot * s.cluster; token < tokens; token += kWarps * s.cluster, slot += kWarps)
        sinkhorn(g, start + token, lane >= 8 && lane < 24 ? comb[slot * 16 + lane - 8] : 0.0f);
    }
    if (norm) {
      barrier_wait(barrier(kMhcSquares), parity);
      // Lane i has the factor of the warp's i-th token.
      float factor = 0.0f;
      if (lane < kTurns)
        factor = norm_factor(g, merge_blocks(squares + warp * kTurns + lane, g.blocks, kWarps * kTurns, false));
      int turn = 0;
      for (int token = warp; token < tokens; token += kWarps, ++turn) {
        const float by = __shfl_sync(kAllLanes, factor, turn);
        for (int b = 0; b < local; ++b) {
          const int h = first_column + b * kMhcColumns + lane * 8;
          if (h >= g.hidden) continue;
          const uint4 u = *reinterpret_cast<const uint4*>(shared + token * bytes_of_token + b * 512 + lane * 16);
          store_columns(g.out + (start + token) * g.out_row + h, normed(u, by, load_columns(g.norm_weight + h, true)),
                        true);
        }
      }
    }
    __syncwarp();  // the next tile's copies overwrite this one's
  }
}

template <bool kPost, int kStreams, int kMixTiles>
auto kernel_for(const MhcShape& s) {
  return s.few ? mhc_cluster_kernel<kPost, kStreams, kMixTiles, 2>
               : mhc_cluster_kernel<kPost, kStreams, kMixTiles, kGroupsMost>;
}

using Kernel = void (*)(MhcLaunch, MhcShape);
Kernel kernel_of(MhcKernelForm form, const MhcShape& s) {
  switch (form) {
    case MhcKernelForm::pre:
      return kernel_for<false, 4, 3>(s);
    case MhcKernelForm::broadcast:
      return kernel_for<false, 1, 3>(s);
    case MhcKernelForm::fused:
      return kernel_for<true, 4, 3>(s);
    case MhcKernelForm::head:
      return kernel_for<false, 4, 1>(s);
  }
  return nullptr;
}

struct Configured {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attribute[2]{};
  cudaError_t status = cudaSuccess;
};

void configure(MhcKernelForm form, const MhcShape& s, int blocks, bool dependent, cudaStream_t stream, Configured* c) {
  const auto kernel = reinterpret_cast<const void*>(kernel_of(form, s));
  const int bytes = mhc_cluster_shared(form, s, blocks);
  c->status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (c->status == cudaSuccess && s.cluster > 8)
    c->status = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  c->config.gridDim = dim3(static_cast<unsigned>((s.clusters > 0 ? s.clusters : 1) * s.cluster));
  c->config.blockDim = dim3(kMhcThreads);
  c->config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
  c->config.stream = stream;
  c->attribute[0].id = cudaLaunchAttributeClusterDimension;
  c->attribute[0].val.clusterDim.x = static_cast<unsigned>(s.cluster);
  c->attribute[0].val.clusterDim.y = c->attribute[0].val.clusterDim.z = 1;
  c->attribute[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  c->attribute[1].val.programmaticStreamSerializationAllowed = 1;
  c->config.attrs = c->attribute;
  c->config.numAttrs = dependent ? 2 : 1;
}

}  // namespace

cudaError_t mhc_cluster_capacity(MhcKernelForm form, const MhcShape& shape, int blocks, int* clusters) {
  Configured c;
  *clusters = 0;
  configure(form, shape, blocks, false, nullptr, &c);
  if (c.status != cudaSuccess) return c.status;
  return cudaOccupancyMaxActiveClusters(clusters, kernel_of(form, shape), &c.config);
}

cudaError_t launch_mhc_cluster(MhcKernelForm form, const MhcLaunch& launch, const MhcShape& shape, bool dependent,
                               cudaStream_t stream) {
  Configured c;
  configure(form, shape, launch.blocks, dependent, stream, &c);
  if (c.status != cudaSuccess) return c.status;
  return cudaLaunchKernelEx(&c.config, kernel_of(form, shape), launch, shape);
}

}  // namespace batchproof::cuda
