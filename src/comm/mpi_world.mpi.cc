// SPDX-License-Identifier: Apache-2.0
//
// One round does all the agreeing: every rank sends its call to every other one, and all compare the same list. A rank
// that is through takes part in one more round, so nobody waits for it in vain. Rounds and data go by point-to-point
// messages on a communicator of our own; waiting sleeps between looks, because ranks may be more than processors.
#include "src/comm/mpi_world.h"

#include <fmt/format.h>
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <mutex>

#include "src/comm/buffers.h"
#include "src/comm/collective.h"
#include "src/comm/reduce.h"
#include "src/numeric/dtype.h"

namespace batchproof {
namespace {

constexpr std::size_t kLongestMessage = std::size_t{1} << 30;  // MPI counts in int
constexpr int kYields = 50;
constexpr long kShortestSleep = 20'000;  // nanoseconds
constexpr long kLongestSleep = 1'000'000;
constexpr int kTag = 1;
// How much longer than rank 0 the others wait.
constexpr double kPatienceSeconds = 1.0;
constexpr double kPatienceShare = 0.25;

using Clock = std::chrono::steady_clock;

std::string mpi_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<std::size_t>(length));
}

}  // namespace

// ---- the processes of the launch -----------------------------------------------------------------------------------

struct MpiProcesses::State {
  int rank = 0;
  int size = 1;
  MPI_Comm traffic = MPI_COMM_NULL;
  std::function<void(const std::string&)> failure;
  // What the process waits in, for overdue().
  mutable std::mutex mutex;
  std::string call;
  double seconds = 0.0;
  Clock::time_point deadline = Clock::time_point::max();
  const char* waits_in = nullptr;
  std::vector<int> missing;  // messages that have not come or gone, by peer

  bool check(int code, const char* what) const {
    if (code == MPI_SUCCESS) return true;
    if (failure) failure(fmt::format("MPI failed in {}: {}", what, mpi_text(code)));
    return false;
  }
};

MpiProcesses::MpiProcesses(std::unique_ptr<State> state) : state_(std::move(state)) {}
MpiProcesses::~MpiProcesses() = default;

Result<std::unique_ptr<MpiProcesses>> MpiProcesses::start() {
  auto state = std::make_unique<State>();
  int provided = 0;
  const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  if (code != MPI_SUCCESS) return fail(Error::Kind::environment, "MPI does not start: " + mpi_text(code));
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &state->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &state->size);
  if (const int made = MPI_Comm_dup(MPI_COMM_WORLD, &state->traffic); made != MPI_SUCCESS)
    return fail(Error::Kind::environment, "MPI gives no communicator: " + mpi_text(made));
  state->missing.assign(static_cast<std::size_t>(state->size), 0);
  return std::unique_ptr<MpiProcesses>(new MpiProcesses(std::move(state)));
}

int MpiProcesses::rank() const { return state_->rank; }
int MpiProcesses::size() const { return state_->size; }

std::string MpiProcesses::library() const {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text, static_cast<std::size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
}

void MpiProcesses::finish() { MPI_Finalize(); }

void MpiProcesses::on_failure(std::function<void(const std::string& what)> handler) {
  state_->failure = std::move(handler);
}

bool MpiProcesses::exchange(const char* what, const std::vector<Piece>& sends, const std::vector<Piece>& receives) {
  State& state = *state_;
  std::vector<MPI_Request> requests;
  std::vector<int> peers;  // of the requests
  const auto post = [&](const Piece& piece, bool receive) {
    for (std::size_t done = 0; done < piece.bytes; done += kLongestMessage) {
      const int count = static_cast<int>(std::min(piece.bytes - done, kLongestMessage));
      MPI_Request request = MPI_REQUEST_NULL;
      const int code =
          receive ? MPI_Irecv(at(piece.data, done), count, MPI_BYTE, piece.peer, kTag, state.traffic, &request)
                  : MPI_Isend(at(piece.data, done), count, MPI_BYTE, piece.peer, kTag, state.traffic, &request);
      if (!state.check(code, what)) return false;
      requests.push_back(request);
      peers.push_back(piece.peer);
    }
    return true;
  };
  for (const Piece& piece : receives) {
    if (!post(piece, true)) return false;
  }
  for (const Piece& piece : sends) {
    if (!post(piece, false)) return false;
  }
  if (requests.empty()) return true;
  {
    const std::lock_guard lock(state.mutex);
    state.waits_in = what;
    std::fill(state.missing.begin(), state.missing.end(), 0);
    for (const int peer : peers) ++state.missing[peer];
  }
  std::vector<int> indices(requests.size());
  std::size_t left = requests.size();
  long sleep = kShortestSleep;
  for (int looks = 0; left > 0; ++looks) {
    int count = 0;
    const int code =
        MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &count, indices.data(), MPI_STATUSES_IGNORE);
    if (!state.check(code, what)) return false;
    if (count > 0) {
      left -= static_cast<std::size_t>(count);
      const std::lock_guard lock(state.mutex);
      for (int i = 0; i < count; ++i) --state.missing[peers[indices[i]]];
    } else if (looks < kYields) {
      sched_yield();
    } else {
      const timespec pause{0, sleep};
      nanosleep(&pause, nullptr);
      sleep = std::min(sleep * 2, kLongestSleep);
    }
  }
  const std::lock_guard lock(state.mutex);
  state.waits_in = nullptr;
  return true;
}

