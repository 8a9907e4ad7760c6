// SPDX-License-Identifier: Apache-2.0
//
// What the operator's table and its controls share.
#ifndef BATCHPROOF_OPS_ALL_GATHER_MATMUL_ALL_GATHER_MATMUL_H_
#define BATCHPROOF_OPS_ALL_GATHER_MATMUL_ALL_GATHER_MATMUL_H_

#include <cstddef>
#include <cstdint>

#include "batchproof/operator.h"
#include "src/kernels/cpu/scaled_linear.h"
#include "src/kernels/cuda/linear.h"
#include "src/runtime/error.h"

namespace batchproof {

// Defects of a kernel with two matrix paths: LOCAL for the rank's own rows, GATHER for those of the others.
enum class TwoPathDefect {
  none,
  chunk_pair,       // LOCAL sums K in chunks of 128, GATHER in chunks of 256
  tiling_rule,      // the chunk of each path follows from its number of rows: adaptive_chunk
  other_order,      // both in chunks of 128, GATHER from the last chunk to the first
  scale_address,    // GATHER reads the MX scales of x2 at half the column offset (a wrong result, too)
  neighbour_scale,  // GATHER scales a row by the x1_scale of the next row of its owner (a wrong result, too)
  aligned_sums      // GATHER aligns the partial sums of a chunk to the largest exponent of their tile of 16 rows
};

struct TwoPathCall {
  std::int64_t m = 0;  // rows of one rank
  int rank = 0;
  int world = 1;
  int threads = 1;
};

// `gathered` is the product for the rows of all ranks; rows [rank * m, (rank + 1) * m) are the rank's own.
Result<void> run_two_path_control(TwoPathDefect defect, const ScaledLinear& gathered, const TwoPathCall& call);

// The K chunk that the adaptive sliding-window tiling of CANN's quantised matmul takes for an 8-bit product of m rows,
// n columns and length k on 32 matrix cores (ops-transformer, mc2/3rd/quant_batch_matmul_v3/op_host/op_tiling/arch35/
// adaptive_sliding_window_tiling.cpp): it shrinks as m grows.
std::int64_t adaptive_chunk(std::int64_t m, std::int64_t n, std::int64_t k);

// ---- for every memory ----

bool is_contiguous(const bp_tensor& matrix);

// The context's all_gather of `bytes` per rank; `what` names the tensor in an error.
Result<void> gather_bytes(const bp_context& context, const char* what, const void* send, void* all, std::size_t bytes);

// ---- CUDA ----

// Deliberate defects of the CUDA controls.
enum class CudaGatherDefect {
  none,
  two_paths,             // rows of other ranks take another segment
  segment_follows_rows,  // as split-K heuristics do
  ring_order,            // gather_out begins with the rank's own rows, as a ring receives them; y is right
  nan_leak,              // zero times the next row's first element
  workspace_leak         // zero times a workspace that nothing wrote
};

struct CudaGatherPlan {
  cuda::CudaLinearPlan linear;
  CudaGatherDefect defect = CudaGatherDefect::none;
};

// Ports of the problem in device memory, and the parts of the workspace there.
struct CudaGatherCall {
  const bp_tensor* x1 = nullptr;
  const bp_tensor* x2 = nullptr;
  const bp_tensor* bias = nullptr;  // none: no bias
  const bp_tensor* y = nullptr;
  const bp_tensor* gather_out = nullptr;  // none: rows are gathered into the workspace
  void* own = nullptr;                    // this rank's rows, where x1 is not contiguous
  void* gathered = nullptr;
  const void* stale = nullptr;  // what nothing writes
};

// Relations that the implementation promises on the device. The device is current.
std::uint32_t cuda_gather_promises(const CudaGatherPlan& plan, bp_mode mode, const bp_problem* problem,
                                   const bp_device* device);

// Gathers, then multiplies all rows by one product; enqueues on the context's stream.
Result<void> cuda_all_gather_matmul(const CudaGatherPlan& plan, const bp_context& context, const CudaGatherCall& call);

}  // namespace batchproof

#endif  // BATCHPROOF_OPS_ALL_GATHER_MATMUL_ALL_GATHER_MATMUL_H_
