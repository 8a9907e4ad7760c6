// SPDX-License-Identifier: Apache-2.0
//
// What a worker answers is checked before anything here relies on it: there is a stranger's code in that process.
#include "src/plugin/worker_host.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "src/check/local_host.h"
#include "src/check/rank_runner.h"
#include "src/numeric/dtype.h"
#include "src/plugin/worker.h"
#include "src/runtime/expression.h"

namespace batchproof {
namespace {

constexpr std::size_t kKnownProblems = 16;
constexpr std::int64_t kRowsAtOnce = 256;
constexpr std::int64_t kLargestTensor = std::int64_t{1} << 40;  // elements

bool same_problem(const Problem& a, const Problem& b) {
  return a.world == b.world && a.axes == b.axes && a.attrs == b.attrs && a.dtypes == b.dtypes;
}

std::int64_t rows_of(const bp_operator& table, const Problem& problem) {
  const auto rows = Expression::parse(table.rows);
  if (!rows) return 0;
  const auto count = rows->evaluate([&](std::string_view symbol) -> std::optional<std::int64_t> {
    if (symbol == "W") return problem.world;
    const auto found = problem.axes.find(std::string(symbol));
    return found == problem.axes.end() ? std::nullopt : std::optional<std::int64_t>(found->second);
  });
  return count ? *count : 0;
}

RunOutcome outcome_of(const Message& reply) {
  return {clean_text(reply.body.value("executed", std::string())), reply.body.value("seconds", 0.0),
          reply.body.value("workspace_bytes", std::uint64_t{0})};
}

}  // namespace

WorkerHost::WorkerHost(WorkerGroup& group, std::size_t index, std::unique_ptr<OwnedTable> table)
    : group_(group), index_(index), owned_(std::move(table)), name_(owned_->table().name) {}

void WorkerHost::begin_cell(std::optional<double> seconds_per_call) {
  group_.set_limit(seconds_per_call);
  pending_.reset();
}

Message WorkerHost::request(const char* kind, const Problem& problem) const {
  Message message;
  message.body = {{"kind", kind}, {"op", index_}, {"problem", problem_to_json(problem)}};
  return message;
}

// A refusal is an answer; anything worse is remembered too, for callers that take every failure for a refusal.
Result<Message> WorkerHost::ask(const char* kind, const Message& message) {
  const auto workers_before = group_.generation();
  auto reply = group_.ask(name_, kind, message);
  if (!reply && group_.generation() != workers_before) pending_ = reply.error();
  return reply;
}

Result<void> WorkerHost::validate(const Problem& problem) {
  auto reply = ask("validate", request("validate", problem));
  if (!reply) return tl::unexpected(reply.error());
  return {};
}

WorkerHost::Known& WorkerHost::known(const Problem& problem) {
  const auto found = std::find_if(known_.begin(), known_.end(),
                                  [&](const auto& each) { return same_problem(each->problem, problem); });
  if (found != known_.end()) {
    std::rotate(known_.begin(), found, found + 1);
  } else {
    if (known_.size() == kKnownProblems) known_.pop_back();
    auto fresh = std::make_unique<Known>();
    fresh->problem = problem;
    known_.insert(known_.begin(), std::move(fresh));
  }
  return *known_.front();
}

Result<void> WorkerHost::check_shapes(const std::vector<bp_tensor>& tensors) const {
  for (std::uint32_t i = 0; i < table().port_count; ++i) {
    const bp_tensor& tensor = tensors[i];
    const bp_port& port = table().ports[i];
    if (tensor.dtype == BP_NONE) continue;
    const auto declared = parse_shape(port.shape);
    if (declared && tensor.ndim != static_cast<std::int32_t>(declared->size()))
      return fail(Error::Kind::operation,
                  fmt::format("{}: infer_shapes gave {} axes for {}, whose shape is declared as \"{}\"", name_,
                              tensor.ndim, port.name, port.shape));
    std::int64_t elements = 1;
    for (int axis = 0; axis < tensor.ndim; ++axis) {
      const std::int64_t extent = tensor.shape[axis];
      if (extent < 0 || __builtin_mul_overflow(elements, std::max<std::int64_t>(extent, 1), &elements) ||
          elements > kLargestTensor)
        return fail(Error::Kind::operation,
                    fmt::format("{}: infer_shapes gave extent {} for axis {} of {}", name_, extent, axis, port.name));
    }
  }
  return {};
}

Result<std::vector<bp_tensor>> WorkerHost::shapes(const Problem& problem) {
  Known& about = known(problem);
  if (about.shapes) return *about.shapes;
  auto reply = ask("shapes", request("shapes", problem));
  if (!reply) return tl::unexpected(reply.error());
  std::vector<bp_tensor> tensors(table().port_count);
  if (reply->blob.size() != tensors.size() * sizeof(bp_tensor))
    return fail(Error::Kind::operation, fmt::format("{}: the worker sent damaged shapes", name_));
  std::memcpy(tensors.data(), reply->blob.data(), reply->blob.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].data = nullptr;
    tensors[i].dtype = problem.dtypes[i];
  }
  if (auto checked = check_shapes(tensors); !checked) return tl::unexpected(checked.error());
  about.shapes = tensors;
  return tensors;
}

