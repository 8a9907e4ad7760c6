// SPDX-License-Identifier: Apache-2.0
//
// Messages on stderr.
#include "src/cli/print.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "src/cli/exit.h"
#include "src/cli/launch.h"

namespace batchproof::cli {

namespace {

// How long rank 0 may take to find an error that all of a launch share, on a busy machine.
constexpr std::chrono::seconds kRankZeroSpeaks{10};

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

int report_shared_error(const Error& error) {
  const int rank = rank_in_launch();
  if (rank != 0) {
    // mpirun ends all with the first that fails: ended before rank 0, this rank would take its word away. Who is still
    // there afterwards had a command line of its own.
    std::this_thread::sleep_for(kRankZeroSpeaks);
    speak_as(rank);
  }
  return report_error(error);
}

void note(const std::string& text) {
  if (speaker == 0) fmt::print(stderr, "# {}\n", text);
}

}  // namespace batchproof::cli
