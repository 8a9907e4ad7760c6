// SPDX-License-Identifier: Apache-2.0
//
// Collectives over memory that all ranks reach. A call has two or three phases:
//
//   enter   every rank posts its arguments; the last one to come compares them and opens the phase. Only here can a
//           call be aborted: from here on every rank is known to do its part, so the waits below always end.
//   move    each receiver copies (or sums) straight from the senders' buffers.
//   leave   nobody returns, and so nobody reuses a buffer, before all have moved.
//
// On device streams (virtual_world.h) the threads meet in the same places, but what they meet about is enqueued work:
// streams wait for each other, threads do not wait for streams.
//
// Waiting is a futex on an epoch counter (std::atomic::wait): no rank spins, so 64 ranks work on 2 processors.
#include "src/comm/thread_world.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "src/comm/buffers.h"
#include "src/comm/rank_memory.h"
#include "src/comm/reduce.h"
#include "src/comm/thread_world_state.h"
#include "src/numeric/dtype.h"
#include "src/runtime/fp_env.h"

namespace batchproof {
namespace {

WorldCore* core_of(const bp_comm* comm) { return static_cast<WorldCore*>(comm->self); }

class HostMemory final : public RankMemory {
 public:
  Result<void> begin(int, void*) override { return {}; }
  Result<void> opened(int, void*) override { return {}; }
  Result<void> move(void* to, const void* from, std::size_t bytes, void*) override {
    std::memcpy(to, from, bytes);
    return {};
  }
  Result<void> sum(bp_dtype dtype, bp_reduce_order order, const std::vector<const void*>& sources, std::size_t count,
                   void* out, void*) override {
    reduce(dtype, order, sources, count, out);
    return {};
  }
  Result<void> end(int, void*) override { return {}; }
  Result<void> left(int, void*) override { return {}; }
};

bp_status invalid(const bp_comm* comm, const char* function, const std::string& what) {
  core_of(comm)->abort(fmt::format("rank {}: {}: {}", comm->rank, function, what));
  return BP_INVALID;
}

// One rank's part in one call: where ranks meet, and what is moved in between. A failure behind `enter` is kept until
// the end, so that every rank does its part and nobody waits for ever.
class Part {
 public:
  Part(const bp_comm* comm, const char* function, void* stream)
      : core(*core_of(comm)), rank_(comm->rank), function_(function), stream_(stream) {}

  // Not BP_OK: the call does not happen, and this is what to return.
  bp_status enter(const WorldCall& call) {
    if (Result<void> ready = core.memory.begin(rank_, stream_); !ready) {
      core.abort(fmt::format("rank {}: {}: {}", rank_, function_, ready.error().message));
      return BP_INVALID;
    }
    if (!core.enter(rank_, call)) return BP_COMM;
    keep(core.memory.opened(rank_, stream_));
    return BP_OK;
  }
  // Of nothing there may be no pointer, and a move onto itself may not be done.
  void move(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0 && to != from) keep(core.memory.move(to, from, bytes, stream_));
  }
  void sum(bp_dtype dtype, bp_reduce_order order, std::size_t offset, std::size_t count, void* out) {
    std::vector<const void*>& sources = core.ranks[rank_].sources;
    for (int q = 0; q < core.world; ++q) sources[q] = at(core.calls[q].send, offset);
    if (count > 0) keep(core.memory.sum(dtype, order, sources, count, out, stream_));
  }
  void leave() {
    keep(core.memory.end(rank_, stream_));
    core.leave();
    keep(core.memory.left(rank_, stream_));
  }
  bp_status status() {
    if (failure_) return BP_OK;
    core.abort(fmt::format("rank {}: {}: {}", rank_, function_, failure_.error().message));
    return failure_.error().kind == Error::Kind::environment ? BP_ENVIRONMENT : BP_INTERNAL;
  }

  WorldCore& core;

 private:
  void keep(Result<void> done) {
    if (!done && failure_) failure_ = std::move(done);
  }

