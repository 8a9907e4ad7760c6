// SPDX-License-Identifier: Apache-2.0
#include "src/plugin/worker_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "src/runtime/file.h"

namespace batchproof {
namespace {

constexpr double kLoadSeconds = 60.0;
// An address this near to a piece of memory is an overrun of it.
constexpr std::uint64_t kNear = std::uint64_t{1} << 20;

std::string on_rank(int rank) { return rank < 0 ? "" : fmt::format(" on rank {}", rank); }

struct Nearest {
  std::string name;
  int rank = -1;
  bool before = false;
  std::uint64_t distance = UINT64_MAX;  // bytes outside; 0: inside
  std::uint64_t inside = 0;
  bool writable = true;

  void offer(const std::string& whose, int of_rank, std::uint64_t begin, std::uint64_t bytes, std::uint64_t at,
             bool may_write) {
    const std::uint64_t end = begin + bytes;
    const std::uint64_t outside = at < begin ? begin - at : at >= end ? at - end + 1 : 0;
    if (outside > kNear || outside >= distance) return;
    *this = {whose, of_rank, at < begin, outside, at < begin ? 0 : at - begin, may_write};
  }
};

std::string program_of(const PluginOptions& options) {
  if (!options.worker_program.empty()) return options.worker_program;
  const char* named = std::getenv("BATCHPROOF_WORKER");
  return named != nullptr && named[0] != '\0' ? named : "/proc/self/exe";
}

}  // namespace

std::string locate_fault(const Death& death, std::uint64_t arena_size, const std::vector<NamedRegion>& regions) {
  if (!death.fault || !death.fault->has_address) return {};
  const Death::Fault& fault = *death.fault;
  const char* did = fault.write == 1 ? "wrote" : fault.write == 0 ? "read" : "touched";
  Nearest nearest;
  if (fault.address >= fault.arena_base && fault.address - fault.arena_base < arena_size) {
    const std::uint64_t offset = fault.address - fault.arena_base;
    for (const NamedRegion& region : regions)
      nearest.offer(region.name, region.rank, region.offset, region.bytes, offset, region.writable);
  }
  for (std::size_t rank = 0; rank < death.workspaces.size(); ++rank) {
    const CrashRecord::Workspace& workspace = death.workspaces[rank];
    if (workspace.begin != 0)
      nearest.offer("its workspace", static_cast<int>(rank), workspace.begin, workspace.bytes, fault.address, true);
  }
  if (nearest.distance == UINT64_MAX) return fmt::format("it {} address {:#x}", did, fault.address);
  if (nearest.distance > 0)
    return fmt::format("it {} {} byte{} {} of {}{}", did, nearest.distance, nearest.distance == 1 ? "" : "s",
                       nearest.before ? "before the beginning" : "behind the end", nearest.name, on_rank(nearest.rank));
  if (!nearest.writable && fault.write != 0)
    return fmt::format("it {} its input {}{}, at byte {}", fault.write == 1 ? "wrote to" : did, nearest.name,
                       on_rank(nearest.rank), nearest.inside);
  return fmt::format("it {} byte {} of {}{}", did, nearest.inside, nearest.name, on_rank(nearest.rank));
}

Result<void> answer_status(const Message& reply) {
  const auto& body = reply.body;
  try {
    if (body.at("ok").get<bool>()) return {};
    auto kind = static_cast<Error::Kind>(body.at("kind").get<int>());
    if (kind != Error::Kind::usage && kind != Error::Kind::environment) kind = Error::Kind::operation;
    return fail(kind, clean_text(body.at("error").get<std::string>()));
  } catch (const nlohmann::json::exception&) {
    return fail(Error::Kind::operation, "the worker sent a damaged answer");
  }
}

Result<std::unique_ptr<WorkerGroup>> WorkerGroup::open(const std::string& path, const PluginOptions& options) {
  std::error_code error;
  const auto absolute = std::filesystem::weakly_canonical(path, error);
  auto group = std::unique_ptr<WorkerGroup>(new WorkerGroup(error ? path : absolute.string(), options));
  auto digest = file_digest(path);
  if (!digest) return tl::unexpected(digest.error());
  group->build_id_ = *digest;
  auto arena = Arena::make();
  if (!arena) return tl::unexpected(arena.error());
  group->arena_ = *std::move(arena);
  if (auto first = group->worker(0); !first) return tl::unexpected(first.error());
  return group;
}

Result<Message> WorkerGroup::load(WorkerProcess& worker) {
  Message request;
  request.body = {{"kind", "load"}, {"path", path_}};
  worker.send(request);
  auto answers = Exchange::wait({&worker}, std::chrono::duration<double>(std::max(kLoadSeconds, limit_)), {});
  if (answers[0].death)
    return fail(Error::Kind::usage,
                fmt::format("{}: {}", path_, cause("the plug-in", "load", worker, *answers[0].death, {}, -1)));
  if (!answers[0].reply)
    return fail(Error::Kind::usage, fmt::format("{}: {}", path_, hang("the plug-in", "load", worker)));
  if (auto status = answer_status(*answers[0].reply); !status) return tl::unexpected(status.error());
  return *std::move(answers[0].reply);
}

Result<WorkerProcess*> WorkerGroup::worker(int rank) {
  const auto index = static_cast<std::size_t>(rank);
  if (workers_.size() <= index) workers_.resize(index + 1);
  if (workers_[index]) return workers_[index].get();
  auto started = WorkerProcess::start(program_of(options_), *arena_);
  if (!started) return tl::unexpected(started.error());
  auto reply = load(**started);
  if (!reply) return tl::unexpected(reply.error());
  nlohmann::json tables = reply->body.value("tables", nlohmann::json::array());
  if (tables_.is_null()) {
    tables_ = std::move(tables);
    for (const auto& note : reply->body.value("notes", std::vector<std::string>{})) notes_.push_back(clean_text(note));
  } else if (tables != tables_) {
    return fail(Error::Kind::operation,
                fmt::format("{}: the file changed while it was in use: its tables are others now", path_));
  }
  workers_[index] = *std::move(started);
  return workers_[index].get();
}

Result<Message> WorkerGroup::ask(const std::string& op, const std::string& what, const Message& request) {
  auto found = worker(0);
  if (!found) return tl::unexpected(found.error());
  WorkerProcess& process = **found;
  process.send(request);
  auto answers = Exchange::wait({&process}, std::chrono::duration<double>(limit_), {});
  if (answers[0].death) {
    std::string text = cause(op, what, process, *answers[0].death, {}, -1);
    drop(0);
    return fail(Error::Kind::operation, std::move(text));
  }
  if (!answers[0].reply) {
    std::string text = hang(op, what, process);
    drop(0);
    return fail(Error::Kind::operation, std::move(text));
  }
  Message reply = *std::move(answers[0].reply);
  const auto status = answer_status(reply);
  if (reply.body.value("restart", false)) drop(0);
  if (!status) return tl::unexpected(status.error());
  return reply;
}

std::string WorkerGroup::cause(const std::string& op, const std::string& what, WorkerProcess& worker,
                               const Death& death, const std::vector<NamedRegion>& regions, int rank) const {
  const std::string where = locate_fault(death, arena_->size(), regions);
  if (death.fault && death.fault->rank >= 0) rank = death.fault->rank;
  std::string text = fmt::format("{} {} in {}", op, death.text(), what);
  if (where.find(" on rank ") == std::string::npos) text += on_rank(rank);
  if (!where.empty()) text += ": " + where;
  if (const std::string words = worker.last_words(); !words.empty()) text += "; " + words;
  return text;
}

std::string WorkerGroup::hang(const std::string& op, const std::string& what, WorkerProcess& worker) const {
  std::string text = fmt::format("{} did not return from {} within {} s", op, what,
                                 what == "load" ? std::max(kLoadSeconds, limit_) : limit_);
  if (const std::string words = worker.last_words(); !words.empty()) text += "; " + words;
  return text;
}

}  // namespace batchproof
