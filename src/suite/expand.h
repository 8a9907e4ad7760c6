// SPDX-License-Identifier: Apache-2.0
//
// Expands cases into cells: the product of a case's axes, with operator, implementation, attributes and dtypes
// resolved.
#ifndef BATCHPROOF_SRC_SUITE_EXPAND_H_
#define BATCHPROOF_SRC_SUITE_EXPAND_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/runtime/error.h"
#include "src/suite/suite.h"

namespace batchproof {

// Points of the axes of all cases of one suite, before `where`.
constexpr std::size_t kMaxSuitePoints = 1'000'000;

// What the command line says about the cells.
struct ExpandOptions {
  std::vector<int> ranks;  // world sizes for cases without a W axis; empty: the operator's default
  std::string filter;      // regular expression (ECMAScript) searched in the cell id; empty: all
  int shard_index = 0;     // 0-based; cell i belongs to shard i % shard_count, counted behind the filter
  int shard_count = 1;
  std::string impl;                        // in place of every case's implementation
  std::optional<bp_mode> mode;             // in place of every case's mode
  std::map<std::string, std::string> set;  // attribute -> value as text, over what cases say
  bool on_cuda = false;                    // --device cuda: cases for the host are skipped, and the other way round
  std::uint32_t relations = 0;             // in place of every case's relations; 0: as the case says
};

// The cells in order: cases as in the file, the first axis slowest. May be empty only because of filter or shard.
// Nothing is validated by the operator here, so a cell may be one that the operator refuses; only the ATK dialect,
// which does not state a world size, asks the operator which ones it accepts. Errors are of kind usage; those that the
// suite is to blame for begin with "path:line:column: ".
Result<std::vector<Cell>> expand(const Suite& suite, const ExpandOptions& options);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_SUITE_EXPAND_H_
