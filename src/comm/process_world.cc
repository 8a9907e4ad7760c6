// SPDX-License-Identifier: Apache-2.0
//
// One barrier does all the waiting: a rank posts what it calls, the last one to come compares the calls and opens the
// gate. The gate is one word, a ticket and the aborted bit, so opening and aborting exclude each other without a lock
// that a dying process could keep. Waiting is a futex on that word; now and then a waiter looks whether the others
// live.
#include "src/comm/process_world.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <new>
#include <vector>

#include "src/comm/buffers.h"
#include "src/comm/collective.h"
#include "src/comm/reduce.h"
#include "src/numeric/divide.h"
#include "src/numeric/dtype.h"

namespace batchproof {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::uint32_t kAborted = 1;
constexpr std::uint32_t kTicket = 2;
constexpr long kLookNanoseconds = 50'000'000;
constexpr std::size_t kErrorBytes = 1024;

using Op = Collective;

struct Call {
  Op op = Op::none;
  bp_dtype dtype = BP_NONE;
  bp_reduce_order order = BP_REDUCE_RANK_ORDER;
  std::uint64_t count = 0;  // elements of a reduction, else bytes
};

struct alignas(64) SharedRank {
  std::atomic<std::int32_t> pid;  // 0: has not attached
  std::atomic<std::uint32_t> arrived;
  std::atomic<std::uint32_t> finished;
  Call call;  // written before arrived, read by the last to come
};

struct Shared {
  std::int32_t world;
  std::uint64_t slot_bytes;
  alignas(64) std::atomic<std::uint32_t> gate;  // tickets count opened barriers
  alignas(64) std::atomic<std::int32_t> arrived;
  std::atomic<std::uint32_t> error_state;  // 0: none, 1: being written, 2: readable
  char error[kErrorBytes];
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::int32_t>::is_always_lock_free);

std::size_t ranks_offset() { return align_up(sizeof(Shared), 64); }
std::size_t sizes_offset(int world) { return ranks_offset() + static_cast<std::size_t>(world) * sizeof(SharedRank); }
std::size_t slots_offset(int world) {
  const auto pairs = static_cast<std::size_t>(world) * static_cast<std::size_t>(world);
  return align_up(sizes_offset(world) + 2 * pairs * sizeof(std::uint64_t), kPage);
}

long futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, word, operation, value, timeout, nullptr, 0);
}

// A zombie counts as dead.
bool is_dead(std::int32_t pid) {
#ifdef SYS_pidfd_open
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd >= 0) {
    pollfd entry{fd, POLLIN, 0};
    const bool ended = poll(&entry, 1, 0) == 1 && (entry.revents & POLLIN) != 0;
    close(fd);
    return ended;
  }
  if (errno == ESRCH) return true;
#endif
  return kill(pid, 0) != 0 && errno == ESRCH;
}

}  // namespace

struct ProcessWorld::State {
  State(void* memory, int own_rank) : base(static_cast<std::byte*>(memory)), rank(own_rank) {
    shared = std::launder(reinterpret_cast<Shared*>(base));
    world = shared->world;
    slot_bytes = shared->slot_bytes;
    ranks = std::launder(reinterpret_cast<SharedRank*>(base + ranks_offset()));
    sizes = std::launder(reinterpret_cast<std::uint64_t*>(base + sizes_offset(world)));
    sources.resize(static_cast<std::size_t>(world));
  }

  std::byte* slot(int of) const { return base + slots_offset(world) + static_cast<std::size_t>(of) * slot_bytes; }
  // Bytes that rank `from` says it sends to, or expects from, another one in an all_to_all_v.
  std::uint64_t& sent(int from, int to) const { return sizes[from * world + to]; }
  std::uint64_t& expected(int to, int from) const { return sizes[(world + to) * world + from]; }

  bool enter(const Call& call) { return wait(call, true); }
  bool sync() { return wait(ranks[rank].call, false); }
  bool wait(const Call& call, bool compare);
  std::string mismatch() const;
  void look_around(const Call& call);
  void abort(const std::string& message);
  bool aborted() const { return (shared->gate.load(std::memory_order_acquire) & kAborted) != 0; }

