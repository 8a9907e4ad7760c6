// SPDX-License-Identifier: Apache-2.0
#include "src/plugin/plugin.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "batchproof/registry.h"
#include "src/plugin/worker_group.h"
#include "src/plugin/worker_host.h"

namespace batchproof {

Plugin::~Plugin() {
  if (!registered_) return;
  for (const auto& host : hosts_) unregister_operator(&host->table());
}

const std::string& Plugin::path() const { return group_->path(); }
const std::string& Plugin::build_id() const { return group_->build_id(); }
const std::vector<std::string>& Plugin::load_notes() const { return group_->notes(); }

std::vector<const bp_operator*> Plugin::tables() const {
  std::vector<const bp_operator*> list;
  for (const auto& host : hosts_) list.push_back(&host->table());
  return list;
}

OperatorHost* Plugin::host(const bp_operator* table) const {
  for (const auto& host : hosts_) {
    if (&host->table() == table) return host.get();
  }
  return nullptr;
}

Result<std::unique_ptr<Plugin>> open_plugin(const std::string& path, const PluginOptions& options) {
  auto plugin = std::unique_ptr<Plugin>(new Plugin);
  auto group = WorkerGroup::open(path, options);
  if (!group) return tl::unexpected(group.error());
  plugin->group_ = *std::move(group);
  const auto taken = registered_operators();
  for (const nlohmann::json& message : plugin->group_->tables()) {
    auto table = OwnedTable::from_json(message);
    if (!table) return fail(Error::Kind::usage, fmt::format("{}: {}", path, table.error().message));
    const char* name = (*table)->table().name;
    const bool clash = std::any_of(taken.begin(), taken.end(),
                                   [&](const bp_operator* other) { return std::strcmp(other->name, name) == 0; });
    if (options.register_operators && clash)
      return fail(Error::Kind::usage,
                  fmt::format("{}: operator {}: the name is taken, by a built-in operator or another "
                              "plug-in; rename it",
                              path, name));
    plugin->hosts_.push_back(std::make_unique<WorkerHost>(*plugin->group_, plugin->hosts_.size(), *std::move(table)));
  }
  if (options.register_operators) {
    for (const auto& host : plugin->hosts_) register_operator(&host->table());
    plugin->registered_ = true;
  }
  return plugin;
}

}  // namespace batchproof
