// SPDX-License-Identifier: Apache-2.0
//
// A case with everything resolved that is the same for all its cells. Private to src/suite.
#ifndef BATCHPROOF_SRC_SUITE_CASE_PLAN_H_
#define BATCHPROOF_SRC_SUITE_CASE_PLAN_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/runtime/expression.h"
#include "src/suite/expand.h"

namespace batchproof {

struct PlannedAxis {
  enum class Role { world, dtype_mode, comm_mode, row_position, extent, port, port_dtype } role = Role::extent;
  std::uint32_t port = 0;  // for port and port_dtype
  CaseAxis axis;
};

struct CasePlan {
  const bp_operator* op = nullptr;
  const bp_implementation* impl = nullptr;
  std::map<std::string, AttrValue> attrs;
  std::vector<PlannedAxis> axes;                // the first one slowest
  std::vector<const PortSpec*> ports;           // one per port of the operator; nullptr: the case does not list it
  std::vector<std::vector<Expression>> shapes;  // one per port: what the case says; empty: nothing
  std::optional<Expression> where;
  std::string skip_reason;  // every cell of the case is skipped for it
};

// Whether the operator's rows or tensors depend on the number of ranks.
bool is_distributed(const bp_operator& op);

// Whether the shapes of optional ports alone use the axis: a case may leave it out, and is then without those ports.
bool is_optional_axis(const bp_operator& op, const char* axis);

// The axes of the port's shape that the case leaves out.
std::vector<std::string> missing_axes(const bp_operator& op, const bp_port& port, const Problem& problem);

// "mid", "last" or an index from 0; nothing for anything else.
std::optional<RowPosition> row_position_from(const AxisValue& value);

// An error at a place of the suite.
tl::unexpected<Error> fail_at(const SourcePosition& position, const std::string& message);

// Resolves the case; `loaded` must outlive the plan and have no skip_reason.
Result<CasePlan> plan_case(const Case& loaded, const ExpandOptions& options);

// What the suite's operators have between them, each once: ids of implementations, names of attributes.
// The ports that have the name of this one: it, or all alternative forms of a tensor.
std::vector<std::uint32_t> forms_of(const bp_operator& op, std::uint32_t port);

std::vector<std::string> suite_implementations(const Suite& suite);
std::vector<std::string> suite_attributes(const Suite& suite);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_SUITE_CASE_PLAN_H_
