// SPDX-License-Identifier: Apache-2.0
//
// What the mHC launchers hand to their kernels: plain data, read by host and device code alike. src/kernels/cuda/mhc.h
// says what is computed.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_MHC_PARAMS_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_MHC_PARAMS_H_

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "src/kernels/cuda/mhc_product_plan.h"
#include "src/kernels/cuda/mhc_relay_plan.h"
#include "src/kernels/cuda/mhc_shape.h"

namespace batchproof::cuda {

// FP32 [rows, n] or [rows, n, n] in device memory.
struct MhcDeviceMatrix {
  float* data;
  std::int64_t row, first, second;
};

struct MhcLaunch {
  std::int64_t rows;
  int hidden, blocks;             // blocks: ceil(hidden / kMhcColumns)
  const std::uint16_t* residual;  // [rows, streams, hidden]; the broadcast form: x [rows, hidden]
  std::int64_t residual_row, residual_stream;

  // post: data null where the form has none
  const std::uint16_t* x;
  std::int64_t x_row;
  MhcDeviceMatrix post_in, comb_in;
  std::uint16_t* residual_out;
  std::int64_t residual_out_row, residual_out_stream;

  const float* fn;  // [mixes, streams * hidden]
  std::int64_t fn_row;
  const float* scale;
  const float* base;
  std::int64_t scale_step, base_step;
  float per_element, per_column;  // 1 / elements of a row's square sum, 1 / hidden
  float rms_eps, pre_eps, sinkhorn_eps, norm_eps, post_mult;
  int sinkhorn_repeat;
  const std::uint16_t* norm_weight;  // null: no norm

  bool delayed;             // the collapse uses `carried`, its own coefficients go to pre_out
  MhcDeviceMatrix carried;  // data null: stream 0
  MhcDeviceMatrix pre_out, post_out, comb_out;
  std::uint16_t* out;
  std::int64_t out_row;
  std::uint16_t* mean;  // null: not wanted
  std::int64_t mean_row;
  MhcDeviceMatrix mixes_out, square_out;  // data null: not wanted

  bool reversed;  // order witness: every chain from its last part to its first
  bool wide;      // every BF16 row and every row of fn begins at a multiple of 16 bytes

  // Partial sums between two kernels: kMhcSumStride floats of every row and part. Those of a group of parts merge
  // first.
  float* partial;
  std::int64_t partial_row, partial_step;  // floats from a row to the next, from a part to the next
  int parts, group;
};

// Clusters of the shape that the device can hold at once; 0: it cannot run it.
cudaError_t mhc_cluster_capacity(MhcKernelForm form, const MhcShape& shape, int blocks, int* clusters);
// One launch for everything. `dependent`: programmatic dependent launch.
cudaError_t launch_mhc_cluster(MhcKernelForm form, const MhcLaunch& launch, const MhcShape& shape, bool dependent,
                               cudaStream_t stream);

// The same bytes without clusters: partial sums, then the rest.
cudaError_t launch_mhc_product(MhcKernelForm form, const MhcLaunch& launch, int processors, cudaStream_t stream);
cudaError_t launch_mhc_finish(MhcKernelForm form, const MhcLaunch& launch, int processors, cudaStream_t stream);
// The partial sums of mhc_pre by kernels for nothing else (mhc_product_plan.h). `launch` has the plan's parts.
cudaError_t launch_mhc_product_few(const MhcLaunch& launch, const MhcProductPlan& plan, bool dependent,
                                   cudaStream_t stream);
// `streams`: (64 columns, groups of columns, rows, streams); a box is a block of the reduction of kStageTokens rows.
cudaError_t launch_mhc_product_many(const MhcLaunch& launch, const CUtensorMap& streams, const MhcProductPlan& plan,
                                    bool dependent, cudaStream_t stream);
// mhc_pre and the fused form by thread blocks that hand tokens to one another (mhc_relay_plan.h). `launch.partial`: the
// sums; `complete`: a counter of every kStageTokens rows, set to 0 here. A cooperative launch.
struct MhcRelayMaps {
  CUtensorMap streams, streams_out;  // as of launch_mhc_product_many
  CUtensorMap x;                     // (columns, rows, 1); a box is a block of the reduction of kStageTokens rows
};
cudaError_t launch_mhc_relay(MhcKernelForm form, const MhcLaunch& launch, const MhcRelayMaps& maps,
                             const MhcRelayPlan& plan, std::uint32_t* complete, cudaStream_t stream);
// Fast mode: partial sums of g.parts splits; the fused form after launch_mhc_post, or, for few tokens, all in one.
cudaError_t launch_mhc_split(MhcKernelForm form, const MhcLaunch& launch, cudaStream_t stream);
cudaError_t launch_mhc_small(const MhcLaunch& launch, cudaStream_t stream);
cudaError_t launch_mhc_post(const MhcLaunch& launch, int processors, cudaStream_t stream);

// Adds how many reciprocals of the fast form differ from the correctly rounded one, over every significand at nine
// exponents of the range in which the kernels use it.
cudaError_t launch_mhc_reciprocals(unsigned long long* differing, cudaStream_t stream);

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_MHC_PARAMS_H_
