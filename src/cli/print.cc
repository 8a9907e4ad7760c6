// SPDX-License-Identifier: Apache-2.0
//
// Messages on stderr.
#include "src/cli/print.h"

#include <fmt/format.h>

#include <cstdio>

#include "src/cli/exit.h"
#include "src/cli/launch.h"

namespace batchproof::cli {

namespace {

int speaker = 0;

}  // namespace

void speak_as(int rank) { speaker = rank; }

int report_error(const Error& error) {
  std::fflush(stdout);
  const std::string rank = speaker == 0 ? std::string() : fmt::format("rank {}: ", speaker);
  // In one piece: ranks share the stream.
  const std::string line = fmt::format("batchproof: error: {}{}\n", rank, error.message);
  std::fwrite(line.data(), 1, line.size(), stderr);
  return exit_code(error);
}

int report_shared_error(const Error& error) { return rank_in_launch() == 0 ? report_error(error) : exit_code(error); }

void note(const std::string& text) {
  if (speaker == 0) fmt::print(stderr, "# {}\n", text);
}

}  // namespace batchproof::cli
