// SPDX-License-Identifier: Apache-2.0
#include "src/check/rank_runner.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "src/numeric/dtype.h"
#include "src/runtime/fp_env.h"

namespace batchproof {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kGuardBytes = 256;
constexpr int kGuardPattern = 0xA5;
constexpr std::size_t kTextBytes = 512;
constexpr int kToDevice = 0;
constexpr int kToHost = 1;

const bp_device kCpu = {sizeof(bp_device), BP_MEMORY_HOST, 0, 0, "cpu"};
const bp_device kOpaque = {sizeof(bp_device), BP_MEMORY_OPAQUE, 0, 0, "opaque"};

bool guard_intact(const std::byte* guard) {
  for (std::size_t i = 0; i < kGuardBytes; ++i) {
    if (guard[i] != static_cast<std::byte>(kGuardPattern)) return false;
  }
  return true;
}

}  // namespace

Result<Memory> allocate_host_memory(std::size_t bytes) {
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* data = std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded);
  if (data == nullptr)
    return fail(Error::Kind::environment, fmt::format("out of memory: {} bytes of host memory were asked for", bytes));
  return Memory{static_cast<std::byte*>(data), bytes, std::shared_ptr<void>(data, std::free)};
}

const bp_device& device_of(const bp_operator& table) { return table.alloc != nullptr ? kOpaque : kCpu; }

std::size_t storage_bytes(const bp_tensor& tensor) {
  std::int64_t last = 0;
  for (int axis = 0; axis < tensor.ndim; ++axis) {
    if (tensor.shape[axis] == 0) return 0;
    last += (tensor.shape[axis] - 1) * tensor.stride[axis];
  }
  return dtype_bytes(tensor.dtype, last + 1);
}

RankRunner::RankRunner(const bp_operator* table, RankHooks hooks) : table_(table), hooks_(std::move(hooks)) {
  if (!hooks_.allocate) hooks_.allocate = allocate_host_memory;
}

RankRunner::~RankRunner() {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto release = [&](OwnMemory& memory) {
      if (memory.data != nullptr) table_->release(memory.data, static_cast<std::int32_t>(rank));
    };
    release(ranks_[rank]->own_workspace);
    for (OwnMemory& memory : ranks_[rank]->own_tensors) release(memory);
  }
}

void RankRunner::prepare(int world) {
  while (ranks_.size() < static_cast<std::size_t>(world)) {
    auto rank = std::make_unique<Rank>();
    rank->own_tensors.resize(table_->port_count);
    ranks_.push_back(std::move(rank));
  }
}

// An exception that crosses the interface is the operator's fault; the harness must not fall over it.
template <class Call>
auto RankRunner::guarded(const char* function, const Call& call) -> Result<decltype(call())> {
  const auto thrown = [&](const std::string& what) {
    threw_ = true;
    return fail(Error::Kind::operation,
                fmt::format("{} threw a C++ exception out of {}: {}; none may cross the interface", table_->name,
                            function, what));
  };
  try {
    return call();
#ifdef __GLIBCXX__
  } catch (abi::__forced_unwind&) {
    throw;  // pthread_exit and cancellation
#endif
  } catch (const std::exception& exception) {
    return thrown(exception.what());
  } catch (...) {
    return thrown("not a std::exception");
  }
}

Result<void> RankRunner::grow(OwnMemory* memory, std::size_t bytes, int rank) {
  if (memory->data != nullptr && memory->bytes >= bytes) return {};
  if (memory->data != nullptr) {
    void* old = memory->data;
    *memory = OwnMemory{};
    auto done = guarded("release", [&] { return table_->release(old, rank), true; });
    if (!done) return tl::unexpected(done.error());
  }
  auto data = guarded("alloc", [&] { return table_->alloc(bytes, rank); });
  if (!data) return tl::unexpected(data.error());
  if (*data == nullptr)
    return fail(Error::Kind::operation,
                fmt::format("{} could not allocate {} bytes of its own memory", table_->name, bytes));
  *memory = OwnMemory{*data, bytes};
  return {};
}

Result<void> RankRunner::copy(void* to, const void* from, std::size_t bytes, int direction, int rank,
                              const char* what) {
  auto status = guarded("copy", [&] { return table_->copy(to, from, bytes, direction, rank); });
  if (!status) return tl::unexpected(status.error());
  if (*status != BP_OK)
    return fail(Error::Kind::operation,
                fmt::format("{} returned status {} when {} bytes of {} were copied {}", table_->name, *status, bytes,
                            what, direction == kToDevice ? "to its memory" : "from its memory"));
  return {};
}

