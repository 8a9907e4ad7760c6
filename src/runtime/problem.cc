// SPDX-License-Identifier: Apache-2.0
#include "src/runtime/problem.h"

namespace batchproof {

std::int64_t Problem::axis(const std::string& name) const {
  const auto found = axes.find(name);
  return found != axes.end() ? found->second : -1;
}

Problem::View::View(const Problem& problem) : problem_{} {
  for (const auto& [name, value] : problem.axes) axes_.push_back(bp_axis{name.c_str(), value});
  for (const auto& [name, value] : problem.attrs) {
    bp_attr attr{name.c_str(), BP_ATTR_INT, 0, 0.0, nullptr};
    if (const bool* b = std::get_if<bool>(&value)) {
      attr.type = BP_ATTR_BOOL;
      attr.i = *b ? 1 : 0;
    } else if (const std::int64_t* i = std::get_if<std::int64_t>(&value)) {
      attr.i = *i;
    } else if (const double* f = std::get_if<double>(&value)) {
      attr.type = BP_ATTR_FLOAT;
      attr.f = *f;
    } else {
      attr.type = BP_ATTR_STRING;
      attr.s = std::get<std::string>(value).c_str();
    }
    attrs_.push_back(attr);
  }
  problem_.struct_size = sizeof(bp_problem);
  problem_.world = problem.world;
  problem_.axis_count = static_cast<std::uint32_t>(axes_.size());
  problem_.axes = axes_.data();
  problem_.attr_count = static_cast<std::uint32_t>(attrs_.size());
  problem_.attrs = attrs_.data();
  problem_.dtypes = problem.dtypes.data();
}

}  // namespace batchproof
