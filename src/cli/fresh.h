// SPDX-License-Identifier: Apache-2.0
//
// Base runs in a fresh process: this program starts itself once with the hidden verb `digest`.
#ifndef BATCHPROOF_SRC_CLI_FRESH_H_
#define BATCHPROOF_SRC_CLI_FRESH_H_

#include <string>
#include <vector>

#include "src/check/runner.h"
#include "src/cli/flags.h"
#include "src/runtime/error.h"

namespace batchproof::cli {

// Digests of `cells`, made by a child with the same suites and flags. A child that gives nothing for `timeout` seconds,
// or the largest limit of a cell where that is more, is killed. Errors: the child could not start, died, or was killed.
Result<CellDigests> digest_in_fresh_process(const std::vector<Cell>& cells, const std::vector<std::string>& suites,
                                            const SelectionFlags& flags, double timeout);

// As text and back, for other processes of a launch.
std::string digests_to_text(const CellDigests& digests);
CellDigests digests_from_text(const std::string& text);

}  // namespace batchproof::cli

#endif  // BATCHPROOF_SRC_CLI_FRESH_H_
