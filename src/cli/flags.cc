// SPDX-License-Identifier: Apache-2.0
//
// Declares and checks the flags that select and shape cells.
#include "src/cli/flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <regex>
#include <set>

#include "src/cli/launch.h"
#include "src/runtime/words.h"

namespace batchproof::cli {
namespace {

constexpr int kMostRanks = 1024;
constexpr double kMostTimeout = 86400.0;
constexpr std::uint64_t kMostRows = 1 << 24;

Error usage(std::string message) { return Error{Error::Kind::usage, std::move(message)}; }

tl::unexpected<Error> refuse(std::string message) { return tl::unexpected<Error>(usage(std::move(message))); }

// The device, nullptr for the CPU.
Result<Device*> parse_device(const std::string& text) {
  if (text.empty() || text == "cpu") return nullptr;
  static const std::regex cuda("cuda(:[0-9]{1,4})?");
  if (!std::regex_match(text, cuda)) return refuse(fmt::format("--device {}: devices are cpu, cuda and cuda:N", text));
  const Result<Device*> device = cuda_device(text == "cuda" ? 0 : std::stoi(text.substr(5)));
  if (!device) return fail(device.error().kind, fmt::format("--device {}: {}", text, device.error().message));
  return device;
}

}  // namespace

Result<void> check_comm(const std::string& comm, const std::string& device) {
  const bool on_cuda = !device.empty() && device != "cpu";
  if (comm == "virtual") {
    if (on_cuda) return {};
    // Without a device the missing device is what there is to say.
    if (const Result<Device*> found = cuda_device(0); !found)
      return fail(found.error().kind,
                  fmt::format("--comm virtual: virtual ranks share one GPU, and {}", found.error().message));
    return refuse("--comm virtual: virtual ranks share one GPU; choose it with --device cuda");
  }
  if (comm == "threads" && on_cuda)
    return refuse("--comm threads: ranks on a CUDA device are virtual; leave --comm out, or say --comm virtual");
  if (comm.empty() || comm == "threads") return {};
  if (comm == "mpi" && !mpi_built_in())
    return fail(Error::Kind::environment, "--comm mpi: no MPI support in this build");
  if (comm == "mpi" && !started_by_mpirun()) {
    return fail(Error::Kind::environment,
                "--comm mpi: mpirun did not start this process; mpirun -n 4 batchproof check ... does");
  }
  if (comm == "mpi" && on_cuda)
    return refuse("--comm mpi: ranks on a CUDA device are virtual; start the program without mpirun");
  if (comm == "mpi") return {};
  if (comm == "nccl") return fail(Error::Kind::environment, "--comm nccl: no NCCL support in this build");
  return refuse(fmt::format("--comm {}: communicators are threads, mpi, nccl and virtual", comm));
}

namespace {

Result<std::vector<int>> parse_ranks(const std::string& text) {
  std::vector<int> ranks;
  for (const std::string& word : split_list(text.c_str())) {
    const Result<std::uint64_t> value = parse_whole(word, "--ranks", 1, kMostRanks);
    if (!value) return tl::unexpected(value.error());
    const int rank = static_cast<int>(*value);
    if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) {
      return refuse(fmt::format("--ranks {}: {} is listed twice", text, rank));
    }
    ranks.push_back(rank);
  }
  if (ranks.empty() && !text.empty()) return refuse("--ranks: a list of world sizes such as 2,4,8 is needed");
  return ranks;
}

// "i/n", i from 1 to n.
Result<void> parse_shard(const std::string& text, ExpandOptions* options) {
  if (text.empty()) return {};
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos) return refuse(fmt::format("--shard {}: i/n is needed, such as 1/4", text));
  const Result<std::uint64_t> count = parse_whole(text.substr(slash + 1), "--shard", 1, 1000000);
  if (!count) return tl::unexpected(count.error());
  const Result<std::uint64_t> index = parse_whole(text.substr(0, slash), "--shard", 1, *count);
  if (!index) return tl::unexpected(index.error());
  options->shard_index = static_cast<int>(*index - 1);
  options->shard_count = static_cast<int>(*count);
  return {};
}

Result<std::uint32_t> parse_relations(const std::string& text) {
  std::uint32_t mask = 0;
  for (const std::string& name : split_list(text.c_str())) {
    const std::optional<std::uint32_t> bit = relation_from_name(name);
    if (!bit) {
      std::uint32_t all = 0;
      for (const RelationWord& word : relations()) all |= word.bit;
      return refuse(fmt::format("--relations: \"{}\" is not a relation; relations are {}", name, relation_list(all)));
    }
    mask |= *bit;
  }
  if (mask == 0 && !text.empty()) return refuse("--relations: a list such as neighbours,position is needed");
  return mask;
}

Result<std::map<std::string, std::string>> parse_set(const std::vector<std::string>& words) {
  std::map<std::string, std::string> set;
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      return refuse(fmt::format("--set {}: NAME=VALUE is needed", word));
    }
    if (!set.emplace(word.substr(0, equals), word.substr(equals + 1)).second) {
      return refuse(fmt::format("--set {}: {} is set twice", word, word.substr(0, equals)));
    }
  }
  return set;
}

