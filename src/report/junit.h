// SPDX-License-Identifier: Apache-2.0
//
// JUnit XML in the subset that Jenkins' schema allows: a test suite per operator, a test case per cell.
#ifndef BATCHPROOF_SRC_REPORT_JUNIT_H_
#define BATCHPROOF_SRC_REPORT_JUNIT_H_

#include <ostream>

#include "src/report/reporter.h"

namespace batchproof {

// Writes one document at the end. The schema knows neither file and line nor properties of a test case: these stand in
// the case's system-out, one `[[PROPERTY|name=value]]` a line, as report viewers expect.
class JunitReporter : public Reporter {
 public:
  explicit JunitReporter(std::ostream& out) : out_(out) {}
  void begin(const RunContext&) override {}
  void cell(const CellResult&) override {}
  void end(const RunResult& result) override;

 private:
  std::ostream& out_;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_REPORT_JUNIT_H_
