// SPDX-License-Identifier: Apache-2.0
//
// Loads what an earlier run found and checks that it still holds.
#include "src/cli/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "src/report/json.h"

namespace batchproof::cli {
namespace {

std::string describe(const std::vector<std::pair<std::string, std::string>>& settings) {
  std::string text;
  for (const auto& [name, value] : settings) text += (text.empty() ? "" : ", ") + name + "=" + value;
  return text.empty() ? "none" : text;
}

Result<void> check_same_run(const std::string& path, const RunContext& before, const RunContext& now) {
  const auto refuse = [&](const std::string& why) {
    return fail(Error::Kind::usage, fmt::format("--resume {}: {}; run without --resume", path, why));
  };
  if (before.seed != now.seed) return refuse(fmt::format("it has seed {}, this run has {}", before.seed, now.seed));
  if (before.settings != now.settings) {
    return refuse(
        fmt::format("it ran with other overrides ({}; now {})", describe(before.settings), describe(now.settings)));
  }
  for (const auto& [name, id] : now.build_ids) {
    const auto same = std::find_if(before.build_ids.begin(), before.build_ids.end(),
                                   [&, key = name](const auto& entry) { return entry.first == key; });
    if (same == before.build_ids.end()) return refuse(fmt::format("it knows nothing of {}", name));
    if (same->second != id) return refuse(fmt::format("{} has changed since ({} was {})", name, id, same->second));
  }
  return {};
}

}  // namespace

std::string journal_path(const std::string& path) { return path + ".partial"; }

Result<std::map<std::string, CellResult>> load_resume(const std::string& path, bool may_be_missing,
                                                      const RunContext& context) {
  std::map<std::string, CellResult> results;
  std::error_code error;
  // A journal is the newer of the two: a run that ends removes it.
  const bool journal = std::filesystem::exists(journal_path(path), error);
  if (!journal && may_be_missing && !std::filesystem::exists(path, error)) return results;
  auto before = read_report(journal ? journal_path(path) : path);
  if (!before) return tl::unexpected(before.error());
  if (auto same = check_same_run(path, before->context, context); !same) return tl::unexpected(same.error());
  for (CellResult& cell : before->cells) {
    std::string id = cell.id;
    results.insert_or_assign(std::move(id), std::move(cell));
  }
  return results;
}

}  // namespace batchproof::cli
