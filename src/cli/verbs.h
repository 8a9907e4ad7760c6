// SPDX-License-Identifier: Apache-2.0
//
// The verbs: what each was given on the command line, and the function that does it and returns the exit code.
#ifndef BATCHPROOF_SRC_CLI_VERBS_H_
#define BATCHPROOF_SRC_CLI_VERBS_H_

#include <string>
#include <vector>

#include "src/cli/flags.h"
#include "src/cli/reports.h"

namespace batchproof::cli {

struct CheckFlags {
  SelectionFlags selection;
  ReportFlags reports;
  std::string resume, perf, timeout, detail;
  bool fail_fast = false, as_cases = false, dry_run = false;
};

// `words`: the whole command line, for the report's context and for reproduce commands.
int run_check(const CheckFlags& flags, const std::vector<std::string>& words);

struct ScanFlags {
  SelectionFlags selection;  // device, comm, ranks, plugin, mode, impl, set, seed
  std::string op;
  std::string rows = "1..256";  // "1..1500", "1..64,129,193"
  std::string victims;          // empty: 32
  std::string suite, case_name;
  std::string json, timeout;
};
int run_scan(const ScanFlags& flags, const std::vector<std::string>& words);

struct ListFlags {
  bool json = false;
  std::string name;  // empty: all operators
};
int run_list(const ListFlags& flags);

int run_doctor();
int run_schema(const std::string& name);

struct NewFlags {
  std::string name;
  std::string language = "c";  // or "c++"
  std::string directory;       // empty: the name
};
int run_new(const NewFlags& flags);

// Hidden, the fresh process of `repeat`; a call of a plug-in may take `timeout` seconds. Reads cell ids from stdin, one
// JSON string a line, and prints one line of JSON per cell: {"ID": [{"port", "digest"}]}.
int run_digest(const SelectionFlags& flags, double timeout);

}  // namespace batchproof::cli

#endif  // BATCHPROOF_SRC_CLI_VERBS_H_
