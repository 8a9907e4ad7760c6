// SPDX-License-Identifier: Apache-2.0
//
// After its own rank's call each process sends what came of it to all others, then its outputs.
#include "src/check/mpi_host.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace batchproof {
namespace {

constexpr std::size_t kTextBytes = 1024;

void put(const std::string& text, char* buffer) {
  const std::size_t length = std::min(text.size(), kTextBytes - 1);
  std::memcpy(buffer, text.data(), length);
  buffer[length] = '\0';
}

}  // namespace

// Memory that was handed out and is still held by somebody.
struct MpiHost::Pieces {
  std::map<const std::byte*, std::size_t> bytes;  // by begin
};

// The bytes between a tensor and the ends of its memory: nobody may write there.
struct MpiHost::Fence {
  const char* port;
  std::byte* begin;
  std::byte* data_end;
  std::vector<std::byte> before;
  std::vector<std::byte> behind;

  // What lies there is put back, so that this process goes on like the others.
  bool broken() {
    const bool same =
        std::equal(before.begin(), before.end(), begin) && std::equal(behind.begin(), behind.end(), data_end);
    std::copy(before.begin(), before.end(), begin);
    std::copy(behind.begin(), behind.end(), data_end);
    return !same;
  }
};

// How the call went on one rank; travels as bytes.
struct MpiHost::Report {
  std::uint64_t workspace_bytes = 0;
  std::uint32_t failed = 0;
  std::uint32_t known = 0;  // the error is the cause, not that another rank failed
  Error::Kind kind = Error::Kind::operation;
  char executed[kTextBytes] = {};
  char error[kTextBytes] = {};

  void set_error(bool is_cause, Error::Kind error_kind, const std::string& text) {
    failed = 1;
    known = is_cause ? 1 : 0;
    kind = error_kind;
    put(text, error);
  }
};

MpiHost::MpiHost(MpiProcesses& processes, const bp_operator* table, int processors, double seconds)
    : processes_(processes),
      local_(table),
      runner_(table),
      processors_(processors),
      default_seconds_(seconds),
      seconds_(seconds),
      pieces_(std::make_shared<Pieces>()) {}

MpiHost::~MpiHost() = default;

Result<void> MpiHost::validate(const Problem& problem) {
  if (problem.world > processes_.size())
    return fail(Error::Kind::operation,
                fmt::format("{} ranks are more than the {} processes of the launch", problem.world, processes_.size()));
  return local_.validate(problem);
}

Result<Memory> MpiHost::allocate(std::size_t bytes) {
  auto memory = local_.allocate(bytes);
  if (!memory) return memory;
  pieces_->bytes[memory->data] = memory->bytes;
  Memory noted = *memory;
  noted.owner = std::shared_ptr<void>(memory->data, [pieces = pieces_, owner = memory->owner](void* data) {
    pieces->bytes.erase(static_cast<const std::byte*>(data));
  });
  return noted;
}

void MpiHost::begin_cell(std::optional<double> seconds_per_call) {
  seconds_ = seconds_per_call.value_or(default_seconds_);
}

MpiWorld& MpiHost::world(int size) {
  auto& slot = worlds_[size];
  if (!slot) slot = std::make_unique<MpiWorld>(processes_, size);
  return *slot;
}

std::vector<MpiHost::Fence> MpiHost::fences(const std::vector<bp_tensor>& tensors) const {
  std::vector<Fence> list;
  for (std::size_t port = 0; port < tensors.size(); ++port) {
    const bp_tensor& tensor = tensors[port];
    if (tensor.dtype == BP_NONE || tensor.data == nullptr) continue;
    auto* data = static_cast<std::byte*>(tensor.data);
    auto piece = pieces_->bytes.upper_bound(data);
    if (piece == pieces_->bytes.begin()) continue;
    --piece;
    const std::byte* data_end = data + storage_bytes(tensor);
    const std::byte* piece_end = piece->first + piece->second;
    if (data_end > piece_end) continue;  // not from here
    Fence fence;
    fence.port = table().ports[port].name;
    fence.begin = const_cast<std::byte*>(piece->first);
    fence.data_end = const_cast<std::byte*>(data_end);
    fence.before.assign(piece->first, static_cast<const std::byte*>(data));
    fence.behind.assign(data_end, piece_end);
    list.push_back(std::move(fence));
  }
  return list;
}

