// SPDX-License-Identifier: Apache-2.0
//
// Finds, loads and expands suites.
#include "src/cli/select.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>

#include "src/suite/expand.h"
#include "src/suite/load.h"

namespace batchproof::cli {
namespace {

namespace fs = std::filesystem;

// Relative where that is shorter to read and to copy.
std::string short_path(const fs::path& path) {
  std::error_code error;
  const fs::path relative = fs::proximate(path, error);
  const std::string text = relative.string();
  return error || text.rfind("..", 0) == 0 ? path.string() : text;
}

Result<void> refuse_twins(const std::vector<Cell>& cells) {
  std::map<std::string, const Cell*> seen;
  for (const Cell& cell : cells) {
    const auto [at, fresh] = seen.emplace(cell.id, &cell);
    if (!fresh) {
      return fail(Error::Kind::usage,
                  fmt::format("{}: cell {} is also at {}; give the cases different names, or pass each suite once",
                              cell.position.text(), cell.id, at->second->position.text()));
    }
  }
  return {};
}

void keep_shard(const ExpandOptions& options, std::vector<Cell>* cells) {
  if (options.shard_count == 1) return;
  std::vector<Cell> kept;
  for (std::size_t i = static_cast<std::size_t>(options.shard_index); i < cells->size();
       i += static_cast<std::size_t>(options.shard_count)) {
    kept.push_back(std::move((*cells)[i]));
  }
  *cells = std::move(kept);
}

}  // namespace

std::string ops_folder() {
  std::error_code error;
  // Installed suites belong to this very program; the tree that it was built from may have moved on.
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path installed = program.parent_path().parent_path() / "share" / "batchproof" / "ops";
  if (!program.empty() && fs::is_directory(installed, error)) return installed.string();
  return fs::is_directory(BATCHPROOF_OPS_DIR, error) ? BATCHPROOF_OPS_DIR : "";
}

std::vector<std::string> discover_suites(bool on_cuda) {
  std::vector<std::string> suites;
  const std::string folder = ops_folder();
  if (folder.empty()) return suites;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    for (const char* name : {on_cuda ? "cuda.json" : "ci.json", on_cuda ? "cuda_controls.json" : "controls.json"}) {
      const fs::path file = entry.path() / name;
      if (fs::is_regular_file(file, error)) suites.push_back(short_path(file));
    }
  }
  std::sort(suites.begin(), suites.end());
  return suites;
}

std::function<OperatorHost*(const bp_operator*)> plugin_hosts(const Selection& selection) {
  if (selection.plugins.empty()) return {};
  return [&selection](const bp_operator* table) -> OperatorHost* {
    for (const auto& plugin : selection.plugins) {
      if (OperatorHost* host = plugin->host(table)) return host;
    }
    return nullptr;
  };
}

Result<Selection> select_cells(const SelectionFlags& flags) {
  Selection selection;
  auto options = parse_selection(flags);
  if (!options) return tl::unexpected(options.error());
  selection.options = *std::move(options);

  for (const std::string& path : flags.plugins) {
    auto plugin = open_plugin(path);
    if (!plugin) return tl::unexpected(plugin.error());
    selection.plugins.push_back(*std::move(plugin));
  }

  std::vector<std::string> paths = flags.suites;
  if (paths.empty()) {
    if (ops_folder().empty()) {
      return fail(Error::Kind::environment,
                  "no suite was given, and there is no folder of operators beside this program; name a suite file");
    }
    paths = discover_suites(selection.options.expand.on_cuda);
  }
  // Shards are cut from the whole selection, not from each suite, so that they are of equal size.
  ExpandOptions whole = selection.options.expand;
  whole.shard_index = 0;
  whole.shard_count = 1;
  for (const std::string& path : paths) {
    auto suite = load_suite(path);
    if (!suite) return tl::unexpected(suite.error());
    auto cells = expand(*suite, whole);
    if (!cells) return tl::unexpected(cells.error());
    std::move(cells->begin(), cells->end(), std::back_inserter(selection.cells));
    selection.suites.push_back(*std::move(suite));
  }
  if (selection.cells.empty()) {
    return fail(Error::Kind::usage, flags.filter.empty()
                                        ? std::string("nothing selected: no suite has a cell")
                                        : fmt::format("nothing selected: --filter '{}' finds no cell", flags.filter));
  }
  if (auto twins = refuse_twins(selection.cells); !twins) return tl::unexpected(twins.error());
  keep_shard(selection.options.expand, &selection.cells);
  return selection;
}

}  // namespace batchproof::cli
