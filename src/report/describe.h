// SPDX-License-Identifier: Apache-2.0
//
// What the text reports say about a cell: outcomes, witnesses, numbers and the failure text. One wording for all.
#ifndef BATCHPROOF_SRC_REPORT_DESCRIBE_H_
#define BATCHPROOF_SRC_REPORT_DESCRIBE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/check/result.h"

namespace batchproof {

// How a verdict stands to what was expected of it.
enum class Outcome {
  good,        // a pass that was expected
  caught,      // a control's violation that was declared
  clear,       // a control's pass that was declared: this relation cannot see the defect
  expected,    // another verdict than pass, as the case expects
  allowed,     // vacuous, and the case allows that with a reason
  skipped,     // not judged
  missed,      // a violation was expected and did not come
  unexpected,  // a control was caught by a relation declared unable to see it
  bad          // violation, vacuous or error that nobody expected
};

// Of one relation of the cell.
Outcome outcome(const CellResult& cell, const RelationResult& relation);
// Whether the outcome makes the cell fail.
bool is_failure(Outcome outcome);
// The note behind the verdict: "caught", "missed", ...; empty for good, bad and skipped.
const char* outcome_note(Outcome outcome);
// "ok", "FAIL" or "-" (skipped).
const char* result_word(const CellResult& cell);
const char* result_word(Outcome outcome);

const char* dtype_text(bp_dtype dtype);             // "fp32"
const char* witness_kind_name(Witness::Kind kind);  // none, order, leak

// "K=512 M=4 W=2"; "-" where there are none.
std::string axes_text(const CellResult& cell);
// "order 512/512", "leak 63/63", "-".
std::string witness_text(const Witness& witness);
// The value of one element, shortest decimal that reads back as the same element; "nan", "inf", "-inf".
std::string element_text(double value, bp_dtype dtype);
// A double of any size, shortest that reads back; "nan", "inf", "-inf".
std::string number_text(double value);
// "6.1%"; never "0.0%" or "100.0%" unless exactly so.
std::string percent_text(std::uint64_t part, std::uint64_t whole);
// Control characters become \n, \t or \xNN and so do bytes that are not UTF-8 or not allowed in XML, so that a name can
// break neither a line-based format nor XML.
std::string one_line(std::string_view text);

// The line on which implementation was asked for and which ran.
void add_implementation(const CellResult& cell, std::vector<std::string>* lines);
// Lines on where the case is written and how to run this cell alone.
void add_origin(const CellResult& cell, std::vector<std::string>* lines);

// One sentence for annotations and JUnit messages: what failed, where, by how much.
std::string failure_headline(const CellResult& cell, const RelationResult& relation);
// The facts below the headline, one a line, not indented: what differs, how, where, what ran, how to reproduce.
std::vector<std::string> failure_facts(const CellResult& cell, const RelationResult& relation);

// For a cell that failed as a whole (error, or an expectation that the relations do not explain).
std::string cell_failure_headline(const CellResult& cell);
std::vector<std::string> cell_failure_facts(const CellResult& cell);

// Relations that made the cell fail, in report order; empty where the cell failed as a whole or did not fail.
std::vector<const RelationResult*> failing_relations(const CellResult& cell);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_REPORT_DESCRIBE_H_
