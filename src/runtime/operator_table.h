// SPDX-License-Identifier: Apache-2.0
//
// An operator's table from its arrays and functions: sizes are counted here, and what an operator does not name stays
// absent. The arrays must outlive the table.
#ifndef BATCHPROOF_SRC_RUNTIME_OPERATOR_TABLE_H_
#define BATCHPROOF_SRC_RUNTIME_OPERATOR_TABLE_H_

#include <cstddef>
#include <cstdint>

#include "batchproof/operator.h"

namespace batchproof {

// The fields of bp_operator of these names.
struct OperatorWords {
  const char* name = "";
  const char* summary = "";
  const char* rows = "M";
  const char* row_count_axis = "M";
  const char* aliases = "";
  const char* ignored_attrs = "";
};

struct OperatorFunctions {
  decltype(bp_operator::validate) validate = nullptr;
  decltype(bp_operator::workspace_size) workspace_size = nullptr;
  decltype(bp_operator::run) run = nullptr;
  decltype(bp_operator::reference) reference = nullptr;
  decltype(bp_operator::promises) promises = nullptr;
  decltype(bp_operator::infer_shapes) infer_shapes = nullptr;
  decltype(bp_operator::locate) locate = nullptr;
};

template <std::size_t ports, std::size_t axes, std::size_t attrs, std::size_t modes, std::size_t implementations,
          std::size_t thresholds>
constexpr bp_operator operator_table(const OperatorWords& words, std::uint32_t flags,
                                     const bp_port (&port_array)[ports], const bp_axis_decl (&axis_array)[axes],
                                     const bp_attr_decl (&attr_array)[attrs], const bp_dtype_mode (&mode_array)[modes],
                                     const bp_implementation (&implementation_array)[implementations],
                                     const std::int64_t (&threshold_array)[thresholds],
                                     const OperatorFunctions& functions) {
  bp_operator t{};
  t.abi_version = BP_ABI_VERSION;
  t.struct_size = sizeof(bp_operator);
  t.name = words.name;
  t.summary = words.summary;
  t.rows = words.rows;
  t.row_count_axis = words.row_count_axis;
  t.aliases = words.aliases;
  t.ignored_attrs = words.ignored_attrs;
  t.flags = flags;
  t.port_count = ports;
  t.ports = port_array;
  t.axis_count = axes;
  t.axes = axis_array;
  t.attr_count = attrs;
  t.attrs = attr_array;
  t.dtype_mode_count = modes;
  t.dtype_modes = mode_array;
  t.implementation_count = implementations;
  t.implementations = implementation_array;
  t.threshold_count = thresholds;
  t.thresholds = threshold_array;
  t.validate = functions.validate;
  t.workspace_size = functions.workspace_size;
  t.run = functions.run;
  t.reference = functions.reference;
  t.promises = functions.promises;
  t.infer_shapes = functions.infer_shapes;
  t.locate = functions.locate;
  return t;
}

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_RUNTIME_OPERATOR_TABLE_H_
