// SPDX-License-Identifier: Apache-2.0
//
// Judges the standards beside invariance: accuracy, performance and memory, each against the operator's FP64 reference
// and its unfused composition. They run on the accuracy inputs, with weights of their own on every rank.
#ifndef BATCHPROOF_SRC_CHECK_STANDARDS_H_
#define BATCHPROOF_SRC_CHECK_STANDARDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "src/check/host.h"
#include "src/check/inputs.h"
#include "src/check/layout.h"
#include "src/check/result.h"
#include "src/suite/suite.h"

namespace batchproof {

// The second result that a standard compares with.
struct Benchmark {
  const bp_implementation* implementation = nullptr;  // nullptr: there is none
  bool is_peer = false;                               // the operator declares it as its unfused composition
  std::string missing;                                // why there is none
};

// The operator's unfused composition (BP_IMPL_PEER); else its first implementation of mode fast that is neither a
// control nor a witness. Never `implementation` itself.
Benchmark find_benchmark(const bp_operator& table, const bp_implementation& implementation);

// Calls of one cell on one set of inputs, outputs apart.
class StandardSession {
 public:
  // The host outlives the session, and so do the contents (NULL: its own).
  StandardSession(const Cell& cell, OperatorHost& host, std::uint64_t seed, ContentCache* contents = nullptr);

  // Makes the inputs. Everything else needs it.
  Result<void> start();
  const Layout& layout() const { return layout_; }
  OperatorHost& host() const { return host_; }
  const Cell& cell() const { return cell_; }
  std::uint64_t tensor_bytes() const;  // of all ports on one rank

  // Fresh outputs, and the call's views of them. `golden`: FP64, as the reference wants them.
  Result<RunTensors> outputs(bool golden);
  // Calls the implementation, or the reference, into `tensors` (from outputs()). Fails where the call fails, where
  // another implementation ran, where it wrote outside its outputs, or took longer than the case allows.
  Result<RunOutcome> call(const bp_implementation& implementation, const RunTensors& tensors, bool reference = false);

 private:
  const Cell& cell_;
  OperatorHost& host_;
  std::uint64_t seed_;
  InputBuilder inputs_;
  Layout layout_;
  RunTensors tensors_;
};

// Runs what the cell's standard asks for beyond invariance and writes it into `result`: accuracy, performance, memory;
// `executed` where no invariance run has set it. Fails where the implementation under test itself failed.
Result<void> judge_standards(const Cell& cell, OperatorHost& host, std::uint64_t seed, PerfMode perf,
                             CellResult* result, ContentCache* contents = nullptr);

// Times implementation and benchmark in turn.
Result<PerformanceResult> measure_performance(StandardSession& session, const Benchmark& benchmark, PerfMode perf);

// One per operator, implementation and threshold a, in the order of the cells.
std::vector<PerformanceMean> performance_means(const std::vector<CellResult>& cells);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_CHECK_STANDARDS_H_