Result<void> RankRunner::synchronise(int rank) {
  auto status = guarded("synchronise", [&] { return table_->synchronise(rank); });
  if (!status) return tl::unexpected(status.error());
  if (*status != BP_OK)
    return fail(Error::Kind::operation, fmt::format("{} returned status {} from synchronise", table_->name, *status));
  return {};
}

Result<std::byte*> RankRunner::host_workspace(const RunRequest& request, int rank, std::size_t bytes) {
  Memory& memory = ranks_[rank]->workspace;
  if (memory.bytes < bytes + 2 * kGuardBytes) {
    auto fresh = hooks_.allocate(bytes + 2 * kGuardBytes);
    if (!fresh) return tl::unexpected(fresh.error());
    memory = *fresh;
    std::memset(memory.data, request.workspace_fill.value_or(0), memory.bytes);
  }
  if (request.workspace_fill) std::memset(memory.data + kGuardBytes, *request.workspace_fill, bytes);
  std::memset(memory.data, kGuardPattern, kGuardBytes);
  // Everything behind it, however large an earlier problem made the memory.
  std::memset(memory.data + kGuardBytes + bytes, kGuardPattern, kGuardBytes);
  return memory.data + kGuardBytes;
}

Result<void*> RankRunner::own_workspace(const RunRequest& request, int rank, std::size_t bytes) {
  Rank& state = *ranks_[rank];
  const bool fresh = state.own_workspace.bytes < bytes + kGuardBytes;
  if (auto grown = grow(&state.own_workspace, bytes + kGuardBytes, rank); !grown) return tl::unexpected(grown.error());
  state.staging.resize(bytes + kGuardBytes);
  if (request.workspace_fill || fresh) {
    std::memset(state.staging.data(), request.workspace_fill.value_or(0), bytes);
  } else {
    // What the last call left there stays; only the guard is new.
    auto read = copy(state.staging.data(), state.own_workspace.data, bytes, kToHost, rank, "the workspace");
    if (!read) return tl::unexpected(read.error());
    if (auto done = synchronise(rank); !done) return tl::unexpected(done.error());
  }
  std::memset(state.staging.data() + bytes, kGuardPattern, kGuardBytes);
  auto written =
      copy(state.own_workspace.data, state.staging.data(), bytes + kGuardBytes, kToDevice, rank, "the workspace");
  if (!written) return tl::unexpected(written.error());
  if (auto done = synchronise(rank); !done) return tl::unexpected(done.error());
  return state.own_workspace.data;
}

Result<void> RankRunner::upload(int rank, std::vector<bp_tensor>* tensors) {
  Rank& state = *ranks_[rank];
  for (std::uint32_t port = 0; port < table_->port_count; ++port) {
    bp_tensor& tensor = (*tensors)[port];
    if (tensor.dtype == BP_NONE) continue;
    const std::size_t bytes = storage_bytes(tensor);
    OwnMemory& memory = state.own_tensors[port];
    if (auto grown = grow(&memory, bytes + kGuardBytes, rank); !grown) return grown;
    state.staging.resize(bytes + kGuardBytes);
    if (bytes > 0) std::memcpy(state.staging.data(), tensor.data, bytes);
    std::memset(state.staging.data() + bytes, kGuardPattern, kGuardBytes);
    auto done =
        copy(memory.data, state.staging.data(), state.staging.size(), kToDevice, rank, table_->ports[port].name);
    if (!done) return done;
    // The staging memory is used again for the next port.
    if (done = synchronise(rank); !done) return done;
    tensor.data = memory.data;
    tensor.memory = BP_MEMORY_OPAQUE;
  }
  return {};
}

Result<void> RankRunner::download(int rank, const std::vector<bp_tensor>& host_tensors) {
  Rank& state = *ranks_[rank];
  for (std::uint32_t port = 0; port < table_->port_count; ++port) {
    const bp_tensor& tensor = host_tensors[port];
    if (tensor.dtype == BP_NONE) continue;
    const char* name = table_->ports[port].name;
    const std::size_t bytes = storage_bytes(tensor);
    state.staging.resize(bytes + kGuardBytes);
    auto done = copy(state.staging.data(), state.own_tensors[port].data, state.staging.size(), kToHost, rank, name);
    if (!done) return done;
    if (done = synchronise(rank); !done) return done;
    if (!guard_intact(state.staging.data() + bytes))
      return fail(Error::Kind::operation, fmt::format("{} wrote behind the end of {}", table_->name, name));
    if (bytes == 0) continue;
    if (table_->ports[port].kind == BP_OUTPUT) {
      std::memcpy(tensor.data, state.staging.data(), bytes);
    } else if (std::memcmp(tensor.data, state.staging.data(), bytes) != 0) {
      return fail(Error::Kind::operation, fmt::format("{} changed its input {}", table_->name, name));
    }
  }
  return {};
}

