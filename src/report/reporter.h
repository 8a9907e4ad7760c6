// SPDX-License-Identifier: Apache-2.0
//
// The one interface behind every report format. A reporter writes to the stream that it was given; it opens no file
// and prints nowhere else. docs/reports.md describes the formats.
#ifndef BATCHPROOF_SRC_REPORT_REPORTER_H_
#define BATCHPROOF_SRC_REPORT_REPORTER_H_

#include "src/check/result.h"

namespace batchproof {

// Calls come in this order: begin once, cell for every cell in the order of the selection, end once with everything.
class Reporter {
 public:
  virtual ~Reporter() = default;
  virtual void begin(const RunContext& context) = 0;
  virtual void cell(const CellResult& result) = 0;
  virtual void end(const RunResult& result) = 0;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_REPORT_REPORTER_H_
