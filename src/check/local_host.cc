// SPDX-License-Identifier: Apache-2.0
#include "src/check/local_host.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "src/comm/virtual_world.h"
#include "src/runtime/thread_pool.h"

namespace batchproof {
namespace {

constexpr std::size_t kTextBytes = 512;

std::string refusal(const bp_operator& table, const char* text) {
  return text[0] != '\0' ? std::string(text) : fmt::format("{} refused the problem without saying why", table.name);
}

}  // namespace

const bp_implementation* find_implementation(const bp_operator& table, const std::string& id) {
  for (std::uint32_t i = 0; i < table.implementation_count; ++i) {
    if (id == table.implementations[i].id) return &table.implementations[i];
  }
  return nullptr;
}

const bp_implementation* default_implementation(const bp_operator& table, bp_mode mode, bool on_cuda) {
  for (std::uint32_t i = 0; i < table.implementation_count; ++i) {
    const bp_implementation& candidate = table.implementations[i];
    const bool by_id_alone = (candidate.flags & (BP_IMPL_WITNESS | BP_IMPL_PEER)) != 0;
    if (candidate.mode == mode && candidate.defect == nullptr && !by_id_alone && runs_on_cuda(candidate) == on_cuda)
      return &candidate;
  }
  return nullptr;
}

int OperatorHost::processors() const { return hardware_threads(); }

Result<void> LocalHost::validate(const Problem& problem) {
  std::array<char, kTextBytes> text{};
  const Problem::View view(problem);
  if (table_->validate != nullptr && table_->validate(view.get(), text.data(), text.size()) != BP_OK)
    return fail(Error::Kind::operation, refusal(*table_, text.data()));
  return {};
}

Result<std::vector<bp_tensor>> LocalHost::shapes(const Problem& problem) {
  if (table_->infer_shapes == nullptr) return symbolic_shapes(*table_, problem);
  std::vector<bp_tensor> tensors(table_->port_count);
  for (std::uint32_t i = 0; i < table_->port_count; ++i) tensors[i].dtype = problem.dtypes[i];
  std::array<char, kTextBytes> text{};
  const Problem::View view(problem);
  if (table_->infer_shapes(view.get(), tensors.data(), text.data(), text.size()) != BP_OK)
    return fail(Error::Kind::operation, refusal(*table_, text.data()));
  return tensors;
}

std::optional<std::vector<bp_location>> LocalHost::locate(const Problem& problem, std::int64_t row) {
  if (table_->locate == nullptr) return std::nullopt;
  const Problem::View view(problem);
  std::vector<bp_location> places(16);
  std::size_t count = table_->locate(view.get(), row, places.data(), places.size());
  if (count > places.size()) {
    places.resize(count);
    count = table_->locate(view.get(), row, places.data(), places.size());
  }
  places.resize(count);
  return places;
}

Result<std::uint32_t> LocalHost::promises(const bp_implementation& implementation, const Problem& problem) {
  if (table_->promises == nullptr) return 0u;
  const Problem::View view(problem);
  if (!runs_on_cuda(implementation)) return table_->promises(&implementation, view.get(), &device_of(*table_));
  if (device_ == nullptr) return fail(Error::Kind::environment, needs_device(implementation));
  // A promise may rest on a probe of the device.
  if (auto entered = device_->enter(); !entered) return tl::unexpected(entered.error());
  return table_->promises(&implementation, view.get(), &device_->description());
}

Result<Memory> LocalHost::allocate(std::size_t bytes) { return allocate_host_memory(bytes); }

RankTeam& LocalHost::team(int world, bool on_device) {
  Team& team = teams_[{world, on_device}];
  if (!team.ranks) {
    if (on_device) team.memory = virtual_rank_memory(world, cuda_queue());
    team.ranks = std::make_unique<RankTeam>(world, on_device ? *team.memory : host_rank_memory());
  }
  return *team.ranks;
}

Result<RunOutcome> LocalHost::run(const RunRequest& request) {
  const Problem::View view(*request.problem);
  const int world = request.problem->world;
  runner_.prepare(world);
  std::vector<RunOutcome> outcomes(static_cast<std::size_t>(world));
  auto done = team(world, runner_.runs_on_device(request)).run([&](int rank, const bp_comm& comm) -> Result<void> {
    auto outcome = runner_.run(request, view.get(), rank, comm);
    if (!outcome) return tl::unexpected(outcome.error());
    outcomes[rank] = *std::move(outcome);
    return {};
  });
  if (!done) return tl::unexpected(done.error());
  return joined_outcome(outcomes);
}

Result<RunOutcome> joined_outcome(const std::vector<RunOutcome>& ranks) {
  RunOutcome joined = ranks.at(0);
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].executed != joined.executed)
      return fail(Error::Kind::operation, fmt::format("rank 0 executed {} but rank {} executed {}", joined.executed,
                                                      rank, ranks[rank].executed));
    joined.seconds = std::max(joined.seconds, ranks[rank].seconds);
    joined.workspace_bytes = std::max(joined.workspace_bytes, ranks[rank].workspace_bytes);
  }
  return joined;
}

}  // namespace batchproof
