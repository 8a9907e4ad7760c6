// SPDX-License-Identifier: Apache-2.0
//
// A user's shared library with operators: opened, listed, and run in worker processes. This program never loads it.
#ifndef BATCHPROOF_SRC_PLUGIN_PLUGIN_H_
#define BATCHPROOF_SRC_PLUGIN_PLUGIN_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/check/host.h"
#include "src/plugin/table.h"
#include "src/runtime/error.h"

namespace batchproof {

struct PluginOptions {
  // What is started as a worker; empty: BATCHPROOF_WORKER in the environment, else this program.
  std::string worker_program;
  // Seconds that one call may take where the cell says nothing else.
  double timeout_s = 300.0;
  // Whether suites shall find the operators by name (register_operator). A name that is taken is refused.
  bool register_operators = true;
};

class WorkerGroup;
class WorkerHost;

// An open plug-in: one worker process serves all its operators; ranks of operators that are not thread-safe have one
// each. The workers end with this object, and so do the tables: nothing may refer to them afterwards. Use it, and open
// it, from one thread; workers end when that thread does.
class Plugin {
 public:
  ~Plugin();
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  const std::string& path() const;      // absolute
  const std::string& build_id() const;  // XXH3 of the file (C7)
  // What loading changed in the worker, a sentence fragment each: "sets flush-to-zero when loaded". Calls are not
  // affected.
  const std::vector<std::string>& load_notes() const;
  std::vector<const bp_operator*> tables() const;
  // Host of one of these tables; nullptr for any other.
  OperatorHost* host(const bp_operator* table) const;

 private:
  friend Result<std::unique_ptr<Plugin>> open_plugin(const std::string& path, const PluginOptions& options);
  Plugin() = default;
  std::unique_ptr<WorkerGroup> group_;
  std::vector<std::unique_ptr<WorkerHost>> hosts_;
  bool registered_ = false;
};

// Errors are of kind usage where the file is at fault (it cannot be loaded, its tables are refused, it crashes or hangs
// while it is loaded) and begin with its path; else of kind environment.
Result<std::unique_ptr<Plugin>> open_plugin(const std::string& path, const PluginOptions& options = {});

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_PLUGIN_PLUGIN_H_
