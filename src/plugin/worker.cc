// SPDX-License-Identifier: Apache-2.0
//
// A request, an answer, and around each the things that a stranger's code may not change. Whatever goes wrong badly
// ends the process; the program that started it finds out how.
#include "src/plugin/worker.h"

#include <cxxabi.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "src/check/local_host.h"
#include "src/check/rank_runner.h"
#include "src/comm/process_world.h"
#include "src/numeric/divide.h"
#include "src/plugin/arena.h"
#include "src/plugin/channel.h"
#include "src/plugin/library.h"
#include "src/plugin/signals.h"
#include "src/plugin/table.h"
#include "src/runtime/fp_env.h"

namespace batchproof {
namespace {

using Json = nlohmann::json;

// A workspace that ends at an untouchable page and begins behind one.
Result<Memory> fenced_memory(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t wanted = align_up(bytes, kAlignment);
  const std::size_t inside = align_up(wanted, page);
  const std::size_t whole = inside + 2 * kArenaGap;
  void* memory = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return fail(Error::Kind::environment, fmt::format("out of memory: a workspace of {} bytes was asked for", bytes));
  auto* base = static_cast<std::byte*>(memory);
  std::shared_ptr<void> owner(memory, [whole](void* start) { munmap(start, whole); });
  if (mprotect(base + kArenaGap, inside, PROT_READ | PROT_WRITE) != 0)
    return fail(Error::Kind::environment, fmt::format("out of memory: a workspace of {} bytes was asked for", bytes));
  return Memory{base + kArenaGap + inside - wanted, bytes, std::move(owner)};
}

Json failure(const Error& error) {
  return {{"ok", false}, {"kind", static_cast<int>(error.kind)}, {"error", error.message}};
}

class Worker {
 public:
  Worker(int channel, std::unique_ptr<ArenaWindow> window, CrashRecord* record)
      : channel_(channel), window_(std::move(window)), record_(record) {
    struct stat status{};
    if (fstat(channel_, &status) == 0) inode_ = status.st_ino;
  }

  // Until the program leaves.
  void serve() {
    Inbox inbox;
    Message request;
    while (receive_message(channel_, &inbox, &request)) {
      Message reply;
      const bool goes_on = answer(request, &reply);
      // The plug-in may have closed the descriptor, or closed it and opened something of its own under its number.
      struct stat status{};
      if (fstat(channel_, &status) != 0 || status.st_ino != inode_ || !send_message(channel_, reply)) break;
      window_->close_all();
      if (!goes_on) return;
    }
    struct stat status{};
    if (fstat(channel_, &status) != 0 || status.st_ino != inode_) record_->channel_lost.store(1);
  }

 private:
  bool answer(const Message& request, Message* reply) {
    const std::string kind = request.body.value("kind", "");
    FpEnvGuard environment;
    try {
      if (kind == "quit") {
        operators_.clear();
        reply->body = {{"ok", true}};
        return false;
      }
      if (kind == "load") {
        load(request, reply);
        handlers_ = SignalHandlers::now();
        mask_ = signal_mask();
        return true;
      }
      Operator& op = *operators_.at(request.body.at("op").get<std::size_t>());
      if (kind == "run") {
        run(op, request, reply);
      } else {
        query(op, kind, request, reply);
      }
#ifdef __GLIBCXX__
    } catch (abi::__forced_unwind&) {
      throw;
#endif
    } catch (const std::exception& exception) {
      reply->body = failure({Error::Kind::operation, fmt::format("{} threw a C++ exception out of {}: {}; none may "
                                                                 "cross the interface",
                                                                 name_, kind, exception.what())});
      reply->body["restart"] = true;
    } catch (...) {
      reply->body = failure({Error::Kind::operation,
                             fmt::format("{} threw a C++ exception out of {} that is not a std::exception; none may "
                                         "cross the interface",
                                         name_, kind)});
      reply->body["restart"] = true;
    }
    std::fflush(nullptr);
    check_process(kind, environment, reply);
    return true;
  }

  // What belongs to the process must be as it was.
  void check_process(const std::string& kind, FpEnvGuard& environment, Message* reply) {
    std::string changed;
    if (const std::string words = environment.check(); !words.empty())
      changed = "a changed floating-point environment: " + words;
    if (const std::string words = SignalHandlers::now().changed_since(handlers_); !words.empty()) {
      handlers_.restore();
      changed += (changed.empty() ? "" : " and ") + ("a changed signal handler: " + words);
    }
    const sigset_t mask = signal_mask();
    if (const std::string words = mask_change(mask_, mask); !words.empty()) {
      pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
      changed += (changed.empty() ? "" : " and ") + ("a changed signal mask: " + words);
    }
    if (changed.empty() || !reply->body.value("ok", false)) return;
    reply->body = failure({Error::Kind::operation, fmt::format("{} left {}{}", name_, changed,
                                                               kind == "run" ? "" : fmt::format(" (in {})", kind))});
    reply->blob.clear();
  }

