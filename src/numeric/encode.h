// SPDX-License-Identifier: Apache-2.0
//
// A double as the code of a dtype, for host and device alike.
#ifndef BATCHPROOF_SRC_NUMERIC_ENCODE_H_
#define BATCHPROOF_SRC_NUMERIC_ENCODE_H_

#include <cmath>
#include <cstdint>

#include "batchproof/operator.h"
#include "src/numeric/bf16.h"
#include "src/numeric/e8m0.h"
#include "src/numeric/fp16.h"
#include "src/numeric/fp8.h"
#include "src/numeric/host_device.h"

namespace batchproof {

constexpr std::uint64_t kFp64Nan = 0x7FF8000000000000u;

// To nearest, ties to even, whatever the rounding mode; then saturated. NaN gives 0.
BATCHPROOF_HD inline std::int64_t round_to_integer(double value, double low, double high, std::int64_t low_code,
                                                   std::int64_t high_code) {
  if (value != value) return 0;
  if (value <= low) return low_code;
  if (value >= high) return high_code;
  const double down = floor(value);
  const double rest = sub_rn(value, down);  // exact: beyond 2^52 it is 0
  const std::int64_t floor_code = static_cast<std::int64_t>(down);
  const bool up = rest > 0.5 || (rest == 0.5 && (floor_code & 1) != 0);
  return floor_code + (up ? 1 : 0);
}

// FP32 by rounding to odd: rounding that again to a shorter format gives what rounding the double once gives.
BATCHPROOF_HD inline float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (value != value || static_cast<double>(nearest) == value) return nearest;
  std::uint32_t bits = cast_bits<std::uint32_t>(nearest);
  // Magnitudes are ordered as their bits: one step towards zero where the nearest one lies above.
  if (fabs(static_cast<double>(nearest)) > fabs(value)) --bits;
  return cast_bits<float>(bits | 1u);
}

BATCHPROOF_HD inline std::uint64_t encode_bits(bp_dtype dtype, double value) {
  switch (dtype) {
    case BP_FP64:
      return value != value ? kFp64Nan : cast_bits<std::uint64_t>(value);
    case BP_FP32:
      return value != value ? kFp32Nan : cast_bits<std::uint32_t>(static_cast<float>(value));
    case BP_BF16:
      return float_to_bf16(round_to_odd(value));
    case BP_FP16:
      return float_to_fp16(round_to_odd(value));
    case BP_E4M3:
      return float_to_e4m3(round_to_odd(value));
    case BP_E5M2:
      return float_to_e5m2(round_to_odd(value));
    case BP_E2M1:
      return float_to_e2m1(round_to_odd(value));
    case BP_E8M0:
      return float_to_e8m0(round_to_odd(value));
    case BP_INT4:
      return static_cast<std::uint64_t>(round_to_integer(value, -8.0, 7.0, -8, 7)) & 0xFu;
    case BP_INT8:
      return static_cast<std::uint64_t>(round_to_integer(value, -128.0, 127.0, -128, 127)) & 0xFFu;
    case BP_UINT8:
      return static_cast<std::uint64_t>(round_to_integer(value, 0.0, 255.0, 0, 255));
    case BP_INT32:
      return static_cast<std::uint64_t>(round_to_integer(value, -0x1p31, 0x1p31 - 1.0, INT32_MIN, INT32_MAX)) &
             0xFFFFFFFFu;
    case BP_INT64:
      return static_cast<std::uint64_t>(round_to_integer(value, -0x1p63, 0x1p63, INT64_MIN, INT64_MAX));
    default:
      return 0;
  }
}

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_NUMERIC_ENCODE_H_
