// SPDX-License-Identifier: Apache-2.0
//
// Products C = A B^T by one named instruction form, for tensor_core_rules.h. Plain and slow on purpose: no swizzle, no
// pipeline, one step at a time.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_TENSOR_CORE_PRODUCTS_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_TENSOR_CORE_PRODUCTS_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace batchproof::cuda {

enum class ProductForm : int { wgmma_ss, wgmma_rs, mma_whole, mma_half };

struct Product {
  int type = 0;  // as MmaType
  ProductForm form = ProductForm::wgmma_ss;
  int width = 64;                   // wgmma's N
  bool start_fresh = false;         // the first step ignores the accumulator instead of adding to +0
  const std::uint8_t* a = nullptr;  // rows x bytes; rows a multiple of 64
  const std::uint8_t* b = nullptr;  // columns x bytes; columns a multiple of width
  std::uint32_t* c = nullptr;       // rows x columns: FP32 or INT32
  int rows = 0, columns = 0;
  int bytes = 0;  // along K, a multiple of 32
};

cudaError_t launch_product(const Product& product, cudaStream_t stream);

// count[0] += outputs whose bits differ. transposed: y is columns x rows. row_shift, column_shift: x[r][c] is compared
// with y[(r + row_shift) % rows][(c + column_shift) % columns].
cudaError_t launch_compare(const std::uint32_t* x, const std::uint32_t* y, int rows, int columns, bool transposed,
                           int row_shift, int column_shift, unsigned long long* count, cudaStream_t stream);

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_TENSOR_CORE_PRODUCTS_H_
