// SPDX-License-Identifier: Apache-2.0
//
// What the text reports say about accuracy, performance and memory. One form for all three.
#ifndef BATCHPROOF_SRC_REPORT_DESCRIBE_STANDARDS_H_
#define BATCHPROOF_SRC_REPORT_DESCRIBE_STANDARDS_H_

#include <string>
#include <vector>

#include "src/report/describe.h"

namespace batchproof {

struct StandardView {
  const char* name = "";  // acc, perf, mem: as in a suite
  Verdict verdict = Verdict::skipped;
  Verdict expected = Verdict::pass;
  bool reported = false;           // measured, not judged
  std::string reason;              // one line
  std::vector<std::string> facts;  // the numbers, one line each
};

// Those that the cell has, in the order acc, perf, mem.
std::vector<StandardView> standard_views(const CellResult& cell);
// How a standard stands to what was expected of it.
Outcome outcome(const CellResult& cell, const StandardView& view);
// "wrong", "reported", ...
const char* verdict_word(const StandardView& view);

// One thing that made a cell fail: a relation, a standard, or the cell as a whole.
struct Failure {
  std::string what;  // "position", "acc"; empty: the cell
  Verdict verdict = Verdict::error;
  Outcome outcome = Outcome::bad;
  std::string headline;            // one sentence
  std::vector<std::string> facts;  // one line each
};
// In report order: relations, standards; the cell alone where none of them explains it. Empty where it did not fail.
std::vector<Failure> failures(const CellResult& cell);

// "mean of perf over 12 cells of matmul/cpu-...: 0.93, must be above 0.95".
std::string mean_text(const PerformanceMean& mean);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_REPORT_DESCRIBE_STANDARDS_H_
