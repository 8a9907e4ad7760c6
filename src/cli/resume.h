// SPDX-License-Identifier: Apache-2.0
//
// --resume: results of an earlier run, stopped or complete, that this run need not make again.
#ifndef BATCHPROOF_SRC_CLI_RESUME_H_
#define BATCHPROOF_SRC_CLI_RESUME_H_

#include <map>
#include <string>

#include "src/check/result.h"
#include "src/runtime/error.h"

namespace batchproof::cli {

// The journal of a run whose JSON report is `path`; there while the run goes on or after it was stopped.
std::string journal_path(const std::string& path);

// Results by cell id. Takes the journal where there is one, else the report. `may_be_missing`: neither is fine and
// means that nothing was done yet. Error (usage): unreadable, or made by another program, other suites, another seed or
// other overrides than `context`.
Result<std::map<std::string, CellResult>> load_resume(const std::string& path, bool may_be_missing,
                                                      const RunContext& context);

}  // namespace batchproof::cli

#endif  // BATCHPROOF_SRC_CLI_RESUME_H_
