// SPDX-License-Identifier: Apache-2.0
//
// Messages on stderr, all in one form: "batchproof: error: ...".
#ifndef BATCHPROOF_SRC_CLI_PRINT_H_
#define BATCHPROOF_SRC_CLI_PRINT_H_

#include <string>

#include "src/runtime/error.h"

namespace batchproof::cli {

// Prints the error and returns its exit code.
int report_error(const Error& error);
// A `#` line.
void note(const std::string& text);

}  // namespace batchproof::cli

#endif  // BATCHPROOF_SRC_CLI_PRINT_H_
