// SPDX-License-Identifier: Apache-2.0
//
// y = x . w with quantised inputs and their scales, in terms of the FP32 product of gemm.h. The arithmetic of each mode
// is written at Scaling; docs/quantisation.md has the reasons.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_SCALED_LINEAR_H_
#define BATCHPROOF_SRC_KERNELS_CPU_SCALED_LINEAR_H_

#include <cstdint>
#include <functional>

#include "batchproof/operator.h"
#include "src/kernels/cpu/gemm.h"
#include "src/kernels/cpu/linear.h"
#include "src/runtime/error.h"

namespace batchproof {

// Rows and columns that one scale of Scaling::block covers, and the length of its chunks along k.
constexpr std::int64_t kScaleBlock = 128;
// Elements along k that one E8M0 scale covers (OCP Microscaling Formats 1.0, section 5.2).
constexpr std::int64_t kMxBlock = 32;
// Longest k of an INT8 product: 2^17 products of at most 2^14 still fit the INT32 accumulator.
constexpr std::int64_t kInt8LongestK = 131071;

enum class Scaling {
  none,
  // FP8, one FP32 scale per matrix: y = round(d * (sum + bias)), d = the FP32 product of the two scales with its low 13
  // bits cleared (a NaN stays one). sum: FP32 FMA in the order of the schedule.
  tensor,
  // One FP32 scale per row of x and per column of w: y = round((acc * w_scale[j]) * x_scale[i]). INT8: acc is exact, an
  // INT32 bias joins it, a float bias is added to float(acc). FP8: acc is the FP32 FMA sum in the order of the
  // schedule.
  token_channel,
  // FP8, one FP32 scale per 128 x 128 block: acc = acc + p * (x_scale * w_scale) over chunks of 128 along k, ascending;
  // p is the FP32 FMA sum of a chunk from +0; the multiplication and the addition round separately.
  block,
  // FP8, one E8M0 scale per 32 elements of a row of x and of a column of w: every product is scaled exactly before it
  // is added, sum = fma(x * 2^(e1 - 127), w * 2^(e2 - 127), sum) in the order of the schedule, and the two exponents
  // are combined first, so no intermediate overflows or underflows that the scaled product does not. A scale of 255 is
  // NaN.
  mx
};

// x (m, k), w (k, n), y (m, n), bias (n) or null. Scales:
//   tensor: x_scale (ceil(m / rows_per_scale)), w_scale (1); token_channel: x_scale (m, 1) or null, w_scale (1, n);
//   block: x_scale (ceil(m / 128), ceil(k / 128)), w_scale (ceil(k / 128), ceil(n / 128));
//   mx: x_scale (m, ceil(k / 64), 2), w_scale (ceil(k / 64), n, 2).
struct ScaledLinear {
  Scaling scaling = Scaling::none;
  const bp_tensor* x = nullptr;
  const bp_tensor* w = nullptr;
  const bp_tensor* bias = nullptr;
  const bp_tensor* x_scale = nullptr;
  const bp_tensor* w_scale = nullptr;
  const bp_tensor* y = nullptr;
  std::int64_t rows_per_scale = 0;  // Scaling::tensor only; 0: one scale for all rows
  bool bias_after_scale = false;    // tensor, token_channel: y = round(d * sum + bias)
};

// The product of FP32 (or, without scales, of the inputs' own) matrices into the call's c, in the given order.
using Product = std::function<Result<void>(const GemmCall&, const LinearSchedule&)>;

// What scaled_linear checks before it computes: shapes, dtypes of scales, memory.
Result<void> check_scaled_linear(const ScaledLinear& linear);

// Fails, with nothing written, where a tensor does not suit. `product` is called for all of k with `order` (none,
// tensor, mx), or for chunks of k with one segment: of 128 (block; `order` says how many slices they form), of as many
// as are exact (token_channel).
Result<void> scaled_linear(const ScaledLinear& linear, const LinearSchedule& order, int threads,
                           const Product& product);

// The same in FP64 into y of FP64, with the same scale mask.
Result<void> scaled_linear_reference(const ScaledLinear& linear);

// What is wrong with the dtypes of the tensors of a scaled product, one sentence with the ports' names x1, x2,
// x1_scale,
// ...; empty: nothing.
struct ScaledDtypes {
  LinearDtypes tensors;
  bp_dtype x_scale = BP_NONE;
  bp_dtype w_scale = BP_NONE;
};
std::string scaled_dtype_error(Scaling scaling, const ScaledDtypes& dtypes);

// group_size packs the block sizes along k, n and m in 16 bits each; a zero field follows from the shapes. Empty:
// nothing is wrong.
std::string group_size_error(std::int64_t group, Scaling scaling);

// d of Scaling::tensor.
float masked_scale(float x_scale, float w_scale);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_SCALED_LINEAR_H_
