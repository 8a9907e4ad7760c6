// SPDX-License-Identifier: Apache-2.0
//
// The workers of one plug-in, started when they are needed and again after they died, and the memory they share.
#ifndef BATCHPROOF_SRC_PLUGIN_WORKER_GROUP_H_
#define BATCHPROOF_SRC_PLUGIN_WORKER_GROUP_H_

#include <memory>
#include <string>
#include <vector>

#include "src/plugin/arena.h"
#include "src/plugin/channel.h"
#include "src/plugin/plugin.h"
#include "src/plugin/worker_process.h"

namespace batchproof {

// A piece of memory that messages about faults can name.
struct NamedRegion {
  std::string name;  // a port
  int rank = 0;
  std::uint64_t offset = 0;  // in the arena
  std::uint64_t bytes = 0;
  bool writable = false;
};

class WorkerGroup {
 public:
  // Starts the first worker and loads the plug-in.
  static Result<std::unique_ptr<WorkerGroup>> open(const std::string& path, const PluginOptions& options);

  const std::string& path() const { return path_; }
  const std::string& build_id() const { return build_id_; }
  const std::vector<std::string>& notes() const { return notes_; }
  // The tables as the worker sent them.
  const nlohmann::json& tables() const { return tables_; }
  Arena& arena() { return *arena_; }

  void set_limit(std::optional<double> seconds) { limit_ = seconds.value_or(options_.timeout_s); }
  double limit() const { return limit_; }

  // Worker `rank`, with the plug-in loaded.
  Result<WorkerProcess*> worker(int rank);
  // The next call of that rank gets a new process.
  void drop(int rank) {
    workers_[static_cast<std::size_t>(rank)].reset();
    ++generation_;
  }
  // Counts dropped workers: two equal values mean that nothing broke in between.
  std::uint64_t generation() const { return generation_; }

  // One question to worker 0. `what` is the function for messages ("validate"). A death, a time-out and a damaged
  // answer are errors; the worker is dropped.
  Result<Message> ask(const std::string& op, const std::string& what, const Message& request);

  // The sentence for a worker that ended, or hung, in a call. Empty `op`: the plug-in itself.
  std::string cause(const std::string& op, const std::string& what, WorkerProcess& worker, const Death& death,
                    const std::vector<NamedRegion>& regions, int rank) const;
  std::string hang(const std::string& op, const std::string& what, WorkerProcess& worker) const;

 private:
  WorkerGroup(std::string path, PluginOptions options)
      : path_(std::move(path)), options_(std::move(options)), limit_(options_.timeout_s) {}
  Result<Message> load(WorkerProcess& worker);

  std::string path_;
  std::string build_id_;
  PluginOptions options_;
  double limit_;
  std::uint64_t generation_ = 0;
  std::unique_ptr<Arena> arena_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;  // by rank
  nlohmann::json tables_;
  std::vector<std::string> notes_;
};

// What an answer says; errors cleaned of what a report cannot hold.
Result<void> answer_status(const Message& reply);

// Where an address of a fault lies: "it wrote 4 bytes behind the end of y on rank 0". Empty: nowhere near.
std::string locate_fault(const Death& death, std::uint64_t arena_size, const std::vector<NamedRegion>& regions);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_PLUGIN_WORKER_GROUP_H_
