// SPDX-License-Identifier: Apache-2.0
//
// Tests only: a run with one cell of every kind and names that break careless writers; and the golden file comparison.
#ifndef BATCHPROOF_SRC_REPORT_SAMPLE_RUN_H_
#define BATCHPROOF_SRC_REPORT_SAMPLE_RUN_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "src/check/result.h"
#include "src/report/reporter.h"
#include "src/report/sample_standards.h"

namespace batchproof::sample {

inline RelationResult relation(std::uint32_t bit, Verdict verdict, Verdict expected = Verdict::pass) {
  RelationResult result;
  result.relation = bit;
  result.verdict = verdict;
  result.expected = expected;
  result.runs = 3;
  result.bytes_compared = 6144;
  const bool leak = bit == BP_NEIGHBOURS || bit == BP_POISON;
  result.witness = {leak ? Witness::Kind::leak : Witness::Kind::order, leak ? 63 : 64, leak ? 63 : 64,
                    leak ? "neighbours re-seeded" : "schedule chain32", "y"};
  if (verdict == Verdict::violation) {
    result.bytes_differing = 37;
    Mismatch first;
    first.port = "y";
    first.variant = "rank 1 instead of rank 0";
    first.row = 5;
    first.rank_a = 0;
    first.rank_b = 1;
    first.index_a = 5;
    first.index_b = 5;
    first.column = 3;
    first.byte = 12;
    first.dtype = BP_FP32;
    first.bytes_a = "0x3f8ccccd";
    first.bytes_b = "0x3f8cccce";
    first.value_a = static_cast<double>(1.1F);
    first.value_b = static_cast<double>(std::nextafter(1.1F, 2.0F));
    first.ulp = 1;
    first.max_ulp = 4;
    first.rows_differing = 9;
    result.first = first;
  }
  if (verdict == Verdict::vacuous) {
    result.witness.rows_moved = 0;
    result.reason = "another order of summation moves no byte of any row";
  }
  return result;
}

inline CellResult cell(const std::string& impl, const std::string& case_name, int line) {
  CellResult result;
  result.op = "all_gather_matmul";
  result.impl = impl;
  result.executed = impl;
  result.case_name = case_name;
  result.axes = {{"K", "512"}, {"M", "4"}, {"W", "2"}, {"dtype", "fp32"}};
  result.id = result.op + "/" + impl + "/" + case_name + "/K=512,M=4,W=2,dtype=fp32";
  result.position = {"ops/all_gather_matmul/ci.json", line, 5};
  result.inputs = "accuracy inputs";
  result.digests = {{"y", "0123456789abcdef"}, {"gather_out", "fedcba9876543210"}};
  result.reproduce = "batchproof check ops/all_gather_matmul/ci.json --ranks 2 --filter '^" + result.id + "$' --seed 1";
  result.seconds = 0.25;
  return result;
}

// Cells that are judged by accuracy, performance and memory.
inline void add_standards(RunResult* run) {
  CellResult all = cell("cpu-fp32fma-chain256", "standards", 90);
  all.verdict = Verdict::pass;
  all.relations = {relation(BP_NEIGHBOURS, Verdict::pass)};
  all.accuracy = accuracy(Verdict::pass);
  all.performance = performance(1.25, false);
  all.memory = memory(1.0);
  run->cells.push_back(all);

  CellResult wrong = cell("cpu-fp32fma-chain256", "inaccurate", 100);
  wrong.verdict = Verdict::wrong;
  wrong.as_expected = false;
  wrong.relations = {relation(BP_NEIGHBOURS, Verdict::pass), relation(BP_POSITION, Verdict::vacuous)};
  wrong.relations[1].excused = true;  // the case allows it
  wrong.accuracy = accuracy(Verdict::wrong);
  run->cells.push_back(wrong);

  CellResult below = cell("cpu-fp32fma-chain256", "slow_and_heavy", 110);
  below.verdict = Verdict::heavy;
  below.as_expected = false;
  below.inputs.clear();
  below.digests.clear();
  below.performance = performance(0.5, true);
  below.memory = memory(1.5);
  run->cells.push_back(below);

  CellResult missing = cell("cpu-fp32fma-chain256", "no_benchmark", 120);
  missing.verdict = Verdict::skipped;
  missing.inputs.clear();
  missing.digests.clear();
  missing.accuracy = AccuracyResult{};
  missing.accuracy->standard = "cv_fused_double_benchmark";
  missing.accuracy->reason = "the operator declares no unfused composition";
  missing.reason = missing.accuracy->reason;
  run->cells.push_back(missing);

  CellResult control = cell("control-scale-address", "controls", 130);
  control.is_control = true;
  control.defect = "reads the scale of another column";
  control.position.file = "ops/all_gather_matmul/controls.json";
  control.verdict = Verdict::wrong;
  control.expected = Verdict::violation;
  control.relations = {relation(BP_CROSS_RANK, Verdict::violation, Verdict::violation)};
  control.accuracy = accuracy(Verdict::wrong, Verdict::wrong);
  run->cells.push_back(control);

  run->means = {{"all_gather_matmul", "cpu-fp32fma-chain256", 1.0, 0.875, 2, true}};
}

inline RunResult run() {
  RunResult run;
  run.context = {"0.1.0",
                 "abc1234",
                 "batchproof check ops/all_gather_matmul/ci.json",
                 "cpu: test, 2 threads, avx2",
                 "threads",
                 1,
                 "2026-01-02T03:04:05Z",
                 {{"program", "00112233445566ff"}, {"ops/all_gather_matmul/ci.json", "8899aabbccddeeff"}},
                 {{"relations", "neighbours, repeat"}}};

  CellResult pass = cell("cpu-fp32fma-chain256", "ci", 10);
  pass.verdict = Verdict::pass;
  pass.relations = {relation(BP_NEIGHBOURS, Verdict::pass), relation(BP_REPEAT, Verdict::pass),
                    relation(BP_WORLD_SIZE, Verdict::skipped)};
  pass.relations[2].reason = "not promised";
  pass.relations[2].runs = 0;
  pass.relations[2].witness = {};
  run.cells.push_back(pass);

  CellResult violation = cell("cpu-fp32fma-chain256", "two_relations", 20);
  violation.inputs = "cancelling (accuracy inputs dead)";
  violation.verdict = Verdict::violation;
  violation.as_expected = false;
  violation.relations = {relation(BP_NEIGHBOURS, Verdict::pass), relation(BP_POSITION, Verdict::violation),
                         relation(BP_CROSS_RANK, Verdict::violation)};
  Mismatch& nan = *violation.relations[2].first;
  nan.dtype = BP_BF16;
  nan.bytes_a = "0x7fc0";
  nan.bytes_b = "0xff80";
  nan.value_a = std::numeric_limits<double>::quiet_NaN();
  nan.value_b = -std::numeric_limits<double>::infinity();
  nan.ulp.reset();
  run.cells.push_back(violation);

  CellResult vacuous = cell("cpu-fp32fma-chain256", "integers", 30);
  vacuous.verdict = Verdict::vacuous;
  vacuous.as_expected = false;
  vacuous.relations = {relation(BP_POSITION, Verdict::vacuous), relation(BP_NEIGHBOURS, Verdict::vacuous)};
  vacuous.relations[1].reason = "one row has no neighbours";
  run.cells.push_back(vacuous);

  CellResult allowed = cell("cpu-fp32fma-chain256", "allowed", 35);
  allowed.verdict = Verdict::vacuous;
  allowed.reason = "exact on purpose";
  allowed.relations = {relation(BP_POSITION, Verdict::vacuous)};
  run.cells.push_back(allowed);

  CellResult skipped = cell("cpu-fp32fma-chain256", "skipped", 40);
  skipped.verdict = Verdict::skipped;
  skipped.expected = Verdict::pass;
  skipped.executed.clear();
  skipped.digests.clear();
  skipped.reason = "W = 3 does not divide 16 slices";
  run.cells.push_back(skipped);

  CellResult error = cell("cpu-fp32fma-chain256", "nasty <name> & \"q\", 100% #1\n\x01\xff|`*", 50);
  error.verdict = Verdict::error;
  error.as_expected = false;
  error.executed = "something-else";
  error.reason = "requested cpu-fp32fma-chain256, executed something-else: </script><b>]]>\r\nsecond line";
  error.digests.clear();
  run.cells.push_back(error);

  CellResult expected_error = cell("cpu-fp32fma-chain256", "refused", 60);
  expected_error.verdict = Verdict::error;
  expected_error.expected = Verdict::error;
  expected_error.reason = "K = 128 is below the strict limit 256";
  expected_error.digests.clear();
  run.cells.push_back(expected_error);

  CellResult caught = cell("control-order", "controls", 70);
  caught.is_control = true;
  caught.defect = "ranks other than the owner sum their chunks in descending order";
  caught.position.file = "ops/all_gather_matmul/controls.json";
  caught.verdict = Verdict::violation;
  caught.expected = Verdict::violation;
  caught.relations = {relation(BP_NEIGHBOURS, Verdict::pass),
                      relation(BP_CROSS_RANK, Verdict::violation, Verdict::violation)};
  run.cells.push_back(caught);

  CellResult missed = cell("control-race", "controls", 80);
  missed.is_control = true;
  missed.defect = "partial sums merge in the order of arrival";
  missed.position.file = "ops/all_gather_matmul/controls.json";
  missed.verdict = Verdict::violation;
  missed.expected = Verdict::violation;
  missed.as_expected = false;
  missed.relations = {relation(BP_REPEAT, Verdict::pass, Verdict::violation),
                      relation(BP_CROSS_RANK, Verdict::violation)};
  run.cells.push_back(missed);

  add_standards(&run);

  CellResult other = cell("cpu-fp32fma-chain256", "mm", 3);
  other.op = "matmul";
  other.id = "matmul/cpu-fp32fma-chain256/mm/K=512,M=4,W=2,dtype=fp32";
  other.position.file = "ops/matmul/ci.json";
  other.verdict = Verdict::pass;
  other.relations = {relation(BP_NEIGHBOURS, Verdict::pass)};
  run.cells.push_back(other);
  return run;
}

inline void feed(Reporter& reporter, const RunResult& run) {
  reporter.begin(run.context);
  for (const CellResult& result : run.cells) reporter.cell(result);
  reporter.end(run);
}

inline std::filesystem::path source_root() {
  return std::filesystem::path(__FILE__).parent_path().parent_path().parent_path();
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Byte for byte; BATCHPROOF_UPDATE_GOLDEN=1 writes the file instead.
inline void expect_golden(const std::string& name, const std::string& actual) {
  const std::filesystem::path path = source_root() / "tests" / "golden" / name;
  const char* update = std::getenv("BATCHPROOF_UPDATE_GOLDEN");
  if (update != nullptr && std::string(update) == "1") {
    std::ofstream(path, std::ios::binary) << actual;
    return;
  }
  ASSERT_TRUE(std::filesystem::exists(path)) << path << " is missing; BATCHPROOF_UPDATE_GOLDEN=1 writes it";
  EXPECT_EQ(read_file(path), actual) << "differs from " << path << "; BATCHPROOF_UPDATE_GOLDEN=1 rewrites it";
}

}  // namespace batchproof::sample

#endif  // BATCHPROOF_SRC_REPORT_SAMPLE_RUN_H_
