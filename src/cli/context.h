// SPDX-License-Identifier: Apache-2.0
//
// The facts about this program and machine that reports carry.
#ifndef BATCHPROOF_SRC_CLI_CONTEXT_H_
#define BATCHPROOF_SRC_CLI_CONTEXT_H_

#include <string>
#include <vector>

#include "src/check/result.h"
#include "src/cli/select.h"
#include "src/runtime/error.h"

namespace batchproof::cli {

std::string program_version();  // "0.1.0"
std::string program_build();    // revision at configure time, or "unknown"
std::string device_text();      // "cpu: MODEL, 2 threads, avx2"

// `words`: the command line. `digests`: whether to compute build ids, which reads the whole program.
Result<RunContext> make_context(const std::vector<std::string>& words, const Selection& selection, bool digests);

}  // namespace batchproof::cli

#endif  // BATCHPROOF_SRC_CLI_CONTEXT_H_