  int rank_;
  const char* function_;
  void* stream_;
  Result<void> failure_;
};

bp_status barrier(const bp_comm* comm, void* stream) noexcept {
  Part part(comm, "barrier", stream);
  const bp_status entered = part.enter(WorldCall{.op = Collective::barrier});
  return entered == BP_OK ? part.status() : entered;
}

bp_status all_gather(const bp_comm* comm, const void* send, void* recv, std::size_t bytes, void* stream) noexcept {
  Part part(comm, "all_gather", stream);
  std::size_t total = 0;
  if (__builtin_mul_overflow(bytes, comm->world, &total)) return invalid(comm, "all_gather", "the size overflows");
  const bool in_place = bytes > 0 && recv != nullptr && send == at(recv, comm->rank * bytes);
  const std::string error = buffer_error(send, bytes, recv, total, in_place);
  if (!error.empty()) return invalid(comm, "all_gather", error);
  const bp_status entered = part.enter({.op = Collective::all_gather, .send = send, .count = bytes});
  if (entered != BP_OK) return entered;
  if (bytes == 0) return part.status();
  for (int q = 0; q < comm->world; ++q) part.move(at(recv, q * bytes), part.core.calls[q].send, bytes);
  part.leave();
  return part.status();
}

bp_status all_to_all(const bp_comm* comm, const void* send, void* recv, std::size_t bytes, void* stream) noexcept {
  Part part(comm, "all_to_all", stream);
  std::size_t total = 0;
  if (__builtin_mul_overflow(bytes, comm->world, &total)) return invalid(comm, "all_to_all", "the size overflows");
  const std::string error = buffer_error(send, total, recv, total, false);
  if (!error.empty()) return invalid(comm, "all_to_all", error);
  const bp_status entered = part.enter({.op = Collective::all_to_all, .send = send, .count = bytes});
  if (entered != BP_OK) return entered;
  if (bytes == 0) return part.status();
  for (int q = 0; q < comm->world; ++q) {
    part.move(at(recv, q * bytes), at(part.core.calls[q].send, comm->rank * bytes), bytes);
  }
  part.leave();
  return part.status();
}

bp_status all_to_all_v(const bp_comm* comm, const void* send, const std::size_t* send_bytes,
                       const std::size_t* send_offsets, void* recv, const std::size_t* recv_bytes,
                       const std::size_t* recv_offsets, void* stream) noexcept {
  Part part(comm, "all_to_all_v", stream);
  const std::string error =
      all_to_all_v_error(comm->world, send, send_bytes, send_offsets, recv, recv_bytes, recv_offsets);
  if (!error.empty()) return invalid(comm, "all_to_all_v", error);
  const WorldCall call = {.op = Collective::all_to_all_v,
                          .send = send,
                          .send_bytes = send_bytes,
                          .send_offsets = send_offsets,
                          .recv_bytes = recv_bytes};
  if (const bp_status entered = part.enter(call); entered != BP_OK) return entered;
  for (int q = 0; q < comm->world; ++q) {
    if (recv_bytes[q] == 0) continue;
    const WorldCall& sender = part.core.calls[q];
    part.move(at(recv, recv_offsets[q]), at(sender.send, sender.send_offsets[comm->rank]), recv_bytes[q]);
  }
  part.leave();
  return part.status();
}

bp_status reduce_scatter(const bp_comm* comm, const void* send, void* recv, std::size_t count, bp_dtype dtype,
                         bp_reduce_order order, void* stream) noexcept {
  Part part(comm, "reduce_scatter", stream);
  std::string error = reduce_error(dtype, order, comm->world);
  if (!error.empty()) return invalid(comm, "reduce_scatter", error);
  const std::size_t element = static_cast<std::size_t>(dtype_bits(dtype)) / 8;
  std::size_t bytes = 0;
  std::size_t total = 0;
  if (__builtin_mul_overflow(count, element, &bytes) || __builtin_mul_overflow(bytes, comm->world, &total)) {
    return invalid(comm, "reduce_scatter", "the size overflows");
  }
  const bool in_place = bytes > 0 && send != nullptr && recv == at(send, comm->rank * bytes);
  error = buffer_error(send, total, recv, bytes, in_place);
  if (!error.empty()) return invalid(comm, "reduce_scatter", error);
  const WorldCall call = {
      .op = Collective::reduce_scatter, .send = send, .count = count, .dtype = dtype, .order = order};
  if (const bp_status entered = part.enter(call); entered != BP_OK) return entered;
  if (count == 0) return part.status();
  part.sum(dtype, order, comm->rank * bytes, count, recv);
  part.leave();
  return part.status();
}

// Rank r sums slice r and all gather the slices, so that every element is summed once.
bp_status all_reduce(const bp_comm* comm, const void* send, void* recv, std::size_t count, bp_dtype dtype,
                     bp_reduce_order order, void* stream) noexcept {
  Part part(comm, "all_reduce", stream);
  std::string error = reduce_error(dtype, order, comm->world);
  if (!error.empty()) return invalid(comm, "all_reduce", error);
  const std::size_t element = static_cast<std::size_t>(dtype_bits(dtype)) / 8;
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(count, element, &bytes)) return invalid(comm, "all_reduce", "the size overflows");
  error = buffer_error(send, bytes, recv, bytes, send == recv);
  if (!error.empty()) return invalid(comm, "all_reduce", error);

