// SPDX-License-Identifier: Apache-2.0
//
// Runs a table in this process, one thread per rank. On a device the ranks are virtual: they share it.
#ifndef BATCHPROOF_SRC_CHECK_LOCAL_HOST_H_
#define BATCHPROOF_SRC_CHECK_LOCAL_HOST_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/check/host.h"
#include "src/check/rank_runner.h"
#include "src/comm/thread_world.h"

namespace batchproof {

class LocalHost final : public OperatorHost {
 public:
  // `device`: where implementations with BP_IMPL_CUDA run; nullptr: they are refused.
  explicit LocalHost(const bp_operator* table, RankHooks hooks = {}, Device* device = nullptr)
      : table_(table), device_(device), runner_(table, std::move(hooks), device) {}

  const bp_operator& table() const override { return *table_; }
  Result<void> validate(const Problem& problem) override;
  Result<std::vector<bp_tensor>> shapes(const Problem& problem) override;
  std::optional<std::vector<bp_location>> locate(const Problem& problem, std::int64_t row) override;
  bool has_reference() const override { return table_->reference != nullptr; }
  Result<std::uint32_t> promises(const bp_implementation& implementation, const Problem& problem) override;
  Result<Memory> allocate(std::size_t bytes) override;
  Result<RunOutcome> run(const RunRequest& request) override;
  Device* device() const override { return device_; }
  // Whether a C++ exception ever left the operator's run.
  bool threw() const { return runner_.threw(); }

 private:
  // The memory outlives the team.
  struct Team {
    std::unique_ptr<RankMemory> memory;
    std::unique_ptr<RankTeam> ranks;
  };
  RankTeam& team(int world, bool on_device);

  const bp_operator* table_;
  Device* device_;
  std::map<std::pair<int, bool>, Team> teams_;
  RankRunner runner_;
};

// The outcome of all ranks from that of each; fails where two ranks say that they executed different things.
Result<RunOutcome> joined_outcome(const std::vector<RunOutcome>& ranks);

// Evaluates the ports' symbolic shapes of a table; used where infer_shapes is NULL.
Result<std::vector<bp_tensor>> symbolic_shapes(const bp_operator& table, const Problem& problem);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_CHECK_LOCAL_HOST_H_
