// SPDX-License-Identifier: Apache-2.0
//
// An mHC operator as one launch that reads each token's streams once (sm_90a).
//
// A cluster works on tiles of eight tokens; each of its thread blocks has one or two blocks of the reduction, 256
// columns of every stream, and keeps several tiles in shared memory, each from its copy in to its collapse. The split
// weights of those columns stay on chip for the whole launch: a block's in the registers of four warps, a second one's
// in shared memory. What crosses between thread blocks is small: a token's 25 partial sums per block go to the token's
// owner, its four coefficients come back to all, the norm's partial sums go to all. They are sent by asynchronous
// copies that count their bytes at a barrier of the receiver; nobody waits for anything that was not sent to him.
//
//   product warps (4)  a tile's sums, from all eight tokens at once; to the owners
//   side warp (1)      tiles in as slots become free; the norm's sums to all
//   side warp (1)      posted streams to residual_out
//   side warps (2)     owned tokens: merge, coefficients to all; Sinkhorn for up to four tokens at once
//   row warps (8)      one token of every tile each: post of tile i, norm of tile i - lag - 1, collapse of tile i - lag
//
// Rows are aligned and the order is the usual one; the portable kernels serve the rest, with the same bytes.
//
// What may be overwritten when: a tile's sums leave a thread block only after all its row warps have collapsed the tile
// that had the slot before, `slots` tiles ago. So coefficients of `slots` tiles may be under way, norm sums of one more
// (a tile's norm follows its collapse by one tile), and as many owned tokens as those tiles have.
#include "src/kernels/cuda/mhc_cluster_product.cuh"
#include "src/kernels/cuda/mhc_cluster_rows.cuh"
#include "src/kernels/cuda/mhc_cluster_sides.cuh"

namespace batchproof::cuda {
namespace {

using namespace cluster;  // NOLINT(google-build-using-namespace)

template <bool kPost, int kStreams, int kMixTiles, int kLocal>
__global__ void __launch_bounds__(kMhcClusterThreads, 1)
    mhc_cluster_kernel(const __grid_constant__ MhcLaunch g, const __grid_constant__ MhcShape s,
                       const __grid_constant__ MhcLayout l) {
  extern __shared__ __align__(128) char shared[];
  const int warp = warp_index(), lane = threadIdx.x % 32;
  const int rank = static_cast<int>(cluster_rank());
  const int share = g.blocks / s.cluster, surplus = g.blocks % s.cluster;
  const int first_tile = static_cast<int>(blockIdx.x) / s.cluster;
  const Site o{g,
               s,
               l,
               shared,
               shared_address(shared),
               rank,
               rank * share + min(rank, surplus),
               share + (rank < surplus ? 1 : 0),
               first_tile,
               (s.tiles - first_tile + s.clusters - 1) / s.clusters};

  prefetch_first<kStreams, kMixTiles, kLocal>(o);
  const bool stores = (kPost || kStreams == 1) && g.residual_out != nullptr;
  if (lane == 0) init_barriers(o, warp, kPost || g.delayed, stores);
  if (g.hidden % kMhcColumns != 0) {  // columns beyond the end stay zero
    for (int i = threadIdx.x; i < (l.parts - l.slots) / 16; i += kMhcClusterThreads)
      reinterpret_cast<uint4*>(shared + l.slots)[i] = make_uint4(0, 0, 0, 0);
    fence_async_proxy();
  }
  __syncwarp();
  cluster_arrive();
  let_next_grid_start();
  __syncthreads();
  wait_for_prior_grid();

  // Registers where they are needed: 65,536 in all.
  if (warp < kMhcProductWarps) {
    registers_raise<240>();
    multiply<kPost, kStreams, kMixTiles, kLocal>(o, warp, lane);
  } else if (warp < kMhcProductWarps + kMhcSideWarps) {
    registers_lower<48>();
    if (warp == kMhcProductWarps) {
      bring_tiles<kPost, kStreams, kMixTiles, kLocal>(o, lane);
    } else if (warp == kMhcProductWarps + 1) {
      cluster_wait();
      if (stores) store_streams<kPost, kStreams, kLocal>(o);
    } else {
      own_tokens<kMixTiles>(o, warp - kMhcProductWarps - 2, lane);
    }
  } else {
    registers_lower<112>();
    walk_rows<kPost, kStreams, kMixTiles, kLocal>(o, warp - kMhcProductWarps - kMhcSideWarps, lane);
  }
}

using Kernel = void (*)(MhcLaunch, MhcShape, MhcLayout);

template <bool kPost, int kStreams, int kMixTiles>
Kernel kernel_for(const MhcShape& s) {
  return s.local_blocks == 1 ? mhc_cluster_kernel<kPost, kStreams, kMixTiles, 1>
                             : mhc_cluster_kernel<kPost, kStreams, kMixTiles, 2>;
}

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
  const int bytes = mhc_layout(form, s, blocks).total;
  c->status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (c->status == cudaSuccess && s.cluster > 8)
    c->status = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  c->config.gridDim = dim3(static_cast<unsigned>((s.clusters > 0 ? s.clusters : 1) * s.cluster));
  c->config.blockDim = dim3(kMhcClusterThreads);
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
  return cudaLaunchKernelEx(&c.config, kernel_of(form, shape), launch, shape, mhc_layout(form, shape, launch.blocks));
}

}  // namespace batchproof::cuda
