// SPDX-License-Identifier: Apache-2.0
#include "src/check/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "src/check/choose_inputs.h"
#include "src/check/local_host.h"
#include "src/check/relation.h"
#include "src/check/session.h"
#include "src/check/standards.h"
#include "src/numeric/digest.h"

namespace batchproof {
namespace {

// ---- runs that cells share ----------------------------------------------------------------------------------

// But for the target rows and the relations.
bool same_runs(const BiStandard& a, const BiStandard& b) {
  return a.inputs == b.inputs && a.repeats == b.repeats && a.batch_sizes == b.batch_sizes;
}

bool same_problem(const Problem& a, const Problem& b) {
  return a.world == b.world && a.axes == b.axes && a.attrs == b.attrs && a.dtypes == b.dtypes;
}

// Consecutive cells that differ in their target rows only share the base run and what no target enters; all cells
// share the contents of tensors.
struct SharedRuns {
  ContentCache contents;
  std::optional<Cell> cell;
  ChosenSession chosen;
  std::map<std::uint32_t, RelationResult> results;  // by relation

  // The base run of the cell, in place of the one held.
  Result<void> make(const Cell& next, OperatorHost& host, std::uint64_t seed) {
    cell.reset();
    chosen = ChosenSession{};
    results.clear();
    auto made = choose_inputs(next, host, seed, &contents);
    if (!made) return tl::unexpected(made.error());
    cell = next;
    chosen = *std::move(made);
    return {};
  }
  bool serve(const Cell& next) const {
    if (!cell || chosen.session == nullptr || next.op != cell->op || next.impl != cell->impl) return false;
    const bool same_inputs = next.standard.bi.has_value() == cell->standard.bi.has_value() &&
                             (!next.standard.bi || same_runs(*next.standard.bi, *cell->standard.bi));
    return same_inputs && same_problem(next.problem, cell->problem) && next.comm_mode == cell->comm_mode &&
           next.recipes == cell->recipes && next.timeout_s == cell->timeout_s;
  }
  static bool sees_targets(std::uint32_t relation) {
    constexpr std::uint32_t kTargeted = BP_NEIGHBOURS | BP_POISON | BP_BATCH_SIZE | BP_COMM_MODE | BP_ROUTING;
    return (relation & kTargeted) != 0;
  }
};

// ---- verdicts ---------------------------------------------------------------------------------------------------

// Order relations: every output that can show an order must have shown one; order-exact outputs must depend on data.
Result<Witness> judge_order(CellSession& session, std::string* dead) {
  auto orders = session.order_witness();
  if (!orders) return tl::unexpected(orders.error());
  std::optional<Witness> shown = weakest_order_witness(session, *orders);
  if (shown && !shown->alive())
    *dead = fmt::format("no row of {} moves under another order ({}): the inputs cannot show a fault", shown->port,
                        shown->how);
  for (const PortLayout* port : session.base().layout.outputs()) {
    if (!port->order_exact() || shown) continue;
    auto leaks = session.leak_witness();
    if (!leaks) return tl::unexpected(leaks.error());
    shown = leaks->at(port->index);
    if (!shown->alive())
      *dead =
          fmt::format("no row of {} moves when every input row changes: the inputs cannot show a fault", shown->port);
  }
  return shown.value_or(Witness{});
}

Witness judge_leak(const std::map<std::uint32_t, Witness>& leaks, std::string* dead) {
  Witness shown;
  for (const auto& [port, witness] : leaks) {
    if (shown.kind == Witness::Kind::none || witness.rows_moved < shown.rows_moved) shown = witness;
  }
  if (!shown.alive()) *dead = fmt::format("no other row of {} moved when it was changed ({})", shown.port, shown.how);
  return shown;
}

bool is_of_a_standard(Verdict verdict) { return verdict == Verdict::wrong || verdict == Verdict::heavy; }

// What the cell as a whole is expected to show, as far as its relations are concerned.
Verdict expected_of_relations(const Cell& cell) {
  return is_of_a_standard(cell.expect.cell) ? Verdict::pass : cell.expect.cell;
}

Verdict expected_of(const Cell& cell, std::uint32_t relation) {
  const auto found = cell.expect.relations.find(relation);
  if (found != cell.expect.relations.end()) return found->second;
  // A whole-cell expectation of a violation says nothing about single relations.
  return cell.expect.relations.empty() ? expected_of_relations(cell) : Verdict::pass;
}

RelationResult run_relation(const Relation& relation, CellSession& session) {
  RelationResult result;
  result.relation = relation.bit;
  result.expected = expected_of(session.cell(), relation.bit);
  const int runs_before = session.runs();
  auto finding = relation.check(session);
  result.runs = session.runs() - runs_before;
  if (!finding) {
    result.verdict = Verdict::error;
    result.reason = finding.error().message;
    return result;
  }
  result.bytes_compared = finding->comparison.bytes_compared;
  result.bytes_differing = finding->comparison.bytes_differing;
  result.first = finding->comparison.first;
  if (result.first) {
    result.first->rows_differing = finding->comparison.rows_differing;
    result.first->max_ulp = finding->comparison.max_ulp;
  }
  if (!finding->skip_reason.empty()) {
    result.verdict = Verdict::skipped;
    result.reason = finding->skip_reason;
    return result;
  }
  if (!finding->void_reason.empty()) {
    result.verdict = Verdict::vacuous;
    result.reason = finding->void_reason;
    return result;
  }
  std::string dead;
  if (relation.witness == Witness::Kind::order) {
    auto witness = judge_order(session, &dead);
    if (!witness) {
      result.verdict = Verdict::error;
      result.reason = witness.error().message;
      return result;
    }
    result.witness = *witness;
  } else {
    result.witness = judge_leak(finding->leak, &dead);
  }
  if (relation.order_too && dead.empty()) {
    const auto order = judge_order(session, &dead);
    if (!order) {
      result.verdict = Verdict::error;
      result.reason = order.error().message;
      return result;
    }
    if (!dead.empty()) result.witness = *order;
  }
  if (result.bytes_differing > 0) {
    result.verdict = Verdict::violation;
  } else if (!dead.empty() || result.bytes_compared == 0) {
    result.verdict = Verdict::vacuous;
    result.reason = dead.empty() ? "no byte was compared" : dead;
  } else {
    result.verdict = Verdict::pass;
  }
  return result;
}

// ---- digests ----------------------------------------------------------------------------------------------------

std::vector<PortDigest> digests_of(CellSession& session) {
  std::vector<PortDigest> list;
  for (const PortLayout* port : session.base().layout.outputs()) {
    Digest digest;
    for (std::int64_t row = 0; row < session.rows(); ++row) {
      for (const Run::Image& image : session.base().images(session.host(), *port, row))
        digest.update(image.data, image.bytes);
    }
    list.push_back({port->port->name, digest.hex()});
  }
  return list;
}

// A process that has no result for the cell has not repeated it: an error, for silence would pass.
void add_fresh_process(const std::string& cell, const std::vector<PortDigest>& here, const CellDigests& digests,
                       RelationResult* repeat) {
  if (repeat->verdict == Verdict::error || repeat->verdict == Verdict::violation) return;
  const auto found = digests.find(cell);
  if (found == digests.end() || !found->second) {
    repeat->verdict = Verdict::error;
    repeat->reason = found == digests.end()
                         ? std::string("a fresh process gave no result for this cell")
                         : fmt::format("in a fresh process the base run failed: {}", found->second.error().message);
    return;
  }
  const std::vector<PortDigest>& fresh = *found->second;
  for (std::size_t i = 0; i < here.size(); ++i) {
    const bool same = i < fresh.size() && fresh[i].digest == here[i].digest;
    if (same || repeat->verdict == Verdict::violation) continue;
    repeat->verdict = Verdict::violation;
    repeat->reason =
        fmt::format("a fresh process gives digest {} for {} where this one gives {}",
                    i < fresh.size() ? fresh[i].digest : std::string("none"), here[i].port, here[i].digest);
  }
}

// ---- cells ------------------------------------------------------------------------------------------------------

class Hosts {
 public:
  explicit Hosts(const RunOptions& options) : options_(options) {}

