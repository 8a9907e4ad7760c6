// SPDX-License-Identifier: Apache-2.0
//
// What a reduction stores, what it adds in, and the conversions between them, for host and device alike.
#ifndef BATCHPROOF_SRC_COMM_REDUCE_TYPES_H_
#define BATCHPROOF_SRC_COMM_REDUCE_TYPES_H_

#include <cstdint>

#include "batchproof/operator.h"
#include "src/numeric/bf16.h"
#include "src/numeric/fp16.h"
#include "src/numeric/host_device.h"

namespace batchproof::reduction {

struct Fp64 {
  using Stored = double;
  using Sum = double;
  BATCHPROOF_HD static Sum load(Stored value) { return value; }
  BATCHPROOF_HD static Stored store(Sum sum) {
    return sum != sum ? cast_bits<double>(std::uint64_t{0x7FF8000000000000}) : sum;
  }
};
struct Fp32 {
  using Stored = float;
  using Sum = float;
  BATCHPROOF_HD static Sum load(Stored value) { return value; }
  BATCHPROOF_HD static Stored store(Sum sum) { return sum != sum ? cast_bits<float>(kFp32Nan) : sum; }
};
struct Bf16 {
  using Stored = std::uint16_t;
  using Sum = float;
  BATCHPROOF_HD static Sum load(Stored bits) { return bf16_to_float(bits); }
  BATCHPROOF_HD static Stored store(Sum sum) { return float_to_bf16(sum); }
};
struct Fp16 {
  using Stored = std::uint16_t;
  using Sum = float;
  BATCHPROOF_HD static Sum load(Stored bits) { return fp16_to_float(bits); }
  BATCHPROOF_HD static Stored store(Sum sum) { return float_to_fp16(sum); }
};
// Unsigned, because signed overflow has no meaning in C++.
template <class Unsigned>
struct Integer {
  using Stored = Unsigned;
  using Sum = Unsigned;
  BATCHPROOF_HD static Sum load(Stored value) { return value; }
  BATCHPROOF_HD static Stored store(Sum sum) { return sum; }
};

// use(Type{}) with the type of the dtype, one that reduce_error accepts; nothing for any other.
template <class Use>
void with_type(bp_dtype dtype, const Use& use) {
  switch (dtype) {
    case BP_FP64:
      return use(Fp64{});
    case BP_FP32:
      return use(Fp32{});
    case BP_BF16:
      return use(Bf16{});
    case BP_FP16:
      return use(Fp16{});
    case BP_INT32:
      return use(Integer<std::uint32_t>{});
    case BP_INT64:
      return use(Integer<std::uint64_t>{});
    default:
      return;
  }
}

}  // namespace batchproof::reduction

#endif  // BATCHPROOF_SRC_COMM_REDUCE_TYPES_H_
