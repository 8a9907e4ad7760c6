// SPDX-License-Identifier: Apache-2.0
//
// y = x . w + bias as operators see it: tensors of the operator table in, GEMM calls out. Shared by the operators that
// contain a matrix product.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_LINEAR_H_
#define BATCHPROOF_SRC_KERNELS_CPU_LINEAR_H_

#include <cstdint>
#include <functional>
#include <string>

#include "batchproof/operator.h"
#include "src/kernels/cpu/gemm.h"
#include "src/runtime/error.h"
#include "src/schedule/schedule.h"

namespace batchproof {

// dtypes of the tensors of a product. BP_NONE: no bias.
struct LinearDtypes {
  bp_dtype x = BP_FP32;
  bp_dtype w = BP_FP32;
  bp_dtype bias = BP_NONE;
  bp_dtype y = BP_FP32;
};

// What is wrong with the dtypes, one sentence with the ports' names x1, x2, bias, y; empty: nothing. x1 and x2 are
// equal and FP32, BF16 or FP16; y is FP32 or theirs; bias is FP32 or theirs.
std::string linear_dtype_error(const LinearDtypes& dtypes);

// What is wrong with an extent named `name`, one sentence; empty: nothing. Extents fit into 32 bits.
std::string extent_error(const char* name, std::int64_t value, std::int64_t least);

// The call for x (m, k), w (k, n), bias (n) or null, y (m, n). w may be a transposed view. Fails where a tensor is not
// on the host, has no memory, another shape, or columns of y that are not contiguous.
Result<GemmCall> linear_call(const bp_tensor& x, const bp_tensor& w, const bp_tensor* bias, const bp_tensor& y);

// A dense row-major matrix in host memory.
bp_tensor dense_matrix(void* data, bp_dtype dtype, std::int64_t rows, std::int64_t columns);

// Rows [begin, begin + count) of a call.
GemmCall rows_of(const GemmCall& call, std::int64_t begin, std::int64_t count);

// chain(segment), or tree(slices) above it where slices > 0.
struct LinearSchedule {
  std::int64_t segment = kGemmSegment;
  std::int64_t slices = 0;
};
Result<Schedule> make_schedule(const LinearSchedule& plan, std::int64_t k);

// The product without a defect: gemm under make_schedule(plan, call.k).
Result<void> run_scheduled(const GemmCall& call, const LinearSchedule& plan, int threads);

// Segment length that fast mode takes: it sees the batch. One segment for few rows, where merging costs most; long
// segments for many.
std::int64_t fast_segment(std::int64_t m, std::int64_t k);

// to[j] += factor * from[j]: the inner loop of FP64 references.
void add_multiple(double factor, const double* from, std::int64_t count, double* to);
// As linear_call and gemm in FP64, k ascending, for y in FP64. The sum is the accuracy reference, not an order.
Result<void> linear_reference(const bp_tensor& x, const bp_tensor& w, const bp_tensor* bias, const bp_tensor& y);

// Runs `body` for an operator's run or reference: an error or exception becomes a status and the context's error text.
bp_status operator_call(const bp_context* context, const std::function<Result<void>()>& body);

// BP_REFUSED where the context is in invariant mode and the implementation is a fast one (C8); records what runs (C7).
bp_status begin_run(const bp_context* context);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_LINEAR_H_
