// SPDX-License-Identifier: Apache-2.0
//
// What a bp_dtype is: its size, its names, its extremes, and its elements as doubles.
#ifndef BATCHPROOF_SRC_NUMERIC_DTYPE_H_
#define BATCHPROOF_SRC_NUMERIC_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "batchproof/operator.h"

namespace batchproof {

// Every dtype but BP_NONE, in the order of their numbers.
const std::vector<bp_dtype>& all_dtypes();

// Bits of one element: 4 for the packed dtypes; 0 for BP_NONE and for a number that is no dtype.
int dtype_bits(bp_dtype dtype);
// Bytes of `count` contiguous elements; an odd count of a packed dtype fills its last byte half.
std::size_t dtype_bytes(bp_dtype dtype, std::int64_t count);

// "fp32", "bf16", "e4m3", ...; "none" for BP_NONE, "unknown" for a number that is no dtype.
const char* dtype_name(bp_dtype dtype);
// Those names, and what case files write for them: "float16", "half", "bfloat16", "float32", "float", "float8_e4m3fn",
// "fp8_e5m2", "float8_e8m0fnu", "int64_t", ... Upper or lower case. Nothing for a name without a dtype here ("hif8").
std::optional<bp_dtype> dtype_from_name(std::string_view name);

bool is_integer(bp_dtype dtype);   // INT4, INT8, UINT8, INT32, INT64
bool is_floating(bp_dtype dtype);  // FP64, FP32, BF16, FP16, E4M3, E5M2, E2M1; not the scale format E8M0
// Codes that mean something only with a scale: INT8, INT4, E4M3, E5M2, E2M1.
bool is_quantised(bp_dtype dtype);

// Bits of the one NaN that our operators store (C4); nothing where the dtype has no NaN.
std::optional<std::uint64_t> canonical_nan_bits(bp_dtype dtype);
// Bits of +infinity; nothing where the dtype has none.
std::optional<std::uint64_t> infinity_bits(bp_dtype dtype);
// Bits and value of the largest finite element. Lowest: the most negative finite value; 0 for UINT8, 2^-127 for E8M0.
std::uint64_t largest_bits(bp_dtype dtype);
double largest_value(bp_dtype dtype);
double lowest_value(bp_dtype dtype);

// Raw bits of element `index`, in the low bits of the result; a packed dtype's low nibble comes first.
std::uint64_t load_bits(bp_dtype dtype, const void* data, std::int64_t index);
// Writes the low bits of `bits`; a packed element leaves its neighbour in the byte as it is.
void store_bits(bp_dtype dtype, std::uint64_t bits, void* data, std::int64_t index);

// Element `index` as a double; INT64 beyond 2^53 rounds.
double decode_element(bp_dtype dtype, const void* data, std::int64_t index);
// Rounds `value` once to the dtype, to nearest, ties to even, and stores it as element `index`. FP32, BF16, FP16
// overflow to infinity; FP8, E2M1 and E8M0 saturate (fp8.h, e8m0.h); integers saturate, NaN gives 0. NaN is stored as
// the canonical one.
void encode_element(bp_dtype dtype, double value, void* data, std::int64_t index);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_NUMERIC_DTYPE_H_
