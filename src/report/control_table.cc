// SPDX-License-Identifier: Apache-2.0
//
// Folds the cells of the controls into one row per control and case.
#include "src/report/control_table.h"

#include <algorithm>
#include <string_view>

#include "src/report/describe.h"
#include "src/runtime/words.h"

namespace batchproof {
namespace {

constexpr std::string_view kWorstLast = " -vYm!e";

char mark(const CellResult& cell, const RelationResult& relation) {
  if (relation.verdict == Verdict::error) return 'e';
  if (relation.verdict == Verdict::skipped && relation.expected != Verdict::violation) return ' ';
  const Outcome what = outcome(cell, relation);
  if (what == Outcome::missed) return 'm';
  if (what == Outcome::unexpected) return '!';
  if (relation.verdict == Verdict::violation) return 'Y';
  return relation.verdict == Verdict::vacuous ? 'v' : '-';
}

}  // namespace

ControlTable control_table(const RunResult& result) {
  ControlTable table;
  for (const RelationWord& word : relations()) {
    const bool ran = std::any_of(result.cells.begin(), result.cells.end(), [&](const CellResult& cell) {
      return cell.is_control &&
             std::any_of(cell.relations.begin(), cell.relations.end(), [&](const RelationResult& relation) {
               return relation.relation == word.bit && mark(cell, relation) != ' ';
             });
    });
    if (ran) table.relations.push_back(word.bit);
  }
  for (const CellResult& cell : result.cells) {
    if (!cell.is_control) continue;
    auto row = std::find_if(table.rows.begin(), table.rows.end(), [&](const ControlRow& other) {
      return other.op == cell.op && other.impl == cell.impl && other.case_name == cell.case_name;
    });
    if (row == table.rows.end()) {
      table.rows.push_back(
          {cell.op, cell.impl, cell.case_name, cell.defect, 0, std::vector<char>(table.relations.size(), ' ')});
      row = table.rows.end() - 1;
    }
    ++row->cells;
    for (const RelationResult& relation : cell.relations) {
      const auto column = std::find(table.relations.begin(), table.relations.end(), relation.relation);
      if (column == table.relations.end()) continue;
      char& slot = row->marks[static_cast<std::size_t>(column - table.relations.begin())];
      const char now = mark(cell, relation);
      if (kWorstLast.find(now) > kWorstLast.find(slot)) slot = now;
    }
  }
  return table;
}

}  // namespace batchproof
