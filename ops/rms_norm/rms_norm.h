// SPDX-License-Identifier: Apache-2.0
//
// What rms_norm's table shares with the benchmark on a device: the rule of fast mode.
#ifndef BATCHPROOF_OPS_RMS_NORM_RMS_NORM_H_
#define BATCHPROOF_OPS_RMS_NORM_RMS_NORM_H_

#include <cstdint>

namespace batchproof {

// A serving engine's rule: fewer rows than this get large blocks.
constexpr std::int64_t kRmsFewRows = 256;

// The same rule on CUDA, where a warp does the work of several threads: warps of one row.
constexpr int rms_fast_warps(std::int64_t rows) { return rows < kRmsFewRows ? 8 : 2; }

}  // namespace batchproof

#endif  // BATCHPROOF_OPS_RMS_NORM_RMS_NORM_H_
