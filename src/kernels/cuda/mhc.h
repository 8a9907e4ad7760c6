// SPDX-License-Identifier: Apache-2.0
//
// The mHC operators on a CUDA device. A row's bytes are a function of the row, the weights, the parameters and the
// order; rows, paths, tiles, clusters and processors change time only. mhc_steps.cuh states the order of operations.
// Specification of the operators: ops/mhc/README.md.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_MHC_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_MHC_H_

#include <cstddef>
#include <cstdint>

#include "src/kernels/cpu/mhc.h"
#include "src/runtime/error.h"

namespace batchproof::cuda {

// `call` as on the CPU, with pointers to device memory; path, threads, isa and change_sums are not read, scale and base
// are read on the device.
struct CudaMhcCall {
  MhcCall call;
  const float* scale = nullptr;
  const float* base = nullptr;
  std::int64_t scale_step = 1, base_step = 1;
};

enum class CudaMhcPath {
  automatic,  // what is fastest of those that the device can run
  cluster,
  portable,
  product,   // mhc_pre: two launches, the sums by the kernels of cuda_mhc_product; fused: mhc_post before them
  relay,     // mhc_pre and fused: one launch for many rows, whose thread blocks hand tokens to one another
  occupancy  // fast mode: the default dispatch of a public serving engine; bytes follow rows and processors
};

struct CudaMhcOptions {
  CudaMhcPath path = CudaMhcPath::automatic;
  void* stream = nullptr;
  int processors = 0;            // to use at most; 0: all
  bool reversed = false;         // the order witness
  int assumed_processors = 132;  // what the dispatch of `occupancy` computes with
  bool dependent = false;        // programmatic dependent launch: the kernel may start while the one before it ends
  // Of the cluster kernel (mhc_shape.h), for measurements; 0: chosen.
  int cluster = 0, slots = 0, lag = 0;
  // Of the product's kernels (mhc_product_plan.h) and of the one for many rows (mhc_relay_plan.h), for measurements;
  // 0: chosen.
  int few_tokens = 0, many_shares = 0, ahead = 0;
};

// Sums in a call's workspace: FP32 [partials, rows, 28], a row's 24 mixes, its square sum and three zeros. Partials of
// a group merge first, each in turn, then the groups.
struct CudaMhcSums {
  int partials, group;
};

// Bytes of device workspace, whatever the path and the form.
std::size_t cuda_mhc_workspace(std::int64_t rows, std::int64_t hidden);

// Enqueues; rows = 0 does nothing. Fails with nothing enqueued where hidden is no positive multiple of 16, the
// workspace is too small or the device does not have what the path needs.
Result<void> cuda_mhc(const CudaMhcCall& call, const CudaMhcOptions& options);

// The prenorm product of mhc_pre alone: every mix's sum and the square sum, into the workspace, for whoever reads them
// to merge. For few rows a partial sum is of 128 columns of a stream, else of 256 columns of all streams. Enqueues;
// needs compute capability 9.x, rows that begin at multiples of 16 bytes and hidden a multiple of 64.
Result<CudaMhcSums> cuda_mhc_product(const CudaMhcCall& call, const CudaMhcOptions& options);

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_MHC_H_
