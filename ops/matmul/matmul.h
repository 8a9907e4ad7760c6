// SPDX-License-Identifier: Apache-2.0
//
// What matmul's table knows of its CUDA implementations. The table names them in every build; without CUDA none can be
// chosen, because no device is found.
#ifndef BATCHPROOF_OPS_MATMUL_MATMUL_H_
#define BATCHPROOF_OPS_MATMUL_MATMUL_H_

#include <cstdint>

#include "batchproof/operator.h"
#include "src/kernels/cuda/linear.h"
#include "src/runtime/error.h"

namespace batchproof {

// Deliberate defects of the CUDA controls.
enum class CudaMatmulDefect {
  none,
  segment_follows_rows,        // as split-K heuristics do
  segment_follows_position,    // odd rows take another path
  segment_follows_alignment,   // x1 at another address takes the prologue's path
  segment_follows_calls,       // every second call
  segment_follows_stream,      // a plan per stream
  segment_follows_capture,     // a captured call takes another path than an eager one
  segment_follows_processors,  // as many segments as processors allow
  stale_memo,                  // fast mode's plan for a shape is reused by invariant mode once
  neighbour_leak,              // a small multiple of the next row's first element is added
  nan_leak,                    // zero times the next row's first element
  workspace_leak               // zero times a workspace that nothing wrote
};

struct CudaMatmulPlan {
  cuda::CudaLinearPlan linear;
  CudaMatmulDefect defect = CudaMatmulDefect::none;
};

// Relations that the implementation promises on the device; none where the device, the dtypes or the reduction length
// do not suit it, or where a probe of the device finds a tensor-core rule broken. The device is current.
std::uint32_t cuda_matmul_promises(const CudaMatmulPlan& plan, bp_mode mode, const bp_problem* problem,
                                   const bp_device* device);

// Ports x1, x2, bias, y. Enqueues on the context's stream.
Result<void> cuda_matmul(const CudaMatmulPlan& plan, const bp_context* context, const bp_tensor* tensors);

}  // namespace batchproof

#endif  // BATCHPROOF_OPS_MATMUL_MATMUL_H_