  std::byte* base;
  int rank;
  Shared* shared;
  int world;
  std::size_t slot_bytes;
  SharedRank* ranks;
  std::uint64_t* sizes;
  std::vector<const void*> sources;
  bp_comm comm{};
};

std::string ProcessWorld::State::mismatch() const {
  std::string error = different_calls(world, [&](int q) -> const Call& { return ranks[q].call; });
  if (!error.empty() || ranks[0].call.op != Op::all_to_all_v) return error;
  for (int from = 0; from < world; ++from) {
    for (int to = 0; to < world; ++to) {
      if (sent(from, to) != expected(to, from))
        return fmt::format("rank {}: all_to_all_v expects {} bytes from rank {}, which sends {}", to,
                           expected(to, from), from, sent(from, to));
    }
  }
  return {};
}

// Waits until every rank has come; false: aborted, and nobody gets through.
bool ProcessWorld::State::wait(const Call& call, bool compare) {
  const std::uint32_t gate = shared->gate.load(std::memory_order_acquire);
  if ((gate & kAborted) != 0) return false;
  ranks[rank].call = call;
  ranks[rank].arrived.store(1, std::memory_order_seq_cst);
  if (shared->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == world) {
    if (compare) {
      const std::string error = mismatch();
      if (!error.empty()) {
        abort(error);
        return false;
      }
    }
    for (int q = 0; q < world; ++q) ranks[q].arrived.store(0, std::memory_order_relaxed);
    shared->arrived.store(0, std::memory_order_relaxed);
    std::uint32_t closed = gate;
    if (!shared->gate.compare_exchange_strong(closed, gate + kTicket, std::memory_order_acq_rel)) return false;
    futex(&shared->gate, FUTEX_WAKE, INT32_MAX, nullptr);
    return true;
  }
  for (int q = 0; q < world; ++q) {
    if (ranks[q].finished.load(std::memory_order_seq_cst) == 0) continue;
    abort(fmt::format("rank {} returned while rank {} waits in {}", q, rank, op_name(call.op)));
    return false;
  }
  const timespec timeout{0, kLookNanoseconds};
  for (;;) {
    const std::uint32_t now = shared->gate.load(std::memory_order_acquire);
    if (((now ^ gate) & ~kAborted) != 0) return true;
    if ((now & kAborted) != 0) return false;
    if (futex(&shared->gate, FUTEX_WAIT, now, &timeout) != 0 && errno == ETIMEDOUT) look_around(call);
  }
}

void ProcessWorld::State::look_around(const Call& call) {
  const auto own = static_cast<std::int32_t>(getpid());
  for (int q = 0; q < world; ++q) {
    const std::int32_t pid = ranks[q].pid.load(std::memory_order_acquire);
    if (pid == 0 || pid == own || !is_dead(pid)) continue;
    abort(fmt::format("rank {}: its process ended while rank {} waits in {}", q, rank, op_name(call.op)));
    return;
  }
}

void ProcessWorld::State::abort(const std::string& message) {
  std::uint32_t none = 0;
  if (!shared->error_state.compare_exchange_strong(none, 1, std::memory_order_acq_rel)) return;
  const std::size_t length = std::min(message.size(), kErrorBytes - 1);
  std::memcpy(shared->error, message.data(), length);
  shared->error[length] = '\0';
  shared->error_state.store(2, std::memory_order_release);
  shared->gate.fetch_or(kAborted, std::memory_order_acq_rel);
  futex(&shared->gate, FUTEX_WAKE, INT32_MAX, nullptr);
}

namespace {

// The collectives. `S` is ProcessWorld::State, which only this file can name through a communicator's self.
template <class S>
struct Collectives {
  static S* of(const bp_comm* comm) { return static_cast<S*>(comm->self); }

