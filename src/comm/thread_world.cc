// SPDX-License-Identifier: Apache-2.0
//
// Collectives over shared memory. A call has two or three phases:
//
//   enter   every rank posts its arguments; the last one to come compares them and opens the phase. Only here can a
//   call
//           be aborted: from here on every rank is known to do its part, so the waits below always end.
//   move    each receiver copies (or sums) straight from the senders' buffers.
//   leave   nobody returns, and so nobody reuses a buffer, before all have moved.
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

#include "src/comm/reduce.h"
#include "src/comm/thread_world_state.h"
#include "src/numeric/dtype.h"
#include "src/runtime/fp_env.h"

namespace batchproof {
namespace {

WorldCore* core_of(const bp_comm* comm) { return static_cast<WorldCore*>(comm->self); }

const std::byte* at(const void* base, std::size_t offset) { return static_cast<const std::byte*>(base) + offset; }
std::byte* at(void* base, std::size_t offset) { return static_cast<std::byte*>(base) + offset; }

// memcpy of nothing may not have a null pointer, and of itself may not be done.
void move_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

bool overlap(std::uintptr_t a, std::size_t a_bytes, std::uintptr_t b, std::size_t b_bytes) {
  return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

bp_status invalid(const bp_comm* comm, const char* function, const std::string& what) {
  core_of(comm)->abort(fmt::format("rank {}: {}: {}", comm->rank, function, what));
  return BP_INVALID;
}

// Checks that both buffers are there and do not overlap, but for the one place that `in_place` allows.
std::string buffer_error(const void* send, std::size_t send_bytes, const void* recv, std::size_t recv_bytes,
                         bool in_place) {
  if (send == nullptr && send_bytes > 0) return "send is NULL";
  if (recv == nullptr && recv_bytes > 0) return "recv is NULL";
  if (!in_place &&
      overlap(reinterpret_cast<std::uintptr_t>(send), send_bytes, reinterpret_cast<std::uintptr_t>(recv), recv_bytes)) {
    return "send and recv overlap";
  }
  return {};
}

bp_status barrier(const bp_comm* comm, void*) noexcept {
  return core_of(comm)->enter(comm->rank, WorldCall{.op = WorldOp::barrier}) ? BP_OK : BP_COMM;
}

bp_status all_gather(const bp_comm* comm, const void* send, void* recv, std::size_t bytes, void*) noexcept {
  WorldCore* core = core_of(comm);
  std::size_t total = 0;
  if (__builtin_mul_overflow(bytes, core->world, &total)) return invalid(comm, "all_gather", "the size overflows");
  const bool in_place = bytes > 0 && recv != nullptr && send == at(recv, comm->rank * bytes);
  const std::string error = buffer_error(send, bytes, recv, total, in_place);
  if (!error.empty()) return invalid(comm, "all_gather", error);
  if (!core->enter(comm->rank, WorldCall{.op = WorldOp::all_gather, .send = send, .count = bytes})) return BP_COMM;
  if (bytes == 0) return BP_OK;
  for (int q = 0; q < core->world; ++q) move_bytes(at(recv, q * bytes), core->calls[q].send, bytes);
  core->leave();
  return BP_OK;
}

bp_status all_to_all(const bp_comm* comm, const void* send, void* recv, std::size_t bytes, void*) noexcept {
  WorldCore* core = core_of(comm);
  std::size_t total = 0;
  if (__builtin_mul_overflow(bytes, core->world, &total)) return invalid(comm, "all_to_all", "the size overflows");
  const std::string error = buffer_error(send, total, recv, total, false);
  if (!error.empty()) return invalid(comm, "all_to_all", error);
  if (!core->enter(comm->rank, WorldCall{.op = WorldOp::all_to_all, .send = send, .count = bytes})) return BP_COMM;
  if (bytes == 0) return BP_OK;
  for (int q = 0; q < core->world; ++q) {
    move_bytes(at(recv, q * bytes), at(core->calls[q].send, comm->rank * bytes), bytes);
  }
  core->leave();
  return BP_OK;
}

std::string all_to_all_v_error(int world, const void* send, const std::size_t* send_bytes,
                               const std::size_t* send_offsets, const void* recv, const std::size_t* recv_bytes,
                               const std::size_t* recv_offsets) {
  if (send_bytes == nullptr || send_offsets == nullptr || recv_bytes == nullptr || recv_offsets == nullptr) {
    return "an array of sizes or offsets is NULL";
  }
  for (int q = 0; q < world; ++q) {
    if (send == nullptr && send_bytes[q] > 0) return "send is NULL";
    if (recv == nullptr && recv_bytes[q] > 0) return "recv is NULL";
  }
  // As numbers: a NULL base with nothing to move may not be added to.
  const auto send_base = reinterpret_cast<std::uintptr_t>(send);
  const auto recv_base = reinterpret_cast<std::uintptr_t>(recv);
  for (int p = 0; p < world; ++p) {
    const std::uintptr_t block = recv_base + recv_offsets[p];
    for (int q = 0; q < world; ++q) {
      if (overlap(send_base + send_offsets[q], send_bytes[q], block, recv_bytes[p])) return "send and recv overlap";
      if (p < q && overlap(block, recv_bytes[p], recv_base + recv_offsets[q], recv_bytes[q])) {
        return fmt::format("the blocks from ranks {} and {} overlap in recv", p, q);
      }
    }
  }
  return {};
}

bp_status all_to_all_v(const bp_comm* comm, const void* send, const std::size_t* send_bytes,
                       const std::size_t* send_offsets, void* recv, const std::size_t* recv_bytes,
                       const std::size_t* recv_offsets, void*) noexcept {
  WorldCore* core = core_of(comm);
  const std::string error =
      all_to_all_v_error(core->world, send, send_bytes, send_offsets, recv, recv_bytes, recv_offsets);
  if (!error.empty()) return invalid(comm, "all_to_all_v", error);
  const WorldCall call = {.op = WorldOp::all_to_all_v,
                          .send = send,
                          .send_bytes = send_bytes,
                          .send_offsets = send_offsets,
                          .recv_bytes = recv_bytes};
  if (!core->enter(comm->rank, call)) return BP_COMM;
  for (int q = 0; q < core->world; ++q) {
    if (recv_bytes[q] == 0) continue;
    const WorldCall& sender = core->calls[q];
    move_bytes(at(recv, recv_offsets[q]), at(sender.send, sender.send_offsets[comm->rank]), recv_bytes[q]);
  }
  core->leave();
  return BP_OK;
}

bp_status reduce_scatter(const bp_comm* comm, const void* send, void* recv, std::size_t count, bp_dtype dtype,
                         bp_reduce_order order, void*) noexcept {
  WorldCore* core = core_of(comm);
  std::string error = reduce_error(dtype, order, core->world);
  if (!error.empty()) return invalid(comm, "reduce_scatter", error);
  const std::size_t element = static_cast<std::size_t>(dtype_bits(dtype)) / 8;
  std::size_t bytes = 0;
  std::size_t total = 0;
  if (__builtin_mul_overflow(count, element, &bytes) || __builtin_mul_overflow(bytes, core->world, &total)) {
    return invalid(comm, "reduce_scatter", "the size overflows");
  }
  const bool in_place = bytes > 0 && send != nullptr && recv == at(send, comm->rank * bytes);
  error = buffer_error(send, total, recv, bytes, in_place);
  if (!error.empty()) return invalid(comm, "reduce_scatter", error);
  const WorldCall call = {.op = WorldOp::reduce_scatter, .send = send, .count = count, .dtype = dtype, .order = order};
  if (!core->enter(comm->rank, call)) return BP_COMM;
  if (count == 0) return BP_OK;
  std::vector<const void*>& sources = core->ranks[comm->rank].sources;
  for (int q = 0; q < core->world; ++q) sources[q] = at(core->calls[q].send, comm->rank * bytes);
  reduce(dtype, order, sources, count, recv);
  core->leave();
  return BP_OK;
}

// Rank r sums slice r and all gather the slices, so that every element is summed once.
bp_status all_reduce(const bp_comm* comm, const void* send, void* recv, std::size_t count, bp_dtype dtype,
                     bp_reduce_order order, void*) noexcept {
  WorldCore* core = core_of(comm);
  std::string error = reduce_error(dtype, order, core->world);
  if (!error.empty()) return invalid(comm, "all_reduce", error);
  const std::size_t element = static_cast<std::size_t>(dtype_bits(dtype)) / 8;
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(count, element, &bytes)) return invalid(comm, "all_reduce", "the size overflows");
  error = buffer_error(send, bytes, recv, bytes, send == recv);
  if (!error.empty()) return invalid(comm, "all_reduce", error);

  // Slices in elements; the first ones are longer by one where the count does not divide.
  const std::size_t world = static_cast<std::size_t>(core->world);
  const auto begin = [&](std::size_t r) { return count / world * r + std::min(r, count % world); };
  const std::size_t mine = begin(comm->rank + 1) - begin(comm->rank);
  // In place as well: slice r of rank r's buffer is read by rank r alone before it is written.
  void* result = at(recv, begin(comm->rank) * element);
  const WorldCall call = {
      .op = WorldOp::all_reduce, .send = send, .result = result, .count = count, .dtype = dtype, .order = order};
  if (!core->enter(comm->rank, call)) return BP_COMM;
  if (count == 0) return BP_OK;
  std::vector<const void*>& sources = core->ranks[comm->rank].sources;
  for (int q = 0; q < core->world; ++q) sources[q] = at(core->calls[q].send, begin(comm->rank) * element);
  reduce(dtype, order, sources, mine, result);
  core->leave();
  for (std::size_t q = 0; q < world; ++q) {
    move_bytes(at(recv, begin(q) * element), core->calls[q].result, (begin(q + 1) - begin(q)) * element);
  }
  core->leave();
  return BP_OK;
}

}  // namespace

struct ThreadWorld::State {
  explicit State(int world) : core(world) {
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

ThreadWorld::ThreadWorld(int world) : state_(std::make_unique<State>(std::max(world, 1))) {}
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
    explicit Crew(int size) : world(size) {
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

  int world = 1;
  std::mutex turns;
  std::unique_ptr<Crew> crew;
  pid_t process = 0;  // that made the crew
};

RankTeam::RankTeam(int world) : state_(std::make_unique<State>()) { state_->world = std::max(world, 1); }

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
      state_->crew = std::make_unique<State::Crew>(state_->world);
    } catch (const std::system_error& error) {
      return fail(Error::Kind::environment,
                  fmt::format("cannot start {} threads for the ranks: {}", state_->world - 1, error.what()));
    }
    state_->process = getpid();
  }
  return state_->crew->run(body);
}

}  // namespace batchproof
