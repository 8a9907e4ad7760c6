// SPDX-License-Identifier: Apache-2.0
//
// The data part of an operator table: checked, written as a message, and rebuilt in another process.
#ifndef BATCHPROOF_SRC_PLUGIN_TABLE_H_
#define BATCHPROOF_SRC_PLUGIN_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "batchproof/operator.h"
#include "src/runtime/error.h"

namespace batchproof {

// Whether the table is one that the checker can work with: version and size, names, expressions, port descriptions,
// implementations, required functions. Version and size are read before anything else. The error is of kind usage and
// reads "operator NAME: FIELD: what is wrong; what would be right".
Result<void> check_table(const bp_operator& table);

// Which functions a table has, since a rebuilt one has no function pointers.
struct TableFunctions {
  bool reference = false;
  bool locate = false;
  bool own_memory = false;  // alloc and its three companions
};

// A table with its strings and arrays. Function pointers are NULL; implementations' data too.
class OwnedTable {
 public:
  // Fails where the message does not hold a table. What it holds passes check_table but for the functions.
  static Result<std::unique_ptr<OwnedTable>> from_json(const nlohmann::json& message);
  ~OwnedTable();
  OwnedTable(const OwnedTable&) = delete;
  OwnedTable& operator=(const OwnedTable&) = delete;

  const bp_operator& table() const;
  const TableFunctions& functions() const;

 private:
  OwnedTable();
  struct State;
  std::unique_ptr<State> state_;
};

// The data of a table that passed check_table.
nlohmann::json table_to_json(const bp_operator& table);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_PLUGIN_TABLE_H_
