// SPDX-License-Identifier: Apache-2.0
//
// Loads suite files. The file's form decides the dialect: an object is native, a bare list is ATK (docs/suites.md).
#ifndef BATCHPROOF_SRC_SUITE_LOAD_H_
#define BATCHPROOF_SRC_SUITE_LOAD_H_

#include <string>
#include <string_view>

#include "src/runtime/error.h"
#include "src/suite/suite.h"

namespace batchproof {

// Reads and checks one file. Errors are of kind usage and, once the file could be read, begin with
// "path:line:column: ". The ATK dialect binds cases to the operators registered at the time of the call.
Result<Suite> load_suite(const std::string& path);

// The same for text; `name` stands for the path in messages and for the folder that `file` entries are relative to.
Result<Suite> load_suite_text(std::string_view text, const std::string& name);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_SUITE_LOAD_H_
