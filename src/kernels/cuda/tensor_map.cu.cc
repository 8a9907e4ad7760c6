// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/cuda/tensor_map.h"

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace batchproof::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// The driver's function without linking the driver, so that the program starts on a machine that has none.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result) !=
            cudaSuccess ||
        result != cudaDriverEntryPointSuccess)
      found = nullptr;
    return reinterpret_cast<EncodeTiled>(found);
  }();
  return function;
}

}  // namespace

Result<CUtensorMap> encode_tensor_map(const TensorView& v) {
  const EncodeTiled encode = encode_tiled();
  if (encode == nullptr) return fail(Error::Kind::environment, "the CUDA driver has no cuTensorMapEncodeTiled");
  cuuint64_t sizes[4], strides[3];
  cuuint32_t box[4];
  for (std::size_t i = 0; i < 4; ++i) {
    sizes[i] = static_cast<cuuint64_t>(v.sizes[i]);
    box[i] = static_cast<cuuint32_t>(v.box[i]);
    if (i < 3) strides[i] = static_cast<cuuint64_t>(v.strides[i]);
  }
  const cuuint32_t element[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUtensorMapDataType type = v.dtype == BP_BF16   ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                   : v.dtype == BP_FP16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                        : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  const CUresult status =
      encode(&map, type, v.rank, const_cast<void*>(v.data), sizes, strides, box, element, CU_TENSOR_MAP_INTERLEAVE_NONE,
             v.swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    return fail(
        Error::Kind::internal,
        fmt::format("cuTensorMapEncodeTiled(sizes {}, strides {}, box {}) failed with {}", fmt::join(v.sizes, " x "),
                    fmt::join(v.strides, ", "), fmt::join(v.box, " x "), static_cast<int>(status)));
  return map;
}

}  // namespace batchproof::cuda
