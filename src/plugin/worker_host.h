// SPDX-License-Identifier: Apache-2.0
//
// OperatorHost of one operator of a plug-in.
#ifndef BATCHPROOF_SRC_PLUGIN_WORKER_HOST_H_
#define BATCHPROOF_SRC_PLUGIN_WORKER_HOST_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/comm/process_world.h"
#include "src/plugin/worker_group.h"

namespace batchproof {

class WorkerHost final : public OperatorHost {
 public:
  // `index`: of the operator in the plug-in. The group outlives the host.
  WorkerHost(WorkerGroup& group, std::size_t index, std::unique_ptr<OwnedTable> table);

  const bp_operator& table() const override { return owned_->table(); }
  const TableFunctions& functions() const { return owned_->functions(); }
  Result<void> validate(const Problem& problem) override;
  Result<std::vector<bp_tensor>> shapes(const Problem& problem) override;
  // Fails in the next run, because a caller of this one expects no failure.
  std::optional<std::vector<bp_location>> locate(const Problem& problem, std::int64_t row) override;
  bool has_reference() const override { return functions().reference; }
  Result<std::uint32_t> promises(const bp_implementation& implementation, const Problem& problem) override;
  Result<Memory> allocate(std::size_t bytes) override;
  // On top of what every host does: ranks as processes where the operator is not thread-safe; a crash, an exit, a call
  // that does not return and a write outside an output are errors, and the next call gets a new worker.
  Result<RunOutcome> run(const RunRequest& request) override;
  void begin_cell(std::optional<double> seconds_per_call) override;

 private:
  using Rows = std::map<std::int64_t, std::vector<bp_location>>;
  struct Known {  // about one problem
    Problem problem;
    std::optional<std::vector<bp_tensor>> shapes;
    Rows rows;
  };
  // Bytes around an output that must not change.
  struct Fence {
    std::string port;
    int rank;
    const std::byte* begin;
    const std::byte* data;
    const std::byte* data_end;
    const std::byte* end;
    std::vector<std::byte> before;
    std::vector<std::byte> behind;
  };
  struct World {
    Memory memory;
    std::unique_ptr<ProcessWorld> observer;
  };

  Message request(const char* kind, const Problem& problem) const;
  Result<Message> ask(const char* kind, const Message& message);
  Known& known(const Problem& problem);
  Result<void> check_shapes(const std::vector<bp_tensor>& tensors) const;
  Result<void> fetch_rows(Known& about, std::int64_t row);
  Result<std::uint32_t> implementation_index(const bp_implementation* implementation) const;
  Result<void> append_tensors(const RunRequest& run, int rank, Message* message);
  Result<World*> world_memory(int world);
  Result<RunOutcome> run_in_one(const RunRequest& run, Message message);
  Result<RunOutcome> run_in_processes(const RunRequest& run, const Message& message);
  std::string broken_fence() const;

  WorkerGroup& group_;
  std::size_t index_;
  std::unique_ptr<OwnedTable> owned_;
  std::string name_;
  std::vector<std::unique_ptr<Known>> known_;  // the last few problems
  std::optional<Error> pending_;
  std::map<int, World> worlds_;
  // Of the run at hand.
  std::vector<NamedRegion> regions_;
  std::vector<Fence> fences_;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_PLUGIN_WORKER_HOST_H_
