// SPDX-License-Identifier: Apache-2.0
//
// TAP version 14: a test point per cell, a YAML block below the ones that fail. The plan comes last, so that points
// can be written as cells end.
#ifndef BATCHPROOF_SRC_REPORT_TAP_H_
#define BATCHPROOF_SRC_REPORT_TAP_H_

#include <ostream>

#include "src/report/reporter.h"

namespace batchproof {

class TapReporter : public Reporter {
 public:
  explicit TapReporter(std::ostream& out) : out_(out) {}
  void begin(const RunContext& context) override;
  void cell(const CellResult& result) override;
  void end(const RunResult& result) override;

 private:
  std::ostream& out_;
  int count_ = 0;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_REPORT_TAP_H_