// The axis along which a place in the port counts: rows, or the experts of a weight; -1: there is none.
std::int32_t located_axis(const bp_port& port) {
  if (port.row_axis >= 0) return port.row_axis;
  return port.kind == BP_WEIGHT && port.distribution == BP_SHARDED && port.sharded_axis == 0 ? 0 : -1;
}

// Rows come in blocks: relations ask for one after the other.
Result<void> WorkerHost::fetch_rows(Known& about, std::int64_t row) {
  const std::int64_t rows = rows_of(table(), about.problem);
  const std::int64_t first = row / kRowsAtOnce * kRowsAtOnce;
  const bool inside = row < rows;
  Message message = request("locate", about.problem);
  message.body["first"] = inside ? first : row;
  const std::int64_t count = inside ? std::min(kRowsAtOnce, rows - first) : 1;
  message.body["count"] = count;
  const auto shapes_now = shapes(about.problem);
  if (!shapes_now) return tl::unexpected(shapes_now.error());
  auto reply = ask("locate", message);
  if (!reply) return tl::unexpected(reply.error());
  const std::byte* at = reply->blob.data();
  const std::byte* end = at + reply->blob.size();
  for (std::int64_t r = inside ? first : row; r < (inside ? first : row) + count; ++r) {
    std::uint64_t places = 0;
    if (end - at < static_cast<std::ptrdiff_t>(sizeof(places)))
      return fail(Error::Kind::operation, fmt::format("{}: the worker sent damaged places", name_));
    std::memcpy(&places, at, sizeof(places));
    at += sizeof(places);
    if (places > static_cast<std::uint64_t>(end - at) / sizeof(bp_location))
      return fail(Error::Kind::operation, fmt::format("{}: the worker sent damaged places", name_));
    std::vector<bp_location> list(static_cast<std::size_t>(places));
    if (places > 0) std::memcpy(list.data(), at, list.size() * sizeof(bp_location));
    at += list.size() * sizeof(bp_location);
    for (const bp_location& place : list) {
      const std::int32_t axis = place.port < table().port_count ? located_axis(table().ports[place.port]) : -1;
      const std::int64_t extent = axis >= 0 ? (*shapes_now)[place.port].shape[axis] : 0;
      if (axis < 0 || place.rank < 0 || place.rank >= about.problem.world || place.index < 0 || place.index >= extent)
        return fail(Error::Kind::operation,
                    fmt::format("{}: locate put row {} at port {}, rank {}, index {}, which does not exist", name_, r,
                                place.port, place.rank, place.index));
    }
    about.rows[r] = std::move(list);
  }
  return {};
}

std::optional<std::vector<bp_location>> WorkerHost::locate(const Problem& problem, std::int64_t row) {
  if (!functions().locate) return std::nullopt;
  Known* about = &known(problem);
  auto found = about->rows.find(row);
  if (found == about->rows.end()) {
    if (auto fetched = fetch_rows(*about, row); !fetched) {
      if (!pending_) pending_ = fetched.error();
      return std::vector<bp_location>{};
    }
    found = about->rows.find(row);
  }
  return found->second;
}

Result<std::uint32_t> WorkerHost::implementation_index(const bp_implementation* implementation) const {
  for (std::uint32_t i = 0; i < table().implementation_count; ++i) {
    if (implementation != nullptr && std::strcmp(table().implementations[i].id, implementation->id) == 0) return i;
  }
  return fail(Error::Kind::internal, fmt::format("an implementation that {} does not have was asked for", name_));
}

Result<std::uint32_t> WorkerHost::promises(const bp_implementation& implementation, const Problem& problem) {
  auto index = implementation_index(&implementation);
  if (!index) return index;
  Message message = request("promises", problem);
  message.body["implementation"] = *index;
  auto reply = ask("promises", message);
  if (!reply) return tl::unexpected(reply.error());
  return reply->body.value("promises", 0u);
}

Result<Memory> WorkerHost::allocate(std::size_t bytes) { return group_.arena().allocate(bytes); }

