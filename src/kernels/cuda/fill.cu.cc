// SPDX-License-Identifier: Apache-2.0
//
// Inputs made on the device and byte comparison: checks in front of the launches.
#include "src/kernels/cuda/fill.h"

#include <fmt/format.h>

#include "src/kernels/cuda/fill_kernels.h"
#include "src/numeric/dtype.h"
#include "src/runtime/cuda_device.h"

namespace batchproof::cuda {

Result<void> cuda_fill(const CudaFill& fill, void* stream) {
  if (fill.kind == RecipeKind::file)
    return fail(Error::Kind::usage, "inputs on the device: a captured tensor is read on the host");
  const int bits = dtype_bits(fill.dtype);
  if (bits == 0) return fail(Error::Kind::usage, "inputs on the device: the dtype is none");
  if (bits == 4 && (fill.column_stride != 1 || fill.columns % 2 != 0 || fill.row_stride % 2 != 0))
    return fail(Error::Kind::usage,
                fmt::format("inputs on the device: {} is packed, so columns must be contiguous and even",
                            dtype_name(fill.dtype)));
  FillRequest request;
  request.spec.kind = fill.kind;
  request.spec.lo = fill.lo;
  request.spec.hi = fill.hi;
  request.dtype = fill.dtype;
  request.magnitude = fill.magnitude;
  request.scale = fill.scale;
  request.reduction_input = fill.reduction_input;
  FillLaunch launch;
  launch.plan = recipe_plan(request);
  launch.dtype = fill.dtype;
  launch.bits = bits;
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
