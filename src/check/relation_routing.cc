// SPDX-License-Identifier: Apache-2.0
//
// routing: the target row keeps its content and its expert, every other row keeps its content and chooses another
// expert. So the target's expert serves few rows or many, other experts serve none, rows land elsewhere, or meet no
// expert at all because none had room.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>

#include "src/check/relation.h"
#include "src/numeric/seed.h"

namespace batchproof {
namespace {

constexpr std::int64_t kNone = -1;
constexpr std::int64_t kCapacity = 2;  // rows of an expert in the routing with too little room

struct Choice {
  std::string what;
  std::vector<std::int64_t> expert;  // by row; that of the target is its own
};

// The rows but the target, in an order drawn from the seed.
std::vector<std::int64_t> shuffled_others(std::int64_t rows, std::int64_t target, std::uint64_t seed) {
  std::vector<std::int64_t> others;
  for (std::int64_t row = 0; row < rows; ++row) {
    if (row != target) others.push_back(row);
  }
  for (std::size_t i = others.size(); i > 1; --i) std::swap(others[i - 1], others[mix64(seed, i) % i]);
  return others;
}

std::vector<Choice> choices(std::int64_t rows, std::int64_t target, std::int64_t own, std::int64_t experts,
                            std::uint64_t seed) {
  const std::vector<std::int64_t> others = shuffled_others(rows, target, seed);
  const auto choice = [&](std::string what, const std::function<std::int64_t(std::int64_t place)>& expert_of) {
    Choice made = {"the other rows " + std::move(what), std::vector<std::int64_t>(static_cast<std::size_t>(rows), own)};
    for (std::size_t i = 0; i < others.size(); ++i)
      made.expert[static_cast<std::size_t>(others[i])] = expert_of(static_cast<std::int64_t>(i));
    return made;
  };
  const std::int64_t other = (own + 1) % experts;
  return {
      choice("spread over all experts", [&](std::int64_t i) { return i % experts; }),
      choice(fmt::format("crowd: half of them choose expert {}", other),
             [&](std::int64_t i) { return i % 2 == 0 ? other : i / 2 % experts; }),
      choice(fmt::format("all choose expert {}, that of the target", own), [&](std::int64_t) { return own; }),
      choice(fmt::format("all choose expert {}, and the target is alone", other), [&](std::int64_t) { return other; }),
      choice(fmt::format("find room for {} rows at an expert", kCapacity),
             [&](std::int64_t i) { return i / experts < kCapacity ? i % experts : kNone; }),
      choice("choose no expert", [](std::int64_t) { return kNone; })};
}

// Rows other than the target that the port holds in one of the runs; those whose place or bytes changed.
CellSession::Moved landed_elsewhere(CellSession& session, const Run& other, const PortLayout& port,
                                    std::int64_t target) {
  CellSession::Moved moved;
  for (std::int64_t row = 0; row < session.rows(); ++row) {
    if (row == target) continue;
    const auto before = session.base().images(session.host(), port, row);
    const auto after = other.images(session.host(), other.layout.ports[port.index], row);
    if (before.empty() && after.empty()) continue;
    ++moved.total;
    const bool same = before.size() == after.size() &&
                      std::equal(before.begin(), before.end(), after.begin(), [](const auto& a, const auto& b) {
                        return a.rank == b.rank && a.index == b.index && std::equal(a.data, a.data + a.bytes, b.data);
                      });
    if (!same) ++moved.rows;
  }
  return moved;
}

struct Loads {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::int64_t most = 0;
  void add(const std::vector<std::int64_t>& experts, std::int64_t own) {
    const std::int64_t load = std::count(experts.begin(), experts.end(), own);
    least = std::min(least, load);
    most = std::max(most, load);
  }
};

}  // namespace

Result<RelationFinding> check_routing(CellSession& session) {
  RelationFinding finding;
  const std::int64_t experts = session.base().layout.experts();
  const std::int64_t rows = session.rows();
  if (experts == 0) {
    finding.skip_reason = "the rows of the operator choose no expert";
    return finding;
  }
  if (experts < 2 || rows < 2) {
    finding.void_reason = experts < 2 ? "1 expert: there is no other to choose"
                                      : fmt::format("{} logical row: no other row chooses", rows);
    return finding;
  }
  const auto targets = session.targets();
  if (!targets) return tl::unexpected(targets.error());
  int runs = 0;
  for (const std::int64_t target : *targets) {
    const std::int64_t own = session.identity(static_cast<std::uint64_t>(target)).expert.value_or(kNone);
    if (own == kNone) continue;
    // What the target has around it: the most that any choice changed.
    std::map<std::uint32_t, CellSession::Moved> changed;
    Loads loads;
    for (const Choice& choice : choices(rows, target, own, experts, mix64(session.seed(), 0x5000u))) {
      Variant variant = session.same();
      for (std::size_t row = 0; row < variant.rows.size(); ++row) variant.rows[row].expert = choice.expert[row];
      const auto problem = session.problem_of(variant);
      if (!problem) return tl::unexpected(problem.error());
      // Under strict limits an operator may want every row to meet an expert.
      if (!session.host().validate(*problem)) continue;
      auto rerouted = session.run(variant);
      if (!rerouted) return tl::unexpected(rerouted.error());
      ++runs;
      loads.add(choice.expert, own);
      session.compare_row(session.base(), target, *rerouted, target, static_cast<std::uint64_t>(target), choice.what,
                          &finding.comparison);
      for (const PortLayout* port : session.base().layout.outputs()) {
        const CellSession::Moved moved = landed_elsewhere(session, *rerouted, *port, target);
        CellSession::Moved& most = changed[port->index];
        if (moved.rows >= most.rows) most = moved;
      }
    }
    for (const auto& [port, moved] : changed) {
      auto [slot, fresh] = finding.leak.try_emplace(port);
      Witness& witness = slot->second;
      if (!fresh && !(moved < witness)) continue;
      witness.kind = Witness::Kind::leak;
      witness.rows_moved = moved.rows;
      witness.rows_total = moved.total;
      witness.how = fmt::format("rerouted: the target's expert serves {} to {} rows", loads.least, loads.most);
      witness.port = session.base().layout.ports[port].port->name;
    }
  }
  if (runs == 0) {
    finding.void_reason = "no target row meets an expert, or the operator accepts no other routing";
    return finding;
  }
  // An output that no routing reaches (a shared expert's) proves nothing either way.
  const bool reached =
      std::any_of(finding.leak.begin(), finding.leak.end(), [](const auto& entry) { return entry.second.alive(); });
  for (auto entry = finding.leak.begin(); reached && entry != finding.leak.end();)
    entry = entry->second.alive() ? std::next(entry) : finding.leak.erase(entry);
  return finding;
}

}  // namespace batchproof