  struct Operator {
    const bp_operator* table;
    std::unique_ptr<LocalHost> host;      // queries, and ranks as threads
    std::unique_ptr<RankRunner> process;  // one rank in this process
  };

  RankHooks hooks() {
    RankHooks hooks;
    hooks.allocate = fenced_memory;
    hooks.before = [this](int rank, const std::byte* workspace, std::size_t bytes) {
      ensure_signal_stack();
      set_crash_rank(rank);
      if (rank < kRecordedRanks) record_->workspaces[rank] = {reinterpret_cast<std::uint64_t>(workspace), bytes};
      rank_mask() = signal_mask();
    };
    hooks.after = [](int) -> std::string {
      set_crash_rank(-1);
      const std::string words = mask_change(rank_mask(), signal_mask());
      if (words.empty()) return {};
      pthread_sigmask(SIG_SETMASK, &rank_mask(), nullptr);
      return "a changed signal mask: " + words;
    };
    return hooks;
  }

  static sigset_t& rank_mask() {
    thread_local sigset_t mask{};
    return mask;
  }

  void load(const Message& request, Message* reply) {
    auto library = Library::load(request.body.at("path").get<std::string>());
    if (!library) {
      reply->body = failure(library.error());
      return;
    }
    Json tables = Json::array();
    for (const bp_operator* table : library->tables()) {
      tables.push_back(table_to_json(*table));
      auto op = std::make_unique<Operator>();
      op->table = table;
      op->host = std::make_unique<LocalHost>(table, hooks());
      op->process = std::make_unique<RankRunner>(table, hooks());
      operators_.push_back(std::move(op));
    }
    reply->body = {{"ok", true}, {"tables", std::move(tables)}, {"notes", library->notes()}};
  }

  void query(Operator& op, const std::string& kind, const Message& request, Message* reply) {
    name_ = op.table->name;
    const Problem problem = problem_from_json(request.body.at("problem"));
    reply->body = {{"ok", true}};
    if (kind == "validate") {
      if (auto valid = op.host->validate(problem); !valid) reply->body = failure(valid.error());
    } else if (kind == "shapes") {
      auto tensors = op.host->shapes(problem);
      if (!tensors) {
        reply->body = failure(tensors.error());
        return;
      }
      reply->blob.resize(tensors->size() * sizeof(bp_tensor));
      std::memcpy(reply->blob.data(), tensors->data(), reply->blob.size());
    } else if (kind == "promises") {
      const auto index = request.body.at("implementation").get<std::uint32_t>();
      auto promised = op.host->promises(op.table->implementations[index], problem);
      reply->body = promised ? Json{{"ok", true}, {"promises", *promised}} : failure(promised.error());
    } else if (kind == "locate") {
      locate(op, problem, request, reply);
    } else {
      reply->body = failure({Error::Kind::internal, "the worker was asked for " + kind});
    }
  }

  // Per row: the number of places, then the places.
  static void locate(Operator& op, const Problem& problem, const Message& request, Message* reply) {
    if (op.table->locate == nullptr) return;
    const auto append = [reply](const void* data, std::size_t bytes) {
      const auto* begin = static_cast<const std::byte*>(data);
      reply->blob.insert(reply->blob.end(), begin, begin + bytes);
    };
    const auto first = request.body.at("first").get<std::int64_t>();
    const auto count = request.body.at("count").get<std::int64_t>();
    for (std::int64_t row = first; row < first + count; ++row) {
      const auto places = op.host->locate(problem, row);
      const auto number = static_cast<std::uint64_t>(places->size());
      append(&number, sizeof(number));
      if (number > 0) append(places->data(), number * sizeof(bp_location));
    }
  }

