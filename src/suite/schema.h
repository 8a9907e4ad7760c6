// SPDX-License-Identifier: Apache-2.0
//
// The JSON Schemas of the suite dialects (draft-07), as in schema/*.schema.json.
#ifndef BATCHPROOF_SRC_SUITE_SCHEMA_H_
#define BATCHPROOF_SRC_SUITE_SCHEMA_H_

#include <string_view>

namespace batchproof {

// `dialect`: "native" or "atk"; anything else gives an empty text.
std::string_view schema_text(std::string_view dialect);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_SUITE_SCHEMA_H_
