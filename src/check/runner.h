// SPDX-License-Identifier: Apache-2.0
//
// Runs cells: the base run, the relations with their witnesses, the verdicts.
#ifndef BATCHPROOF_SRC_CHECK_RUNNER_H_
#define BATCHPROOF_SRC_CHECK_RUNNER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/check/host.h"
#include "src/check/result.h"
#include "src/runtime/device.h"
#include "src/suite/suite.h"

namespace batchproof {

// What base runs gave, per cell id: digests of the output ports, or why there are none.
using CellDigests = std::map<std::string, Result<std::vector<PortDigest>>>;

struct RunOptions {
  std::uint64_t seed = 1;
  bool fail_fast = false;
  std::uint32_t relations = 0;  // narrows or widens every cell's relations; 0: as the cell says
  // The command that reproduces a cell, given its id and suite file; printed with failures.
  std::function<std::string(const Cell& cell)> reproduce;
  // Base runs made in a fresh process; part of `repeat`. A cell that it leaves out is an error. Empty function: not
  // made; nothing: the process was lost, which the caller reports.
  std::function<std::optional<CellDigests>(const std::vector<Cell>& cells)> fresh_process;
  // Called after each cell, in order.
  std::function<void(const CellResult& result)> on_cell;
  // The host of an operator that does not run in this process (a plug-in); nullptr, like an empty function: this
  // process. Hosts outlive the run.
  std::function<OperatorHost*(const bp_operator* table)> host;
  // Where implementations with BP_IMPL_CUDA run, in this process; nullptr: their cells are errors. Outlives the run.
  Device* device = nullptr;
  // Seconds that one call may take where the cell has no limit of its own. Only hosts outside this process can stop
  // one.
  std::optional<double> timeout_s;
  PerfMode perf = PerfMode::report;
};

// Runs the cells in order. The context of the result is left for the caller to fill.
RunResult run_cells(const std::vector<Cell>& cells, const RunOptions& options);

// Only the base run of each cell that is not skipped, for digests. Of the options, seed, host and timeout_s are used.
// `on_cell` is called after each of them, with its digests alone.
CellDigests digest_cells(const std::vector<Cell>& cells, const RunOptions& options,
                         const std::function<void(const CellDigests& one)>& on_cell = {});
inline CellDigests digest_cells(const std::vector<Cell>& cells, std::uint64_t seed) {
  RunOptions options;
  options.seed = seed;
  return digest_cells(cells, options);
}

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_CHECK_RUNNER_H_