  // Slices in elements; the first ones are longer by one where the count does not divide.
  const std::size_t world = static_cast<std::size_t>(comm->world);
  const auto begin = [&](std::size_t r) { return count / world * r + std::min(r, count % world); };
  const std::size_t mine = begin(comm->rank + 1) - begin(comm->rank);
  // In place as well: slice r of rank r's buffer is read by rank r alone before it is written.
  void* result = at(recv, begin(comm->rank) * element);
  const WorldCall call = {
      .op = Collective::all_reduce, .send = send, .result = result, .count = count, .dtype = dtype, .order = order};
  if (const bp_status entered = part.enter(call); entered != BP_OK) return entered;
  if (count == 0) return part.status();
  part.sum(dtype, order, begin(comm->rank) * element, mine, result);
  part.leave();
  for (std::size_t q = 0; q < world; ++q) {
    part.move(at(recv, begin(q) * element), part.core.calls[q].result, (begin(q + 1) - begin(q)) * element);
  }
  part.leave();
  return part.status();
}

}  // namespace

RankMemory& host_rank_memory() {
  static HostMemory memory;
  return memory;
}

struct ThreadWorld::State {
  State(int world, RankMemory& memory) : core(world, memory) {
    for (int rank = 0; rank < world; ++rank) {
      bp_comm comm{};
      comm.struct_size = sizeof(bp_comm);
      comm.rank = rank;
      comm.world = world;
      comm.self = &core;
      comm.barrier = barrier;
      comm.all_gather = all_gather;
      comm.reduce_scatter = reduce_scatter;
      comm.all_reduce = all_reduce;
      comm.all_to_all = all_to_all;
      comm.all_to_all_v = all_to_all_v;
      comms.push_back(comm);
    }
  }
  WorldCore core;
  std::vector<bp_comm> comms;
};

ThreadWorld::ThreadWorld(int world, RankMemory& memory) : state_(std::make_unique<State>(std::max(world, 1), memory)) {}
ThreadWorld::~ThreadWorld() = default;

int ThreadWorld::world() const { return state_->core.world; }
const bp_comm* ThreadWorld::comm(int rank) const { return &state_->comms[rank]; }
void ThreadWorld::abort(int rank, const std::string& message) {
  state_->core.abort(fmt::format("rank {}: {}", rank, message));
}
bool ThreadWorld::aborted() const { return state_->core.aborted(); }
std::string ThreadWorld::error() const { return state_->core.error(); }
void ThreadWorld::reset() { state_->core.reset(); }

