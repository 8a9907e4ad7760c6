// SPDX-License-Identifier: Apache-2.0
//
// Exit codes of the program (docs/cli.md). Where several apply: usage first, then failed, then environment.
#ifndef BATCHPROOF_SRC_CLI_EXIT_H_
#define BATCHPROOF_SRC_CLI_EXIT_H_

#include "src/runtime/error.h"

namespace batchproof::cli {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,       // a verdict that was not expected
  kExitUsage = 2,        // command line, suite, nothing selected
  kExitEnvironment = 3,  // a device, library, file or rank that was asked for is missing
  kExitSkipped = 77      // every cell was skipped; CTest's SKIP_RETURN_CODE
};

inline int exit_code(const Error& error) {
  switch (error.kind) {
    case Error::Kind::usage:
      return kExitUsage;
    case Error::Kind::environment:
      return kExitEnvironment;
    default:
      return kExitFailed;
  }
}

}  // namespace batchproof::cli

#endif  // BATCHPROOF_SRC_CLI_EXIT_H_
