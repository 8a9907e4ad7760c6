// SPDX-License-Identifier: Apache-2.0
//
// The report for people: context as `#` lines, one aligned row per cell and relation, failure texts, control tables,
// totals. docs/reports.md explains every column.
#ifndef BATCHPROOF_SRC_REPORT_CONSOLE_H_
#define BATCHPROOF_SRC_REPORT_CONSOLE_H_

#include <cstddef>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "src/report/reporter.h"

namespace batchproof {

struct ConsoleOptions {
  enum class Detail {
    automatic,  // `all` up to 200 cells, `cells` beyond
    all,        // a row per cell and relation
    cells,      // a row per cell; a cell that fails shows its relations
    cases,      // a row per case; a cell that fails shows its relations
    failing     // only cells that fail
  };
  Detail detail = Detail::automatic;
  std::size_t cell_count = 0;  // how many cells will come; for `automatic` and the progress line
  // Widest case name and axes text to expect, and the same for the tables of one operator and implementation.
  struct Widths {
    std::size_t cases = 12;
    std::size_t axes = 36;
  };
  Widths widths;
  std::map<std::pair<std::string, std::string>, Widths> table_widths;
  bool colour = false;
  bool progress = false;  // one line on `log`, rewritten after each cell
};

class ConsoleReporter : public Reporter {
 public:
  // `table` gets rows and totals, `log` the context and the progress. Both outlive the reporter.
  ConsoleReporter(std::ostream& table, std::ostream& log, ConsoleOptions options);
  void begin(const RunContext& context) override;
  void cell(const CellResult& result) override;
  void end(const RunResult& result) override;

 private:
  // The numbers of one row: of a relation, or the worst and the sums over a cell or a case.
  struct Row {
    std::string case_name, axes, relation, witness, verdict, note, result;
    std::uint64_t compared = 0, differing = 0;
    int runs = 0;
    bool has_numbers = true;
  };
  struct OpenCase {
    std::string op, impl, name;
    std::size_t cells = 0, failed = 0, skipped = 0;
    Row row;
    Witness worst;
    Verdict verdict = Verdict::skipped;
  };

  void heading(const CellResult& result);
  void print_row(const Row& row);
  void print_relations(const CellResult& result);
  void print_standards(const CellResult& result, Row row);
  void print_cell(const CellResult& result);
  void print_failure(const std::string& headline, const std::vector<std::string>& facts);
  void print_failures(const CellResult& result);
  void add_to_case(const CellResult& result);
  void flush_case();
  void note_inputs(const CellResult& result);
  void print_controls(const RunResult& result);
  void print_summary(const RunResult& result);
  void clear_progress();
  void show_progress(const CellResult& result);
  std::string paint(const std::string& text, const char* colour) const;

  std::ostream& table_;
  std::ostream& log_;
  ConsoleOptions options_;
  std::string heading_;  // "op / impl" of the rows above
  ConsoleOptions::Widths widths_;
  std::string inputs_;  // inputs of the rows above, where not the accuracy inputs
  OpenCase open_;
  std::size_t done_ = 0;
  bool progress_shown_ = false;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_REPORT_CONSOLE_H_