Result<void> check_filter(const std::string& filter) {
  try {
    static_cast<void>(std::regex(filter));
    return {};
  } catch (const std::regex_error& error) {
    return refuse(fmt::format("--filter {}: not a regular expression ({})", filter, error.what()));
  }
}

}  // namespace

std::string environment_name(const std::string& flag) {
  std::string name = "BATCHPROOF_";
  for (const char c : flag) name += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return name;
}

Result<std::uint64_t> parse_whole(const std::string& text, const std::string& what, std::uint64_t least,
                                  std::uint64_t most) {
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc() || stop != end || value < least || value > most) {
    const std::string range = most == std::numeric_limits<std::uint64_t>::max()
                                  ? fmt::format("from {}", least)
                                  : fmt::format("from {} to {}", least, most);
    return refuse(fmt::format("{}: \"{}\" is not a whole number {}", what, text, range));
  }
  return value;
}

Result<double> parse_timeout(const std::string& text) {
  if (text.empty()) return kDefaultTimeout;
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  if (*end != '\0' || !(seconds > 0.0) || seconds > kMostTimeout) {
    return refuse(
        fmt::format("--timeout: \"{}\" is not a number of seconds above 0, at most {:.0f}", text, kMostTimeout));
  }
  return seconds;
}

Result<std::vector<std::int64_t>> parse_rows(const std::string& text) {
  std::set<std::int64_t> rows;
  for (const std::string& word : split_list(text.c_str())) {
    const std::size_t dots = word.find("..");
    const auto first = parse_whole(word.substr(0, dots), "--rows", 1, kMostRows);
    if (!first) return tl::unexpected(first.error());
    const auto last = dots == std::string::npos ? first : parse_whole(word.substr(dots + 2), "--rows", 1, kMostRows);
    if (!last) return tl::unexpected(last.error());
    if (*last < *first) return refuse(fmt::format("--rows {}: {} is above {}", word, *first, *last));
    for (std::uint64_t row = *first; row <= *last; ++row) rows.insert(static_cast<std::int64_t>(row));
  }
  if (rows.empty()) return refuse("--rows: row counts such as 1..1500 or 1..64,129 are needed");
  return std::vector<std::int64_t>(rows.begin(), rows.end());
}

Result<SelectionOptions> parse_selection(const SelectionFlags& flags) {
  SelectionOptions options;
  // Usage errors come before a missing environment: 2 goes before 3.
  const Result<Device*> device = parse_device(flags.device);
  const Result<void> comm = check_comm(flags.comm, flags.device);
  if (!device && device.error().kind == Error::Kind::usage) return tl::unexpected(device.error());
  if (!comm && comm.error().kind == Error::Kind::usage) return tl::unexpected(comm.error());
  if (flags.mode == "invariant") {
    options.expand.mode = BP_MODE_INVARIANT;
  } else if (flags.mode == "fast") {
    options.expand.mode = BP_MODE_FAST;
  } else if (!flags.mode.empty()) {
    return refuse(fmt::format("--mode {}: modes are invariant and fast", flags.mode));
  }
  auto ranks = parse_ranks(flags.ranks);
  if (!ranks) return tl::unexpected(ranks.error());
  options.expand.ranks = *ranks;
  auto relations_mask = parse_relations(flags.relations);
  if (!relations_mask) return tl::unexpected(relations_mask.error());
  options.expand.relations = *relations_mask;
  auto set = parse_set(flags.set);
  if (!set) return tl::unexpected(set.error());
  options.expand.set = *set;
  if (auto shard = parse_shard(flags.shard, &options.expand); !shard) return tl::unexpected(shard.error());
  if (auto filter = check_filter(flags.filter); !filter) return tl::unexpected(filter.error());
  options.expand.filter = flags.filter;
  options.expand.impl = flags.impl;
  if (!flags.seed.empty()) {
    auto seed = parse_whole(flags.seed, "--seed", 0, std::numeric_limits<std::uint64_t>::max());
    if (!seed) return tl::unexpected(seed.error());
    options.seed = *seed;
  }
  if (!device) return tl::unexpected(device.error());
  if (!comm) return tl::unexpected(comm.error());
  options.device = *device;
  options.expand.on_cuda = *device != nullptr;
  if (!flags.mode.empty()) options.settings.emplace_back("mode", flags.mode);
  if (!flags.impl.empty()) options.settings.emplace_back("impl", flags.impl);
  if (options.expand.relations != 0) {
    options.settings.emplace_back("relations", relation_list(options.expand.relations));
  }
  for (const auto& [name, value] : options.expand.set) options.settings.emplace_back("set." + name, value);
  return options;
}

std::vector<std::string> override_words(const SelectionFlags& flags) {
  std::vector<std::string> words;
  const auto add = [&](const char* flag, const std::string& value) {
    if (value.empty()) return;
    words.push_back(flag);
    words.push_back(value);
  };
  add("--device", flags.device);
  add("--comm", flags.comm);
  add("--mode", flags.mode);
  add("--impl", flags.impl);
  add("--relations", flags.relations);
  for (const std::string& word : flags.set) add("--set", word);
  for (const std::string& plugin : flags.plugins) add("--plugin", plugin);
  return words;
}

}  // namespace batchproof::cli