// ---- run -----------------------------------------------------------------------------------------------------------

Result<void> WorkerHost::append_tensors(const RunRequest& run, int rank, Message* message) {
  for (std::uint32_t i = 0; i < table().port_count; ++i) {
    const bp_port& port = table().ports[i];
    const bp_tensor& tensor = run.tensors[static_cast<std::size_t>(rank)][i];
    WireTensor wire{};
    wire.view = tensor;
    wire.view.data = nullptr;
    wire.writable = port.kind == BP_OUTPUT ? 1 : 0;
    if (tensor.dtype != BP_NONE) {
      const ArenaPiece* piece = group_.arena().piece_of(tensor.data);
      const std::size_t bytes = storage_bytes(tensor);
      const auto* data = static_cast<const std::byte*>(tensor.data);
      if (piece == nullptr || group_.arena().offset_of(data) + bytes > piece->offset + piece->bytes)
        return fail(Error::Kind::internal,
                    fmt::format("{} of {} is not in memory that its host allocated", port.name, name_));
      wire.offset = group_.arena().offset_of(data);
      wire.piece_offset = piece->offset;
      wire.piece_bytes = piece->bytes;
      regions_.push_back({port.name, rank, wire.offset, bytes, wire.writable != 0});
      if (wire.writable != 0) {
        Fence fence;
        fence.port = port.name;
        fence.rank = rank;
        fence.begin = group_.arena().at(piece->offset);
        fence.data = data;
        fence.data_end = data + bytes;
        fence.end = fence.begin + piece->bytes;
        fence.before.assign(fence.begin, fence.data);
        fence.behind.assign(fence.data_end, fence.end);
        fences_.push_back(std::move(fence));
      }
    }
    const auto* raw = reinterpret_cast<const std::byte*>(&wire);
    message->blob.insert(message->blob.end(), raw, raw + sizeof(wire));
  }
  return {};
}

std::string WorkerHost::broken_fence() const {
  for (const Fence& fence : fences_) {
    // The nearest changed byte on either side.
    for (std::size_t i = 0; i < fence.behind.size(); ++i) {
      if (fence.data_end[i] == fence.behind[i]) continue;
      return fmt::format("{} wrote outside {} on rank {}: {} byte{} behind its end", name_, fence.port, fence.rank,
                         i + 1, i == 0 ? "" : "s");
    }
    for (std::size_t i = fence.before.size(); i > 0; --i) {
      if (fence.begin[i - 1] == fence.before[i - 1]) continue;
      const std::size_t distance = fence.before.size() - i + 1;
      return fmt::format("{} wrote outside {} on rank {}: {} byte{} before its beginning", name_, fence.port,
                         fence.rank, distance, distance == 1 ? "" : "s");
    }
  }
  return {};
}

Result<WorkerHost::World*> WorkerHost::world_memory(int world) {
  if (world > kMaxProcessWorld)
    return fail(Error::Kind::operation,
                fmt::format("{} is not thread-safe, so each of {} ranks would be a process; at most {}", name_, world,
                            kMaxProcessWorld));
  World& slot = worlds_[world];
  if (!slot.observer) {
    auto memory = group_.arena().allocate(ProcessWorld::bytes(world));
    if (!memory) return tl::unexpected(memory.error());
    slot.memory = *std::move(memory);
    ProcessWorld::create(slot.memory.data, world);
    slot.observer = std::make_unique<ProcessWorld>(slot.memory.data, -1);
  }
  slot.observer->reset();
  return &slot;
}

Result<RunOutcome> WorkerHost::run(const RunRequest& run) {
  if (pending_) {
    Error error = *std::move(pending_);
    pending_.reset();
    return tl::unexpected(std::move(error));
  }
  auto implementation = implementation_index(run.implementation);
  if (!implementation) return tl::unexpected(implementation.error());
  Message message = request("run", *run.problem);
  message.body["implementation"] = *implementation;
  message.body["mode"] = run.mode;
  message.body["comm_mode"] = run.comm_mode;
  message.body["threads"] = run.threads;
  message.body["reference"] = run.reference;
  message.body["fill"] = nullptr;
  if (run.workspace_fill) message.body["fill"] = *run.workspace_fill;
  message.body["rank"] = -1;
  regions_.clear();
  fences_.clear();
  const bool threads = run.problem->world == 1 || (table().flags & BP_OP_THREAD_SAFE) != 0;
  auto outcome = threads ? run_in_one(run, std::move(message)) : run_in_processes(run, message);
  if (!outcome) return outcome;
  if (const std::string broken = broken_fence(); !broken.empty()) {
    // Who writes there may have written elsewhere too.
    for (int rank = 0; rank < (threads ? 1 : run.problem->world); ++rank) group_.drop(rank);
    return fail(Error::Kind::operation, broken);
  }
  return outcome;
}

