// SPDX-License-Identifier: Apache-2.0
//
// From flags to cells: finds the suites, loads and expands them.
#ifndef BATCHPROOF_SRC_CLI_SELECT_H_
#define BATCHPROOF_SRC_CLI_SELECT_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/check/host.h"
#include "src/cli/flags.h"
#include "src/plugin/plugin.h"
#include "src/runtime/error.h"
#include "src/suite/suite.h"

namespace batchproof::cli {

struct Selection {
  std::vector<std::shared_ptr<Plugin>> plugins;  // as long as these are open, their operators are found by name
  std::vector<Suite> suites;
  std::vector<Cell> cells;
  SelectionOptions options;
};

// The folder with one folder per operator: in the source tree where that is there, else ../share/batchproof/ops beside
// the program. Empty where neither exists.
std::string ops_folder();

// Every ci.json and controls.json below ops_folder(), sorted; on a CUDA device cuda.json and cuda_controls.json.
std::vector<std::string> discover_suites(bool on_cuda = false);

// Runs cells of plug-ins in their workers; for RunOptions::host. The selection outlives it.
std::function<OperatorHost*(const bp_operator*)> plugin_hosts(const Selection& selection);

// Cell i of the whole selection belongs to shard 1 + i % n.
// Errors: of kind usage, for a flag, a plug-in, a suite, nothing selected (an empty shard is fine) or two cells of one
// id; of kind environment where no suite was given and no folder of operators is found.
Result<Selection> select_cells(const SelectionFlags& flags);

}  // namespace batchproof::cli

#endif  // BATCHPROOF_SRC_CLI_SELECT_H_