void MpiHost::run_own(const RunRequest& request, Report* report) {
  const int rank = processes_.rank();
  const Problem::View view(*request.problem);
  MpiWorld& own = world(request.problem->world);
  std::vector<Fence> fenced = fences(request.tensors[rank]);
  runner_.prepare(rank + 1);
  const auto executed = runner_.run(request, view.get(), rank, *own.comm());
  const MpiWorld::Ending ending = own.finished(!executed);
  if (!executed && !ending.while_running) {
    report->set_error(true, executed.error().kind, fmt::format("rank {}: {}", rank, executed.error().message));
  } else if (ending.aborted) {
    report->set_error(ending.known, Error::Kind::operation, ending.error);
  } else {
    put(executed->executed, report->executed);
    report->workspace_bytes = executed->workspace_bytes;
  }
  for (Fence& fence : fenced) {
    if (fence.broken() && report->failed == 0)
      report->set_error(true, Error::Kind::operation,
                        fmt::format("{} wrote outside {} on rank {}", table().name, fence.port, rank));
  }
}

// From the ranks of the world to everybody.
bool MpiHost::exchange_reports(int world, std::vector<Report>* reports) {
  const int rank = processes_.rank();
  std::vector<MpiProcesses::Piece> sends;
  std::vector<MpiProcesses::Piece> receives;
  for (int q = 0; q < processes_.size(); ++q) {
    if (q == rank) continue;
    if (rank < world) sends.push_back({q, &(*reports)[rank], sizeof(Report)});
    if (q < world) receives.push_back({q, &(*reports)[q], sizeof(Report)});
  }
  return processes_.exchange("the end", sends, receives);
}

// The same memory on every process: between the first and the last element of each output.
bool MpiHost::exchange_outputs(const RunRequest& request) {
  const int rank = processes_.rank();
  const int world = request.problem->world;
  std::vector<MpiProcesses::Piece> sends;
  std::vector<MpiProcesses::Piece> receives;
  for (std::uint32_t port = 0; port < table().port_count; ++port) {
    if (table().ports[port].kind != BP_OUTPUT) continue;
    for (int q = 0; q < processes_.size(); ++q) {
      if (q == rank) continue;
      const auto piece = [&](int owner) {
        const bp_tensor& tensor = request.tensors[owner][port];
        const bool present = tensor.dtype != BP_NONE && tensor.data != nullptr;
        return MpiProcesses::Piece{q, tensor.data, present ? storage_bytes(tensor) : 0};
      };
      if (rank < world) sends.push_back(piece(rank));
      if (q < world) receives.push_back(piece(q));
    }
  }
  return processes_.exchange("the exchange of outputs", sends, receives);
}

Result<RunOutcome> MpiHost::run(const RunRequest& request) {
  const int size = request.problem->world;
  if (size > processes_.size())
    return fail(Error::Kind::internal, fmt::format("{} ranks on {} processes", size, processes_.size()));
  processes_.begin_call(fmt::format("{} of {}", request.reference ? "reference" : "run", table().name), seconds_);
  std::vector<Report> reports(static_cast<std::size_t>(size));
  if (processes_.rank() < size) {
    run_own(request, &reports[processes_.rank()]);
  } else {
    world(size);
  }
  if (!exchange_reports(size, &reports)) return fail(Error::Kind::environment, "MPI failed");
  const auto failed = [](const Report& report) { return report.failed != 0; };
  auto shown = std::find_if(reports.begin(), reports.end(), [](const Report& report) { return report.known != 0; });
  if (shown == reports.end()) shown = std::find_if(reports.begin(), reports.end(), failed);
  if (shown == reports.end() && !exchange_outputs(request)) return fail(Error::Kind::environment, "MPI failed");
  processes_.end_call();
  if (shown != reports.end()) return fail(shown->kind, shown->error);
  // Times stay on their processes: nothing that all must decide alike may follow them.
  std::vector<RunOutcome> outcomes;
  for (const Report& report : reports) outcomes.push_back({report.executed, 0.0, report.workspace_bytes});
  return joined_outcome(outcomes);
}

}  // namespace batchproof