Result<RunOutcome> WorkerHost::run_in_one(const RunRequest& run, Message message) {
  for (int rank = 0; rank < run.problem->world; ++rank) {
    if (auto done = append_tensors(run, rank, &message); !done) return tl::unexpected(done.error());
  }
  auto found = group_.worker(0);
  if (!found) return tl::unexpected(found.error());
  WorkerProcess& worker = **found;
  worker.send(message);
  const char* what = run.reference ? "reference" : "run";
  auto answers = Exchange::wait({&worker}, std::chrono::duration<double>(group_.limit()), {});
  if (!answers[0].reply) {
    std::string text = answers[0].death ? group_.cause(name_, what, worker, *answers[0].death, regions_,
                                                       run.problem->world == 1 ? 0 : -1)
                                        : group_.hang(name_, what, worker);
    group_.drop(0);
    return fail(Error::Kind::operation, std::move(text));
  }
  const Message& reply = *answers[0].reply;
  if (reply.body.value("restart", false)) group_.drop(0);
  if (auto status = answer_status(reply); !status) return tl::unexpected(status.error());
  return outcome_of(reply);
}

Result<RunOutcome> WorkerHost::run_in_processes(const RunRequest& run, const Message& message) {
  const int world = run.problem->world;
  auto shared = world_memory(world);
  if (!shared) return tl::unexpected(shared.error());
  ProcessWorld& observer = *(*shared)->observer;
  // All of them before the first call: a rank that waits for one that is only starting would see its time run.
  std::vector<WorkerProcess*> workers;
  for (int rank = 0; rank < world; ++rank) {
    auto found = group_.worker(rank);
    if (!found) return tl::unexpected(found.error());
    workers.push_back(*found);
  }
  const ArenaPiece* piece = group_.arena().piece_of((*shared)->memory.data);
  for (int rank = 0; rank < world; ++rank) {
    Message own = message;
    own.body["rank"] = rank;
    own.body["comm_offset"] = piece->offset;
    own.body["comm_bytes"] = piece->bytes;
    if (auto done = append_tensors(run, rank, &own); !done) return tl::unexpected(done.error());
    workers[static_cast<std::size_t>(rank)]->send(own);
  }
  const char* what = run.reference ? "reference" : "run";
  std::string first_death;
  const auto lost = [&](std::size_t rank, const Death& death) {
    const std::string text = group_.cause(name_, what, *workers[rank], death, regions_, static_cast<int>(rank));
    observer.abort(static_cast<int>(rank), text);
    if (first_death.empty()) first_death = text;
  };
  auto answers = Exchange::wait(workers, std::chrono::duration<double>(group_.limit()), lost);
  std::string hung;
  std::string waiting;
  for (int rank = 0; rank < world; ++rank) {
    const Exchange::Answer& answer = answers[static_cast<std::size_t>(rank)];
    if (answer.reply || answer.death) continue;
    const std::string collective = observer.waits_in(rank);
    std::string& list = collective.empty() ? hung : waiting;
    list += fmt::format("{}{}", list.empty() ? "" : ", ", rank);
    if (!collective.empty()) list += " waits in " + collective;
  }
  std::string hang_text;
  if (!hung.empty() || !waiting.empty())
    hang_text = fmt::format("{} did not return from {} within {} s: rank {}", name_, what, group_.limit(),
                            hung.empty() ? waiting : hung + (waiting.empty() ? "" : "; rank " + waiting));
  std::vector<RunOutcome> outcomes;
  std::optional<Error> error;
  for (int rank = 0; rank < world; ++rank) {
    const Exchange::Answer& answer = answers[static_cast<std::size_t>(rank)];
    if (!answer.reply || answer.reply->body.value("restart", false)) group_.drop(rank);
    if (!answer.reply) continue;
    if (auto status = answer_status(*answer.reply); !status) {
      if (!error) error = status.error();
      continue;
    }
    outcomes.push_back(outcome_of(*answer.reply));
  }
  if (!first_death.empty()) return fail(Error::Kind::operation, first_death);
  if (!hang_text.empty()) return fail(Error::Kind::operation, hang_text);
  if (error) {
    // The rank that failed first says why; the others say only that it did.
    const std::string cause = clean_text(observer.error());
    return fail(error->kind, cause.empty() ? error->message : cause);
  }
  return joined_outcome(outcomes);
}

}  // namespace batchproof