std::vector<std::string> MpiProcesses::gather(const std::string& text) {
  const auto size = static_cast<std::size_t>(state_->size);
  std::vector<std::uint64_t> lengths(size);
  lengths[state_->rank] = text.size();
  std::vector<Piece> sends;
  std::vector<Piece> receives;
  for (int q = 0; q < state_->size; ++q) {
    if (q == state_->rank) continue;
    sends.push_back({q, &lengths[state_->rank], sizeof(std::uint64_t)});
    receives.push_back({q, &lengths[q], sizeof(std::uint64_t)});
  }
  if (!exchange("an agreement", sends, receives)) return {};
  std::vector<std::string> texts(size);
  texts[state_->rank] = text;
  sends.clear();
  receives.clear();
  for (int q = 0; q < state_->size; ++q) {
    if (q == state_->rank) continue;
    texts[q].resize(lengths[q]);
    sends.push_back({q, texts[state_->rank].data(), text.size()});
    receives.push_back({q, texts[q].data(), texts[q].size()});
  }
  if (!exchange("an agreement", sends, receives)) return {};
  return texts;
}

std::string MpiProcesses::broadcast(const std::string& text) {
  const std::vector<std::string> texts = gather(state_->rank == 0 ? text : std::string());
  return texts.empty() ? std::string() : texts.front();
}

