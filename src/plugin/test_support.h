// SPDX-License-Identifier: Apache-2.0
//
// For the tests of this folder: opening a test plug-in and making cells of its operators.
#ifndef BATCHPROOF_SRC_PLUGIN_TEST_SUPPORT_H_
#define BATCHPROOF_SRC_PLUGIN_TEST_SUPPORT_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "src/check/host.h"
#include "src/check/runner.h"
#include "src/plugin/plugin.h"

namespace batchproof {

inline std::string plugin_path(const std::string& stem) {
  return std::string(BATCHPROOF_PLUGIN_DIR) + "/" + stem + ".so";
}

inline PluginOptions test_options(double timeout_s = 60.0) {
  PluginOptions options;
  options.worker_program = BATCHPROOF_TEST_WORKER;
  options.timeout_s = timeout_s;
  options.register_operators = false;
  return options;
}

// The plug-in and its only operator.
struct OpenedPlugin {
  std::unique_ptr<Plugin> plugin;
  const bp_operator* table = nullptr;
  OperatorHost* host = nullptr;

  explicit OpenedPlugin(const std::string& stem, double timeout_s = 60.0) {
    auto opened = open_plugin(plugin_path(stem), test_options(timeout_s));
    if (!opened) {
      ADD_FAILURE() << opened.error().message;
      return;
    }
    plugin = *std::move(opened);
    table = plugin->tables().at(0);
    host = plugin->host(table);
  }

  // x(M, K) . w(K, N) over `world` ranks, FP32; extra attributes as in the table.
  Cell cell(const std::string& implementation, int world = 1, std::int64_t m = 3, std::int64_t k = 64) const {
    Cell cell;
    cell.id = std::string(table->name) + "/" + implementation + "/case/K=64,M=3";
    cell.op = table;
    cell.impl = find_implementation(*table, implementation);
    cell.problem.world = world;
    cell.problem.axes = {{"M", m}, {"K", k}, {"N", 5}};
    cell.problem.dtypes.assign(table->port_count, BP_FP32);
    for (std::uint32_t i = 0; i < table->attr_count; ++i) cell.problem.attrs[table->attrs[i].name] = std::string();
    cell.recipes.resize(table->port_count);
    BiStandard bi;
    bi.relations = kDefaultRelations | BP_POISON | BP_HISTORY | BP_ALIGNMENT | BP_THREADS | BP_WORLD_SIZE;
    if (world == 1) bi.relations &= ~static_cast<std::uint32_t>(BP_CROSS_RANK);  // there is no other rank
    cell.standard.bi = bi;
    return cell;
  }

  RunOptions options() const {
    RunOptions options;
    const Plugin* from = plugin.get();
    options.host = [from](const bp_operator* op) { return from->host(op); };
    return options;
  }

  CellResult run(const Cell& cell) const { return run_cells({cell}, options()).cells.at(0); }
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_PLUGIN_TEST_SUPPORT_H_
