// SPDX-License-Identifier: Apache-2.0
#include "src/comm/thread_world_state.h"

#include <fmt/format.h>

namespace batchproof {

WorldCore::WorldCore(int world_size, RankMemory& rank_memory)
    : world(world_size), memory(rank_memory), calls(world_size), ranks(world_size), leaving_(world_size) {
  for (Rank& rank : ranks) rank.sources.resize(world_size);
}

// The mutex is held and every rank has posted its call. Empty: they match.
std::string WorldCore::mismatch() const {
  std::string error = different_calls(world, [&](int q) -> const WorldCall& { return calls[q]; });
  if (!error.empty() || calls[0].op != Collective::all_to_all_v) return error;
  for (int from = 0; from < world; ++from) {
    for (int to = 0; to < world; ++to) {
      const std::size_t sent = calls[from].send_bytes[to];
      const std::size_t expected = calls[to].recv_bytes[from];
      if (sent != expected) {
        return fmt::format("rank {}: all_to_all_v expects {} bytes from rank {}, which sends {}", to, expected, from,
                           sent);
      }
    }
  }
  return {};
}

bool WorldCore::enter(int rank, const WorldCall& call) {
  std::uint64_t ticket = 0;
  bool opened = false;
  {
    const std::lock_guard lock(mutex_);
    if (aborted()) return false;
    calls[rank] = call;
    ranks[rank].arrived = true;
    ticket = entered_.load(std::memory_order_relaxed) + 1;
    if (++arrived_ == world) {
      const std::string error = mismatch();
      if (!error.empty()) {
        abort_locked(error);
        return false;
      }
      arrived_ = 0;
      for (Rank& each : ranks) each.arrived = false;
      entered_.store(ticket, std::memory_order_release);
      enter_epoch_.fetch_add(1, std::memory_order_release);
      opened = true;
    } else {
      for (int q = 0; q < world; ++q) {
        if (!ranks[q].finished) continue;
        abort_locked(fmt::format("rank {} returned while rank {} waits in {}", q, rank, op_name(call.op)));
        return false;
      }
    }
  }
  if (opened) {
    enter_epoch_.notify_all();
    return true;
  }
  for (;;) {
    const std::uint32_t epoch = enter_epoch_.load(std::memory_order_acquire);
    if (entered_.load(std::memory_order_acquire) >= ticket) return true;
    // After an abort nothing opens any more, so a call that opened before it is told from one that never did.
    if (aborted()) return entered_.load(std::memory_order_acquire) >= ticket;
    enter_epoch_.wait(epoch, std::memory_order_acquire);
  }
}

void WorldCore::leave() {
  const std::uint32_t epoch = leave_epoch_.load(std::memory_order_acquire);
  if (leaving_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    leaving_.store(world, std::memory_order_relaxed);
    leave_epoch_.fetch_add(1, std::memory_order_release);
    leave_epoch_.notify_all();
    return;
  }
  while (leave_epoch_.load(std::memory_order_acquire) == epoch) {
    leave_epoch_.wait(epoch, std::memory_order_acquire);
  }
}

bool WorldCore::abort_locked(const std::string& error) {
  if (aborted()) return false;
  error_ = error;
  aborted_.store(true, std::memory_order_release);
  enter_epoch_.fetch_add(1, std::memory_order_release);
  enter_epoch_.notify_all();
  return true;
}

bool WorldCore::abort(const std::string& error) {
  const std::lock_guard lock(mutex_);
  return abort_locked(error);
}

std::string WorldCore::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void WorldCore::reset() {
  const std::lock_guard lock(mutex_);
  error_.clear();
  arrived_ = 0;
  for (Rank& rank : ranks) {
    rank.arrived = false;
    rank.finished = false;
  }
  memory.reset();
  aborted_.store(false, std::memory_order_release);
}

void WorldCore::finished(int rank) {
  const std::lock_guard lock(mutex_);
  ranks[rank].finished = true;
  if (arrived_ == 0 || aborted()) return;
  for (int q = 0; q < world; ++q) {
    if (!ranks[q].arrived) continue;
    abort_locked(fmt::format("rank {} returned while rank {} waits in {}", rank, q, op_name(calls[q].op)));
    return;
  }
}

}  // namespace batchproof
