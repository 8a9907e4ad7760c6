// SPDX-License-Identifier: Apache-2.0
//
// Comparison of bytes (C4): what differs, where first, and by how many units in the last place. No tolerance.
#ifndef BATCHPROOF_SRC_NUMERIC_COMPARE_H_
#define BATCHPROOF_SRC_NUMERIC_COMPARE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "batchproof/operator.h"

namespace batchproof {

// Number of positions 0..size-1 where a and b hold different bytes.
std::uint64_t count_differing_bytes(const void* a, const void* b, std::size_t size);
// First such position; `size` where there is none.
std::size_t first_differing_byte(const void* a, const void* b, std::size_t size);

// An element as it is stored, most significant byte first: "0x3f8ccccd". A packed element is shown as its whole byte.
std::string element_hex(bp_dtype dtype, const void* data, std::int64_t index);

// How many values of the dtype lie between two elements, given by their bits, plus one; 0 for equal bits. The order is
// that of the values with -0 just below +0, so the two zeros are 1 apart, and infinity follows the largest finite
// value. Nothing where either is NaN or the dtype has no ULP (integers, E8M0, E2M1).
std::optional<std::uint64_t> ulp_distance(bp_dtype dtype, std::uint64_t bits_a, std::uint64_t bits_b);

struct RowDifference {
  std::uint64_t bytes_differing = 0;
  std::int64_t first_byte = -1;     // -1: none differs
  std::int64_t first_element = -1;  // packed dtypes: the first nibble that differs
  std::string hex_a;                // of the first differing element; empty where none differs
  std::string hex_b;
  double value_a = 0.0;
  double value_b = 0.0;
  std::optional<std::uint64_t> ulp;  // of the first differing element
  std::uint64_t max_ulp = 0;         // over all differing elements that have a distance

  bool equal() const { return bytes_differing == 0; }
};

// Compares two rows of `count` contiguous elements. Equal rows cost one memcmp. Where a packed row has an odd count,
// the unused half of its last byte is compared as well: bytes, not values.
RowDifference compare_rows(bp_dtype dtype, const void* a, const void* b, std::int64_t count);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_NUMERIC_COMPARE_H_
