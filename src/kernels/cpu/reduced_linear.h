// SPDX-License-Identifier: Apache-2.0
//
// Products whose K is divided over ranks: what one rank computes of them. The sum over ranks is in reduced_controls.h,
// the tables of the operators in reduced_ports.h.
//
// tree(16): the logical K (over all ranks) is cut into 16 slices; a slice is a chain of segments of 256 that ends in an
// FP32 value, scales applied; a balanced binary tree merges the slices. A rank of a world of 1, 2, 4, 8 or 16 holds a
// whole subtree, so the partial sums that ranks exchange are nodes of one and the same tree.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_REDUCED_LINEAR_H_
#define BATCHPROOF_SRC_KERNELS_CPU_REDUCED_LINEAR_H_

#include <cstdint>
#include <string>

#include "batchproof/operator.h"
#include "src/kernels/cpu/linear_ports.h"
#include "src/kernels/cpu/scaled_linear.h"
#include "src/runtime/error.h"

namespace batchproof {

constexpr std::int64_t kWorldSlices = 16;

// This rank's node of the tree, (m, n) dense FP32, `bias` of this rank included (one FP32 addition, or as the scaling
// says). `linear.y` is not used. Fails where K does not fit; tree_error says why beforehand.
Result<void> tree_partial(const ScaledLinear& linear, int world, std::int64_t segment, int threads, float* out);

// This rank's product in one chain of `segment`, bias and scales applied, rounded to `dtype`: (m, n) dense.
Result<void> chain_partial(const ScaledLinear& linear, std::int64_t segment, int threads, bp_dtype dtype, void* out);

// chain_partial in FP64.
Result<void> partial_reference(const ScaledLinear& linear, double* out);

// y = round(rows), a dense matrix of dtype `from`.
void store_rows(const void* rows, bp_dtype from, const bp_tensor& y);

// Why K (per rank) on `world` ranks does not fit tree(16); empty: it does.
std::string tree_error(Scaling scaling, std::int64_t k, int world);

// What is wrong with a problem of such an operator, in the words of its ports; empty: nothing. `bias` etc. are indices.
struct ReducedPorts {
  std::uint32_t x1 = 0;
  std::uint32_t x2 = 0;
  std::uint32_t bias = 0;
  std::uint32_t y = 0;
  ScalePorts scales;
};
std::string reduced_problem_error(const bp_problem* problem, const ReducedPorts& ports);

// The product as scaled_linear takes it, without y.
ScaledLinear reduced_linear_of(const bp_context* context, const bp_tensor* tensors, const ReducedPorts& ports);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_REDUCED_LINEAR_H_