  static bp_status invalid(const bp_comm* comm, Op op, const std::string& what) {
    of(comm)->abort(fmt::format("rank {}: {}: {}", comm->rank, op_name(op), what));
    return BP_INVALID;
  }

  // One piece of a collective is through: the first comparison lets it begin, later pieces only wait.
  static bool open(S* state, const Call& call, bool first) { return first ? state->enter(call) : state->sync(); }

  static bp_status barrier(const bp_comm* comm, void*) {
    return of(comm)->enter(Call{.op = Op::barrier}) ? BP_OK : BP_COMM;
  }

  static bp_status all_gather(const bp_comm* comm, const void* send, void* recv, std::size_t bytes, void*) {
    S* state = of(comm);
    std::size_t total = 0;
    if (__builtin_mul_overflow(bytes, state->world, &total)) return invalid(comm, Op::all_gather, "the size overflows");
    const bool in_place = bytes > 0 && recv != nullptr && send == at(recv, comm->rank * bytes);
    const std::string error = buffer_error(send, bytes, recv, total, in_place);
    if (!error.empty()) return invalid(comm, Op::all_gather, error);
    const Call call{.op = Op::all_gather, .count = bytes};
    std::size_t done = 0;
    do {
      const std::size_t piece = std::min(bytes - done, state->slot_bytes);
      copy_bytes(state->slot(comm->rank), at(send, done), piece);
      if (!open(state, call, done == 0)) return BP_COMM;
      for (int q = 0; q < state->world; ++q) copy_bytes(at(recv, q * bytes + done), state->slot(q), piece);
      if (!state->sync()) return BP_COMM;
      done += piece;
    } while (done < bytes);
    return BP_OK;
  }

  static bp_status all_to_all(const bp_comm* comm, const void* send, void* recv, std::size_t bytes, void*) {
    S* state = of(comm);
    std::size_t total = 0;
    if (__builtin_mul_overflow(bytes, state->world, &total)) return invalid(comm, Op::all_to_all, "the size overflows");
    const std::string error = buffer_error(send, total, recv, total, false);
    if (!error.empty()) return invalid(comm, Op::all_to_all, error);
    const Call call{.op = Op::all_to_all, .count = bytes};
    const std::size_t share = share_of(state);
    std::size_t done = 0;
    do {
      const std::size_t piece = std::min(bytes - done, share);
      for (int q = 0; q < state->world; ++q)
        copy_bytes(state->slot(comm->rank) + q * share, at(send, q * bytes + done), piece);
      if (!open(state, call, done == 0)) return BP_COMM;
      for (int q = 0; q < state->world; ++q)
        copy_bytes(at(recv, q * bytes + done), state->slot(q) + comm->rank * share, piece);
      if (!state->sync()) return BP_COMM;
      done += piece;
    } while (done < bytes);
    return BP_OK;
  }

  static bp_status all_to_all_v(const bp_comm* comm, const void* send, const std::size_t* send_bytes,
                                const std::size_t* send_offsets, void* recv, const std::size_t* recv_bytes,
                                const std::size_t* recv_offsets, void*) {
    S* state = of(comm);
    const int world = state->world;
    const std::string error = all_to_all_v_error(world, send, send_bytes, send_offsets, recv, recv_bytes, recv_offsets);
    if (!error.empty()) return invalid(comm, Op::all_to_all_v, error);
    for (int q = 0; q < world; ++q) {
      state->sent(comm->rank, q) = send_bytes[q];
      state->expected(comm->rank, q) = recv_bytes[q];
    }
    const std::size_t share = share_of(state);
    std::size_t longest = 0;
    std::size_t done = 0;
    do {
      const auto piece = [&](std::size_t bytes) { return bytes > done ? std::min(bytes - done, share) : 0; };
      for (int q = 0; q < world; ++q)
        copy_bytes(state->slot(comm->rank) + q * share, at(send, send_offsets[q] + done), piece(send_bytes[q]));
      if (!open(state, Call{.op = Op::all_to_all_v}, done == 0)) return BP_COMM;
      // Equal on all ranks, so all make the same number of rounds.
      for (int p = 0; p < world && done == 0; ++p) {
        for (int q = 0; q < world; ++q) longest = std::max<std::size_t>(longest, state->sent(p, q));
      }
      for (int q = 0; q < world; ++q)
        copy_bytes(at(recv, recv_offsets[q] + done), state->slot(q) + comm->rank * share, piece(recv_bytes[q]));
      if (!state->sync()) return BP_COMM;
      done += share;
    } while (done < longest);
    return BP_OK;
  }

