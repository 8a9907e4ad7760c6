// SPDX-License-Identifier: Apache-2.0
//
// Messages on stderr.
#include "src/cli/print.h"

#include <fmt/format.h>

#include <cstdio>

#include "src/cli/exit.h"

namespace batchproof::cli {

int report_error(const Error& error) {
  std::fflush(stdout);
  fmt::print(stderr, "batchproof: error: {}\n", error.message);
  return exit_code(error);
}

void note(const std::string& text) { fmt::print(stderr, "# {}\n", text); }

}  // namespace batchproof::cli
