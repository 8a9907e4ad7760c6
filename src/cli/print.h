// SPDX-License-Identifier: Apache-2.0
//
// Messages on stderr, all in one form: "batchproof: error: ...".
#ifndef BATCHPROOF_SRC_CLI_PRINT_H_
#define BATCHPROOF_SRC_CLI_PRINT_H_

#include <string>

#include "src/runtime/error.h"

namespace batchproof::cli {

// From here on this process is rank `rank` of several: errors of other ranks than 0 name theirs, and their notes are
// dropped.
void speak_as(int rank);
// Prints the error and returns its exit code.
int report_error(const Error& error);
// The same for an error that was found before the processes of a launch know of each other. They mostly share their
// command line, so rank 0 says it for all and the others wait until the launcher ends them; one that nobody ends says
// its own.
int report_shared_error(const Error& error);
// A `#` line.
void note(const std::string& text);

}  // namespace batchproof::cli

#endif  // BATCHPROOF_SRC_CLI_PRINT_H_