void MpiProcesses::begin_call(const std::string& what, double seconds) {
  const std::lock_guard lock(state_->mutex);
  state_->call = what;
  state_->seconds = seconds;
  state_->deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void MpiProcesses::end_call() {
  const std::lock_guard lock(state_->mutex);
  state_->deadline = Clock::time_point::max();
}

std::optional<std::string> MpiProcesses::overdue() const {
  const std::lock_guard lock(state_->mutex);
  const auto now = Clock::now();
  if (now < state_->deadline) return std::nullopt;
  const double patience = state_->rank == 0 ? 0.0 : kPatienceSeconds + kPatienceShare * state_->seconds;
  if (std::chrono::duration<double>(now - state_->deadline).count() < patience) return std::nullopt;
  std::string late;
  int count = 0;
  for (int q = 0; state_->waits_in != nullptr && q < state_->size; ++q) {
    if (state_->missing[q] == 0) continue;
    late += fmt::format("{}{}", late.empty() ? "" : ", ", q);
    ++count;
  }
  if (count == 0)
    return fmt::format("{} did not return on rank {} within {} s", state_->call, state_->rank, state_->seconds);
  return fmt::format("rank{} {} did not come to {} of {} within {} s", count == 1 ? "" : "s", late, state_->waits_in,
                     state_->call, state_->seconds);
}

// ---- the communicator of one world ---------------------------------------------------------------------------------

namespace {

using Op = Collective;

// What a rank says in a round; travels as bytes.
struct Call {
  Op op = Op::finished;
  bp_dtype dtype = BP_NONE;
  bp_reduce_order order = BP_REDUCE_RANK_ORDER;
  std::uint32_t failed = 0;  // with `finished`: it has an error of its own
  std::uint64_t count = 0;   // elements of a reduction, else bytes
};

}  // namespace

struct MpiWorld::State {
  MpiProcesses& processes;
  int rank;
  int world;
  MPI_Comm handle = MPI_COMM_NULL;
  bp_comm comm{};
  std::vector<Call> calls;  // of the round at hand
  Ending ending;

  using Piece = MpiProcesses::Piece;

  State(MpiProcesses& all, int size)
      : processes(all), rank(all.rank()), world(size), calls(static_cast<std::size_t>(size)) {}

  // Fails on all ranks alike unless all call the same.
  bool enter(const Call& call) {
    if (ending.aborted || !round(call)) return false;
    judge();
    return !ending.aborted;
  }

  bool round(const Call& call) {
    calls[rank] = call;
    std::vector<Piece> sends;
    std::vector<Piece> receives;
    for (int q = 0; q < world; ++q) {
      if (q == rank) continue;
      sends.push_back({q, &calls[rank], sizeof(Call)});
      receives.push_back({q, &calls[q], sizeof(Call)});
    }
    if (processes.exchange(op_name(call.op), sends, receives)) return true;
    abort(false, "MPI failed");
    return false;
  }

  // The first abort counts.
  void abort(bool known, const std::string& error) {
    if (ending.aborted) return;
    ending = Ending{true, false, known, error};
  }

  // Every rank has the same list before it, so all come to the same end.
  void judge() {
    int returned = -1;
    int waiting = -1;
    for (int q = 0; q < world; ++q) {
      if (calls[q].op == Op::invalid) return abort(false, fmt::format("rank {} gave invalid arguments", q));
      int& first = calls[q].op == Op::finished ? returned : waiting;
      if (first < 0) first = q;
    }
    if (returned >= 0 && waiting >= 0) {
      const bool failed = std::any_of(calls.begin(), calls.end(),
                                      [](const Call& call) { return call.op == Op::finished && call.failed != 0; });
      return abort(!failed, fmt::format("rank {} returned while rank {} waits in {}", returned, waiting,
                                        op_name(calls[waiting].op)));
    }
    const std::string error = different_calls(world, [&](int q) -> const Call& { return calls[q]; });
    if (!error.empty()) abort(true, error);
  }

  bp_status invalid(Op op, const std::string& what) {
    if (ending.aborted) return BP_INVALID;
    abort(true, fmt::format("rank {}: {}: {}", rank, op_name(op), what));
    round(Call{.op = Op::invalid});
    return BP_INVALID;
  }

  // Block q of `send` goes to rank q, block q of `recv` comes from it; this rank's own is copied.
  template <class SendBlock, class RecvBlock>
  bool swap(Op op, const SendBlock& send, const RecvBlock& recv) {
    std::vector<Piece> sends;
    std::vector<Piece> receives;
    for (int q = 0; q < world; ++q) {
      const Piece to = send(q);
      const Piece from = recv(q);
      if (q == rank) {
        copy_bytes(from.data, to.data, to.bytes);
      } else {
        sends.push_back(to);
        receives.push_back(from);
      }
    }
    if (processes.exchange(op_name(op), sends, receives)) return true;
    abort(false, "MPI failed");
    return false;
  }

  static Piece piece(int peer, const void* data, std::size_t bytes) { return {peer, const_cast<void*>(data), bytes}; }
};

namespace {

// `S` is MpiWorld::State, which only this file can name through a communicator's self.
template <class S>
struct Collectives {
  static S* of(const bp_comm* comm) { return static_cast<S*>(comm->self); }

  static bp_status barrier(const bp_comm* comm, void*) {
    return of(comm)->enter(Call{.op = Op::barrier}) ? BP_OK : BP_COMM;
  }

  static bp_status all_gather(const bp_comm* comm, const void* send, void* recv, std::size_t bytes, void*) {
    S* state = of(comm);
    std::size_t total = 0;
    if (__builtin_mul_overflow(bytes, state->world, &total))
      return state->invalid(Op::all_gather, "the size overflows");
    const bool in_place = bytes > 0 && recv != nullptr && send == at(recv, comm->rank * bytes);
    const std::string error = buffer_error(send, bytes, recv, total, in_place);
    if (!error.empty()) return state->invalid(Op::all_gather, error);
    if (!state->enter(Call{.op = Op::all_gather, .count = bytes})) return BP_COMM;
    const bool moved = state->swap(
        Op::all_gather, [&](int q) { return S::piece(q, send, bytes); },
        [&](int q) { return S::piece(q, at(recv, q * bytes), bytes); });
    return moved ? BP_OK : BP_COMM;
  }

  static bp_status all_to_all(const bp_comm* comm, const void* send, void* recv, std::size_t bytes, void*) {
    S* state = of(comm);
    std::size_t total = 0;
    if (__builtin_mul_overflow(bytes, state->world, &total))
      return state->invalid(Op::all_to_all, "the size overflows");
    const std::string error = buffer_error(send, total, recv, total, false);
    if (!error.empty()) return state->invalid(Op::all_to_all, error);
    if (!state->enter(Call{.op = Op::all_to_all, .count = bytes})) return BP_COMM;
    const bool moved = state->swap(
        Op::all_to_all, [&](int q) { return S::piece(q, at(send, q * bytes), bytes); },
        [&](int q) { return S::piece(q, at(recv, q * bytes), bytes); });
    return moved ? BP_OK : BP_COMM;
  }

  static bp_status all_to_all_v(const bp_comm* comm, const void* send, const std::size_t* send_bytes,
                                const std::size_t* send_offsets, void* recv, const std::size_t* recv_bytes,
                                const std::size_t* recv_offsets, void*) {
    S* state = of(comm);
    const std::string error =
        all_to_all_v_error(state->world, send, send_bytes, send_offsets, recv, recv_bytes, recv_offsets);
    if (!error.empty()) return state->invalid(Op::all_to_all_v, error);
    if (!state->enter(Call{.op = Op::all_to_all_v})) return BP_COMM;
    // Everybody's sizes go to everybody, so that all see the same mismatch: what p sends to q, then what p expects of
    // q.
    const auto world = static_cast<std::size_t>(state->world);
    std::vector<std::uint64_t> sizes(2 * world * world);
    const auto row = [&](int p) { return &sizes[2 * world * static_cast<std::size_t>(p)]; };
    for (std::size_t q = 0; q < world; ++q) {
      row(comm->rank)[q] = send_bytes[q];
      row(comm->rank)[world + q] = recv_bytes[q];
    }
    const std::size_t row_bytes = 2 * world * sizeof(std::uint64_t);
    const bool told = state->swap(
        Op::all_to_all_v, [&](int q) { return S::piece(q, row(comm->rank), row_bytes); },
        [&](int q) { return S::piece(q, row(q), row_bytes); });
    if (!told) return BP_COMM;
    for (int from = 0; from < state->world; ++from) {
      for (int to = 0; to < state->world; ++to) {
        const std::uint64_t sent = row(from)[to];
        const std::uint64_t expected = row(to)[world + static_cast<std::size_t>(from)];
        if (sent == expected) continue;
        state->abort(true, fmt::format("rank {}: all_to_all_v expects {} bytes from rank {}, which sends {}", to,
                                       expected, from, sent));
        return BP_COMM;
      }
    }
    // As numbers: a NULL base with nothing to move may not be added to.
    const auto block = [](const void* base, std::size_t offset, std::size_t bytes) -> const void* {
      return bytes == 0 ? nullptr : at(base, offset);
    };
    const bool moved = state->swap(
        Op::all_to_all_v,
        [&](int q) { return S::piece(q, block(send, send_offsets[q], send_bytes[q]), send_bytes[q]); },
        [&](int q) { return S::piece(q, block(recv, recv_offsets[q], recv_bytes[q]), recv_bytes[q]); });
    return moved ? BP_OK : BP_COMM;
  }

  // Sums slice `rank` of all sources into `out`. begin(r) .. begin(r + 1): slice r in elements.
  template <class Begin>
  static bool sum_slice(S* state, const Call& call, std::size_t element, const void* send, const Begin& begin,
                        void* out) {
    const std::size_t own = begin(state->rank + 1) - begin(state->rank);
    const std::size_t bytes = own * element;
    std::vector<std::byte> staging(bytes * static_cast<std::size_t>(state->world));
    std::vector<const void*> sources(static_cast<std::size_t>(state->world));
    const bool moved = state->swap(
        call.op, [&](int q) { return S::piece(q, at(send, begin(q) * element), (begin(q + 1) - begin(q)) * element); },
        [&](int q) { return S::piece(q, staging.data() + static_cast<std::size_t>(q) * bytes, bytes); });
    if (!moved) return false;
    for (int q = 0; q < state->world; ++q) sources[q] = staging.data() + static_cast<std::size_t>(q) * bytes;
    if (own > 0) reduce(call.dtype, call.order, sources, own, out);
    return true;
  }

  static bp_status reduce_scatter(const bp_comm* comm, const void* send, void* recv, std::size_t count, bp_dtype dtype,
                                  bp_reduce_order order, void*) {
    S* state = of(comm);
    std::string error = reduce_error(dtype, order, state->world);
    if (!error.empty()) return state->invalid(Op::reduce_scatter, error);
    const std::size_t element = static_cast<std::size_t>(dtype_bits(dtype)) / 8;
    std::size_t bytes = 0;
    std::size_t total = 0;
    if (__builtin_mul_overflow(count, element, &bytes) || __builtin_mul_overflow(bytes, state->world, &total))
      return state->invalid(Op::reduce_scatter, "the size overflows");
    const bool in_place = bytes > 0 && send != nullptr && recv == at(send, comm->rank * bytes);
    error = buffer_error(send, total, recv, bytes, in_place);
    if (!error.empty()) return state->invalid(Op::reduce_scatter, error);
    const Call call{.op = Op::reduce_scatter, .dtype = dtype, .order = order, .count = count};
    if (!state->enter(call)) return BP_COMM;
    if (count == 0) return BP_OK;
    const auto begin = [&](int r) { return static_cast<std::size_t>(r) * count; };
    return sum_slice(state, call, element, send, begin, recv) ? BP_OK : BP_COMM;
  }

  // Rank r sums slice r and all gather the slices, so that every element is summed once.
  static bp_status all_reduce(const bp_comm* comm, const void* send, void* recv, std::size_t count, bp_dtype dtype,
                              bp_reduce_order order, void*) {
    S* state = of(comm);
    std::string error = reduce_error(dtype, order, state->world);
    if (!error.empty()) return state->invalid(Op::all_reduce, error);
    const std::size_t element = static_cast<std::size_t>(dtype_bits(dtype)) / 8;
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(count, element, &bytes)) return state->invalid(Op::all_reduce, "the size overflows");
    error = buffer_error(send, bytes, recv, bytes, send == recv);
    if (!error.empty()) return state->invalid(Op::all_reduce, error);
    const Call call{.op = Op::all_reduce, .dtype = dtype, .order = order, .count = count};
    if (!state->enter(call)) return BP_COMM;
    if (count == 0) return BP_OK;
    const auto world = static_cast<std::size_t>(state->world);
    const auto begin = [&](int r) {
      const auto slice = static_cast<std::size_t>(r);
      return count / world * slice + std::min(slice, count % world);
    };
    const auto slice = [&](int q) {
      return S::piece(q, at(recv, begin(q) * element), (begin(q + 1) - begin(q)) * element);
    };
    if (!sum_slice(state, call, element, send, begin, slice(comm->rank).data)) return BP_COMM;
    const auto own = [&](int q) { return S::piece(q, slice(comm->rank).data, slice(comm->rank).bytes); };
    return state->swap(Op::all_reduce, own, slice) ? BP_OK : BP_COMM;
  }
};

}  // namespace

