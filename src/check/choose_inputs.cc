// SPDX-License-Identifier: Apache-2.0
#include "src/check/choose_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace batchproof {
namespace {

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

Result<std::unique_ptr<CellSession>> started(const Cell& cell, OperatorHost& host, std::vector<RecipeSpec> recipes,
                                             std::uint64_t seed, ContentCache* contents) {
  auto session = std::make_unique<CellSession>(cell, host, std::move(recipes), seed, contents);
  auto done = session->start();
  if (!done) return tl::unexpected(done.error());
  return session;
}

}  // namespace

std::optional<Witness> weakest_order_witness(CellSession& session, const std::map<std::uint32_t, Witness>& witnesses) {
  std::optional<Witness> weakest;
  for (const PortLayout* port : session.base().layout.outputs()) {
    if (port->order_exact()) continue;
    const Witness& witness = witnesses.at(port->index);
    if (!weakest || witness.rows_moved < weakest->rows_moved) weakest = witness;
  }
  return weakest;
}

Result<ChosenSession> choose_inputs(const Cell& cell, OperatorHost& host, std::uint64_t seed, ContentCache* contents) {
  const BiInputs wanted = cell.standard.bi ? cell.standard.bi->inputs : BiInputs::automatic;
  const bool own_possible = can_cancel(*cell.op);
  if (wanted == BiInputs::own && own_possible) {
    auto own = started(cell, host, cancelling_recipes(cell), seed, contents);
    if (!own) return tl::unexpected(own.error());
    return ChosenSession{*std::move(own), "cancelling (own)", cancelling_recipes(cell)};
  }
  auto shared = started(cell, host, cell.recipes, seed, contents);
  if (!shared) return tl::unexpected(shared.error());
  if (wanted == BiInputs::shared) return ChosenSession{*std::move(shared), "accuracy inputs (shared)", cell.recipes};
  if (exact_on_purpose(cell))
    return ChosenSession{*std::move(shared), "accuracy inputs (small_integer is exact on purpose)", cell.recipes};
  if (!own_possible) return ChosenSession{*std::move(shared), "accuracy inputs", cell.recipes};
  auto witnesses = (*shared)->order_witness();
  if (!witnesses) return tl::unexpected(witnesses.error());
  const auto weakest = weakest_order_witness(**shared, *witnesses);
  if (!weakest || static_cast<double>(weakest->rows_moved) >= kAliveShare * static_cast<double>(weakest->rows_total))
    return ChosenSession{*std::move(shared), "accuracy inputs", cell.recipes};
  auto own = started(cell, host, cancelling_recipes(cell), seed, contents);
  if (!own) return tl::unexpected(own.error());
  return ChosenSession{*std::move(own),
                       fmt::format("cancelling: with the accuracy inputs another order moves {} of {} rows of {}",
                                   weakest->rows_moved, weakest->rows_total, weakest->port),
                       cancelling_recipes(cell)};
}

}  // namespace batchproof
