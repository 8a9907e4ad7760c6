// SPDX-License-Identifier: Apache-2.0
//
// OperatorHost: the only way in which the checker reaches an operator. The local host calls the table in this process;
// a plug-in's host calls it in a worker process. Everything above works on either.
#ifndef BATCHPROOF_SRC_CHECK_HOST_H_
#define BATCHPROOF_SRC_CHECK_HOST_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "batchproof/operator.h"
#include "src/runtime/device.h"
#include "src/runtime/error.h"
#include "src/runtime/problem.h"

namespace batchproof {

// Host memory that an operator may be given; a host that runs elsewhere hands out shared memory.
struct Memory {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<void> owner;
};

// One call of an operator on all ranks.
struct RunRequest {
  const bp_implementation* implementation = nullptr;
  const Problem* problem = nullptr;
  bp_mode mode = BP_MODE_INVARIANT;
  bp_comm_mode comm_mode = BP_COMM_OFF;
  int threads = 1;  // per rank
  // For implementations on a device; the host's own calls know none of these.
  int stream = 0;          // 1: another stream than usual, while the usual one is busy
  bool captured = false;   // captured, replayed on other inputs, then replayed on these
  int processors = 0;      // streaming multiprocessors that the call may use; 0: all
  bool reference = false;  // the FP64 reference instead of run
  // What the workspace holds when the call begins; none: what the last call left there.
  std::optional<std::uint8_t> workspace_fill = std::uint8_t{0};
  std::vector<std::vector<bp_tensor>> tensors;  // [rank][port]
};

struct RunOutcome {
  std::string executed;  // id that the operator reported; empty where it reported none
  // Of the rank that took longest, the operator's function alone; and of the rank that needs most.
  double seconds = 0.0;
  std::uint64_t workspace_bytes = 0;
};

class OperatorHost {
 public:
  virtual ~OperatorHost() = default;
  // Names and declarations. The function pointers of this table may be called only by the host itself.
  virtual const bp_operator& table() const = 0;
  // Error::Kind::operation with the operator's sentence where the problem is refused.
  virtual Result<void> validate(const Problem& problem) = 0;
  // ndim and shape of every port, absent ones included as dtype BP_NONE.
  virtual Result<std::vector<bp_tensor>> shapes(const Problem& problem) = 0;
  // The operator's own placement of a logical row; nothing where it leaves that to its ports.
  virtual std::optional<std::vector<bp_location>> locate(const Problem& problem, std::int64_t row) = 0;
  // Whether the operator can be run as its FP64 reference.
  virtual bool has_reference() const = 0;
  virtual Result<std::uint32_t> promises(const bp_implementation& implementation, const Problem& problem) = 0;
  virtual Result<Memory> allocate(std::size_t bytes) = 0;
  // Fails where any rank failed, where the floating-point environment was changed, or where the operator wrote outside
  // its workspace.
  virtual Result<RunOutcome> run(const RunRequest& request) = 0;
  // Where implementations with BP_IMPL_CUDA run; nullptr: nowhere.
  virtual Device* device() const { return nullptr; }
  // CPU threads that the ranks of a problem share; the same number wherever the cell's runs are decided.
  virtual int processors() const;
  // A new cell begins: failures of the last one are forgotten, and each call may take that many seconds (none: the
  // host's own limit). A host in this process cannot stop an operator.
  virtual void begin_cell(std::optional<double> /*seconds_per_call*/) {}
};

// The implementation of that id, or nullptr.
const bp_implementation* find_implementation(const bp_operator& table, const std::string& id);
// The first implementation of a mode, on a CUDA device or not, that is neither a control nor a witness nor a peer; or
// nullptr.
const bp_implementation* default_implementation(const bp_operator& table, bp_mode mode, bool on_cuda = false);
inline bool runs_on_cuda(const bp_implementation& implementation) { return (implementation.flags & BP_IMPL_CUDA) != 0; }

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_CHECK_HOST_H_
