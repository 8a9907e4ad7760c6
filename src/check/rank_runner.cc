// SPDX-License-Identifier: Apache-2.0
#include "src/check/rank_runner.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "src/numeric/divide.h"
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

// Bytes in front of a tensor in device memory: a guard, and as much more as puts it where the host's copy lies between
// 64-byte boundaries. Memory of the operator's own begins with its elements: its pointers are no addresses.
std::size_t front_bytes(bool device, const void* host) {
  return device ? kGuardBytes + reinterpret_cast<std::uintptr_t>(host) % kAlignment : 0;
}

bool guard_intact(const std::byte* guard) {
  for (std::size_t i = 0; i < kGuardBytes; ++i) {
    if (guard[i] != static_cast<std::byte>(kGuardPattern)) return false;
  }
  return true;
}

}  // namespace

Result<Memory> allocate_host_memory(std::size_t bytes) {
  const std::size_t rounded = align_up(bytes, kAlignment);
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

std::string needs_device(const bp_implementation& implementation) {
  return fmt::format("{} runs on a CUDA device; choose one with --device cuda", implementation.id);
}

RankRunner::RankRunner(const bp_operator* table, RankHooks hooks, Device* device)
    : table_(table), hooks_(std::move(hooks)), device_(device) {
  if (!hooks_.allocate) hooks_.allocate = allocate_host_memory;
}

RankRunner::~RankRunner() {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    for (const bool device : {false, true}) {
      Rank::Side& memory = side({static_cast<int>(rank), device, nullptr});
      const auto release = [&](const OwnMemory& each) {
        if (each.data == nullptr) return;
        if (device)
          device_->release(each.data);
        else
          table_->release(each.data, static_cast<std::int32_t>(rank));
      };
      release(memory.workspace);
      for (const OwnMemory& each : memory.tensors) release(each);
    }
  }
}

