// SPDX-License-Identifier: Apache-2.0
//
// Folds the cells of the controls into one row per control and case.
#include "src/report/control_table.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "src/report/describe_standards.h"
#include "src/runtime/words.h"

namespace batchproof {
namespace {

constexpr const char* kAccuracy = "acc";
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

// Whether the wrong result that was declared came, and no other.
char mark(const CellResult& cell, const StandardView& view) {
  if (view.verdict == Verdict::error) return 'e';
  const Outcome what = outcome(cell, view);
  if (what == Outcome::skipped) return ' ';
  if (what == Outcome::missed) return 'm';
  if (what == Outcome::unexpected || what == Outcome::bad) return '!';
  return view.verdict == Verdict::wrong ? 'Y' : '-';
}

// What a control was put to, with its marks.
std::vector<std::pair<std::string, char>> marks(const CellResult& cell) {
  std::vector<std::pair<std::string, char>> list;
  for (const RelationResult& relation : cell.relations)
    list.emplace_back(relation_name(relation.relation), mark(cell, relation));
  for (const StandardView& view : standard_views(cell)) {
    if (std::string_view(view.name) == kAccuracy) list.emplace_back(kAccuracy, mark(cell, view));
  }
  return list;
}

}  // namespace

ControlTable control_table(const RunResult& result) {
  ControlTable table;
  const auto add_column = [&](const std::string& name) {
    const bool ran = std::any_of(result.cells.begin(), result.cells.end(), [&](const CellResult& cell) {
      const auto list = marks(cell);
      return cell.is_control && std::any_of(list.begin(), list.end(), [&](const auto& entry) {
               return entry.first == name && entry.second != ' ';
             });
    });
    if (ran) table.columns.push_back(name);
  };
  for (const RelationWord& word : relations()) add_column(word.name);
  add_column(kAccuracy);
  for (const CellResult& cell : result.cells) {
    if (!cell.is_control) continue;
    auto row = std::find_if(table.rows.begin(), table.rows.end(), [&](const ControlRow& other) {
      return other.op == cell.op && other.impl == cell.impl && other.case_name == cell.case_name;
    });
    if (row == table.rows.end()) {
      table.rows.push_back(
          {cell.op, cell.impl, cell.case_name, cell.defect, 0, std::vector<char>(table.columns.size(), ' ')});
      row = table.rows.end() - 1;
    }
    ++row->cells;
    for (const auto& [name, now] : marks(cell)) {
      const auto column = std::find(table.columns.begin(), table.columns.end(), name);
      if (column == table.columns.end()) continue;
      char& slot = row->marks[static_cast<std::size_t>(column - table.columns.begin())];
      if (kWorstLast.find(now) > kWorstLast.find(slot)) slot = now;
    }
  }
  return table;
}

}  // namespace batchproof
