// SPDX-License-Identifier: Apache-2.0
//
// Which event stands for what. `ready` of a rank: its buffers may be read and written by the others. `done`: it has
// read and written theirs. A rank records an event before the threads meet and the others wait for it after they have
// met; the next recording is into the other one of two events, because a slower thread may not have waited yet. The one
// after that is safe: it comes behind the next meeting, to which every thread has come from its waits.
#include "src/comm/virtual_world.h"

#include <fmt/format.h>

#include <array>

namespace batchproof {
namespace {

class VirtualMemory final : public RankMemory {
 public:
  VirtualMemory(int world, DeviceQueue& queue) : queue_(queue), ranks_(static_cast<std::size_t>(world)) {}
  ~VirtualMemory() override {
    for (const Rank& rank : ranks_) {
      for (const Ring* ring : {&rank.ready, &rank.done}) {
        for (void* event : ring->events) {
          if (event != nullptr) queue_.release_event(event);
        }
      }
    }
  }

  Result<void> begin(int rank, void* stream) override {
    if (Result<void> accepted = queue_.accepts(stream); !accepted) return accepted;
    return record(&ranks_[rank].ready, stream);
  }
  Result<void> opened(int rank, void* stream) override {
    return wait(rank, ranks_[rank].ready.recorded, &Rank::ready, stream);
  }
  Result<void> move(void* to, const void* from, std::size_t bytes, void* stream) override {
    return queue_.copy(to, from, bytes, stream);
  }
  Result<void> sum(bp_dtype dtype, bp_reduce_order order, const std::vector<const void*>& sources, std::size_t count,
                   void* out, void* stream) override {
    return queue_.sum(dtype, order, sources, count, out, stream);
  }
  Result<void> end(int rank, void* stream) override { return record(&ranks_[rank].done, stream); }
  Result<void> left(int rank, void* stream) override {
    return wait(rank, ranks_[rank].done.recorded, &Rank::done, stream);
  }
  // Ranks that failed at different calls count alike again.
  void reset() override {
    for (Rank& rank : ranks_) rank.ready.recorded = rank.done.recorded = 0;
  }

 private:
  struct Ring {
    std::array<void*, 2> events{};
    unsigned recorded = 0;
  };
  struct alignas(64) Rank {
    Ring ready, done;
  };

  // Counts also where it fails: all ranks must count alike.
  Result<void> record(Ring* ring, void* stream) {
    void*& event = ring->events[ring->recorded++ % 2];
    if (event == nullptr) {
      Result<void*> made = queue_.make_event();
      if (!made) return tl::unexpected(made.error());
      event = *made;
    }
    return queue_.record(event, stream);
  }
  Result<void> wait(int rank, unsigned recorded, Ring Rank::* which, void* stream) {
    for (std::size_t q = 0; q < ranks_.size(); ++q) {
      void* event = (ranks_[q].*which).events[(recorded - 1) % 2];
      // A rank without an event could not make one; it has reported that.
      if (q == static_cast<std::size_t>(rank) || event == nullptr) continue;
      if (Result<void> done = queue_.wait(event, stream); !done) return done;
    }
    return {};
  }

  DeviceQueue& queue_;
  std::vector<Rank> ranks_;
};

}  // namespace

std::unique_ptr<RankMemory> virtual_rank_memory(int world, DeviceQueue& queue) {
  return std::make_unique<VirtualMemory>(world, queue);
}

#ifndef BATCHPROOF_HAVE_CUDA
namespace {

class NoQueue final : public DeviceQueue {
  static tl::unexpected<Error> none() {
    return fail(Error::Kind::environment, "virtual ranks share one GPU, and this build has no CUDA device support");
  }
  Result<void> accepts(void*) override { return none(); }
  Result<void*> make_event() override { return none(); }
  void release_event(void*) override {}
  Result<void> record(void*, void*) override { return none(); }
  Result<void> wait(void*, void*) override { return none(); }
  Result<void> copy(void*, const void*, std::size_t, void*) override { return none(); }
  Result<void> sum(bp_dtype, bp_reduce_order, const std::vector<const void*>&, std::size_t, void*, void*) override {
    return none();
  }
};

}  // namespace

DeviceQueue& cuda_queue() {
  static NoQueue queue;
  return queue;
}
#endif

}  // namespace batchproof