  static bp_status reduce_scatter(const bp_comm* comm, const void* send, void* recv, std::size_t count, bp_dtype dtype,
                                  bp_reduce_order order, void*) {
    S* state = of(comm);
    std::string error = reduce_error(dtype, order, state->world);
    if (!error.empty()) return invalid(comm, Op::reduce_scatter, error);
    const std::size_t element = static_cast<std::size_t>(dtype_bits(dtype)) / 8;
    std::size_t bytes = 0;
    std::size_t total = 0;
    if (__builtin_mul_overflow(count, element, &bytes) || __builtin_mul_overflow(bytes, state->world, &total))
      return invalid(comm, Op::reduce_scatter, "the size overflows");
    const bool in_place = bytes > 0 && send != nullptr && recv == at(send, comm->rank * bytes);
    error = buffer_error(send, total, recv, bytes, in_place);
    if (!error.empty()) return invalid(comm, Op::reduce_scatter, error);
    const Call call{.op = Op::reduce_scatter, .dtype = dtype, .order = order, .count = count};
    const std::size_t share = share_of(state);
    std::size_t done = 0;
    do {
      const std::size_t piece = std::min(bytes - done, share);
      for (int q = 0; q < state->world; ++q)
        copy_bytes(state->slot(comm->rank) + q * share, at(send, q * bytes + done), piece);
      if (!open(state, call, done == 0)) return BP_COMM;
      for (int q = 0; q < state->world; ++q) state->sources[q] = state->slot(q) + comm->rank * share;
      if (piece > 0) reduce(dtype, order, state->sources, piece / element, at(recv, done));
      if (!state->sync()) return BP_COMM;
      done += piece;
    } while (done < bytes);
    return BP_OK;
  }

  // Rank r sums slice r of every piece in its own slot, and all gather the slices.
  static bp_status all_reduce(const bp_comm* comm, const void* send, void* recv, std::size_t count, bp_dtype dtype,
                              bp_reduce_order order, void*) {
    S* state = of(comm);
    std::string error = reduce_error(dtype, order, state->world);
    if (!error.empty()) return invalid(comm, Op::all_reduce, error);
    const std::size_t element = static_cast<std::size_t>(dtype_bits(dtype)) / 8;
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(count, element, &bytes)) return invalid(comm, Op::all_reduce, "the size overflows");
    error = buffer_error(send, bytes, recv, bytes, send == recv);
    if (!error.empty()) return invalid(comm, Op::all_reduce, error);
    const Call call{.op = Op::all_reduce, .dtype = dtype, .order = order, .count = count};
    const auto world = static_cast<std::size_t>(state->world);
    std::size_t done = 0;
    do {
      const std::size_t piece = std::min(bytes - done, state->slot_bytes);
      const std::size_t elements = piece / element;
      const auto begin = [&](std::size_t r) {
        return (elements / world * r + std::min(r, elements % world)) * element;
      };
      copy_bytes(state->slot(comm->rank), at(send, done), piece);
      if (!open(state, call, done == 0)) return BP_COMM;
      const std::size_t first = begin(static_cast<std::size_t>(comm->rank));
      const std::size_t mine = begin(static_cast<std::size_t>(comm->rank) + 1) - first;
      for (int q = 0; q < state->world; ++q) state->sources[q] = state->slot(q) + first;
      if (mine > 0) reduce(dtype, order, state->sources, mine / element, state->slot(comm->rank) + first);
      if (!state->sync()) return BP_COMM;
      for (std::size_t q = 0; q < world; ++q)
        copy_bytes(at(recv, done + begin(q)), state->slot(static_cast<int>(q)) + begin(q), begin(q + 1) - begin(q));
      if (!state->sync()) return BP_COMM;
      done += piece;
    } while (done < bytes);
    return BP_OK;
  }

