// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm on CUDA: checks, warps per row, grid.
#include "src/kernels/cuda/rms_norm.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "src/kernels/cuda/rms_norm_kernels.h"
#include "src/numeric/divide.h"
#include "src/runtime/cuda_device.h"

namespace batchproof::cuda {
namespace {

constexpr std::int64_t kMostColumns = std::int64_t{1} << 24;  // counted exactly in FP32
// Below this many warps on each multiprocessor more warps per row bring time.
constexpr std::int64_t kWarpsPerProcessor = 16;

std::int64_t element_bytes(const CudaRmsNormCall& call) { return call.dtype == BP_BF16 ? 2 : 4; }

bool whole_vectors(const void* data, std::int64_t row_stride, const CudaRmsNormCall& call) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 &&
         (call.rows == 1 || row_stride * element_bytes(call) % 16 == 0);
}

Result<void> check(const CudaRmsNormCall& call) {
  if (call.rows < 0 || call.columns < 1 || call.columns > kMostColumns)
    return fail(Error::Kind::usage, fmt::format("rms_norm: {} rows of {} columns; 1 to {} columns are supported",
                                                call.rows, call.columns, kMostColumns));
  if (call.dtype != BP_BF16 && call.dtype != BP_FP32)
    return fail(Error::Kind::usage, "rms_norm: x must be BF16 or FP32");
  const int w = call.warps;
  if (w != 0 && (w < 0 || w > kRmsMostWarps || (w & (w - 1)) != 0))
    return fail(Error::Kind::usage,
                fmt::format("rms_norm: {} warps per row; 1, 2, 4, 8 and 16 are supported, 0 chooses", w));
  return {};
}

}  // namespace

Result<int> cuda_rms_norm_warps(const CudaRmsNormCall& call) {
  const Result<DeviceInfo> device = current_device();
  if (!device) return tl::unexpected<Error>(device.error());
  const std::int64_t chunks = ceil_div(call.columns, kCudaRmsChunk);
  const std::int64_t held = call.dtype == BP_BF16 ? kRmsMostHeld : kRmsMostHeld / 2;
  // Measured on an H200 at 16384 rows: 4 KiB of a row or less in a warp, in registers.
  int warps = call.dtype == BP_BF16 ? 4 : 8;
  while (warps > 1 && warps > chunks) warps /= 2;
  while (warps < kRmsMostWarps && ceil_div(chunks, warps) > held) warps *= 2;
  const std::int64_t enough = kWarpsPerProcessor * device->processors;
  while (warps < kRmsMostWarps && warps < chunks && call.rows * warps < enough) warps *= 2;
  return warps;
}

Result<void> cuda_rms_norm(const CudaRmsNormCall& call, void* stream) {
  if (auto fits = check(call); !fits) return fits;
  if (call.rows == 0) return {};
  const Result<int> chosen = call.warps != 0 ? Result<int>(call.warps) : cuda_rms_norm_warps(call);
  if (!chosen) return tl::unexpected<Error>(chosen.error());
  RmsNormLaunch launch{};
  launch.x = call.x;
  launch.x_row = call.x_row;
  launch.weight = call.weight;
  launch.y = call.y;
  launch.y_row = call.y_row;
  launch.rows = call.rows;
  launch.columns = static_cast<std::int32_t>(call.columns);
  launch.eps = call.eps;
  launch.bf16 = call.dtype == BP_BF16;
  launch.vector_x = whole_vectors(call.x, call.x_row, call);
  launch.vector_weight = whole_vectors(call.weight, 0, call);
  launch.vector_y = whole_vectors(call.y, call.y_row, call);
  launch.order = call.order;
  launch.warps_log2 = std::countr_zero(static_cast<unsigned>(*chosen));
  std::int64_t blocks = ceil_div(call.rows, std::max(kRmsBlockWarps / *chosen, 1));
  if (call.processors > 0) blocks = std::min<std::int64_t>(blocks, call.processors);
  launch.blocks = static_cast<int>(std::min<std::int64_t>(blocks, INT32_MAX));
  return cuda_check(fmt::format("launching rms_norm of {} rows of {} columns", call.rows, call.columns),
                    launch_rms_norm(launch, static_cast<cudaStream_t>(stream)));
}

}  // namespace batchproof::cuda
