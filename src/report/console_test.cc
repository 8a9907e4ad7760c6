// SPDX-License-Identifier: Apache-2.0
#include "src/report/console.h"

#include <sstream>

#include "src/report/sample_run.h"

namespace batchproof {
namespace {

struct Output {
  std::string table, log;
};

Output render(ConsoleOptions options) {
  const RunResult run = sample::run();
  options.cell_count = run.cells.size();
  std::ostringstream table;
  std::ostringstream log;
  ConsoleReporter reporter(table, log, options);
  sample::feed(reporter, run);
  return {table.str(), log.str()};
}

Output render(ConsoleOptions::Detail detail) {
  ConsoleOptions options;
  options.detail = detail;
  return render(options);
}

std::string last_line(const std::string& text) {
  const std::size_t end = text.size() - 1;  // the final newline
  return text.substr(text.rfind('\n', end - 1) + 1);
}

TEST(Console, GoldenAll) {
  const Output output = render(ConsoleOptions::Detail::all);
  sample::expect_golden("console.golden", output.table);
  sample::expect_golden("console_log.golden", output.log);
}

TEST(Console, GoldenCells) {
  sample::expect_golden("console_cells.golden", render(ConsoleOptions::Detail::cells).table);
}
TEST(Console, GoldenCases) {
  sample::expect_golden("console_cases.golden", render(ConsoleOptions::Detail::cases).table);
}
TEST(Console, GoldenFailing) {
  sample::expect_golden("console_failing.golden", render(ConsoleOptions::Detail::failing).table);
}

// Rows stand under the heading of their own table, however wide the names of another one are.
TEST(Console, ColumnsFitTheTableOfTheirOperatorAndImplementation) {
  ConsoleOptions options;
  options.detail = ConsoleOptions::Detail::cells;
  const ConsoleOptions::Widths wide{40, 60}, narrow{9, 30};
  std::ostringstream table, log;
  CellResult cell = sample::run().cells.at(0);
  options.table_widths = {{{"wide", cell.impl}, wide}, {{"narrow", cell.impl}, narrow}};
  ConsoleReporter reporter(table, log, options);
  for (const auto& [op, widths] : {std::pair("wide", wide), std::pair("narrow", narrow)}) {
    cell.op = op;
    cell.case_name = std::string(widths.cases, 'n');
    cell.axes = {{"K", std::string(widths.axes - 2, '1')}};
    table.str("");
    reporter.cell(cell);
    std::istringstream lines(table.str());
    std::string line, heading, row;
    while (std::getline(lines, line)) {
      if (line.rfind("# case", 0) == 0) heading = line;
      if (line.rfind("  nnn", 0) == 0) row = line;
    }
    const std::size_t at = 2 + widths.cases + 2 + widths.axes + 2;
    ASSERT_EQ(heading.find("relation"), at) << table.str();
    ASSERT_GT(row.size(), at) << table.str();
    EXPECT_EQ(row.substr(at - 3, 2), "1 ") << row;
    EXPECT_NE(row[at], ' ') << row;
  }
}

TEST(Console, LastLineIsTheTotalsAloneEvenInColour) {
  ConsoleOptions options;
  options.colour = true;
  const Output output = render(options);
  EXPECT_EQ(last_line(output.table), "7 passed, 7 failed, 2 skipped\n");
  EXPECT_NE(output.table.find("\x1b["), std::string::npos);
}

TEST(Console, NoEscapeCodesUnlessAsked) {
  for (const auto detail : {ConsoleOptions::Detail::all, ConsoleOptions::Detail::cells, ConsoleOptions::Detail::cases,
                            ConsoleOptions::Detail::failing}) {
    const Output output = render(detail);
    EXPECT_EQ(output.table.find('\x1b'), std::string::npos);
    EXPECT_EQ(output.log.find('\x1b'), std::string::npos);
    EXPECT_EQ(output.log.find('\r'), std::string::npos);
  }
}

// Colour must not move columns: without the codes both renderings are the same text.
TEST(Console, ColourChangesNothingElse) {
  ConsoleOptions options;
  options.colour = true;
  std::string text = render(options).table;
  for (std::size_t at = text.find("\x1b["); at != std::string::npos; at = text.find("\x1b[")) {
    text.erase(at, text.find('m', at) - at + 1);
  }
  EXPECT_EQ(text, render(ConsoleOptions{}).table);
}

TEST(Console, ContextGoesToTheLogOnly) {
  const Output output = render(ConsoleOptions::Detail::all);
  EXPECT_EQ(output.table.find("command line"), std::string::npos);
  std::istringstream log(output.log);
  for (std::string line; std::getline(log, line);) EXPECT_EQ(line.rfind('#', 0), 0U) << line;
}

TEST(Console, ProgressIsClearedBeforeRowsAndAtTheEnd) {
  ConsoleOptions options;
  options.progress = true;
  const std::string log = render(options).log;
  EXPECT_NE(log.find("\r\x1b[K[1/15] "), std::string::npos);
  EXPECT_EQ(log.find("[15/15]"), std::string::npos);
  EXPECT_EQ(log.substr(log.size() - 4), "\r\x1b[K");
}

TEST(Console, AutomaticDetailFollowsTheNumberOfCells) {
  ConsoleOptions options;
  EXPECT_NE(render(options).table.find(" position "), std::string::npos);
  std::ostringstream table;
  std::ostringstream log;
  options.cell_count = 201;
  ConsoleReporter reporter(table, log, options);
  RunResult run = sample::run();
  run.cells.resize(1);
  sample::feed(reporter, run);
  EXPECT_NE(table.str().find("3 relations"), std::string::npos);
}

TEST(Console, RowsStayWithinTheWidth) {
  std::istringstream table(render(ConsoleOptions::Detail::all).table);
  int rows = 0;
  for (std::string line; std::getline(table, line);) {
    if (line.rfind("  ci ", 0) != 0 && line.rfind("# case", 0) != 0) continue;
    ++rows;
    EXPECT_LE(line.size(), 150U) << line;
  }
  EXPECT_GE(rows, 4);
}

}  // namespace
}  // namespace batchproof
