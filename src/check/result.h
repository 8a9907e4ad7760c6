// SPDX-License-Identifier: Apache-2.0
//
// What a run found: a verdict per relation, per cell, and the facts that reports print. Plain data; reporters read it.
#ifndef BATCHPROOF_SRC_CHECK_RESULT_H_
#define BATCHPROOF_SRC_CHECK_RESULT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/check/standard_result.h"
#include "src/suite/suite.h"

namespace batchproof {

// The first difference that a relation found, and how much else differs.
struct Mismatch {
  std::string port;
  std::string variant;   // what was changed, as a sentence fragment: "neighbours from seed 2, magnitude 1e+03"
  std::int64_t row = 0;  // identity of the logical row
  int rank_a = 0;        // where the row was in the base run and in the variant
  int rank_b = 0;
  std::int64_t index_a = 0;  // index along the port's row axis
  std::int64_t index_b = 0;
  std::int64_t column = 0;  // first differing element of the row
  std::int64_t byte = 0;    // first differing byte of the row
  bp_dtype dtype = BP_FP32;
  std::string bytes_a;  // hexadecimal, most significant first: "0x3f8ccccd"
  std::string bytes_b;
  double value_a = 0.0;
  double value_b = 0.0;
  std::optional<std::uint64_t> ulp;  // distance of the two elements; none where one is NaN or the dtype has no ULP
  std::uint64_t max_ulp = 0;         // over all differing elements of this relation
  std::int64_t rows_differing = 0;   // distinct logical rows
};

// The proof that the relation could have failed (C5).
struct Witness {
  enum class Kind { none, order, leak } kind = Kind::none;
  std::int64_t rows_moved = 0;  // over all output ports that need it, the smallest count of any port
  std::int64_t rows_total = 0;
  std::string how;   // "schedule chain32", "K permuted", "neighbours re-seeded"
  std::string port;  // the port that gave the smallest count
  bool alive() const { return rows_moved > 0; }
};

struct RelationResult {
  std::uint32_t relation = 0;  // one bit
  Verdict verdict = Verdict::skipped;
  Verdict expected = Verdict::pass;
  bool excused = false;  // not what was expected, and still no fault: allowed, or the cell's relations show it together
  std::string reason;    // for skipped, vacuous and error
  std::uint64_t bytes_compared = 0;
  std::uint64_t bytes_differing = 0;
  int runs = 0;  // operator calls made for it beyond the base run
  Witness witness;
  std::optional<Mismatch> first;
};

struct PortDigest {
  std::string port;
  std::string digest;  // XXH3-64 over the port's logical rows in order of identity, 16 hex digits
};

struct CellResult {
  std::string id;
  std::string op;
  std::string impl;  // requested
  std::string executed;
  std::string case_name;
  std::vector<std::pair<std::string, std::string>> axes;
  SourcePosition position;
  bool is_control = false;
  std::string defect;  // of a control
  Verdict verdict = Verdict::skipped;
  Verdict expected = Verdict::pass;
  bool as_expected = true;  // verdicts match the expectations, or vacuous was allowed with a reason
  std::string reason;       // for skipped, vacuous and error
  std::string inputs;  // which inputs the invariance runs used: "accuracy inputs", "cancelling (accuracy inputs dead)"
  std::vector<RelationResult> relations;
  std::vector<PortDigest> digests;  // of the base run
  // What the case's standard asks for beside invariance.
  std::optional<AccuracyResult> accuracy;
  std::optional<PerformanceResult> performance;
  std::optional<MemoryResult> memory;
  std::string reproduce;  // command that runs this cell alone
  double seconds = 0.0;
};

struct RunContext {
  std::string version;  // "0.1.0"
  std::string build;    // git revision or "unknown"
  std::string command_line;
  std::string device;        // "cpu: AMD EPYC, 2 threads, avx2"
  std::string communicator;  // "threads"
  std::uint64_t seed = 0;
  std::string date;                                            // UTC, ISO 8601
  std::vector<std::pair<std::string, std::string>> build_ids;  // program, suites, plug-ins -> XXH3 of the file
  // Overrides from the command line that change verdicts without changing a cell's id: ("relations", "repeat"), ...
  std::vector<std::pair<std::string, std::string>> settings;
};

struct RunResult {
  RunContext context;
  std::vector<CellResult> cells;
  std::vector<PerformanceMean> means;  // performance_means of the cells
  int passed() const;                  // as expected and not skipped
  int failed() const;                  // not as expected; a mean that is judged and missed counts as one
  int skipped() const;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_CHECK_RESULT_H_
