// SPDX-License-Identifier: Apache-2.0
//
// The ATK dialect between reading and binding: what a case says before an operator is known. Private to src/suite.
#ifndef BATCHPROOF_SRC_SUITE_ATK_H_
#define BATCHPROOF_SRC_SUITE_ATK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/runtime/expression.h"
#include "src/suite/read.h"

namespace batchproof {

// One object of `inputs`. Pointers go into the document and may be null.
struct AtkItem {
  std::string dtype;                               // as written; empty: not given
  std::optional<std::vector<std::int64_t>> shape;  // none: null
  const JsonValue* range = nullptr;                // range_values
  JsonPosition position;
};

// One entry of `inputs`: an object, or a nested list whose objects share one name.
struct AtkEntry {
  std::string name;
  bool is_tensor = false;
  bool is_list = false;
  std::vector<AtkItem> items;  // at least one
  JsonPosition position;
};

// "x1ScaleOptional" -> "x1_scale": a trailing Optional goes, camel case becomes snake case.
std::string port_word(std::string_view name);

// range_values of the tensor `name`; the normal recipe where there are none.
RecipeSpec read_atk_range(Reader& reader, const AtkItem& item, const std::string& name);

using AxisBindings = std::map<std::string, std::int64_t, std::less<>>;  // axis -> extent

// Whether a concrete shape can be the symbolic one: single symbols bind, or agree with what is bound; a compound extent
// with one unbound axis binds it; one must have the value for some world size, once all its symbols are bound. Where
// false, `bindings` is left half-filled.
bool unify_shape(const std::vector<Expression>& symbolic, const std::vector<std::int64_t>& shape,
                 AxisBindings& bindings);

// Swaps the two axes whose bits are set; does nothing where the shape does not have both.
void swap_two_axes(std::uint32_t mask, std::vector<std::int64_t>& shape);

// Fills what the operator decides: axes, attrs, ports, or skip_reason. Rules: docs/suites.md, "What is inferred".
void bind_atk_case(Reader& reader, const bp_operator& op, const std::vector<AtkEntry>& entries, Case& out);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_SUITE_ATK_H_
