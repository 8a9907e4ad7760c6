// SPDX-License-Identifier: Apache-2.0
//
// Driver of the RMSNorm kernels: checks and the partition of rows over threads.
#include "src/kernels/cpu/rms_norm.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "src/kernels/cpu/rms_norm_region.h"
#include "src/numeric/divide.h"
#include "src/runtime/thread_pool.h"

namespace batchproof {
namespace {

constexpr std::int64_t kPartBytes = 256 * 1024;

Result<RmsNormKernel> kernel_of(const std::optional<Isa>& wanted) {
  const Result<Isa> isa = wanted ? Result<Isa>(*wanted) : selected_isa();
  if (!isa) return tl::unexpected<Error>(isa.error());
  const std::vector<Isa> available = available_isas();
  if (std::find(available.begin(), available.end(), *isa) == available.end())
    return fail(Error::Kind::environment, fmt::format("this processor has no {}", isa_name(*isa)));
#if defined(__x86_64__)
  if (*isa == Isa::avx512) return kRmsNormAvx512;
  if (*isa == Isa::avx2) return kRmsNormAvx2;
#endif
  return kRmsNormPlain;
}

}  // namespace

Result<void> rms_norm(const RmsNormCall& call) {
  if (call.rows < 0 || call.columns < 1)
    return fail(Error::Kind::usage, fmt::format("rms_norm: {} rows of {} columns", call.rows, call.columns));
  if (call.dtype != BP_BF16 && call.dtype != BP_FP32)
    return fail(Error::Kind::usage, "rms_norm: x must be BF16 or FP32");
  if (call.order.segment < 16 || call.order.segment % 16 != 0 || call.order.threads < 0 || call.order.threads % 32 != 0)
    return fail(Error::Kind::usage, "rms_norm: segments are multiples of 16 columns, threads multiples of 32");
  const auto kernel = kernel_of(call.isa);
  if (!kernel) return tl::unexpected<Error>(kernel.error());
  if (call.rows == 0) return {};
  const bool bf16 = call.dtype == BP_BF16;
  const std::int64_t size = bf16 ? 2 : 4;
  RmsNormRegion whole = {};
  whole.columns = call.columns;
  whole.bf16 = bf16;
  whole.x_row = call.x_row;
  whole.weight = call.weight;
  whole.y_row = call.y_row;
  whole.eps = call.eps;
  whole.segment = call.order.segment;
  whole.descending = call.order.descending;
  whole.threads = call.order.threads;
  const std::int64_t by_cache = std::max<std::int64_t>(kPartBytes / (call.columns * size), 1);
  const std::int64_t by_threads = (call.rows + call.threads - 1) / std::max(call.threads, 1);
  const std::int64_t part = std::min(by_cache, by_threads);
  parallel_for(call.threads, ceil_div(call.rows, part), [&](std::int64_t p) {
    RmsNormRegion region = whole;
    region.rows = std::min(part, call.rows - p * part);
    region.x = static_cast<const char*>(call.x) + p * part * call.x_row * size;
    region.y = static_cast<char*>(call.y) + p * part * call.y_row * size;
    (*kernel)(region);
  });
  return {};
}

}  // namespace batchproof