  void run(Operator& op, const Message& request, Message* reply) {
    name_ = op.table->name;
    const Json& body = request.body;
    const Problem problem = problem_from_json(body.at("problem"));
    RunRequest call;
    call.implementation = &op.table->implementations[body.at("implementation").get<std::uint32_t>()];
    call.problem = &problem;
    call.mode = body.at("mode").get<bp_mode>();
    call.comm_mode = body.at("comm_mode").get<bp_comm_mode>();
    call.threads = body.at("threads").get<int>();
    call.reference = body.at("reference").get<bool>();
    if (body.at("fill").is_null()) {
      call.workspace_fill.reset();
    } else {
      call.workspace_fill = body.at("fill").get<std::uint8_t>();
    }
    const int own_rank = body.at("rank").get<int>();  // -1: all of them, as threads
    call.tensors.resize(static_cast<std::size_t>(problem.world));
    const WireTensor* wire = reinterpret_cast<const WireTensor*>(request.blob.data());
    for (int rank = 0; rank < problem.world; ++rank) {
      if (own_rank >= 0 && rank != own_rank) continue;
      for (std::uint32_t port = 0; port < op.table->port_count; ++port, ++wire) {
        bp_tensor tensor = wire->view;
        tensor.data = nullptr;
        if (tensor.dtype != BP_NONE) {
          auto opened = window_->open({wire->piece_offset, wire->piece_bytes}, wire->writable != 0);
          if (!opened) {
            reply->body = failure(opened.error());
            return;
          }
          tensor.data = window_->base() + wire->offset;
        }
        call.tensors[static_cast<std::size_t>(rank)].push_back(tensor);
      }
    }
    auto outcome = own_rank < 0 ? op.host->run(call) : run_rank(op, call, body, own_rank);
    reply->body = outcome ? Json{{"ok", true},
                                 {"executed", outcome->executed},
                                 {"seconds", outcome->seconds},
                                 {"workspace_bytes", outcome->workspace_bytes}}
                          : failure(outcome.error());
    if (op.host->threw() || op.process->threw()) reply->body["restart"] = true;
  }

  Result<RunOutcome> run_rank(Operator& op, const RunRequest& call, const Json& body, int rank) {
    const ArenaPiece piece{body.at("comm_offset").get<std::uint64_t>(), body.at("comm_bytes").get<std::uint64_t>()};
    if (auto opened = window_->open(piece, true); !opened) return tl::unexpected(opened.error());
    ProcessWorld world(window_->base() + piece.offset, rank);
    const Problem::View view(*call.problem);
    op.process->prepare(call.problem->world);
    auto outcome = op.process->run(call, view.get(), rank, *world.comm());
    if (outcome) {
      world.finished();
    } else {
      world.abort(rank, outcome.error().message);
    }
    return outcome;
  }

  int channel_;
  ino_t inode_ = 0;
  std::unique_ptr<ArenaWindow> window_;
  CrashRecord* record_;
  std::vector<std::unique_ptr<Operator>> operators_;
  std::string name_ = "the plug-in";
  SignalHandlers handlers_ = SignalHandlers::now();
  sigset_t mask_ = signal_mask();
};

// What the program's own parent left open is nothing for a plug-in to write to. Kept: 0 to 2, the channel, the arena.
void close_inherited(int channel, int arena) {
#ifdef SYS_close_range
  const auto low = static_cast<unsigned>(std::min(channel, arena));
  const auto high = static_cast<unsigned>(std::max(channel, arena));
  if (low > 3) syscall(SYS_close_range, 3u, low - 1, 0u);
  if (high > low + 1) syscall(SYS_close_range, low + 1, high - 1, 0u);
  syscall(SYS_close_range, high + 1, ~0u, 0u);
#else
  (void)channel;
  (void)arena;
#endif
}

}  // namespace

int worker_main(int argc, char** argv) {
  constexpr int kUsage = 2;
  if (argc != 6) return kUsage;
  // No program, no worker.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != static_cast<pid_t>(std::strtol(argv[5], nullptr, 10))) return kUsage;
  const int channel = static_cast<int>(std::strtol(argv[1], nullptr, 10));
  const int arena = static_cast<int>(std::strtol(argv[2], nullptr, 10));
  const std::uint64_t size = std::strtoull(argv[3], nullptr, 10);
  const std::uint64_t record_offset = std::strtoull(argv[4], nullptr, 10);
  close_inherited(channel, arena);
  void* page =
      mmap(nullptr, sizeof(CrashRecord), PROT_READ | PROT_WRITE, MAP_SHARED, arena, static_cast<off_t>(record_offset));
  if (page == MAP_FAILED) return kUsage;
  auto* record = static_cast<CrashRecord*>(page);
  auto window = ArenaWindow::map(arena, size);
  if (!window) return kUsage;
  close(arena);
  record->arena_base = reinterpret_cast<std::uint64_t>((*window)->base());
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  install_crash_handlers(record);
  Worker(channel, *std::move(window), record).serve();
  // Without the destructors of the plug-in: they are not what is tested.
  _exit(0);
}

}  // namespace batchproof
