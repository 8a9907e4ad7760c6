// SPDX-License-Identifier: Apache-2.0
//
// The flags that select and shape cells, as text and as what they mean. Each has an environment twin BATCHPROOF_<FLAG>.
#ifndef BATCHPROOF_SRC_CLI_FLAGS_H_
#define BATCHPROOF_SRC_CLI_FLAGS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "src/runtime/device.h"
#include "src/runtime/error.h"
#include "src/suite/expand.h"

namespace batchproof::cli {

// "fail-fast" -> "BATCHPROOF_FAIL_FAST".
std::string environment_name(const std::string& flag);

// As the user wrote them; empty: not given.
struct SelectionFlags {
  std::vector<std::string> suites;
  std::string device, comm, ranks, mode, impl, filter, shard, relations, seed;
  std::vector<std::string> plugins;
  std::vector<std::string> set;
};

struct SelectionOptions {
  ExpandOptions expand;  // filter and shard included
  std::uint64_t seed = 1;
  Device* device = nullptr;  // nullptr: the CPU
  // Overrides that change verdicts but not a cell's id, for the report's context: ("mode", "fast"), ...
  std::vector<std::pair<std::string, std::string>> settings;
};

// The communicator of --comm. Errors are as of parse_selection.
// `device`: of --device.
Result<void> check_comm(const std::string& comm, const std::string& device);
// Checks every flag. Errors are of kind usage, or environment where a device or communicator is not built in.
Result<SelectionOptions> parse_selection(const SelectionFlags& flags);

// The flags, without suites, ranks, filter, shard and seed, as words of a command line.
std::vector<std::string> override_words(const SelectionFlags& flags);

// A whole number in [least, most]; `what` names it in the error: "--seed".
Result<std::uint64_t> parse_whole(const std::string& text, const std::string& what, std::uint64_t least,
                                  std::uint64_t most);

// The seconds of --timeout; kDefaultTimeout where the text is empty.
constexpr double kDefaultTimeout = 60.0;
Result<double> parse_timeout(const std::string& text);

// "1..64,129" as ascending whole numbers from 1, each once.
Result<std::vector<std::int64_t>> parse_rows(const std::string& text);

}  // namespace batchproof::cli

#endif  // BATCHPROOF_SRC_CLI_FLAGS_H_
