// SPDX-License-Identifier: Apache-2.0
//
// One call of an operator on one rank: workspace, the operator's own memory where it has some, and what the call may
// not change. The local host runs it on rank threads, a plug-in's worker on threads or in a process per rank.
#ifndef BATCHPROOF_SRC_CHECK_RANK_RUNNER_H_
#define BATCHPROOF_SRC_CHECK_RANK_RUNNER_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/check/host.h"
#include "src/runtime/device.h"

namespace batchproof {

// What a host adds around the call. Empty functions add nothing. All are called on the rank's own thread.
struct RankHooks {
  // Host memory for a workspace and its guard bytes; empty: aligned heap memory.
  std::function<Result<Memory>(std::size_t bytes)> allocate;
  // Right before run is called; `workspace` is what the operator gets (NULL and 0 where it asks for none).
  std::function<void(int rank, const std::byte* workspace, std::size_t bytes)> before;
  // Right after: what the call left changed, as in "a changed signal mask: SIGUSR1 blocked"; empty: nothing.
  std::function<std::string(int rank)> after;
};

// Aligned heap memory. Error::Kind::environment where there is none left.
Result<Memory> allocate_host_memory(std::size_t bytes);

// Where the memory of a host implementation is, as `promises` is told: "cpu", or "opaque" for a table with alloc.
const bp_device& device_of(const bp_operator& table);

// Why an implementation with BP_IMPL_CUDA cannot run without a device.
std::string needs_device(const bp_implementation& implementation);

// Bytes from the first to behind the last element of a tensor, gaps between rows included.
std::size_t storage_bytes(const bp_tensor& tensor);

// Guard bytes lie around every workspace and behind every piece of the operator's own memory.
class RankRunner {
 public:
  explicit RankRunner(const bp_operator* table, RankHooks hooks = {}, Device* device = nullptr);
  ~RankRunner();
  RankRunner(const RankRunner&) = delete;
  RankRunner& operator=(const RankRunner&) = delete;

  // Whether the call's tensors lie in the device's memory.
  bool runs_on_device(const RunRequest& request) const {
    return table_->alloc == nullptr && runs_on_cuda(*request.implementation) && !request.reference;
  }
  // Before the ranks of a world are run: not thread-safe.
  void prepare(int world);
  // Calls run (or reference) on one rank and returns the id that it reported, its time and its workspace. Different
  // ranks may run at once; a rank keeps its workspace between calls, as users do. Tensors are host memory; where the
  // table has alloc, the operator gets copies in memory of its own (BP_MEMORY_OPAQUE), outputs with what they hold, and
  // outputs are copied back. So do implementations with BP_IMPL_CUDA, in memory of the device (BP_MEMORY_CUDA) at the
  // same places between 64-byte boundaries. Errors are Error::Kind::operation and name the cause: the operator's own
  // sentence, a C++ exception, a changed floating-point environment, a write outside the workspace or a device tensor,
  // a changed device input.
  Result<RunOutcome> run(const RunRequest& request, const bp_problem* problem, int rank, const bp_comm& comm);
  // Whether a C++ exception ever left the operator: its state can no longer be trusted.
  bool threw() const { return threw_.load(); }

 private:
  struct OwnMemory {
    void* data = nullptr;
    std::size_t bytes = 0;
  };
  struct Rank {
    Memory workspace;
    // Of the table's alloc, or of the device.
    struct Side {
      OwnMemory workspace;
      std::vector<OwnMemory> tensors;  // by port
    };
    Side own, on_device;
    std::vector<std::byte> staging;
  };
  // One call: where its memory lies and on which stream it runs.
  struct Place {
    int rank = 0;
    bool device = false;     // else the table's own memory
    void* stream = nullptr;  // of the device
  };

  template <class Call>
  auto guarded(const char* function, const Call& call) -> Result<decltype(call())>;
  Rank::Side& side(const Place& place) {
    Rank& rank = *ranks_[static_cast<std::size_t>(place.rank)];
    return place.device ? rank.on_device : rank.own;
  }
  Result<void> grow(OwnMemory* memory, std::size_t bytes, const Place& place);
  Result<void> copy(void* to, const void* from, std::size_t bytes, int direction, const Place& place, const char* what);
  Result<void> synchronise(const Place& place);
  Result<std::byte*> host_workspace(const RunRequest& request, int rank, std::size_t bytes);
  Result<void*> own_workspace(const RunRequest& request, const Place& place, std::size_t bytes);
  // `stale`: the byte that every tensor holds instead of its content.
  Result<void> upload(const Place& place, std::vector<bp_tensor>* tensors, std::optional<std::uint8_t> stale);
  Result<void> download(const Place& place, const std::vector<bp_tensor>& host_tensors);
  Result<void> check_workspace(const Place& place, bool own_memory, std::size_t bytes);
  // Captures the call, replays it on stale tensors, uploads what it is really given and replays it again.
  Result<void> run_captured(const Place& place, const std::vector<bp_tensor>& host_tensors,
                            const std::function<Result<void>()>& call);

  const bp_operator* table_;
  RankHooks hooks_;
  Device* device_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::atomic<bool> threw_{false};
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_CHECK_RANK_RUNNER_H_
