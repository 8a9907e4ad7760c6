// SPDX-License-Identifier: Apache-2.0
//
// Whole parts: how many it takes, and where the last one ends.
#ifndef BATCHPROOF_SRC_NUMERIC_DIVIDE_H_
#define BATCHPROOF_SRC_NUMERIC_DIVIDE_H_

#include <cstddef>
#include <cstdint>

namespace batchproof {

// Parts of `unit` that cover `value`. value >= 0, unit > 0, and their sum fits.
constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit; }

// The smallest multiple of `unit` that is not below `value`.
constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) { return ceil_div(value, unit) * unit; }

// The same for sizes in bytes; `alignment` need not be a power of two.
constexpr std::size_t align_up(std::size_t bytes, std::size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_NUMERIC_DIVIDE_H_