  OperatorHost& of(const Cell& cell) {
    OperatorHost* host = options_.host ? options_.host(cell.op) : nullptr;
    if (host == nullptr) {
      auto& slot = hosts_[cell.op];
      if (!slot) slot = std::make_unique<LocalHost>(cell.op, RankHooks{}, options_.device);
      host = slot.get();
    }
    host->begin_cell(cell.timeout_s ? cell.timeout_s : options_.timeout_s);
    return *host;
  }

 private:
  const RunOptions& options_;
  std::map<const bp_operator*, std::unique_ptr<OperatorHost>> hosts_;
};

CellResult described(const Cell& cell) {
  CellResult result;
  result.id = cell.id;
  result.op = cell.op_name;
  result.impl = cell.impl != nullptr ? cell.impl->id : "";
  result.case_name = cell.case_name;
  result.axes = cell.axes;
  result.position = cell.position;
  result.expected = cell.expect.cell;
  if (cell.impl != nullptr && cell.impl->defect != nullptr) {
    result.is_control = true;
    result.defect = cell.impl->defect;
  }
  return result;
}

void set_error(const Cell& cell, const std::string& message, CellResult* result) {
  result->verdict = Verdict::error;
  result->reason = message;
  result->as_expected = cell.expect.cell == Verdict::error && message.find(cell.expect.error) != std::string::npos;
}

// A standard that is expected to fail may not be skipped.
bool standard_met(Verdict verdict, Verdict expected) {
  return verdict == expected || (verdict == Verdict::skipped && expected == Verdict::pass);
}

// Adds the standards to what the relations gave.
void conclude_standards(const Cell& cell, CellResult* result) {
  const auto expected = [&](const std::optional<Verdict>& named, Verdict failing) {
    return named.value_or(cell.expect.cell == failing ? failing : Verdict::pass);
  };
  const auto add = [&](Verdict verdict, Verdict wanted) {
    if (verdict_severity(verdict) > verdict_severity(result->verdict)) result->verdict = verdict;
    if (!standard_met(verdict, wanted)) result->as_expected = false;
  };
  const Verdict accuracy = expected(cell.expect.acc, Verdict::wrong);
  if (result->accuracy) result->accuracy->expected = accuracy;
  add(result->accuracy ? result->accuracy->verdict : Verdict::skipped, accuracy);
  const Verdict memory = expected(cell.expect.mem, Verdict::heavy);
  if (result->memory) result->memory->expected = memory;
  add(result->memory ? result->memory->verdict : Verdict::skipped, memory);
  if (result->performance && result->performance->judged) add(result->performance->verdict, Verdict::pass);
  if (result->verdict != Verdict::skipped || !result->relations.empty()) return;
  if (result->accuracy && !result->accuracy->reason.empty()) {
    result->reason = result->accuracy->reason;
  } else if (result->memory && !result->memory->reason.empty()) {
    result->reason = result->memory->reason;
  } else if (result->performance) {
    result->reason = result->performance->reason.empty() ? "performance is reported; --perf judge judges it"
                                                         : result->performance->reason;
  }
}

void conclude(const Cell& cell, CellResult* result) {
  result->verdict = Verdict::skipped;
  bool met = true;
  for (RelationResult& relation : result->relations) {
    if (verdict_severity(relation.verdict) > verdict_severity(result->verdict)) result->verdict = relation.verdict;
    const bool allowed = relation.verdict == Verdict::vacuous && !cell.allow_vacuous.empty();
    const bool left_out = relation.verdict == Verdict::skipped && relation.expected == Verdict::pass;
    relation.excused = relation.verdict != relation.expected && (allowed || left_out);
    if (!cell.expect.relations.empty() && relation.verdict != relation.expected && !relation.excused) met = false;
  }
  // Relations that are expected to show something must have run.
  for (const auto& [bit, verdict] : cell.expect.relations) {
    const bool ran = std::any_of(result->relations.begin(), result->relations.end(),
                                 [wanted = bit](const RelationResult& r) { return r.relation == wanted; });
    if (!ran && verdict != Verdict::pass && verdict != Verdict::skipped) met = false;
  }
  if (cell.expect.relations.empty()) {
    const bool excused = result->verdict == Verdict::vacuous && !cell.allow_vacuous.empty();
    met = result->verdict == expected_of_relations(cell) || excused || result->verdict == Verdict::skipped;
    if (result->verdict == Verdict::skipped && !result->relations.empty())
      result->reason = "every relation was skipped";
  }
  // One expectation of the whole cell is met by its relations together.
  for (RelationResult& relation : result->relations) relation.excused |= met && relation.verdict != relation.expected;
  result->as_expected = met;
  conclude_standards(cell, result);
}

bool asks_for_standards(const Cell& cell, const RunOptions& options) {
  return cell.standard.acc || cell.standard.mem || (cell.standard.perf && options.perf != PerfMode::off);
}

// A call that failed after the relations were judged belongs to the standards.
void fail_standards(const Cell& cell, const Error& error, CellResult* result) {
  if (cell.standard.acc && !result->accuracy) {
    result->accuracy = AccuracyResult{};
    result->accuracy->standard = cell.standard.acc->name;
    result->accuracy->verdict = Verdict::error;
    result->accuracy->reason = error.message;
  } else if (cell.standard.mem && !result->memory) {
    result->memory = MemoryResult{};
    result->memory->verdict = Verdict::error;
    result->memory->reason = error.message;
  } else {
    result->performance = PerformanceResult{};
    result->performance->judged = true;
    result->performance->verdict = Verdict::error;
    result->performance->reason = error.message;
  }
}

// Fails where the base run did.
Result<void> judge_invariance(const Cell& cell, OperatorHost& host, const RunOptions& options, std::uint32_t promised,
                              const std::optional<CellDigests>& fresh, SharedRuns* shared, CellResult* result) {
  if (!shared->serve(cell)) {
    if (auto made = shared->make(cell, host, options.seed); !made) return made;
  }
  CellSession& session = *shared->chosen.session;
  session.continue_with(cell);
  result->inputs = shared->chosen.inputs;
  result->executed = session.base().executed;
  result->digests = digests_of(session);
  const std::uint32_t wanted = options.relations != 0 ? options.relations : cell.standard.bi->relations;
  for (const RelationWord& word : relations()) {
    if ((wanted & word.bit) == 0) continue;
    const auto runnable = std::find_if(runnable_relations().begin(), runnable_relations().end(),
                                       [&](const Relation& relation) { return relation.bit == word.bit; });
    RelationResult relation;
    relation.relation = word.bit;
    relation.expected = expected_of(cell, word.bit);
    if (runnable == runnable_relations().end()) {
      relation.reason = "this build has no way to run it";
    } else if ((promised & word.bit) == 0) {
      relation.reason = fmt::format("not promised by {}", cell.impl->id);
    } else if (const auto known = shared->results.find(word.bit); known != shared->results.end()) {
      const Verdict expected = relation.expected;
      relation = known->second;
      relation.expected = expected;
      relation.runs = 0;
      if (word.bit == BP_REPEAT && fresh) add_fresh_process(cell.id, result->digests, *fresh, &relation);
    } else {
      relation = run_relation(*runnable, session);
      const bool failed = relation.verdict == Verdict::error;
      if (!failed && !SharedRuns::sees_targets(word.bit)) shared->results[word.bit] = relation;
      if (word.bit == BP_REPEAT && fresh) add_fresh_process(cell.id, result->digests, *fresh, &relation);
    }
    result->relations.push_back(std::move(relation));
  }
  return {};
}

CellResult run_cell(const Cell& cell, Hosts& hosts, const RunOptions& options, const std::optional<CellDigests>& fresh,
                    SharedRuns* shared) {
  CellResult result = described(cell);
  if (options.reproduce) result.reproduce = options.reproduce(cell);
  if (!cell.skip_reason.empty()) {
    result.reason = cell.skip_reason;
    return result;
  }
  OperatorHost& host = hosts.of(cell);
  if (auto valid = host.validate(cell.problem); !valid) {
    set_error(cell, valid.error().message, &result);
    return result;
  }
  const bool invariance = cell.standard.bi || options.relations != 0;
  if (!invariance && !asks_for_standards(cell, options)) {
    result.reason = "standard.bi is absent: no invariance verdict was asked for";
    return result;
  }
  const auto promise = host.promises(*cell.impl, cell.problem);
  if (!promise) {
    set_error(cell, promise.error().message, &result);
    return result;
  }
  const std::uint32_t promised = *promise;
  if (promised == 0 && cell.impl->mode == BP_MODE_INVARIANT) {
    set_error(cell, fmt::format("{} promises no relation for this problem: invariant mode refuses it", cell.impl->id),
              &result);
    return result;
  }
  if (invariance) {
    if (auto judged = judge_invariance(cell, host, options, promised, fresh, shared, &result); !judged) {
      set_error(cell, judged.error().message, &result);
      return result;
    }
  }
  if (auto judged = judge_standards(cell, host, options.seed, options.perf, &result, &shared->contents); !judged) {
    if (!invariance) {
      set_error(cell, judged.error().message, &result);
      return result;
    }
    fail_standards(cell, judged.error(), &result);
  }
  conclude(cell, &result);
  return result;
}

bool wants_repeat(const Cell& cell, const RunOptions& options) {
  if (!cell.skip_reason.empty()) return false;
  const std::uint32_t wanted = options.relations != 0 ? options.relations
                               : cell.standard.bi     ? cell.standard.bi->relations
                                                      : 0;
  return (wanted & BP_REPEAT) != 0;
}

}  // namespace

RunResult run_cells(const std::vector<Cell>& cells, const RunOptions& options) {
  RunResult run;
  Hosts hosts(options);
  std::optional<CellDigests> fresh;
  std::vector<Cell> repeated;
  for (const Cell& cell : cells) {
    if (wants_repeat(cell, options)) repeated.push_back(cell);
  }
  if (options.fresh_process && !repeated.empty()) fresh = options.fresh_process(repeated);
  SharedRuns shared;
  for (const Cell& cell : cells) {
    const auto begin = std::chrono::steady_clock::now();
    CellResult result = run_cell(cell, hosts, options, fresh, &shared);
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (options.on_cell) options.on_cell(result);
    const bool stop = options.fail_fast && !result.as_expected;
    run.cells.push_back(std::move(result));
    if (stop) break;
  }
  run.means = performance_means(run.cells);
  return run;
}

CellDigests digest_cells(const std::vector<Cell>& cells, const RunOptions& options,
                         const std::function<void(const CellDigests& one)>& on_cell) {
  CellDigests digests;
  Hosts hosts(options);
  SharedRuns shared;
  std::vector<PortDigest> last;
  for (const Cell& cell : cells) {
    if (!cell.skip_reason.empty()) continue;
    OperatorHost& host = hosts.of(cell);
    const auto digest = [&]() -> Result<std::vector<PortDigest>> {
      if (auto valid = host.validate(cell.problem); !valid) return tl::unexpected(valid.error());
      if (shared.serve(cell)) return last;
      if (auto made = shared.make(cell, host, options.seed); !made) return tl::unexpected(made.error());
      last = digests_of(*shared.chosen.session);
      return last;
    };
    const auto made = digests.insert_or_assign(cell.id, digest()).first;
    if (on_cell) on_cell({*made});
  }
  return digests;
}

int RunResult::passed() const {
  return static_cast<int>(std::count_if(cells.begin(), cells.end(), [](const CellResult& cell) {
    return cell.as_expected && cell.verdict != Verdict::skipped;
  }));
}

int RunResult::failed() const {
  const auto failed =
      std::count_if(cells.begin(), cells.end(), [](const CellResult& cell) { return !cell.as_expected; });
  const auto missed =
      std::count_if(means.begin(), means.end(), [](const PerformanceMean& mean) { return !mean.passed(); });
  return static_cast<int>(failed + missed);
}

int RunResult::skipped() const {
  return static_cast<int>(std::count_if(cells.begin(), cells.end(), [](const CellResult& cell) {
    return cell.as_expected && cell.verdict == Verdict::skipped;
  }));
}

}  // namespace batchproof
