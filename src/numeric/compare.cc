// SPDX-License-Identifier: Apache-2.0
//
// Byte and ULP comparison.
#include "src/numeric/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "src/numeric/dtype.h"

namespace batchproof {
namespace {

std::uint64_t load_word(const unsigned char* bytes) {
  std::uint64_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

// Number of bytes of `word` that are not zero: folds each byte onto its lowest bit, then adds the eight bits up.
std::uint64_t count_nonzero_bytes(std::uint64_t word) {
  word |= word >> 4;
  word |= word >> 2;
  word |= word >> 1;
  word &= 0x0101010101010101u;
  return word * 0x0101010101010101u >> 56;
}

bool has_ulp(bp_dtype dtype) { return is_floating(dtype) && dtype_bits(dtype) >= 8; }

}  // namespace

std::uint64_t count_differing_bytes(const void* a, const void* b, std::size_t size) {
  if (size == 0 || std::memcmp(a, b, size) == 0) return 0;
  const auto* x = static_cast<const unsigned char*>(a);
  const auto* y = static_cast<const unsigned char*>(b);
  std::uint64_t count = 0;
  std::size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    const std::uint64_t word = load_word(x + i) ^ load_word(y + i);
    if (word != 0) count += count_nonzero_bytes(word);
  }
  for (; i < size; ++i) count += x[i] != y[i] ? 1u : 0u;
  return count;
}

std::size_t first_differing_byte(const void* a, const void* b, std::size_t size) {
  const auto* x = static_cast<const unsigned char*>(a);
  const auto* y = static_cast<const unsigned char*>(b);
  std::size_t i = 0;
  while (i + 8 <= size && load_word(x + i) == load_word(y + i)) i += 8;
  while (i < size && x[i] == y[i]) ++i;
  return i;
}

std::string element_hex(bp_dtype dtype, const void* data, std::int64_t index) {
  const int bits = dtype_bits(dtype);
  if (bits == 0) return "0x";
  if (bits == 4) return fmt::format("0x{:02x}", static_cast<const unsigned char*>(data)[index / 2]);
  return fmt::format("0x{:0{}x}", load_bits(dtype, data, index), bits / 4);
}

std::optional<std::uint64_t> ulp_distance(bp_dtype dtype, std::uint64_t bits_a, std::uint64_t bits_b) {
  if (!has_ulp(dtype)) return std::nullopt;
  const int width = dtype_bits(dtype);
  const std::uint64_t sign = std::uint64_t{1} << (width - 1);
  const std::uint64_t mask = sign | (sign - 1);
  // E4M3 has no infinity: its NaN is all that lies above the largest finite code.
  const std::uint64_t last = infinity_bits(dtype).value_or(largest_bits(dtype));
  std::uint64_t key[2] = {bits_a & mask, bits_b & mask};
  for (std::uint64_t& k : key) {
    if ((k & ~sign) > last) return std::nullopt;
    k = (k & sign) != 0 ? mask - k : k + sign;  // -0 maps to sign - 1, +0 to sign
  }
  return key[0] > key[1] ? key[0] - key[1] : key[1] - key[0];
}

RowDifference compare_rows(bp_dtype dtype, const void* a, const void* b, std::int64_t count) {
  RowDifference difference;
  const std::size_t size = dtype_bytes(dtype, count);
  difference.bytes_differing = count_differing_bytes(a, b, size);
  if (difference.equal()) return difference;

  const std::size_t first = first_differing_byte(a, b, size);
  difference.first_byte = static_cast<std::int64_t>(first);
  const int bits = dtype_bits(dtype);
  if (bits == 4) {
    difference.first_element = difference.first_byte * 2;
    if (load_bits(dtype, a, difference.first_element) == load_bits(dtype, b, difference.first_element)) {
      ++difference.first_element;
    }
  } else {
    difference.first_element = difference.first_byte / (bits / 8);
  }
  difference.hex_a = element_hex(dtype, a, difference.first_element);
  difference.hex_b = element_hex(dtype, b, difference.first_element);
  difference.value_a = decode_element(dtype, a, difference.first_element);
  difference.value_b = decode_element(dtype, b, difference.first_element);
  difference.ulp =
      ulp_distance(dtype, load_bits(dtype, a, difference.first_element), load_bits(dtype, b, difference.first_element));
  if (!has_ulp(dtype)) return difference;
  for (std::int64_t i = difference.first_element; i < count; ++i) {
    const std::uint64_t bits_a = load_bits(dtype, a, i);
    const std::uint64_t bits_b = load_bits(dtype, b, i);
    if (bits_a == bits_b) continue;
    difference.max_ulp = std::max(difference.max_ulp, ulp_distance(dtype, bits_a, bits_b).value_or(0));
  }
  return difference;
}

}  // namespace batchproof
