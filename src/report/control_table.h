// SPDX-License-Identifier: Apache-2.0
//
// Which relation caught which control: the table that the console and the step summary print.
#ifndef BATCHPROOF_SRC_REPORT_CONTROL_TABLE_H_
#define BATCHPROOF_SRC_REPORT_CONTROL_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "src/check/result.h"

namespace batchproof {

struct ControlRow {
  std::string op, impl, case_name, defect;
  int cells = 0;
  std::vector<char> marks;  // one per column
};

// Marks: Y caught as declared, - not caught as declared, m missed, ! caught although declared clear, v vacuous,
// e error, blank not run. Over the cells of a row the worst wins: e, !, m, Y, v, -.
struct ControlTable {
  std::vector<std::string> columns;  // relations that ran on a control, in report order, then acc where one was judged
  std::vector<ControlRow> rows;      // by operator, implementation, case, as they came
};

ControlTable control_table(const RunResult& result);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_REPORT_CONTROL_TABLE_H_