namespace {

using Body = std::function<Result<void>(int rank, const bp_comm& comm)>;

Result<void> call_body(const Body& body, int rank, const bp_comm& comm) {
  try {
    return body(rank, comm);
  } catch (const std::exception& exception) {
    return fail(Error::Kind::operation, fmt::format("exception: {}", exception.what()));
  } catch (...) {
    return fail(Error::Kind::operation, "exception of unknown type");
  }
}

}  // namespace

// The threads of ranks 1 .. world-1 and what a round of calls needs.
struct RankTeam::State {
  struct Crew {
    Crew(int size, RankMemory& memory) : world(size, memory) {
      try {
        for (int rank = 1; rank < size; ++rank) threads.emplace_back([this, rank] { serve(rank); });
      } catch (const std::system_error&) {
        stop();
        throw;
      }
    }
    ~Crew() { stop(); }
    Crew(const Crew&) = delete;
    Crew& operator=(const Crew&) = delete;

    void stop() {
      body = nullptr;
      next_round();
      for (std::thread& thread : threads) thread.join();
      threads.clear();
    }

    void next_round() {
      round.fetch_add(1, std::memory_order_release);
      round.notify_all();
    }

    void serve(int rank) {
      for (std::uint32_t seen = 0;;) {
        round.wait(seen, std::memory_order_acquire);
        seen = round.load(std::memory_order_acquire);
        if (body == nullptr) return;
        run_rank(rank);
        if (running.fetch_sub(1, std::memory_order_acq_rel) == 1) running.notify_one();
      }
    }

    void run_rank(int rank) {
      const FpEnvGuard environment;
      const Result<void> result = call_body(*body, rank, *world.comm(rank));
      WorldCore& core = world.state_->core;
      if (result) {
        core.finished(rank);
      } else if (core.abort(fmt::format("rank {}: {}", rank, result.error().message))) {
        kind = result.error().kind;
      }
    }

    Result<void> run(const Body& call) {
      world.reset();
      kind = Error::Kind::operation;
      body = &call;
      running.store(static_cast<int>(threads.size()), std::memory_order_relaxed);
      if (!threads.empty()) next_round();
      run_rank(0);
      for (int left = running.load(std::memory_order_acquire); left != 0;
           left = running.load(std::memory_order_acquire)) {
        running.wait(left, std::memory_order_acquire);
      }
      if (world.aborted()) return fail(kind, world.error());
      return {};
    }

    ThreadWorld world;
    const Body* body = nullptr;                 // of this round; none: the end
    Error::Kind kind = Error::Kind::operation;  // of the first error, written by the rank that aborts first
    std::atomic<std::uint32_t> round{0};
    std::atomic<int> running{0};
    std::vector<std::thread> threads;
  };

  State(int size, RankMemory& rank_memory) : world(size), memory(rank_memory) {}
  const int world;
  RankMemory& memory;
  std::mutex turns;
  std::unique_ptr<Crew> crew;
  pid_t process = 0;  // that made the crew
};

RankTeam::RankTeam(int world, RankMemory& memory) : state_(std::make_unique<State>(std::max(world, 1), memory)) {}

RankTeam::~RankTeam() {
  // A forked child has the crew's memory and none of its threads: there is nobody to join.
  if (state_->process != getpid()) static_cast<void>(state_->crew.release());
}

int RankTeam::world() const { return state_->world; }

Result<void> RankTeam::run(const std::function<Result<void>(int rank, const bp_comm& comm)>& body) {
  const std::lock_guard lock(state_->turns);
  if (state_->process != getpid()) static_cast<void>(state_->crew.release());
  if (state_->crew == nullptr) {
    try {
      state_->crew = std::make_unique<State::Crew>(state_->world, state_->memory);
    } catch (const std::system_error& error) {
      return fail(Error::Kind::environment,
                  fmt::format("cannot start {} threads for the ranks: {}", state_->world - 1, error.what()));
    }
    state_->process = getpid();
  }
  return state_->crew->run(body);
}

}  // namespace batchproof
