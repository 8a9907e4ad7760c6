// SPDX-License-Identifier: Apache-2.0
//
// Which inputs an invariance run uses (C5): the accuracy inputs where another order shows with them, else cancelling
// ones. check and scan choose alike.
#ifndef BATCHPROOF_SRC_CHECK_CHOOSE_INPUTS_H_
#define BATCHPROOF_SRC_CHECK_CHOOSE_INPUTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/check/session.h"

namespace batchproof {

struct ChosenSession {
  std::unique_ptr<CellSession> session;  // its base run is made
  std::string inputs;                    // "accuracy inputs", "cancelling: with the accuracy inputs ..."
  std::vector<RecipeSpec> recipes;       // one per port
};

// As the cell's standard.bi says; automatic where it has none.
Result<ChosenSession> choose_inputs(const Cell& cell, OperatorHost& host, std::uint64_t seed,
                                    ContentCache* contents = nullptr);

// The output port whose rows move least under another order, order-exact ports left out; nothing where all are exact.
std::optional<Witness> weakest_order_witness(CellSession& session, const std::map<std::uint32_t, Witness>& witnesses);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_CHECK_CHOOSE_INPUTS_H_
