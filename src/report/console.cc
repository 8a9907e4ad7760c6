// SPDX-License-Identifier: Apache-2.0
//
// The console report.
#include "src/report/console.h"

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <algorithm>
#include <map>

#include "src/report/control_table.h"
#include "src/report/describe_standards.h"
#include "src/runtime/words.h"

namespace batchproof {
namespace {

constexpr const char* kRed = "31";
constexpr const char* kGreen = "32";
constexpr const char* kYellow = "33";
constexpr const char* kGrey = "90";
constexpr std::size_t kAutomaticLimit = 200;
constexpr std::size_t kProgressWidth = 70;
constexpr const char* kAccuracyInputs = "accuracy inputs";

const char* verdict_colour(Verdict verdict) {
  switch (verdict) {
    case Verdict::pass:
      return kGreen;
    case Verdict::vacuous:
      return kYellow;
    case Verdict::skipped:
      return kGrey;
    default:
      return kRed;
  }
}

// Whether `other` proves less than `witness`: the smaller share of rows moved.
bool weaker(const Witness& other, const Witness& witness) {
  if (other.kind == Witness::Kind::none) return false;
  if (witness.kind == Witness::Kind::none) return true;
  return static_cast<double>(other.rows_moved) * static_cast<double>(witness.rows_total) <
         static_cast<double>(witness.rows_moved) * static_cast<double>(other.rows_total);
}

// Of a whole cell that is as expected; a cell that is not says why below its rows.
const char* cell_note(const CellResult& cell) {
  if (!cell.as_expected || cell.verdict == Verdict::pass || cell.verdict == Verdict::skipped) return "";
  if (cell.is_control && (cell.verdict == Verdict::violation || cell.verdict == Verdict::wrong)) return "caught";
  return cell.verdict == cell.expected ? "expected" : "allowed";
}

// "cancelling: with the accuracy inputs another order moves ..." -> "cancelling".
std::string inputs_kind(const std::string& inputs) {
  std::string kind = one_line(inputs.substr(0, inputs.find_first_of(":(")));
  while (!kind.empty() && kind.back() == ' ') kind.pop_back();
  return kind;
}

std::string count_text(std::size_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace

ConsoleReporter::ConsoleReporter(std::ostream& table, std::ostream& log, ConsoleOptions options)
    : table_(table), log_(log), options_(std::move(options)), inputs_(kAccuracyInputs) {
  if (options_.detail == ConsoleOptions::Detail::automatic) {
    options_.detail =
        options_.cell_count > kAutomaticLimit ? ConsoleOptions::Detail::cells : ConsoleOptions::Detail::all;
  }
}

std::string ConsoleReporter::paint(const std::string& text, const char* colour) const {
  return options_.colour ? fmt::format("\x1b[{}m{}\x1b[0m", colour, text) : text;
}

void ConsoleReporter::begin(const RunContext& context) {
  fmt::print(log_, "# batchproof {} (build {})\n", context.version, context.build);
  fmt::print(log_, "# date          {}\n", context.date);
  fmt::print(log_, "# command line  {}\n", one_line(context.command_line));
  fmt::print(log_, "# device        {}\n", one_line(context.device));
  fmt::print(log_, "# communicator  {}\n", one_line(context.communicator));
  fmt::print(log_, "# seed          {}\n", context.seed);
  if (options_.cell_count > 0) fmt::print(log_, "# cells         {}\n", options_.cell_count);
  log_.flush();
}

void ConsoleReporter::clear_progress() {
  if (!progress_shown_) return;
  log_ << "\r\x1b[K" << std::flush;
  progress_shown_ = false;
}

void ConsoleReporter::show_progress(const CellResult& result) {
  if (!options_.progress || done_ >= options_.cell_count) return;
  table_.flush();  // rows first: both streams may be the same terminal
  std::string id = one_line(result.id);
  if (id.size() > kProgressWidth) id = id.substr(0, kProgressWidth - 3) + "...";
  log_ << fmt::format("\r\x1b[K[{}/{}] {}", done_, options_.cell_count, id) << std::flush;
  progress_shown_ = true;
}

// Once per operator and implementation: what follows, and the names of the columns.
void ConsoleReporter::heading(const CellResult& result) {
  const std::string text =
      one_line(result.op) + " / " + (result.impl.empty() ? std::string("-") : one_line(result.impl));
  if (text == heading_) return;
  heading_ = text;
  inputs_ = kAccuracyInputs;
  fmt::print(table_, "#\n# {}\n", text);
  if (result.is_control && !result.defect.empty()) {
    fmt::print(table_, "# control: {}\n", one_line(result.defect));
  }
  const auto own = options_.table_widths.find({result.op, result.impl});
  widths_ = own == options_.table_widths.end() ? options_.widths : own->second;
  const auto [cases, axes] = widths_;
  fmt::print(table_, "# {:<{}}  {:<{}}  {:<11} {:>4} {:>10} {:>9}\n", "", cases, "", axes, "", "", "bytes", "bytes");
  fmt::print(table_, "# {:<{}}  {:<{}}  {:<11} {:>4} {:>10} {:>9}  {:<14} {:<22} {}\n", "case", cases, "axes", axes,
             "relation", "runs", "compared", "differing", "witness", "verdict", "result");
}

void ConsoleReporter::print_row(const Row& row) {
  const std::string word = row.note.empty() ? row.verdict : fmt::format("{} ({})", row.verdict, row.note);
  const std::optional<Verdict> verdict = verdict_from_name(row.verdict);
  // Padding is made before colour, so that escape codes do not count as width.
  const std::string padded = fmt::format("{:<22}", word);
  const bool control_as_declared = row.result == "ok";
  const char* colour = control_as_declared ? kGreen : verdict ? verdict_colour(*verdict) : kGrey;  // grey: reported
  const std::string result = row.result == "FAIL" ? paint(row.result, kRed) : row.result;
  const std::string numbers = row.has_numbers ? fmt::format("{:>4} {:>10} {:>9}", row.runs, row.compared, row.differing)
                                              : fmt::format("{:>4} {:>10} {:>9}", "-", "-", "-");
  fmt::print(table_, "  {:<{}}  {:<{}}  {:<11} {}  {:<14} {} {}\n", row.case_name, widths_.cases, row.axes,
             widths_.axes, row.relation, numbers, row.witness, paint(padded, colour), result);
}

void ConsoleReporter::note_inputs(const CellResult& result) {
  if (result.inputs.empty() || result.inputs == inputs_) return;
  inputs_ = result.inputs;
  fmt::print(table_, "# inputs of the rows below: {}\n", one_line(inputs_));
}

void ConsoleReporter::print_relations(const CellResult& result) {
  note_inputs(result);
  Row row;
  row.case_name = one_line(result.case_name);
  row.axes = axes_text(result);
  if (result.relations.empty() && standard_views(result).empty()) {
    row.relation = "-";
    row.witness = "-";
    row.has_numbers = false;
    row.verdict = verdict_name(result.verdict);
    row.note = cell_note(result);
    row.result = result_word(result);
    print_row(row);
    if (!result.reason.empty() && result.as_expected) fmt::print(table_, "    {}\n", one_line(result.reason));
    return;
  }
  for (const RelationResult& relation : result.relations) {
    const Outcome what = outcome(result, relation);
    row.relation = relation_name(relation.relation);
    row.runs = relation.runs;
    row.compared = relation.bytes_compared;
    row.differing = relation.bytes_differing;
    row.has_numbers = relation.verdict != Verdict::skipped;
    row.witness = witness_text(relation.witness);
    row.verdict = verdict_name(relation.verdict);
    row.note = outcome_note(what);
    row.result = result_word(what);
    print_row(row);
    if (!relation.reason.empty() && !is_failure(what)) fmt::print(table_, "    {}\n", one_line(relation.reason));
  }
  print_standards(result, row);
  if (!result.relations.empty() && !result.reason.empty() && result.as_expected)
    fmt::print(table_, "    {}\n", one_line(result.reason));
}

// A row each, with the numbers below; a failure's numbers stand in its own text.
void ConsoleReporter::print_standards(const CellResult& result, Row row) {
  for (const StandardView& view : standard_views(result)) {
    const Outcome what = outcome(result, view);
    row.relation = view.name;
    row.has_numbers = false;
    row.witness = "-";
    row.verdict = verdict_word(view);
    row.note = outcome_note(what);
    row.result = view.reported ? "-" : result_word(what);
    print_row(row);
    if (is_failure(what)) continue;
    if (!view.reason.empty()) fmt::print(table_, "    {}\n", view.reason);
    for (const std::string& fact : view.facts) fmt::print(table_, "    {}\n", fact);
  }
}

void ConsoleReporter::print_cell(const CellResult& result) {
  Row row;
  row.case_name = one_line(result.case_name);
  row.axes = axes_text(result);
  row.relation = result.relations.empty() ? "-" : count_text(result.relations.size(), "relation");
  if (const std::size_t standards = standard_views(result).size(); standards > 0)
    row.relation = count_text(result.relations.size() + standards, "check");
  row.has_numbers = !result.relations.empty();
  Witness worst;
  for (const RelationResult& relation : result.relations) {
    row.runs += relation.runs;
    row.compared += relation.bytes_compared;
    row.differing += relation.bytes_differing;
    if (weaker(relation.witness, worst)) worst = relation.witness;
  }
  row.witness = witness_text(worst);
  row.verdict = verdict_name(result.verdict);
  row.note = cell_note(result);
  row.result = result_word(result);
  print_row(row);
  if (!result.reason.empty()) fmt::print(table_, "    {}\n", one_line(result.reason));
}

void ConsoleReporter::print_failure(const std::string& headline, const std::vector<std::string>& facts) {
  fmt::print(table_, "    {}\n", paint(headline, kRed));
  for (const std::string& fact : facts) fmt::print(table_, "      {}\n", fact);
}

void ConsoleReporter::print_failures(const CellResult& result) {
  for (const Failure& failure : failures(result)) print_failure(failure.headline, failure.facts);
}

void ConsoleReporter::add_to_case(const CellResult& result) {
  if (open_.cells > 0 && (open_.op != result.op || open_.impl != result.impl || open_.name != result.case_name)) {
    flush_case();
  }
  if (open_.cells == 0) {
    open_ = OpenCase{};
    open_.op = result.op;
    open_.impl = result.impl;
    open_.name = result.case_name;
  }
  ++open_.cells;
  if (!result.as_expected) ++open_.failed;
  if (result.as_expected && result.verdict == Verdict::skipped) ++open_.skipped;
  for (const RelationResult& relation : result.relations) {
    open_.row.runs += relation.runs;
    open_.row.compared += relation.bytes_compared;
    open_.row.differing += relation.bytes_differing;
    if (weaker(relation.witness, open_.worst)) open_.worst = relation.witness;
  }
  if (verdict_severity(result.verdict) > verdict_severity(open_.verdict)) open_.verdict = result.verdict;
}

void ConsoleReporter::flush_case() {
  if (open_.cells == 0) return;
  Row row = open_.row;
  row.case_name = one_line(open_.name);
  row.axes = count_text(open_.cells, "cell");
  if (open_.failed > 0) row.axes += fmt::format(", {} failed", open_.failed);
  if (open_.skipped > 0) row.axes += fmt::format(", {} skipped", open_.skipped);
  row.relation = "all";
  row.has_numbers = open_.row.runs > 0;
  row.witness = witness_text(open_.worst);
  row.verdict = verdict_name(open_.verdict);
  row.result = open_.failed > 0 ? "FAIL" : open_.skipped == open_.cells ? "-" : "ok";
  print_row(row);
  open_ = OpenCase{};
}

void ConsoleReporter::cell(const CellResult& result) {
  clear_progress();
  ++done_;
  const bool failed = !result.as_expected;
  switch (options_.detail) {
    case ConsoleOptions::Detail::failing:
      if (failed) {
        heading(result);
        print_relations(result);
      }
      break;
    case ConsoleOptions::Detail::cells:
      heading(result);
      failed ? print_relations(result) : print_cell(result);
      break;
    case ConsoleOptions::Detail::cases:
      // The row of the case before closes above the heading of the next.
      if (open_.cells > 0 && (open_.op != result.op || open_.impl != result.impl)) flush_case();
      heading(result);
      add_to_case(result);
      if (failed) print_relations(result);
      break;
    default:
      heading(result);
      print_relations(result);
  }
  if (failed) print_failures(result);
  table_.flush();
  show_progress(result);
}

void ConsoleReporter::print_controls(const RunResult& result) {
  const ControlTable table = control_table(result);
  if (table.rows.empty()) return;
  std::size_t name_width = 7;
  std::vector<std::string> names;
  for (const ControlRow& row : table.rows) {
    names.push_back(fmt::format("{}/{}/{}", one_line(row.op), one_line(row.impl), one_line(row.case_name)));
    name_width = std::max(name_width, names.back().size());
  }
  fmt::print(table_,
             "#\n# controls: Y caught, - not caught (both as declared), m missed, ! caught though declared clear, "
             "v vacuous, e error\n");
  fmt::print(table_, "| {:<{}} | cells |", "control", name_width);
  for (const std::string& column : table.columns) fmt::print(table_, " {} |", column);
  fmt::print(table_, "\n|{:-<{}}|------:|", "", name_width + 2);
  for (const std::string& column : table.columns) fmt::print(table_, ":{:-<{}}:|", "", column.size());
  table_ << '\n';
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const ControlRow& row = table.rows[i];
    fmt::print(table_, "| {:<{}} | {:>5} |", names[i], name_width, row.cells);
    for (std::size_t column = 0; column < table.columns.size(); ++column)
      fmt::print(table_, " {:^{}} |", row.marks[column], table.columns[column].size());
    table_ << '\n';
  }
}

void ConsoleReporter::print_summary(const RunResult& result) {
  struct Totals {
    int passed = 0, failed = 0, skipped = 0;
    double seconds = 0.0;
    std::uint64_t compared = 0;
  };
  std::map<std::string, Totals> per_operator;
  std::map<std::string, int> inputs;
  std::size_t width = 8;
  for (const CellResult& cell : result.cells) {
    Totals& totals = per_operator[one_line(cell.op)];
    width = std::max(width, one_line(cell.op).size());
    (!cell.as_expected ? totals.failed : cell.verdict == Verdict::skipped ? totals.skipped : totals.passed)++;
    totals.seconds += cell.seconds;
    for (const RelationResult& relation : cell.relations) totals.compared += relation.bytes_compared;
    if (!cell.inputs.empty()) ++inputs[inputs_kind(cell.inputs)];
  }
  table_ << "#\n";
  for (const PerformanceMean& mean : result.means) {
    fmt::print(table_, "# {}{}\n", mean_text(mean), mean.passed() ? "" : paint(": FAIL", kRed));
  }
  for (const auto& [text, cells] : inputs) {
    fmt::print(table_, "# inputs: {} on {}\n", count_text(static_cast<std::size_t>(cells), "cell"), text);
  }
  fmt::print(table_, "# {:<{}} {:>7} {:>7} {:>8} {:>15} {:>9}\n", "operator", width, "passed", "failed", "skipped",
             "bytes compared", "seconds");
  for (const auto& [op, totals] : per_operator) {
    fmt::print(table_, "# {:<{}} {:>7} {:>7} {:>8} {:>15} {:>9.2f}\n", op, width, totals.passed, totals.failed,
               totals.skipped, totals.compared, totals.seconds);
  }
}

void ConsoleReporter::end(const RunResult& result) {
  clear_progress();
  flush_case();
  print_controls(result);
  print_summary(result);
  fmt::print(table_, "{} passed, {} failed, {} skipped\n", result.passed(), result.failed(), result.skipped());
  table_.flush();
}

}  // namespace batchproof
