// SPDX-License-Identifier: Apache-2.0
//
// The wording of outcomes and failures.
#include "src/report/describe.h"

#include <fmt/format.h>

#include <cmath>

#include "src/runtime/words.h"

namespace batchproof {
namespace {

std::string place(int rank, std::int64_t index) { return fmt::format("rank {} index {}", rank, index); }

std::string control_text(const CellResult& cell) {
  return cell.defect.empty() ? std::string("a control") : fmt::format("a control ({})", one_line(cell.defect));
}

std::string full_witness(const Witness& witness) {
  if (witness.kind == Witness::Kind::none) return "none was needed or made";
  std::string text =
      fmt::format("{}, {} / {} rows", witness_kind_name(witness.kind), witness.rows_moved, witness.rows_total);
  if (!witness.port.empty()) text += " of port " + one_line(witness.port);
  text += " moved";
  if (!witness.how.empty()) text += " (" + one_line(witness.how) + ")";
  return text;
}

// What to change so that a vacuous relation can fail.
const char* vacuous_advice(const Witness& witness) {
  if (witness.kind == Witness::Kind::leak) {
    return "do: give the cell neighbours (more rows or ranks, other recipes), so that there is something to leak";
  }
  return "do: use the cancelling inputs (\"bi\": {\"inputs\": \"own\"}), an FP32 output or a larger K, so that the "
         "order of "
         "summation moves bytes";
}

void add_mismatch(const Mismatch& first, std::vector<std::string>* lines) {
  lines->push_back(fmt::format("rows differing: {}", first.rows_differing));
  if (!first.variant.empty()) lines->push_back("changed: " + one_line(first.variant));
  lines->push_back(fmt::format("port {}, row {}: base {}, variant {}", one_line(first.port), first.row,
                               place(first.rank_a, first.index_a), place(first.rank_b, first.index_b)));
  lines->push_back(fmt::format("first difference: column {}, byte {} of the row", first.column, first.byte));
  const char* dtype = dtype_text(first.dtype);
  lines->push_back(fmt::format("  base    {} {} = {}", dtype, first.bytes_a, element_text(first.value_a, first.dtype)));
  lines->push_back(fmt::format("  variant {} {} = {}", dtype, first.bytes_b, element_text(first.value_b, first.dtype)));
  lines->push_back(first.ulp ? fmt::format("ULP distance: {} (largest {})", *first.ulp, first.max_ulp)
                             : fmt::format("ULP distance: none here (largest {})", first.max_ulp));
}

// Bytes of the UTF-8 character that `text` starts with; 0 where it is malformed, overlong, a surrogate, beyond U+10FFFF
// or a code point that XML forbids (U+FFFE, U+FFFF).
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc2 ? 2 : 0;
  if (length == 0 || lead > 0xf4) return 0;
  std::uint32_t code = lead & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return 0;
    code = (code << 6U) | (byte(i) & 0x3fU);
  }
  constexpr std::uint32_t kSmallest[5] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[length] || code > 0x10ffff) return 0;
  if ((code >= 0xd800 && code < 0xe000) || code == 0xfffe || code == 0xffff) return 0;
  return length;
}

}  // namespace

void add_implementation(const CellResult& cell, std::vector<std::string>* lines) {
  lines->push_back(fmt::format("implementation: requested {}, executed {}", one_line(cell.impl),
                               cell.executed.empty() ? "nothing" : one_line(cell.executed)));
}

static void add_identity(const CellResult& cell, std::vector<std::string>* lines) {
  add_implementation(cell, lines);
  if (!cell.inputs.empty()) lines->push_back("inputs: " + one_line(cell.inputs));
}

void add_origin(const CellResult& cell, std::vector<std::string>* lines) {
  if (!cell.position.file.empty()) {
    lines->push_back(
        fmt::format("case: {}:{}:{}", one_line(cell.position.file), cell.position.line, cell.position.column));
  }
  if (!cell.reproduce.empty()) lines->push_back("reproduce: " + one_line(cell.reproduce));
}

