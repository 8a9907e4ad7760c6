// SPDX-License-Identifier: Apache-2.0
#include "src/suite/schema.h"

namespace batchproof {
namespace {

#include "suite_schemas.inc"

}  // namespace

std::string_view schema_text(std::string_view dialect) {
  if (dialect == "native") return k_native_schema;
  if (dialect == "atk") return k_atk_schema;
  return {};
}

}  // namespace batchproof
