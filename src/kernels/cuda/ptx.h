// SPDX-License-Identifier: Apache-2.0
//
// The PTX that the kernels are written in: barriers in shared memory, bulk tensor copies, clusters, wgmma's fences and
// descriptors, mma.sync and stmatrix. One instruction a function; source: PTX ISA 8.x.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_PTX_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_PTX_H_

#include <cstdint>

namespace batchproof::cuda {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// The warp's number in the block, as a value that the compiler knows to be the same in all its lanes: addresses made of
// it stay in uniform registers, where the tensor core and the copy engine read them.
__device__ inline int warp_index() { return __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 32), 0); }

// ---- mbarrier; addresses are shared::cta addresses ------------------------------------------------------------------

__device__ inline void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes inits visible to the copy engine and to the cluster.
__device__ inline void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void barrier_expect_bytes(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Arrives at the barrier of the same offset in block `rank` of the cluster. It says that stages were read, by the
// tensor core and to the end; no ordinary write is published by it, so the narrow default scope serves.
__device__ inline void barrier_arrive_at(std::uint32_t barrier, std::uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

__device__ inline void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ inline void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\nbra WAIT;\nDONE:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Whether it is there already, the same for all lanes of the warp.
__device__ inline bool barrier_test(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n.reg .pred done;\nmbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return __all_sync(0xFFFFFFFFu, done);
}

// ---- bulk tensor copies ---------------------------------------------------------------------------------------------

__device__ inline void tensor_map_prefetch(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Eviction hints for the L2, as the copy engine takes them (the encoded policies that `createpolicy.fractional` gives).
constexpr std::uint64_t kEvictFirst = 0x12F0000000000000u;
constexpr std::uint64_t kEvictNormal = 0x1000000000000000u;
constexpr std::uint64_t kEvictLast = 0x14F0000000000000u;

__device__ inline void tensor_load(std::uint32_t to, const void* map, std::int32_t x, std::int32_t y, std::int32_t z,
                                   std::uint32_t barrier, std::uint64_t hint) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "l"(hint)
      : "memory");
}

__device__ inline void tensor_load(std::uint32_t to, const void* map, std::int32_t x, std::int32_t y, std::int32_t z,
                                   std::int32_t w, std::uint32_t barrier, std::uint64_t hint) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier), "l"(hint)
      : "memory");
}

// The same bytes to the same offset of every block in `mask`; each block's own barrier counts them.
__device__ inline void tensor_load_multicast(std::uint32_t to, const void* map, std::int32_t x, std::int32_t y,
                                             std::int32_t z, std::uint32_t barrier, std::uint16_t mask,
                                             std::uint64_t hint) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4}], [%5], %6, %7;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(mask), "l"(hint)
      : "memory");
}

// Into the L2 alone. No reader can see an old value through it: the L2 is where writes meet.
__device__ inline void tensor_prefetch(const void* map, std::int32_t x, std::int32_t y, std::int32_t z) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(map), "r"(x), "r"(y), "r"(z)
               : "memory");
}

// From shared memory to a 2-D tensor; what lies outside the tensor is not written.
__device__ inline void tensor_store(const void* map, std::int32_t x, std::int32_t y, std::uint32_t from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x), "r"(y),
               "r"(from)
               : "memory");
}
__device__ inline void tensor_store(const void* map, std::int32_t x, std::int32_t y, std::int32_t z, std::int32_t w,
                                    std::uint32_t from) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(map), "r"(x),
               "r"(y), "r"(z), "r"(w), "r"(from)
               : "memory");
}
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until at most `kPending` of this thread's groups still read shared memory.
template <int kPending>
__device__ inline void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Until at most `kPending` of this thread's groups are still under way.
template <int kPending>
__device__ inline void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

// Orders ordinary writes to shared memory before the copy engine's and the tensor core's accesses.
__device__ inline void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The same for global memory, in both directions: what another thread has made visible is read by the copy engine, what
// the copy engine has written is made visible.
__device__ inline void fence_async_proxy_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// ---- counters in global memory, between thread blocks ---------------------------------------------------------------

// What this thread has written or seen written is visible to whoever acquires the sum.
__device__ inline void add_release(std::uint32_t* to, std::uint32_t v) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}
__device__ inline std::uint32_t load_acquire(const std::uint32_t* from) {
  std::uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}

// Orders nothing.
__device__ inline std::uint32_t load_relaxed(const std::uint32_t* from) {
  std::uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}

// ---- clusters and launches ------------------------------------------------------------------------------------------

__device__ inline std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all blocks of the cluster. `relaxed`: an order in time alone, for which no memory is published.
__device__ inline void cluster_sync_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address of the same place in block `rank` of the cluster.
__device__ inline std::uint32_t cluster_address(std::uint32_t address, std::uint32_t rank) {
  std::uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

__device__ inline float4 load_cluster(std::uint32_t address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// Programmatic dependent launch: nothing before this call may touch global memory.
__device__ inline void wait_for_prior_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ inline void let_next_grid_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Barrier `id` (1..15) among `threads` threads.
__device__ inline void named_sync(std::uint32_t id, std::uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// The same without waiting: the caller has done what the others wait for.
__device__ inline void named_arrive(std::uint32_t id, std::uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int kRegisters>
__device__ inline void registers_raise() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void registers_lower() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- tensor cores ---------------------------------------------------------------------------------------------------

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Ties an accumulator to this place, so that the compiler moves no access of it across a wait or a fence.
__device__ inline void pin(float& value) { asm volatile("" : "+f"(value)::"memory"); }
__device__ inline void pin(std::int32_t& value) { asm volatile("" : "+r"(value)::"memory"); }

// A matrix in shared memory for wgmma. Offsets in bytes; swizzle: 0 none, 1 128 bytes.
__device__ inline std::uint64_t matrix_descriptor(std::uint32_t address, std::uint32_t leading, std::uint32_t stride,
                                                  std::uint32_t swizzle) {
  return static_cast<std::uint64_t>((address & 0x3FFFF) >> 4) | static_cast<std::uint64_t>(leading >> 4) << 16 |
         static_cast<std::uint64_t>(stride >> 4) << 32 | static_cast<std::uint64_t>(swizzle) << 62;
}

// Four 8 x 8 matrices of 16-bit values, each stored transposed; lane i gives the address of row i % 8 of matrix i / 8.
__device__ inline void store_matrix_transposed(std::uint32_t address, const std::uint32_t (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v[0]),
               "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

// The same, not transposed.
__device__ inline void store_matrix(std::uint32_t address, const std::uint32_t (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v[0]), "r"(v[1]),
               "r"(v[2]), "r"(v[3])
               : "memory");
}

__device__ inline void store_two_matrices_transposed(std::uint32_t address, std::uint32_t a, std::uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b)
               : "memory");
}

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_PTX_H_
