// SPDX-License-Identifier: Apache-2.0
//
// The `virtual` communicator: ranks that share one device. They are the threads of a RankTeam, each with a stream of
// its own; what they move lies in device memory. Threads meet to tell each other which work is enqueued, events order
// the streams, and no thread waits for the device.
#ifndef BATCHPROOF_SRC_COMM_VIRTUAL_WORLD_H_
#define BATCHPROOF_SRC_COMM_VIRTUAL_WORLD_H_

#include <memory>
#include <vector>

#include "src/comm/rank_memory.h"

namespace batchproof {

// Streams of a device as the protocol needs them. Every function enqueues and returns; called by several threads.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;
  // Why ranks cannot meet on this stream: an error; nothing: they can.
  virtual Result<void> accepts(void* stream) = 0;
  virtual Result<void*> make_event() = 0;
  virtual void release_event(void* event) = 0;
  virtual Result<void> record(void* event, void* stream) = 0;
  // What the stream gets from now on comes after what the event was last recorded behind.
  virtual Result<void> wait(void* event, void* stream) = 0;
  virtual Result<void> copy(void* to, const void* from, std::size_t bytes, void* stream) = 0;
  // The bytes of reduce() in reduce.h.
  virtual Result<void> sum(bp_dtype dtype, bp_reduce_order order, const std::vector<const void*>& sources,
                           std::size_t count, void* out, void* stream) = 0;
};

// The memory of one world of `world` ranks on a queue; the queue and the streams outlive it.
std::unique_ptr<RankMemory> virtual_rank_memory(int world, DeviceQueue& queue);

// CUDA streams. Arguments are pointers to memory of the current device; sums take up to 256 ranks. A stream that is
// being captured is refused: each rank captures its own call, and two captures may not wait for each other.
DeviceQueue& cuda_queue();

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_COMM_VIRTUAL_WORLD_H_
