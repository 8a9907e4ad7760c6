// SPDX-License-Identifier: Apache-2.0
//
// The JUnit report.
#include "src/report/junit.h"

#include <fmt/format.h>

#include <algorithm>
#include <pugixml.hpp>
#include <string>
#include <vector>

#include "src/report/describe_standards.h"
#include "src/runtime/words.h"

namespace batchproof {
namespace {

enum class Kind { passed, failure, error, skipped };

Kind kind(const CellResult& cell) {
  if (cell.as_expected) return cell.verdict == Verdict::skipped ? Kind::skipped : Kind::passed;
  return cell.verdict == Verdict::error ? Kind::error : Kind::failure;
}

struct Counts {
  int tests = 0, failures = 0, errors = 0, skipped = 0;
  double seconds = 0.0;
  void add(const CellResult& cell) {
    ++tests;
    seconds += cell.seconds;
    const Kind what = kind(cell);
    failures += what == Kind::failure;
    errors += what == Kind::error;
    skipped += what == Kind::skipped;
  }
  // Only what is judged is a test.
  void add(const PerformanceMean& mean) {
    if (!mean.judged) return;
    ++tests;
    failures += !mean.passed();
  }
};

std::string seconds_text(double seconds) { return fmt::format("{:.6f}", seconds); }

void set(pugi::xml_node node, const char* name, const std::string& value) {
  node.append_attribute(name).set_value(one_line(value).c_str());
}

// In the order of Jenkins' schema; `skipped` is an attribute of suites only.
void set_counts(pugi::xml_node node, const Counts& counts, bool suite) {
  node.append_attribute("tests").set_value(counts.tests);
  node.append_attribute("failures").set_value(counts.failures);
  node.append_attribute("errors").set_value(counts.errors);
  if (suite) node.append_attribute("skipped").set_value(counts.skipped);
  set(node, "time", seconds_text(counts.seconds));
}

void add_property(pugi::xml_node properties, const std::string& name, const std::string& value) {
  pugi::xml_node property = properties.append_child("property");
  set(property, "name", name);
  set(property, "value", value);
}

void add_context(pugi::xml_node suite, const RunContext& context) {
  pugi::xml_node properties = suite.append_child("properties");
  add_property(properties, "version", context.version);
  add_property(properties, "build", context.build);
  add_property(properties, "command_line", context.command_line);
  add_property(properties, "device", context.device);
  add_property(properties, "communicator", context.communicator);
  add_property(properties, "seed", std::to_string(context.seed));
  add_property(properties, "date", context.date);
  for (const auto& [name, value] : context.settings) add_property(properties, "setting." + name, value);
  for (const auto& [name, value] : context.build_ids) add_property(properties, "build_id." + name, value);
}

const char* failure_type(const Failure& failure) {
  return failure.outcome == Outcome::bad ? verdict_name(failure.verdict) : outcome_note(failure.outcome);
}

// One element with every relation's text: most readers show only the first failure of a case.
void add_failure(pugi::xml_node test, const CellResult& cell, const char* element) {
  const std::vector<Failure> list = failures(cell);
  std::string body;
  for (const Failure& failure : list) {
    body += '\n' + failure.headline + '\n';
    for (const std::string& fact : failure.facts) body += "  " + fact + '\n';
  }
  std::string message = list.front().headline;
  if (list.size() > 1) message += fmt::format(" (and {} more)", list.size() - 1);
  pugi::xml_node node = test.append_child(element);
  set(node, "type", failure_type(list.front()));
  set(node, "message", message);
  node.append_child(pugi::node_pcdata).set_value(body.c_str());
}

void add_cell(pugi::xml_node suite, const CellResult& cell) {
  pugi::xml_node test = suite.append_child("testcase");
  set(test, "name", cell.id);
  set(test, "time", seconds_text(cell.seconds));
  set(test, "classname", cell.impl.empty() ? cell.op : cell.op + "." + cell.impl);
  switch (kind(cell)) {
    case Kind::skipped: {
      // A text, not a message attribute: the schema's `skipped` is a plain string.
      const std::string reason = cell.reason.empty() ? "skipped" : one_line(cell.reason);
      test.append_child("skipped").append_child(pugi::node_pcdata).set_value(reason.c_str());
      break;
    }
    case Kind::error:
      add_failure(test, cell, "error");
      break;
    case Kind::failure:
      add_failure(test, cell, "failure");
      break;
    case Kind::passed:
      break;
  }
  std::string out;
  const auto property = [&](const std::string& name, const std::string& value) {
    out += fmt::format("\n[[PROPERTY|{}={}]]", one_line(name), one_line(value));
  };
  if (!cell.position.file.empty()) {
    property("file", cell.position.file);
    property("line", std::to_string(cell.position.line));
  }
  property("verdict", verdict_name(cell.verdict));
  property("executed", cell.executed);
  if (cell.is_control) property("control", cell.defect);
  if (!cell.inputs.empty()) property("inputs", cell.inputs);
  for (const auto& [name, value] : cell.axes) property("axis." + name, value);
  for (const RelationResult& relation : cell.relations) {
    property(fmt::format("relation.{}", relation_name(relation.relation)),
             fmt::format("{}, {} / {} bytes differing, witness {}", verdict_name(relation.verdict),
                         relation.bytes_differing, relation.bytes_compared, witness_text(relation.witness)));
  }
  for (const StandardView& view : standard_views(cell)) {
    std::string text = verdict_word(view);
    if (!view.reason.empty()) text += "; " + view.reason;
    for (const std::string& fact : view.facts) text += "; " + fact;
    property(fmt::format("standard.{}", view.name), text);
  }
  for (const PortDigest& digest : cell.digests) property("digest." + digest.port, digest.digest);
  out += '\n';
  test.append_child("system-out").append_child(pugi::node_pcdata).set_value(out.c_str());
}

// The mean of the performance ratios is a test of its own: no single cell holds it.
void add_mean(pugi::xml_node suite, const PerformanceMean& mean) {
  if (!mean.judged) return;
  pugi::xml_node test = suite.append_child("testcase");
  set(test, "name", fmt::format("{}/{}/mean of perf above {:.3g}", mean.op, mean.impl, mean.threshold));
  set(test, "time", seconds_text(0.0));
  set(test, "classname", mean.op + "." + mean.impl);
  if (mean.passed()) return;
  pugi::xml_node node = test.append_child("failure");
  set(node, "type", verdict_name(Verdict::slow));
  set(node, "message", mean_text(mean));
}

// One suite per operator, in the order in which operators first appear.
std::vector<std::string> operators(const RunResult& result) {
  std::vector<std::string> names;
  for (const CellResult& cell : result.cells) {
    if (std::find(names.begin(), names.end(), cell.op) == names.end()) names.push_back(cell.op);
  }
  return names;
}

}  // namespace

void JunitReporter::end(const RunResult& result) {
  pugi::xml_document document;
  pugi::xml_node declaration = document.append_child(pugi::node_declaration);
  declaration.append_attribute("version").set_value("1.0");
  declaration.append_attribute("encoding").set_value("UTF-8");
  pugi::xml_node root = document.append_child("testsuites");
  root.append_attribute("name").set_value("batchproof");
  Counts all;
  for (const CellResult& cell : result.cells) all.add(cell);
  for (const PerformanceMean& mean : result.means) all.add(mean);
  set_counts(root, all, false);
  for (const std::string& op : operators(result)) {
    pugi::xml_node suite = root.append_child("testsuite");
    set(suite, "name", op);
    Counts counts;
    for (const CellResult& cell : result.cells) {
      if (cell.op == op) counts.add(cell);
    }
    for (const PerformanceMean& mean : result.means) {
      if (mean.op == op) counts.add(mean);
    }
    set_counts(suite, counts, true);
    set(suite, "timestamp", result.context.date);
    add_context(suite, result.context);
    for (const CellResult& cell : result.cells) {
      if (cell.op == op) add_cell(suite, cell);
    }
    for (const PerformanceMean& mean : result.means) {
      if (mean.op == op) add_mean(suite, mean);
    }
  }
  document.save(out_, "  ", pugi::format_default, pugi::encoding_utf8);
  out_.flush();
}

}  // namespace batchproof