Outcome outcome(const CellResult& cell, const RelationResult& relation) {
  if (relation.verdict == relation.expected) {
    switch (relation.verdict) {
      case Verdict::pass:
        return cell.is_control ? Outcome::clear : Outcome::good;
      case Verdict::violation:
        return cell.is_control ? Outcome::caught : Outcome::expected;
      case Verdict::skipped:
        return Outcome::skipped;
      default:
        return Outcome::expected;
    }
  }
  if (cell.as_expected || relation.excused)
    return relation.verdict == Verdict::skipped ? Outcome::skipped : Outcome::allowed;
  if (relation.expected == Verdict::violation && relation.verdict != Verdict::error) return Outcome::missed;
  if (relation.verdict == Verdict::skipped) return Outcome::skipped;
  if (cell.is_control && relation.verdict == Verdict::violation) return Outcome::unexpected;
  return Outcome::bad;
}

bool is_failure(Outcome outcome) {
  return outcome == Outcome::missed || outcome == Outcome::unexpected || outcome == Outcome::bad;
}

const char* outcome_note(Outcome outcome) {
  switch (outcome) {
    case Outcome::caught:
      return "caught";
    case Outcome::clear:
      return "clear";
    case Outcome::expected:
      return "expected";
    case Outcome::allowed:
      return "allowed";
    case Outcome::missed:
      return "missed";
    case Outcome::unexpected:
      return "unexpected";
    default:
      return "";
  }
}

const char* result_word(const CellResult& cell) {
  if (!cell.as_expected) return "FAIL";
  return cell.verdict == Verdict::skipped ? "-" : "ok";
}

const char* result_word(Outcome outcome) {
  if (is_failure(outcome)) return "FAIL";
  return outcome == Outcome::skipped ? "-" : "ok";
}

const char* dtype_text(bp_dtype dtype) {
  switch (dtype) {
    case BP_FP64:
      return "fp64";
    case BP_FP32:
      return "fp32";
    case BP_BF16:
      return "bf16";
    case BP_FP16:
      return "fp16";
    case BP_E4M3:
      return "e4m3";
    case BP_E5M2:
      return "e5m2";
    case BP_E8M0:
      return "e8m0";
    case BP_INT8:
      return "int8";
    case BP_INT32:
      return "int32";
    case BP_INT64:
      return "int64";
    case BP_UINT8:
      return "uint8";
    case BP_INT4:
      return "int4";
    case BP_E2M1:
      return "e2m1";
    default:
      return "none";
  }
}

const char* witness_kind_name(Witness::Kind kind) {
  return kind == Witness::Kind::order ? "order" : kind == Witness::Kind::leak ? "leak" : "none";
}

std::string axes_text(const CellResult& cell) {
  std::string text;
  for (const auto& [name, value] : cell.axes) {
    if (!text.empty()) text += ' ';
    text += one_line(name) + '=' + one_line(value);
  }
  return text.empty() ? "-" : text;
}

std::string witness_text(const Witness& witness) {
  if (witness.kind == Witness::Kind::none) return "-";
  return fmt::format("{} {}/{}", witness_kind_name(witness.kind), witness.rows_moved, witness.rows_total);
}

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  return fmt::format("{}", value);
}

std::string element_text(double value, bp_dtype dtype) {
  if (dtype == BP_FP64 || !std::isfinite(value)) return number_text(value);
  switch (dtype) {
    case BP_INT8:
    case BP_INT32:
    case BP_INT64:
    case BP_UINT8:
    case BP_INT4:
      return fmt::format("{:.0f}", value);
    default:
      // Every narrower format is a subset of FP32, so that FP32's shortest text reads back as the same element.
      return fmt::format("{}", static_cast<float>(value));
  }
}

std::string percent_text(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return "-";
  const double percent = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  if (part > 0 && percent < 0.05) return "<0.1%";
  if (part < whole && percent >= 99.95) return ">99.9%";
  return fmt::format("{:.1f}%", percent);
}