void RankRunner::prepare(int world) {
  while (ranks_.size() < static_cast<std::size_t>(world)) {
    auto rank = std::make_unique<Rank>();
    rank->own.tensors.resize(table_->port_count);
    rank->on_device.tensors.resize(table_->port_count);
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

Result<void> RankRunner::grow(OwnMemory* memory, std::size_t bytes, const Place& place) {
  if (memory->data != nullptr && memory->bytes >= bytes) return {};
  if (memory->data != nullptr) {
    void* old = memory->data;
    *memory = OwnMemory{};
    if (place.device) {
      device_->release(old);
    } else {
      auto done = guarded("release", [&] { return table_->release(old, place.rank), true; });
      if (!done) return tl::unexpected(done.error());
    }
  }
  if (place.device) {
    auto data = device_->allocate(bytes);
    if (!data) return tl::unexpected(data.error());
    *memory = OwnMemory{*data, bytes};
    return {};
  }
  auto data = guarded("alloc", [&] { return table_->alloc(bytes, place.rank); });
  if (!data) return tl::unexpected(data.error());
  if (*data == nullptr)
    return fail(Error::Kind::operation,
                fmt::format("{} could not allocate {} bytes of its own memory", table_->name, bytes));
  *memory = OwnMemory{*data, bytes};
  return {};
}

Result<void> RankRunner::copy(void* to, const void* from, std::size_t bytes, int direction, const Place& place,
                              const char* what) {
  if (place.device)
    return direction == kToDevice ? device_->copy_in(to, from, bytes) : device_->copy_out(to, from, bytes);
  auto status = guarded("copy", [&] { return table_->copy(to, from, bytes, direction, place.rank); });
  if (!status) return tl::unexpected(status.error());
  if (*status != BP_OK)
    return fail(Error::Kind::operation,
                fmt::format("{} returned status {} when {} bytes of {} were copied {}", table_->name, *status, bytes,
                            what, direction == kToDevice ? "to its memory" : "from its memory"));
  return {};
}

Result<void> RankRunner::synchronise(const Place& place) {
  if (place.device) return device_->synchronise(place.stream);
  auto status = guarded("synchronise", [&] { return table_->synchronise(place.rank); });
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

Result<void*> RankRunner::own_workspace(const RunRequest& request, const Place& place, std::size_t bytes) {
  OwnMemory& memory = side(place).workspace;
  std::vector<std::byte>& staging = ranks_[static_cast<std::size_t>(place.rank)]->staging;
  const std::size_t front = front_bytes(place.device, nullptr);
  const std::size_t whole = front + bytes + kGuardBytes;
  const bool fresh = memory.bytes < whole;
  if (auto grown = grow(&memory, whole, place); !grown) return tl::unexpected(grown.error());
  staging.resize(whole);
  if (request.workspace_fill || fresh) {
    std::memset(staging.data() + front, request.workspace_fill.value_or(0), bytes);
  } else {
    // What the last call left there stays; only the guards are new.
    auto read = copy(staging.data(), memory.data, front + bytes, kToHost, place, "the workspace");
    if (!read) return tl::unexpected(read.error());
    if (auto done = synchronise(place); !done) return tl::unexpected(done.error());
  }
  std::memset(staging.data(), kGuardPattern, front);
  std::memset(staging.data() + front + bytes, kGuardPattern, kGuardBytes);
  auto written = copy(memory.data, staging.data(), whole, kToDevice, place, "the workspace");
  if (!written) return tl::unexpected(written.error());
  if (auto done = synchronise(place); !done) return tl::unexpected(done.error());
  return place.device ? static_cast<void*>(static_cast<std::byte*>(memory.data) + front) : memory.data;
}

Result<void> RankRunner::upload(const Place& place, std::vector<bp_tensor>* tensors,
                                std::optional<std::uint8_t> stale) {
  std::vector<std::byte>& staging = ranks_[static_cast<std::size_t>(place.rank)]->staging;
  for (std::uint32_t port = 0; port < table_->port_count; ++port) {
    bp_tensor& tensor = (*tensors)[port];
    if (tensor.dtype == BP_NONE) continue;
    const std::size_t bytes = storage_bytes(tensor);
    const std::size_t front = front_bytes(place.device, tensor.data);
    OwnMemory& memory = side(place).tensors[port];
    if (auto grown = grow(&memory, front + bytes + kGuardBytes, place); !grown) return grown;
    staging.resize(front + bytes + kGuardBytes);
    std::memset(staging.data(), kGuardPattern, front);
    if (stale)
      std::memset(staging.data() + front, *stale, bytes);
    else if (bytes > 0)
      std::memcpy(staging.data() + front, tensor.data, bytes);
    std::memset(staging.data() + front + bytes, kGuardPattern, kGuardBytes);
    auto done = copy(memory.data, staging.data(), staging.size(), kToDevice, place, table_->ports[port].name);
    if (!done) return done;
    // The staging memory is used again for the next port.
    if (done = synchronise(place); !done) return done;
    tensor.data = place.device ? static_cast<void*>(static_cast<std::byte*>(memory.data) + front) : memory.data;
    tensor.memory = place.device ? BP_MEMORY_CUDA : BP_MEMORY_OPAQUE;
  }
  return {};
}

Result<void> RankRunner::download(const Place& place, const std::vector<bp_tensor>& host_tensors) {
  std::vector<std::byte>& staging = ranks_[static_cast<std::size_t>(place.rank)]->staging;
  for (std::uint32_t port = 0; port < table_->port_count; ++port) {
    const bp_tensor& tensor = host_tensors[port];
    if (tensor.dtype == BP_NONE) continue;
    const char* name = table_->ports[port].name;
    const std::size_t bytes = storage_bytes(tensor);
    const std::size_t front = front_bytes(place.device, tensor.data);
    staging.resize(front + bytes + kGuardBytes);
    auto done = copy(staging.data(), side(place).tensors[port].data, staging.size(), kToHost, place, name);
    if (!done) return done;
    if (done = synchronise(place); !done) return done;
    if (place.device && !guard_intact(staging.data() + front - kGuardBytes))
      return fail(Error::Kind::operation, fmt::format("{} wrote in front of {}", table_->name, name));
    if (!guard_intact(staging.data() + front + bytes))
      return fail(Error::Kind::operation, fmt::format("{} wrote behind the end of {}", table_->name, name));
    if (bytes == 0) continue;
    if (table_->ports[port].kind == BP_OUTPUT) {
      std::memcpy(tensor.data, staging.data() + front, bytes);
    } else if (std::memcmp(tensor.data, staging.data() + front, bytes) != 0) {
      return fail(Error::Kind::operation, fmt::format("{} changed its input {}", table_->name, name));
    }
  }
  return {};
}

Result<void> RankRunner::check_workspace(const Place& place, bool own_memory, std::size_t bytes) {
  Rank& state = *ranks_[static_cast<std::size_t>(place.rank)];
  bool intact = true;
  if (own_memory) {
    const std::size_t front = front_bytes(place.device, nullptr);
    state.staging.resize(front + bytes + kGuardBytes);
    auto read =
        copy(state.staging.data(), side(place).workspace.data, state.staging.size(), kToHost, place, "the workspace");
    if (!read) return read;
    if (read = synchronise(place); !read) return read;
    intact = guard_intact(state.staging.data() + front + bytes) && (front == 0 || guard_intact(state.staging.data()));
  } else {
    const std::byte* data = state.workspace.data;
    intact = guard_intact(data) && guard_intact(data + kGuardBytes + bytes);
  }
  if (intact) return {};
  return fail(Error::Kind::operation, fmt::format("{} wrote outside its workspace of {} bytes", table_->name, bytes));
}

Result<void> RankRunner::run_captured(const Place& place, const std::vector<bp_tensor>& host_tensors,
                                      const std::function<Result<void>()>& call) {
  constexpr std::uint8_t kNan = 0xFF;  // in every float dtype
  auto captured = device_->capture(place.stream, call);
  if (!captured) return tl::unexpected(captured.error());
  for (const std::optional<std::uint8_t> stale : {std::optional<std::uint8_t>(kNan), std::optional<std::uint8_t>()}) {
    std::vector<bp_tensor> again = host_tensors;  // the same memory as before
    if (auto done = upload(place, &again, stale); !done) return done;
    if (auto done = (*captured)->replay(place.stream); !done) return done;
    if (auto done = synchronise(place); !done) return done;
  }
  return {};
}

Result<RunOutcome> RankRunner::run(const RunRequest& request, const bp_problem* problem, int rank,
                                   const bp_comm& comm) {
  Place place{rank, runs_on_device(request), nullptr};
  const bool own_memory = table_->alloc != nullptr || place.device;
  if (place.device) {
    if (device_ == nullptr) return fail(Error::Kind::environment, needs_device(*request.implementation));
    if (auto entered = device_->enter(); !entered) return tl::unexpected(entered.error());
    auto stream = device_->stream(rank, request.stream);
    if (!stream) return tl::unexpected(stream.error());
    place.stream = *stream;
  }
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
    auto memory = own_workspace(request, place, workspace_bytes);
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
    if (auto done = upload(place, &tensors, std::nullopt); !done) return tl::unexpected(done.error());
  }

  std::array<char, kTextBytes> error{};
  std::array<char, kTextBytes> executed{};
  bp_context context{};
  context.struct_size = sizeof(bp_context);
  context.rank = rank;
  context.world = problem->world;
  context.threads = request.threads;
  context.processors = request.processors;
  context.stream = place.stream;
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
  const auto call = [&]() -> Result<void> {
    auto status = guarded(function_name, [&] { return function(&context, tensors.data()); });
    error.back() = '\0';
    executed.back() = '\0';
    if (!status) return tl::unexpected(status.error());
    if (*status == BP_OK) return {};
    return fail(Error::Kind::operation, error[0] != '\0' ? std::string(error.data())
                                                         : fmt::format("{} returned status {}", table_->name, *status));
  };
  Result<void> called;
  if (place.device && request.stream != 0) {
    auto busy = device_->stream(rank, 0);
    called = busy ? device_->keep_busy(*busy) : tl::unexpected(busy.error());
  }
  const auto begin = std::chrono::steady_clock::now();
  if (called) called = place.device && request.captured ? run_captured(place, request.tensors[rank], call) : call();
  // A device may still be at work when run returns.
  Result<void> done_there;
  if (own_memory && called) done_there = synchronise(place);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  std::string changed = hooks_.after ? hooks_.after(rank) : std::string();
  if (!called) return tl::unexpected(called.error());
  if (own_memory) {
    if (!done_there) return tl::unexpected(done_there.error());
    if (auto done = download(place, request.tensors[rank]); !done) return tl::unexpected(done.error());
  }
  if (workspace_bytes > 0 || !own_memory) {
    if (auto intact = check_workspace(place, own_memory, workspace_bytes); !intact)
      return tl::unexpected(intact.error());
  }
  const std::string environment_change = environment.check();
  if (!environment_change.empty())
    changed += (changed.empty() ? "" : " and ") + ("a changed floating-point environment: " + environment_change);
  if (!changed.empty()) return fail(Error::Kind::operation, fmt::format("{} left {}", table_->name, changed));
  return RunOutcome{executed.data(), taken.count(), workspace_bytes};
}

}  // namespace batchproof
