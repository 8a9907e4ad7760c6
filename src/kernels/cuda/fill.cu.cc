// SPDX-License-Identifier: Apache-2.0
//
// Inputs made on the device and byte comparison: checks in front of the launches.
#include "src/kernels/cuda/fill.h"

#include "src/kernels/cuda/fill_kernels.h"
#include "src/runtime/cuda_device.h"

namespace batchproof::cuda {

Result<void> cuda_fill(const CudaFill& fill, void* stream) {
  FillLaunch launch;
  if (fill.kind != RecipeKind::normal && fill.kind != RecipeKind::wide_exponent)
    return fail(Error::Kind::operation, "inputs on the device: only normal and wide_exponent are made there");
  launch.wide = fill.kind == RecipeKind::wide_exponent;
  switch (fill.dtype) {
    case BP_FP32:
      launch.width = 0;
      break;
    case BP_BF16:
      launch.width = 1;
      break;
    case BP_FP16:
      launch.width = 2;
      break;
    default:
      return fail(Error::Kind::operation, "inputs on the device: only FP32, BF16 and FP16 are made there");
  }
  launch.seed = fill.seed;
  launch.name = fill.name;
  launch.row = fill.row;
  launch.rows = fill.rows;
  launch.columns = fill.columns;
  launch.out = fill.out;
  launch.row_stride = fill.row_stride;
  launch.column_stride = fill.column_stride;
  return cuda_check("making inputs on the device", launch_fill(launch, static_cast<cudaStream_t>(stream)));
}

Result<void> cuda_count_differing(const void* a, std::int64_t a_stride, const void* b, std::int64_t b_stride,
                                  std::int64_t rows, std::int64_t columns, int element_bytes, std::uint64_t* count,
                                  void* stream) {
  static_assert(sizeof(std::uint64_t) == sizeof(unsigned long long));
  if (element_bytes != 2 && element_bytes != 4)
    return fail(Error::Kind::internal, "comparison on the device takes elements of 2 or 4 bytes");
  return cuda_check(
      "comparing on the device",
      launch_count_differing(a, a_stride, b, b_stride, rows, columns, element_bytes,
                             reinterpret_cast<unsigned long long*>(count), static_cast<cudaStream_t>(stream)));
}

}  // namespace batchproof::cuda