MpiWorld::MpiWorld(MpiProcesses& processes, int world) : state_(std::make_unique<State>(processes, world)) {
  const int rank = processes.rank();
  // Together with the processes that stay outside.
  const int code = MPI_Comm_split(processes.state_->traffic, rank < world ? 0 : MPI_UNDEFINED, rank, &state_->handle);
  if (!processes.state_->check(code, "MPI_Comm_split") || rank >= world) return;
  using Functions = Collectives<State>;
  bp_comm& comm = state_->comm;
  comm.struct_size = sizeof(bp_comm);
  comm.rank = rank;
  comm.world = world;
  comm.handle = &state_->handle;
  comm.self = state_.get();
  comm.barrier = Functions::barrier;
  comm.all_gather = Functions::all_gather;
  comm.reduce_scatter = Functions::reduce_scatter;
  comm.all_reduce = Functions::all_reduce;
  comm.all_to_all = Functions::all_to_all;
  comm.all_to_all_v = Functions::all_to_all_v;
}

MpiWorld::~MpiWorld() = default;

const bp_comm* MpiWorld::comm() const { return &state_->comm; }

MpiWorld::Ending MpiWorld::finished(bool failed) {
  const auto all_through = [&] {
    return std::all_of(state_->calls.begin(), state_->calls.end(),
                       [](const Call& call) { return call.op == Op::finished; });
  };
  const bool while_running = state_->ending.aborted;
  // After a round that some waited in everybody is aborted, calls nothing more and comes here.
  while (state_->round(Call{.op = Op::finished, .failed = failed ? 1u : 0u})) {
    if (all_through()) break;
    state_->judge();
  }
  Ending ending = std::move(state_->ending);
  ending.while_running = while_running;
  state_->ending = Ending{};
  return ending;
}

}  // namespace batchproof
