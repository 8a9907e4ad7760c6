// SPDX-License-Identifier: Apache-2.0
//
// Batch-invariant matrix product on CUDA: y(m, n) = x(m, k) . w(k, n) + bias(n), BF16 or FP16 inputs, FP32
// accumulation.
//
// The bytes of y[i, j] are a function of row i of x, column j of w, bias[j], the dtypes, the schedule and the processor
// generation. m, n, strides, the plan, the path (wgmma or mma.sync), the stream and the position of the row change time
// only (C1). On processors older than sm_90 one m16n8k16 step is two sums of eight, so bytes differ from sm_90: the
// generation is part of the implementation id.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_GEMM_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_GEMM_H_

#include <cstdint>
#include <optional>
#include <string>

#include "batchproof/operator.h"
#include "src/kernels/cuda/gemm_plan.h"
#include "src/runtime/error.h"
#include "src/schedule/schedule.h"

namespace batchproof::cuda {

// All pointers are device pointers of the current device. Strides in elements.
struct CudaGemmCall {
  std::int64_t m = 0, n = 0, k = 0;
  bp_dtype dtype = BP_BF16;  // of x and w: BP_BF16 or BP_FP16
  const void* x = nullptr;
  std::int64_t x_row_stride = 0, x_column_stride = 1;
  const void* w = nullptr;
  std::int64_t w_row_stride = 0, w_column_stride = 1;  // of the (k, n) view; stored (n, k): row stride 1
  const void* bias = nullptr;
  bp_dtype bias_dtype = BP_NONE;  // BP_FP32, BP_BF16, BP_FP16; BP_NONE: no bias
  std::int64_t bias_stride = 1;
  void* y = nullptr;
  bp_dtype y_dtype = BP_FP32;  // BP_FP32, BP_BF16, BP_FP16; columns are contiguous
  std::int64_t y_row_stride = 0;
};

enum class CudaGemmPath { automatic, wgmma, portable };

struct CudaGemmOptions {
  void* stream = nullptr;  // cudaStream_t
  CudaGemmPath path = CudaGemmPath::automatic;
  int processors = 0;                           // processors it may use, 0: all; must not change bytes
  std::optional<GemmPlan> plan = std::nullopt;  // nothing: choose_gemm_plan
  // The weight was complete before the prior kernel of the stream began (a checkpoint's weight is): its first tiles are
  // then loaded while that kernel ends. Wrong where the prior kernel writes the weight.
  bool weights_ready = false;
};

// Enqueues the product on the stream: one launch, no allocation, capturable. Bias and rounding as in
// kernels/cpu/gemm.h; a NaN is stored as 0x7FC00000, 0x7FC0 or 0x7E00; k = 0 gives +0 (plus bias); m = 0 or n = 0 does
// nothing. Fails, with nothing enqueued, where a dtype, stride or extent is not supported or the path cannot run it.
// Returns the path taken.
Result<CudaGemmPath> cuda_gemm(const CudaGemmCall& call, const Schedule& schedule, const CudaGemmOptions& options = {});

// Whether the wgmma path takes this call (sm_90, strides and alignment that the copy engine takes); empty: it does.
std::string wgmma_refusal(const CudaGemmCall& call);

// The plan that cuda_gemm would take for this call; for benchmarks.
Result<GemmPlan> cuda_gemm_plan(const CudaGemmCall& call, const Schedule& schedule);
// What the planner knows of the current device.
Result<GemmDevice> cuda_gemm_device();
GemmShape cuda_gemm_shape(const CudaGemmCall& call, const KAxis& axis);

// `fast` mode: a schedule that follows the batch and the device, as variant libraries choose it (the speed baseline and
// a control): free split of K, one segment a block, wide tiles. Not batch invariant.
Result<Schedule> fast_gemm_schedule(const CudaGemmCall& call);

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_GEMM_H_
