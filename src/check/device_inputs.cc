// SPDX-License-Identifier: Apache-2.0
#include "src/check/device_inputs.h"

#include "src/numeric/dtype.h"

namespace batchproof {

#ifndef BATCHPROOF_HAVE_CUDA
bool fill_on_device(Device* /*device*/, const FillRequest& /*request*/, std::int64_t /*rows*/, void* /*out*/) {
  return false;
}
#endif

void make_inputs(Device* device, FillRequest request, std::int64_t rows, void* out) {
  if (request.count <= 0 || fill_on_device(device, request, rows, out)) return;
  const std::size_t bytes = dtype_bytes(request.dtype, request.count);
  for (std::int64_t row = 0; row < rows; ++row, ++request.row)
    fill(request, static_cast<std::byte*>(out) + static_cast<std::size_t>(row) * bytes);
}

}  // namespace batchproof
