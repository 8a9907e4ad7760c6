// SPDX-License-Identifier: Apache-2.0
#include "src/check/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "src/check/local_host.h"
#include "src/check/relation.h"
#include "src/check/session.h"
#include "src/numeric/digest.h"

namespace batchproof {
namespace {

// ---- inputs (C5) ------------------------------------------------------------------------------------------------

// The accuracy inputs serve an invariance run only where another order moves at least this share of the rows: with
// fewer a defect in one row could hide.
constexpr double kAliveShare = 0.5;

bool exact_on_purpose(const Cell& cell) {
  return std::any_of(cell.recipes.begin(), cell.recipes.end(),
                     [](const RecipeSpec& spec) { return spec.kind == RecipeKind::small_integer; });
}

std::vector<RecipeSpec> cancelling_recipes(const Cell& cell) {
  std::vector<RecipeSpec> recipes = cell.recipes;
  for (std::uint32_t i = 0; i < cell.op->port_count; ++i) {
    const bp_port& port = cell.op->ports[i];
    if (port.kind == BP_ROW_INPUT || port.kind == BP_WEIGHT) {
      recipes[i] = RecipeSpec{};
      recipes[i].kind = RecipeKind::cancelling;
    }
  }
  return recipes;
}

bool can_cancel(const bp_operator& table) {
  return std::any_of(table.ports, table.ports + table.port_count, [](const bp_port& port) {
    return port.kind == BP_WEIGHT && port.reduction_group != nullptr && port.reduction_axes != 0;
  });
}

// The output port whose rows move least under another order, order-exact ports left out.
std::optional<Witness> weakest_order_witness(CellSession& session, const std::map<std::uint32_t, Witness>& witnesses) {
  std::optional<Witness> weakest;
  for (const PortLayout* port : session.base().layout.outputs()) {
    if (port->order_exact()) continue;
    const Witness& witness = witnesses.at(port->index);
    if (!weakest || witness.rows_moved < weakest->rows_moved) weakest = witness;
  }
  return weakest;
}

struct ChosenSession {
  std::unique_ptr<CellSession> session;
  std::string inputs;
};

Result<std::unique_ptr<CellSession>> started(const Cell& cell, OperatorHost& host, std::vector<RecipeSpec> recipes,
                                             std::uint64_t seed) {
  auto session = std::make_unique<CellSession>(cell, host, std::move(recipes), seed);
  auto done = session->start();
  if (!done) return tl::unexpected(done.error());
  return session;
}

Result<ChosenSession> choose_inputs(const Cell& cell, OperatorHost& host, std::uint64_t seed) {
  const BiInputs wanted = cell.standard.bi ? cell.standard.bi->inputs : BiInputs::automatic;
  const bool own_possible = can_cancel(*cell.op);
  if (wanted == BiInputs::own && own_possible) {
    auto own = started(cell, host, cancelling_recipes(cell), seed);
    if (!own) return tl::unexpected(own.error());
    return ChosenSession{*std::move(own), "cancelling (own)"};
  }
  auto shared = started(cell, host, cell.recipes, seed);
  if (!shared) return tl::unexpected(shared.error());
  if (wanted == BiInputs::shared) return ChosenSession{*std::move(shared), "accuracy inputs (shared)"};
  if (exact_on_purpose(cell))
    return ChosenSession{*std::move(shared), "accuracy inputs (small_integer is exact on purpose)"};
  if (!own_possible) return ChosenSession{*std::move(shared), "accuracy inputs"};
  auto witnesses = (*shared)->order_witness();
  if (!witnesses) return tl::unexpected(witnesses.error());
  const auto weakest = weakest_order_witness(**shared, *witnesses);
  if (!weakest || static_cast<double>(weakest->rows_moved) >= kAliveShare * static_cast<double>(weakest->rows_total))
    return ChosenSession{*std::move(shared), "accuracy inputs"};
  auto own = started(cell, host, cancelling_recipes(cell), seed);
  if (!own) return tl::unexpected(own.error());
  return ChosenSession{*std::move(own),
                       fmt::format("cancelling: with the accuracy inputs another order moves {} of {} rows of {}",
                                   weakest->rows_moved, weakest->rows_total, weakest->port)};
}

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

Verdict expected_of(const Cell& cell, std::uint32_t relation) {
  const auto found = cell.expect.relations.find(relation);
  if (found != cell.expect.relations.end()) return found->second;
  // A whole-cell expectation of a violation says nothing about single relations.
  return cell.expect.relations.empty() ? cell.expect.cell : Verdict::pass;
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

void add_fresh_process(const std::vector<PortDigest>& here, const std::vector<PortDigest>& fresh,
                       RelationResult* repeat) {
  for (std::size_t i = 0; i < here.size(); ++i) {
    const bool same = i < fresh.size() && fresh[i].digest == here[i].digest;
    if (same || repeat->verdict == Verdict::error || repeat->verdict == Verdict::violation) continue;
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

void conclude(const Cell& cell, CellResult* result) {
  result->verdict = Verdict::skipped;
  bool met = true;
  for (const RelationResult& relation : result->relations) {
    if (verdict_severity(relation.verdict) > verdict_severity(result->verdict)) result->verdict = relation.verdict;
    const bool excused = relation.verdict == Verdict::vacuous && !cell.allow_vacuous.empty();
    if (!cell.expect.relations.empty() && relation.verdict != relation.expected && !excused &&
        !(relation.verdict == Verdict::skipped && relation.expected == Verdict::pass))
      met = false;
  }
  // Relations that are expected to show something must have run.
  for (const auto& [bit, verdict] : cell.expect.relations) {
    const bool ran = std::any_of(result->relations.begin(), result->relations.end(),
                                 [bit = bit](const RelationResult& r) { return r.relation == bit; });
    if (!ran && verdict != Verdict::pass && verdict != Verdict::skipped) met = false;
  }
  if (cell.expect.relations.empty()) {
    const bool excused = result->verdict == Verdict::vacuous && !cell.allow_vacuous.empty();
    met = result->verdict == cell.expect.cell || excused || result->verdict == Verdict::skipped;
    if (result->verdict == Verdict::skipped) result->reason = "every relation was skipped";
  }
  result->as_expected = met;
}

CellResult run_cell(const Cell& cell, Hosts& hosts, const RunOptions& options,
                    const std::map<std::string, std::vector<PortDigest>>& fresh) {
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
  if (!cell.standard.bi && options.relations == 0) {
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
  auto chosen = choose_inputs(cell, host, options.seed);
  if (!chosen) {
    set_error(cell, chosen.error().message, &result);
    return result;
  }
  CellSession& session = *chosen->session;
  result.inputs = chosen->inputs;
  result.executed = session.base().executed;
  result.digests = digests_of(session);
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
    } else {
      relation = run_relation(*runnable, session);
      if (word.bit == BP_REPEAT && fresh.count(cell.id) != 0)
        add_fresh_process(result.digests, fresh.at(cell.id), &relation);
    }
    result.relations.push_back(std::move(relation));
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
  std::map<std::string, std::vector<PortDigest>> fresh;
  std::vector<Cell> repeated;
  for (const Cell& cell : cells) {
    if (wants_repeat(cell, options)) repeated.push_back(cell);
  }
  if (options.fresh_process && !repeated.empty()) fresh = options.fresh_process(repeated);
  for (const Cell& cell : cells) {
    const auto begin = std::chrono::steady_clock::now();
    CellResult result = run_cell(cell, hosts, options, fresh);
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (options.on_cell) options.on_cell(result);
    const bool stop = options.fail_fast && !result.as_expected;
    run.cells.push_back(std::move(result));
    if (stop) break;
  }
  return run;
}

std::map<std::string, std::vector<PortDigest>> digest_cells(const std::vector<Cell>& cells, const RunOptions& options) {
  std::map<std::string, std::vector<PortDigest>> digests;
  Hosts hosts(options);
  for (const Cell& cell : cells) {
    if (!cell.skip_reason.empty()) continue;
    OperatorHost& host = hosts.of(cell);
    if (!host.validate(cell.problem)) continue;
    auto chosen = choose_inputs(cell, host, options.seed);
    if (chosen) digests[cell.id] = digests_of(*chosen->session);
  }
  return digests;
}

int RunResult::passed() const {
  return static_cast<int>(std::count_if(cells.begin(), cells.end(), [](const CellResult& cell) {
    return cell.as_expected && cell.verdict != Verdict::skipped;
  }));
}

int RunResult::failed() const {
  return static_cast<int>(
      std::count_if(cells.begin(), cells.end(), [](const CellResult& cell) { return !cell.as_expected; }));
}

int RunResult::skipped() const {
  return static_cast<int>(std::count_if(cells.begin(), cells.end(), [](const CellResult& cell) {
    return cell.as_expected && cell.verdict == Verdict::skipped;
  }));
}

}  // namespace batchproof
