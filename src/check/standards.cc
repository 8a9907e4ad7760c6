// SPDX-License-Identifier: Apache-2.0
#include "src/check/standards.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "src/check/accuracy.h"
#include "src/numeric/dtype.h"
#include "src/numeric/seed.h"
#include "src/runtime/thread_pool.h"

namespace batchproof {
namespace {

// As the rows of an invariance run's base, so that captured tensors keep their rows.
constexpr std::uint64_t kRowSeed = 0x1000;

// All ranks of one port, one behind the other, without gaps.
std::vector<std::byte> gathered(const PortLayout& port, const RunTensors& tensors) {
  const std::size_t bytes = port.bytes();
  std::vector<std::byte> all(bytes * tensors.ranks.size());
  for (std::size_t rank = 0; rank < tensors.ranks.size(); ++rank)
    read_all(port, tensors.ranks[rank][port.index], all.data() + rank * bytes);
  return all;
}

PortLayout as_golden(const PortLayout& port) {
  PortLayout golden = port;
  golden.dtype = BP_FP64;
  return golden;
}

AccuracyResult skipped_accuracy(const AccStandard& standard, std::string reason) {
  AccuracyResult result;
  result.standard = standard.name;
  result.reason = std::move(reason);
  return result;
}

struct Outputs {
  RunTensors device;
  std::optional<RunTensors> benchmark;
  RunTensors golden;
};

PortAccuracy judge_output(const AccStandard& standard, const PortLayout& port, const Outputs& outputs, bool is_peer) {
  const std::vector<std::byte> device = gathered(port, outputs.device);
  const std::vector<std::byte> golden = gathered(as_golden(port), outputs.golden);
  std::vector<std::byte> benchmark;
  if (outputs.benchmark) benchmark = gathered(port, *outputs.benchmark);
  PortSample sample;
  sample.port = port.port->name;
  sample.dtype = port.dtype;
  sample.order_exact = port.declared_exact();
  sample.count_per_rank = port.elements();
  sample.count = port.elements() * static_cast<std::int64_t>(outputs.device.ranks.size());
  sample.device = device.data();
  sample.benchmark = outputs.benchmark ? benchmark.data() : nullptr;
  sample.benchmark_is_peer = is_peer;
  sample.golden = reinterpret_cast<const double*>(golden.data());
  return judge_port(standard, sample);
}

void conclude(AccuracyResult* result) {
  for (const PortAccuracy& port : result->ports) {
    if (verdict_severity(port.verdict) > verdict_severity(result->verdict)) result->verdict = port.verdict;
  }
  for (const PortAccuracy& port : result->ports) {
    if (port.verdict == result->verdict && port.verdict != Verdict::pass && result->reason.empty())
      result->reason = fmt::format("{}: {}", port.port, port.reason);
  }
}

// A failure of the reference or of the benchmark is not one of the implementation under test.
AccuracyResult failed_accuracy(const AccStandard& standard, const char* what, const Error& error) {
  AccuracyResult result = skipped_accuracy(standard, fmt::format("{} failed: {}", what, error.message));
  result.verdict = Verdict::error;
  return result;
}

Result<AccuracyResult> judge_accuracy(StandardSession& session, const Benchmark& benchmark, const RunTensors& device) {
  const AccStandard& standard = *session.cell().standard.acc;
  if (!is_accuracy_standard(standard.name))
    return skipped_accuracy(standard, fmt::format("this build has no accuracy standard {}", standard.name));
  if (!session.host().has_reference())
    return skipped_accuracy(standard, fmt::format("{} has no FP64 reference", session.host().table().name));
  const bool second =
      benchmark.implementation != nullptr && (needs_benchmark(standard) || (benchmark.is_peer && takes_peer(standard)));
  if (needs_benchmark(standard) && !second) return skipped_accuracy(standard, benchmark.missing);
  Outputs outputs;
  outputs.device = device;
  auto golden = session.outputs(/*golden=*/true);
  if (!golden) return tl::unexpected(golden.error());
  outputs.golden = *std::move(golden);
  if (auto ran = session.call(*session.cell().impl, outputs.golden, /*reference=*/true); !ran)
    return failed_accuracy(standard, "the FP64 reference", ran.error());
  AccuracyResult result;
  if (second) {
    auto tensors = session.outputs(/*golden=*/false);
    if (!tensors) return tl::unexpected(tensors.error());
    outputs.benchmark = *std::move(tensors);
    if (auto ran = session.call(*benchmark.implementation, *outputs.benchmark); !ran)
      return failed_accuracy(standard, "the benchmark", ran.error());
    result.benchmark = benchmark.implementation->id;
  }
  result.standard = standard.name;
  for (const PortLayout* port : session.layout().outputs())
    result.ports.push_back(judge_output(standard, *port, outputs, benchmark.is_peer));
  conclude(&result);
  return result;
}

MemoryResult judge_memory(StandardSession& session, const Benchmark& benchmark, const RunOutcome& device,
                          const RunOutcome* second, const std::string& failure) {
  MemoryResult result;
  result.threshold = *session.cell().standard.mem;
  result.tensor_bytes = session.tensor_bytes();
  result.device_workspace = device.workspace_bytes;
  if (second == nullptr) {
    result.verdict = failure.empty() ? Verdict::skipped : Verdict::error;
    result.reason = failure.empty() ? benchmark.missing : failure;
    return result;
  }
  result.benchmark = benchmark.implementation->id;
  result.benchmark_workspace = second->workspace_bytes;
  const auto whole = static_cast<double>(result.tensor_bytes + result.benchmark_workspace);
  if (whole == 0.0) {
    result.reason = "the call needs no memory";
    return result;
  }
  result.ratio = static_cast<double>(result.tensor_bytes + result.device_workspace) / whole;
  result.verdict = result.ratio <= result.threshold ? Verdict::pass : Verdict::heavy;
  if (result.verdict == Verdict::heavy)
    result.reason = fmt::format("{:.3g} times the memory of {}, at most {:.3g} is allowed", result.ratio,
                                result.benchmark, result.threshold);
  return result;
}

Result<MemoryResult> measure_memory(StandardSession& session, const Benchmark& benchmark, const RunOutcome& device) {
  if (benchmark.implementation == nullptr) return judge_memory(session, benchmark, device, nullptr, "");
  auto tensors = session.outputs(/*golden=*/false);
  if (!tensors) return tl::unexpected(tensors.error());
  const auto second = session.call(*benchmark.implementation, *tensors);
  if (!second)
    return judge_memory(session, benchmark, device, nullptr,
                        fmt::format("the benchmark failed: {}", second.error().message));
  return judge_memory(session, benchmark, device, &*second, "");
}

}  // namespace

Benchmark find_benchmark(const bp_operator& table, const bp_implementation& implementation) {
  const auto usable = [&](const bp_implementation& other) {
    return &other != &implementation && other.defect == nullptr && (other.flags & BP_IMPL_WITNESS) == 0;
  };
  Benchmark fallback;
  for (std::uint32_t i = 0; i < table.implementation_count; ++i) {
    const bp_implementation& other = table.implementations[i];
    if (!usable(other)) continue;
    if ((other.flags & BP_IMPL_PEER) != 0) return {&other, true, ""};
    if (fallback.implementation == nullptr && other.mode == BP_MODE_FAST) fallback.implementation = &other;
  }
  if (fallback.implementation == nullptr)
    fallback.missing = fmt::format(
        "{} declares no unfused composition (BP_IMPL_PEER) and has no implementation of mode fast beside {}",
        table.name, implementation.id);
  return fallback;
}

StandardSession::StandardSession(const Cell& cell, OperatorHost& host, std::uint64_t seed, ContentCache* contents)
    : cell_(cell),
      host_(host),
      seed_(seed),
      inputs_(host, cell.recipes, seed, mix64(seed, kRowSeed), /*equal_weights=*/false, contents) {}

Result<void> StandardSession::start() {
  if (auto loaded = inputs_.load_captured(); !loaded) return loaded;
  auto layout = make_layout(host_, cell_.problem);
  if (!layout) return tl::unexpected(layout.error());
  layout_ = *std::move(layout);
  Assignment rows(static_cast<std::size_t>(layout_.rows));
  for (std::size_t row = 0; row < rows.size(); ++row)
    rows[row] = RowIdentity{row, mix64(seed_, kRowSeed), 1.0, std::nullopt};
  auto tensors = inputs_.build(layout_, rows);
  if (!tensors) return tl::unexpected(tensors.error());
  tensors_ = *std::move(tensors);
  return {};
}

std::uint64_t StandardSession::tensor_bytes() const {
  std::uint64_t bytes = 0;
  for (const PortLayout& port : layout_.ports) {
    if (port.present()) bytes += port.bytes();
  }
  return bytes;
}

Result<RunTensors> StandardSession::outputs(bool golden) {
  RunTensors tensors = tensors_;  // inputs are shared
  for (auto& rank : tensors.ranks) {
    for (const PortLayout* port : layout_.outputs()) {
      auto tensor = Tensor::make(host_, golden ? as_golden(*port) : *port, Placement{});
      if (!tensor) return tl::unexpected(tensor.error());
      rank[port->index] = *std::move(tensor);
    }
  }
  return tensors;
}

Result<RunOutcome> StandardSession::call(const bp_implementation& implementation, const RunTensors& tensors,
                                         bool reference) {
  RunRequest request;
  request.implementation = &implementation;
  request.problem = &cell_.problem;
  request.mode = implementation.mode;
  request.comm_mode = cell_.comm_mode;
  request.threads = std::max(1, hardware_threads() / cell_.problem.world);
  request.reference = reference;
  request.workspace_fill = std::nullopt;  // nothing but the call is to be seen
  for (const auto& rank : tensors.ranks) {
    auto& views = request.tensors.emplace_back();
    for (const Tensor& tensor : rank) views.push_back(tensor.view());
  }
  auto outcome = host_.run(request);
  if (!outcome) return outcome;
  const char* name = host_.table().name;
  if (!reference && outcome->executed != implementation.id)
    return fail(Error::Kind::operation,
                fmt::format("{} was requested but {} ran", implementation.id,
                            outcome->executed.empty() ? "something that did not say what it is" : outcome->executed));
  if (cell_.timeout_s && outcome->seconds > *cell_.timeout_s)
    return fail(Error::Kind::operation, fmt::format("{} took {:.3g} s for one call; limits.timeout_s of the case is {}",
                                                    name, outcome->seconds, *cell_.timeout_s));
  for (std::size_t rank = 0; rank < tensors.ranks.size(); ++rank) {
    for (std::size_t port = 0; port < tensors.ranks[rank].size(); ++port) {
      if (!tensors.ranks[rank][port].guards_intact())
        return fail(Error::Kind::operation,
                    fmt::format("{} wrote outside {} on rank {}", name, host_.table().ports[port].name, rank));
    }
  }
  return outcome;
}

Result<void> judge_standards(const Cell& cell, OperatorHost& host, std::uint64_t seed, PerfMode perf,
                             CellResult* result, ContentCache* contents) {
  const Standard& standard = cell.standard;
  const bool timed = standard.perf && perf != PerfMode::off;
  if (!standard.acc && !timed && !standard.mem) return {};
  StandardSession session(cell, host, seed, contents);
  if (auto started = session.start(); !started) return started;
  auto tensors = session.outputs(/*golden=*/false);
  if (!tensors) return tl::unexpected(tensors.error());
  const auto device = session.call(*cell.impl, *tensors);
  if (!device) return tl::unexpected(device.error());
  if (result->executed.empty()) result->executed = device->executed;
  const Benchmark benchmark = find_benchmark(host.table(), *cell.impl);
  if (standard.acc) {
    auto accuracy = judge_accuracy(session, benchmark, *tensors);
    if (!accuracy) return tl::unexpected(accuracy.error());
    result->accuracy = *std::move(accuracy);
  }
  if (timed) {
    auto performance = measure_performance(session, benchmark, perf);
    if (!performance) return tl::unexpected(performance.error());
    result->performance = *std::move(performance);
  }
  if (standard.mem) {
    auto memory = measure_memory(session, benchmark, *device);
    if (!memory) return tl::unexpected(memory.error());
    result->memory = *std::move(memory);
  }
  return {};
}

}  // namespace batchproof
