// SPDX-License-Identifier: Apache-2.0
//
// Runs a table on the processes of an MPI launch: rank r of a problem is process r. Every process runs the same cells
// and makes the same calls here; each computes its own rank, and all get all outputs and the same outcome, so that
// whatever is decided above is decided alike everywhere.
#ifndef BATCHPROOF_SRC_CHECK_MPI_HOST_H_
#define BATCHPROOF_SRC_CHECK_MPI_HOST_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/check/local_host.h"
#include "src/check/rank_runner.h"
#include "src/comm/mpi_world.h"

namespace batchproof {

class MpiHost final : public OperatorHost {
 public:
  // `processors`: CPU threads that a process may count on, the same number on all of them. `seconds`: how long a call
  // may take where a cell says nothing else. The processes outlive the host.
  MpiHost(MpiProcesses& processes, const bp_operator* table, int processors, double seconds);
  ~MpiHost() override;

  const bp_operator& table() const override { return local_.table(); }
  // Refuses a world larger than the launch.
  Result<void> validate(const Problem& problem) override;
  Result<std::vector<bp_tensor>> shapes(const Problem& problem) override { return local_.shapes(problem); }
  std::optional<std::vector<bp_location>> locate(const Problem& problem, std::int64_t row) override {
    return local_.locate(problem, row);
  }
  Result<std::uint32_t> promises(const bp_implementation& implementation, const Problem& problem) override {
    return local_.promises(implementation, problem);
  }
  bool has_reference() const override { return local_.has_reference(); }
  Result<Memory> allocate(std::size_t bytes) override;
  // On top of what every host does: a write beside one of this rank's tensors is an error of the call here, because the
  // other processes could not see it.
  Result<RunOutcome> run(const RunRequest& request) override;
  int processors() const override { return processors_; }
  void begin_cell(std::optional<double> seconds_per_call) override;

 private:
  struct Pieces;
  struct Fence;
  struct Report;

  MpiWorld& world(int size);
  void run_own(const RunRequest& request, Report* report);
  std::vector<Fence> fences(const std::vector<bp_tensor>& tensors) const;
  bool exchange_reports(int world, std::vector<Report>* reports);
  bool exchange_outputs(const RunRequest& request);

  MpiProcesses& processes_;
  LocalHost local_;
  RankRunner runner_;
  int processors_;
  double default_seconds_;
  double seconds_;
  std::map<int, std::unique_ptr<MpiWorld>> worlds_;
  std::shared_ptr<Pieces> pieces_;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_CHECK_MPI_HOST_H_