std::string one_line(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    const std::size_t length = character_length(text.substr(i));
    if (c == '\n') {
      line += "\\n";
    } else if (c == '\r') {
      line += "\\r";
    } else if (c == '\t') {
      line += "\\t";
    } else if (length == 0 || c < 0x20 || c == 0x7f) {
      line += fmt::format("\\x{:02x}", c);
    } else {
      line += text.substr(i, length);
    }
    i += length == 0 ? 1 : length;
  }
  return line;
}

std::string failure_headline(const CellResult& cell, const RelationResult& relation) {
  const std::string where = fmt::format("{} relation {}", one_line(cell.id), relation_name(relation.relation));
  switch (outcome(cell, relation)) {
    case Outcome::missed:
      if (cell.is_control) return "control missed: " + where;
      return fmt::format("a violation was expected and did not come: {}", where);
    case Outcome::unexpected:
      return "control caught where it was declared clear, row bytes are not equal: " + where;
    default:
      break;
  }
  switch (relation.verdict) {
    case Verdict::violation:
      return "row bytes are not equal: " + where;
    case Verdict::vacuous:
      return "nothing could have failed: " + where;
    case Verdict::error:
      return "the operator failed: " + where;
    default:
      return fmt::format("{} where {} was expected: {}", verdict_name(relation.verdict),
                         verdict_name(relation.expected), where);
  }
}

std::vector<std::string> failure_facts(const CellResult& cell, const RelationResult& relation) {
  std::vector<std::string> lines;
  const Outcome what = outcome(cell, relation);
  if (what == Outcome::missed) {
    lines.push_back(fmt::format("expected: violation, {}; got: {}",
                                cell.is_control ? "for this is " + control_text(cell) : "as the case says",
                                verdict_name(relation.verdict)));
  } else if (what == Outcome::unexpected) {
    lines.push_back(
        fmt::format("expected: {} of {}; got: violation", verdict_name(relation.expected), control_text(cell)));
  } else if (relation.expected != Verdict::pass) {
    lines.push_back(
        fmt::format("expected: {}; got: {}", verdict_name(relation.expected), verdict_name(relation.verdict)));
  }
  if (!relation.reason.empty()) lines.push_back("reason: " + one_line(relation.reason));
  if (relation.verdict != Verdict::error && relation.verdict != Verdict::skipped) {
    lines.push_back(fmt::format(
        "bytes differing: {} / {} ({}) in {} run{}", relation.bytes_differing, relation.bytes_compared,
        percent_text(relation.bytes_differing, relation.bytes_compared), relation.runs, relation.runs == 1 ? "" : "s"));
  }
  if (relation.first) add_mismatch(*relation.first, &lines);
  add_identity(cell, &lines);
  if (relation.verdict == Verdict::vacuous) {
    lines.push_back("did not move: " + full_witness(relation.witness));
    lines.push_back(vacuous_advice(relation.witness));
  } else {
    lines.push_back("witness: " + full_witness(relation.witness));
  }
  add_origin(cell, &lines);
  return lines;
}

std::string cell_failure_headline(const CellResult& cell) {
  const std::string id = one_line(cell.id);
  if (cell.verdict == Verdict::error && cell.expected != Verdict::error) return "the cell could not be judged: " + id;
  if (cell.is_control && cell.expected == Verdict::violation) return "control missed: " + id;
  if (cell.verdict == cell.expected) return fmt::format("not the expected {}: {}", verdict_name(cell.verdict), id);
  return fmt::format("{} where {} was expected: {}", verdict_name(cell.verdict), verdict_name(cell.expected), id);
}

std::vector<std::string> cell_failure_facts(const CellResult& cell) {
  std::vector<std::string> lines;
  if (!cell.reason.empty()) lines.push_back("reason: " + one_line(cell.reason));
  if (cell.is_control && !cell.defect.empty()) lines.push_back("control: " + one_line(cell.defect));
  add_identity(cell, &lines);
  add_origin(cell, &lines);
  return lines;
}

std::vector<const RelationResult*> failing_relations(const CellResult& cell) {
  std::vector<const RelationResult*> failing;
  if (cell.as_expected) return failing;
  for (const RelationResult& relation : cell.relations) {
    if (is_failure(outcome(cell, relation))) failing.push_back(&relation);
  }
  return failing;
}

}  // namespace batchproof
