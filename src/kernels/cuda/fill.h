// SPDX-License-Identifier: Apache-2.0
//
// Inputs made on the device, byte-equal to fill() of src/numeric/recipe.h (C3), and byte comparison there.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_FILL_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_FILL_H_

#include <cstdint>

#include "batchproof/operator.h"
#include "src/numeric/recipe.h"
#include "src/runtime/error.h"

namespace batchproof::cuda {

// A matrix of `rows` x `columns`: element (r, c) is the recipe's element of row identity row + r and column c, stored
// at out[r * row_stride + c * column_stride]. Strides in elements.
struct CudaFill {
  RecipeKind kind = RecipeKind::normal;  // every kind but file
  bp_dtype dtype = BP_BF16;
  std::uint64_t seed = 0;
  std::uint64_t name = 0;
  std::uint64_t row = 0;
  std::int64_t rows = 0, columns = 0;
  void* out = nullptr;
  std::int64_t row_stride = 0, column_stride = 1;
  // As in RecipeSpec and FillRequest.
  double lo = 0.0, hi = 1.0;
  double magnitude = 1.0;
  bool scale = false;
  bool reduction_input = false;
};

// Enqueues one launch. INT4 and E2M1: contiguous columns, an even number of them and an even row stride. Fails, with
// nothing enqueued, for the recipe `file`: its tensor lies on the host. Pairs of the cancelling recipe are not made:
// partners lie anywhere in a row, and the table of partners is the host's.
Result<void> cuda_fill(const CudaFill& fill, void* stream);

// Adds to *count (device memory) the number of `element_bytes`-wide elements of a (rows x columns, contiguous columns)
// that differ from b in any bit. Strides in elements of 2 or 4 bytes.
Result<void> cuda_count_differing(const void* a, std::int64_t a_stride, const void* b, std::int64_t b_stride,
                                  std::int64_t rows, std::int64_t columns, int element_bytes, std::uint64_t* count,
                                  void* stream);

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_FILL_H_
