// SPDX-License-Identifier: Apache-2.0
#include "src/suite/suite.h"

#include <fmt/core.h>

namespace batchproof {

std::string SourcePosition::text() const { return fmt::format("{}:{}:{}", file, line, column); }

const SourcePosition& Case::position_of(const std::string& key) const {
  const auto found = positions.find(key);
  return found != positions.end() ? found->second : position;
}

}  // namespace batchproof