  // What one peer may have of a slot; whole elements of every dtype.
  static std::size_t share_of(const S* state) {
    return state->slot_bytes / static_cast<std::size_t>(state->world) / 64 * 64;
  }
};

}  // namespace

std::size_t ProcessWorld::bytes(int world, std::size_t slot_bytes) {
  return slots_offset(world) + static_cast<std::size_t>(world) * slot_bytes;
}

void ProcessWorld::create(void* memory, int world, std::size_t slot_bytes) {
  std::memset(memory, 0, slots_offset(world));
  auto* shared = new (memory) Shared{};
  shared->world = world;
  shared->slot_bytes = slot_bytes;
  auto* ranks = at(memory, ranks_offset());
  for (int rank = 0; rank < world; ++rank)
    new (ranks + static_cast<std::size_t>(rank) * sizeof(SharedRank)) SharedRank{};
}

ProcessWorld::ProcessWorld(void* memory, int rank) : state_(std::make_unique<State>(memory, rank)) {
  if (rank < 0) return;
  using Functions = Collectives<State>;
  bp_comm& comm = state_->comm;
  comm.struct_size = sizeof(bp_comm);
  comm.rank = rank;
  comm.world = state_->world;
  comm.self = state_.get();
  comm.barrier = Functions::barrier;
  comm.all_gather = Functions::all_gather;
  comm.reduce_scatter = Functions::reduce_scatter;
  comm.all_reduce = Functions::all_reduce;
  comm.all_to_all = Functions::all_to_all;
  comm.all_to_all_v = Functions::all_to_all_v;
  state_->ranks[rank].pid.store(static_cast<std::int32_t>(getpid()), std::memory_order_release);
}

ProcessWorld::~ProcessWorld() = default;

int ProcessWorld::world() const { return state_->world; }
const bp_comm* ProcessWorld::comm() const { return &state_->comm; }

void ProcessWorld::abort(int rank, const std::string& message) {
  state_->abort(fmt::format("rank {}: {}", rank, message));
}

bool ProcessWorld::aborted() const { return state_->aborted(); }

std::string ProcessWorld::error() const {
  if (state_->shared->error_state.load(std::memory_order_acquire) == 2)
    return std::string(state_->shared->error, strnlen(state_->shared->error, kErrorBytes));
  return aborted() ? "a rank was lost" : "";
}

void ProcessWorld::finished() {
  const int own = state_->rank;
  state_->ranks[own].finished.store(1, std::memory_order_seq_cst);
  for (int q = 0; q < state_->world; ++q) {
    if (q == own || state_->ranks[q].arrived.load(std::memory_order_seq_cst) == 0) continue;
    state_->abort(fmt::format("rank {} returned while rank {} waits in {}", own, q, op_name(state_->ranks[q].call.op)));
    return;
  }
}

std::string ProcessWorld::waits_in(int rank) const {
  if (state_->ranks[rank].arrived.load(std::memory_order_acquire) == 0) return {};
  return op_name(state_->ranks[rank].call.op);
}

void ProcessWorld::reset() {
  Shared* shared = state_->shared;
  for (int q = 0; q < state_->world; ++q) {
    state_->ranks[q].pid.store(0, std::memory_order_relaxed);
    state_->ranks[q].arrived.store(0, std::memory_order_relaxed);
    state_->ranks[q].finished.store(0, std::memory_order_relaxed);
  }
  shared->arrived.store(0, std::memory_order_relaxed);
  shared->error_state.store(0, std::memory_order_relaxed);
  shared->gate.fetch_and(~kAborted, std::memory_order_release);
}

}  // namespace batchproof