Result<void> RankRunner::check_workspace(int rank, std::size_t bytes) {
  Rank& state = *ranks_[rank];
  bool intact = true;
  if (table_->alloc != nullptr) {
    state.staging.resize(bytes + kGuardBytes);
    auto read =
        copy(state.staging.data(), state.own_workspace.data, bytes + kGuardBytes, kToHost, rank, "the workspace");
    if (!read) return read;
    if (read = synchronise(rank); !read) return read;
    intact = guard_intact(state.staging.data() + bytes);
  } else {
    const std::byte* data = state.workspace.data;
    intact = guard_intact(data) && guard_intact(data + kGuardBytes + bytes);
  }
  if (intact) return {};
  return fail(Error::Kind::operation, fmt::format("{} wrote outside its workspace of {} bytes", table_->name, bytes));
}

Result<RunOutcome> RankRunner::run(const RunRequest& request, const bp_problem* problem, int rank,
                                   const bp_comm& comm) {
  const bool own_memory = table_->alloc != nullptr;
  FpEnvGuard environment;
  std::size_t workspace_bytes = 0;
  if (table_->workspace_size != nullptr && !request.reference) {
    auto size =
        guarded("workspace_size", [&] { return table_->workspace_size(request.implementation, problem, rank); });
    if (!size) return tl::unexpected(size.error());
    workspace_bytes = *size;
  }
  void* workspace = nullptr;
  if (own_memory && workspace_bytes > 0) {
    auto memory = own_workspace(request, rank, workspace_bytes);
    if (!memory) return tl::unexpected(memory.error());
    workspace = *memory;
  } else if (!own_memory) {
    // Without a workspace too: NULL must not be its only guard.
    auto memory = host_workspace(request, rank, workspace_bytes);
    if (!memory) return tl::unexpected(memory.error());
    if (workspace_bytes > 0) workspace = *memory;
  }
  std::vector<bp_tensor> tensors = request.tensors[rank];
  if (own_memory) {
    if (auto done = upload(rank, &tensors); !done) return tl::unexpected(done.error());
  }

  std::array<char, kTextBytes> error{};
  std::array<char, kTextBytes> executed{};
  bp_context context{};
  context.struct_size = sizeof(bp_context);
  context.rank = rank;
  context.world = problem->world;
  context.threads = request.threads;
  context.mode = request.mode;
  context.comm_mode = request.comm_mode;
  context.problem = problem;
  context.implementation = request.implementation;
  context.comm = &comm;
  context.workspace = workspace;
  context.workspace_bytes = workspace_bytes;
  context.executed = executed.data();
  context.executed_size = executed.size();
  context.error = error.data();
  context.error_size = error.size();
  const auto function = request.reference ? table_->reference : table_->run;
  const char* function_name = request.reference ? "reference" : "run";
  if (hooks_.before)
    hooks_.before(rank, own_memory ? nullptr : static_cast<const std::byte*>(workspace), workspace_bytes);
  const auto begin = std::chrono::steady_clock::now();
  auto status = guarded(function_name, [&] { return function(&context, tensors.data()); });
  // A device may still be at work when run returns.
  Result<void> done_there;
  if (own_memory && status && *status == BP_OK) done_there = synchronise(rank);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  std::string changed = hooks_.after ? hooks_.after(rank) : std::string();
  error.back() = '\0';
  executed.back() = '\0';
  if (!status) return tl::unexpected(status.error());
  if (*status != BP_OK)
    return fail(Error::Kind::operation, error[0] != '\0' ? std::string(error.data())
                                                         : fmt::format("{} returned status {}", table_->name, *status));
  if (own_memory) {
    if (!done_there) return tl::unexpected(done_there.error());
    if (auto done = download(rank, request.tensors[rank]); !done) return tl::unexpected(done.error());
  }
  if (workspace_bytes > 0 || !own_memory) {
    if (auto intact = check_workspace(rank, workspace_bytes); !intact) return tl::unexpected(intact.error());
  }
  const std::string environment_change = environment.check();
  if (!environment_change.empty())
    changed += (changed.empty() ? "" : " and ") + ("a changed floating-point environment: " + environment_change);
  if (!changed.empty()) return fail(Error::Kind::operation, fmt::format("{} left {}", table_->name, changed));
  return RunOutcome{executed.data(), taken.count(), workspace_bytes};
}

}  // namespace batchproof
