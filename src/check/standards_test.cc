// SPDX-License-Identifier: Apache-2.0
//
// Accuracy, performance and memory of small operators whose faults are known, together with invariance.
#include "src/check/standards.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "batchproof/problem.h"
#include "src/check/runner.h"

namespace batchproof {
namespace {

// y(W * M, N) = all_gather(x)(W * M, K) . w(K, N), FP32, one thread; the id says what is special. Every rank has
// weights of its own.
bool is(const bp_implementation* implementation, const char* id) { return std::strcmp(implementation->id, id) == 0; }

const bp_implementation kImplementations[] = {
    {"unfused", "gathers, then multiplies", nullptr, BP_MODE_FAST, BP_IMPL_PEER, nullptr, nullptr},
    {"good", "K ascending", nullptr, BP_MODE_INVARIANT, 0, "descending", nullptr},
    {"descending", "K descending", nullptr, BP_MODE_INVARIANT, BP_IMPL_WITNESS, nullptr, nullptr},
    {"wrong", "", "the last k is left out", BP_MODE_INVARIANT, 0, "descending", nullptr},
    {"first-weights", "", "every rank uses rank 0's weights", BP_MODE_INVARIANT, 0, "descending", nullptr},
    {"variant", "", "K descending where M is above 3", BP_MODE_INVARIANT, 0, "descending", nullptr},
    {"sluggish", "sleeps 20 ms", nullptr, BP_MODE_INVARIANT, 0, "descending", nullptr},
    {"heavy", "asks for 64 KiB more", nullptr, BP_MODE_INVARIANT, 0, "descending", nullptr},
    {"fails", "", "always fails", BP_MODE_INVARIANT, 0, "descending", nullptr},
    {"lies", "", "another one runs", BP_MODE_INVARIANT, 0, "descending", nullptr},
};

constexpr std::uint32_t kFp32 = BP_DTYPE_BIT(BP_FP32);
const bp_port kPorts[] = {
    {"x", BP_ROW_INPUT, "M, K", 0, 2u, 1, "K", nullptr, BP_SHARDED, 0, kFp32, 0, 0, nullptr, 0, "", 0},
    {"w", BP_WEIGHT, "K, N", -1, 1u, 1, "K", nullptr, BP_PER_RANK, 0, kFp32, 0, 0, nullptr, 0, "", 0},
    {"y", BP_OUTPUT, "W * M, N", 0, 0, 1, nullptr, nullptr, BP_PER_RANK, 0, kFp32, 0, 0, nullptr, 0, "", 0},
};
const bp_axis_decl kAxes[] = {{"M", "rows per rank"}, {"K", "reduction"}, {"N", "columns"}};
const bp_dtype kModeDtypes[] = {BP_FP32, BP_FP32, BP_FP32};
const bp_dtype_mode kModes[] = {{"fp32", kModeDtypes}};

std::size_t gathered_bytes(const bp_problem* problem) {
  return sizeof(float) *
         static_cast<std::size_t>(bp_axis_value(problem, "M") * problem->world * bp_axis_value(problem, "K"));
}
std::size_t weight_bytes(const bp_problem* problem) {
  return sizeof(float) *
         static_cast<std::size_t>(problem->world * bp_axis_value(problem, "K") * bp_axis_value(problem, "N"));
}

size_t workspace_size(const bp_implementation* implementation, const bp_problem* problem, int32_t) {
  const std::size_t least = gathered_bytes(problem) + weight_bytes(problem);
  return is(implementation, "heavy") ? least + 65536 : least;
}

template <class Out>
bp_status multiply(const bp_context* context, const bp_tensor* tensors, float* gathered, float* weights) {
  const bp_implementation* implementation = context->implementation;
  const std::int64_t m = tensors[0].shape[0], k = tensors[0].shape[1], n = tensors[1].shape[1];
  const auto row_bytes = sizeof(float) * static_cast<std::size_t>(m * k);
  bp_status status = context->comm->all_gather(context->comm, tensors[0].data, gathered, row_bytes, nullptr);
  if (status != BP_OK) return status;
  const auto bytes = sizeof(float) * static_cast<std::size_t>(k * n);
  status = context->comm->all_gather(context->comm, tensors[1].data, weights, bytes, nullptr);
  if (status != BP_OK) return status;
  const bool reference = tensors[2].dtype == BP_FP64;
  const float* w = weights + (!reference && is(implementation, "first-weights") ? 0 : context->rank * k * n);
  const bool descending = !reference && (is(implementation, "descending") || is(implementation, "unfused") ||
                                         (is(implementation, "variant") && m > 3));
  const std::int64_t end = !reference && is(implementation, "wrong") ? k - 1 : k;
  for (std::int64_t i = 0; i < context->world * m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      Out sum = 0;
      for (std::int64_t step = 0; step < end; ++step) {
        const std::int64_t at = descending ? end - 1 - step : step;
        sum += static_cast<Out>(gathered[i * k + at]) * static_cast<Out>(w[at * n + j]);
      }
      static_cast<Out*>(tensors[2].data)[i * n + j] = sum;
    }
  }
  return BP_OK;
}

bp_status run(const bp_context* context, const bp_tensor* tensors) {
  if (is(context->implementation, "fails"))
    return bp_fail(context->error, context->error_size, BP_INTERNAL, "this one always fails");
  if (is(context->implementation, "sluggish")) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  if (is(context->implementation, "unfused")) std::this_thread::sleep_for(std::chrono::milliseconds(4));
  auto* gathered = static_cast<float*>(context->workspace);
  bp_executed(context, is(context->implementation, "lies") ? "good" : context->implementation->id);
  return multiply<float>(context, tensors, gathered, gathered + gathered_bytes(context->problem) / sizeof(float));
}

bp_status reference(const bp_context* context, const bp_tensor* tensors) {
  std::vector<float> gathered(gathered_bytes(context->problem) / sizeof(float));
  std::vector<float> weights(weight_bytes(context->problem) / sizeof(float));
  return multiply<double>(context, tensors, gathered.data(), weights.data());
}

uint32_t promises(const bp_implementation*, const bp_problem*, const bp_device*) { return ~0u; }

bp_operator table_of(const bp_implementation* implementations, std::uint32_t count) {
  bp_operator table{};
  table.abi_version = BP_ABI_VERSION;
  table.struct_size = sizeof(bp_operator);
  table.name = "gather_matmul";
  table.rows = "W * M";
  table.row_count_axis = "M";
  table.flags = BP_OP_THREAD_SAFE;
  table.port_count = 3;
  table.ports = kPorts;
  table.axis_count = 3;
  table.axes = kAxes;
  table.dtype_mode_count = 1;
  table.dtype_modes = kModes;
  table.implementation_count = count;
  table.implementations = implementations;
  table.workspace_size = workspace_size;
  table.run = run;
  table.reference = reference;
  table.promises = promises;
  return table;
}
const bp_operator kTable = table_of(kImplementations, static_cast<std::uint32_t>(std::size(kImplementations)));
const bp_operator kWithoutReference = [] {
  bp_operator table = kTable;
  table.reference = nullptr;
  return table;
}();
// Neither a peer nor an implementation of mode fast.
const bp_operator kAlone = table_of(kImplementations + 1, 1);

Cell make_cell(const std::string& implementation, int world = 2, const bp_operator& table = kTable) {
  Cell cell;
  cell.id = "gather_matmul/" + implementation + "/case/K=64,M=3";
  cell.op = &table;
  cell.op_name = table.name;
  cell.impl = find_implementation(table, implementation);
  cell.problem.world = world;
  cell.problem.axes = {{"M", 3}, {"K", 64}, {"N", 5}};
  cell.problem.dtypes = {BP_FP32, BP_FP32, BP_FP32};
  cell.recipes.resize(3);
  return cell;
}

Cell accuracy_cell(const std::string& implementation, const std::string& standard, int world = 2,
                   const bp_operator& table = kTable) {
  Cell cell = make_cell(implementation, world, table);
  cell.standard.acc = AccStandard{standard, {}};
  return cell;
}

CellResult run_one(const Cell& cell, PerfMode perf = PerfMode::report) {
  RunOptions options;
  options.perf = perf;
  return run_cells({cell}, options).cells.at(0);
}

// ---- benchmark --------------------------------------------------------------------------------------------------

TEST(StandardsTest, ThePeerIsTheBenchmark) {
  const Benchmark peer = find_benchmark(kTable, *find_implementation(kTable, "good"));
  ASSERT_NE(peer.implementation, nullptr);
  EXPECT_STREQ(peer.implementation->id, "unfused");
  EXPECT_TRUE(peer.is_peer);
  // It is no yardstick for itself, and a peer is never a default.
  EXPECT_EQ(find_benchmark(kTable, *find_implementation(kTable, "unfused")).implementation, nullptr);
  EXPECT_EQ(default_implementation(kTable, BP_MODE_FAST), nullptr);
  EXPECT_STREQ(default_implementation(kTable, BP_MODE_INVARIANT)->id, "good");
}

TEST(StandardsTest, WithoutAPeerTheFastImplementationIs) {
  const bp_implementation list[] = {
      {"fast-control", "", "a defect", BP_MODE_FAST, 0, nullptr, nullptr},
      {"fast-witness", "", nullptr, BP_MODE_FAST, BP_IMPL_WITNESS, nullptr, nullptr},
      {"slow-but-sure", "", nullptr, BP_MODE_INVARIANT, 0, nullptr, nullptr},
      {"fast", "", nullptr, BP_MODE_FAST, 0, nullptr, nullptr},
  };
  const bp_operator table = table_of(list, 4);
  EXPECT_STREQ(find_benchmark(table, list[2]).implementation->id, "fast");
  EXPECT_FALSE(find_benchmark(table, list[2]).is_peer);
  const Benchmark none = find_benchmark(table, list[3]);
  EXPECT_EQ(none.implementation, nullptr);
  EXPECT_EQ(
      none.missing,
      "gather_matmul declares no unfused composition (BP_IMPL_PEER) and has no implementation of mode fast beside "
      "fast");
}

// ---- accuracy ---------------------------------------------------------------------------------------------------

TEST(StandardsTest, AnAccurateOperatorPassesEveryStandard) {
  for (const char* standard : {"default", "single_bm", "cv_fused_double_benchmark"}) {
    const CellResult result = run_one(accuracy_cell("good", standard));
    EXPECT_EQ(result.verdict, Verdict::pass) << standard << result.accuracy->reason;
    EXPECT_TRUE(result.as_expected);
    EXPECT_EQ(result.executed, "good");
    EXPECT_TRUE(result.relations.empty());
    ASSERT_EQ(result.accuracy->ports.size(), 1u);
    const PortAccuracy& port = result.accuracy->ports[0];
    EXPECT_EQ(port.port, "y");
    EXPECT_EQ(port.elements, 2 * (2 * 3) * 5) << "every rank's copy counts";
    // FP32 sums of 64 products are neither exact nor far off.
    EXPECT_GT(port.device.rmse, 0.0);
    EXPECT_LT(port.device.rmse, 1e-4);
  }
}

TEST(StandardsTest, TheDoubleBenchmarkUsesThePeer) {
  const CellResult result = run_one(accuracy_cell("good", "cv_fused_double_benchmark"));
  EXPECT_EQ(result.accuracy->benchmark, "unfused");
  // The other order rounds elsewhere.
  const PortAccuracy& port = result.accuracy->ports.at(0);
  EXPECT_NE(port.benchmark->rmse, port.device.rmse);
  EXPECT_GT(port.benchmark->rmse, 0.0);
  EXPECT_TRUE(run_one(accuracy_cell("good", "default")).accuracy->benchmark.empty());
}

TEST(StandardsTest, AWrongResultIsWrongAndNotVariant) {
  for (const char* standard : {"default", "single_bm", "cv_fused_double_benchmark", "equal"}) {
    Cell cell = accuracy_cell("wrong", standard);
    cell.standard.bi = BiStandard{};
    cell.standard.bi->relations = kDefaultRelations;
    const CellResult result = run_one(cell);
    EXPECT_EQ(result.verdict, Verdict::wrong) << standard;
    EXPECT_FALSE(result.as_expected);
    EXPECT_EQ(result.accuracy->verdict, Verdict::wrong);
    EXPECT_EQ(result.accuracy->reason.find("y: "), 0u) << result.accuracy->reason;
    ASSERT_EQ(result.relations.size(), 5u);
    for (const RelationResult& relation : result.relations) EXPECT_EQ(relation.verdict, Verdict::pass);
  }
}

TEST(StandardsTest, AVariantResultIsVariantAndNotWrong) {
  Cell cell = accuracy_cell("variant", "single_bm");
  cell.standard.bi = BiStandard{};
  cell.standard.bi->relations = BP_BATCH_SIZE;
  const CellResult result = run_one(cell);
  EXPECT_EQ(result.verdict, Verdict::violation);
  EXPECT_EQ(result.accuracy->verdict, Verdict::pass);
}

TEST(StandardsTest, EveryRankHasWeightsOfItsOwn) {
  // Invariance runs make them equal and cannot see this.
  Cell cell = accuracy_cell("first-weights", "single_bm");
  cell.standard.bi = BiStandard{};
  cell.standard.bi->relations = kDefaultRelations;
  const CellResult result = run_one(cell);
  EXPECT_EQ(result.verdict, Verdict::wrong);
  EXPECT_EQ(result.accuracy->ports.at(0).worst->rank, 1);
  EXPECT_EQ(run_one(accuracy_cell("first-weights", "single_bm", 1)).verdict, Verdict::pass);
}

TEST(StandardsTest, EqualComparesWithThePeer) {
  const CellResult result = run_one(accuracy_cell("good", "equal"));
  EXPECT_EQ(result.accuracy->benchmark, "unfused");
  EXPECT_EQ(result.verdict, Verdict::wrong);  // another order of summation
}

TEST(StandardsTest, WhatIsMissingSkipsWithTheReason) {
  const CellResult none = run_one(accuracy_cell("good", "cv_fused_double_benchmark", 2, kAlone));
  EXPECT_EQ(none.verdict, Verdict::skipped);
  EXPECT_TRUE(none.as_expected);
  EXPECT_NE(none.reason.find("declares no unfused composition"), std::string::npos) << none.reason;
  const CellResult golden = run_one(accuracy_cell("good", "default", 2, kWithoutReference));
  EXPECT_EQ(golden.verdict, Verdict::skipped);
  EXPECT_EQ(golden.reason, "gather_matmul has no FP64 reference");
  const CellResult custom = run_one(accuracy_cell("good", "somebodys_own"));
  EXPECT_EQ(custom.verdict, Verdict::skipped);
  EXPECT_EQ(custom.reason, "this build has no accuracy standard somebodys_own");
}

TEST(StandardsTest, AFailingCallIsAnError) {
  const CellResult fails = run_one(accuracy_cell("fails", "default"));
  EXPECT_EQ(fails.verdict, Verdict::error);
  EXPECT_NE(fails.reason.find("this one always fails"), std::string::npos) << fails.reason;
  const CellResult lies = run_one(accuracy_cell("lies", "default"));
  EXPECT_EQ(lies.verdict, Verdict::error);
  EXPECT_EQ(lies.reason, "lies was requested but good ran");
  Cell cell = accuracy_cell("fails", "default");
  cell.expect.cell = Verdict::error;
  cell.expect.error = "always fails";
  EXPECT_TRUE(run_one(cell).as_expected);
}

// ---- expectations -----------------------------------------------------------------------------------------------

TEST(StandardsTest, AControlMayBeDeclaredWrong) {
  Cell cell = accuracy_cell("wrong", "single_bm");
  cell.expect.acc = Verdict::wrong;
  EXPECT_TRUE(run_one(cell).as_expected);
  cell.expect.acc.reset();
  cell.expect.cell = Verdict::wrong;
  EXPECT_TRUE(run_one(cell).as_expected);
  // Declared and not shown; declared and not even judged.
  cell.impl = find_implementation(kTable, "good");
  EXPECT_FALSE(run_one(cell).as_expected);
  cell.standard.acc.reset();
  cell.standard.bi = BiStandard{};
  cell.standard.bi->relations = BP_REPEAT;
  EXPECT_FALSE(run_one(cell).as_expected);
}

TEST(StandardsTest, AWrongResultIsNotExcusedByAnExpectedViolation) {
  Cell cell = accuracy_cell("variant", "single_bm");
  cell.standard.bi = BiStandard{};
  cell.standard.bi->relations = BP_BATCH_SIZE | BP_REPEAT;
  cell.expect.cell = Verdict::violation;
  CellResult result = run_one(cell);
  EXPECT_TRUE(result.as_expected);
  cell.standard.acc->name = "equal";
  result = run_one(cell);
  EXPECT_EQ(result.verdict, Verdict::wrong);
  EXPECT_FALSE(result.as_expected);
  // The relations are as expected together: none of them is to blame.
  for (const RelationResult& relation : result.relations)
    EXPECT_TRUE(relation.excused || relation.verdict == relation.expected) << relation_name(relation.relation);
}

// ---- performance ------------------------------------------------------------------------------------------------

Cell timed_cell(const std::string& implementation, double mean, double each) {
  Cell cell = make_cell(implementation, 1);
  cell.standard.perf = {mean, each};
  return cell;
}

TEST(StandardsTest, PerformanceIsReportedAndJudgedOnRequestAlone) {
  const CellResult reported = run_one(timed_cell("sluggish", 1.0, 1.0));
  EXPECT_EQ(reported.verdict, Verdict::skipped);
  EXPECT_TRUE(reported.as_expected);
  EXPECT_FALSE(reported.performance->judged);
  EXPECT_LT(reported.performance->ratio, 1.0);
  EXPECT_GE(reported.performance->device_seconds, 0.020);
  EXPECT_GE(reported.performance->benchmark_seconds, 0.004);
  EXPECT_GE(reported.performance->runs, 3);
  EXPECT_EQ(reported.performance->benchmark, "unfused");
  EXPECT_EQ(reported.reason, "performance is reported; --perf judge judges it");

  const CellResult judged = run_one(timed_cell("sluggish", 1.0, 1.0), PerfMode::judge);
  EXPECT_EQ(judged.verdict, Verdict::slow);
  EXPECT_FALSE(judged.as_expected);
  EXPECT_NE(judged.performance->reason.find("it must be above 1"), std::string::npos);
  EXPECT_EQ(run_one(timed_cell("sluggish", 0.001, 0.001), PerfMode::judge).verdict, Verdict::pass);

  const CellResult off = run_one(timed_cell("sluggish", 1.0, 1.0), PerfMode::off);
  EXPECT_FALSE(off.performance.has_value());
  EXPECT_EQ(off.executed, "") << "nothing ran";
}

TEST(StandardsTest, TheMeanOverCasesIsJudgedApart) {
  // Each is above b, their mean is not above a.
  RunOptions options;
  options.perf = PerfMode::judge;
  const RunResult run = run_cells(
      {timed_cell("sluggish", 1.0, 0.001), timed_cell("good", 1.0, 0.001), timed_cell("sluggish", 1.0, 0.001)},
      options);
  ASSERT_EQ(run.means.size(), 2u);
  EXPECT_EQ(run.means[0].impl, "sluggish");
  EXPECT_EQ(run.means[0].cells, 2);
  EXPECT_DOUBLE_EQ(run.means[0].mean, (run.cells[0].performance->ratio + run.cells[2].performance->ratio) / 2.0);
  EXPECT_FALSE(run.means[0].passed());
  EXPECT_TRUE(run.means[1].passed());
  EXPECT_EQ(run.passed(), 3);
  EXPECT_EQ(run.failed(), 1);
  options.perf = PerfMode::report;
  EXPECT_EQ(run_cells({timed_cell("sluggish", 1.0, 0.001)}, options).failed(), 0);
}

TEST(StandardsTest, WithoutABenchmarkNothingIsMeasured) {
  Cell cell = make_cell("good", 1, kAlone);
  cell.standard.perf = {1.0, 1.0};
  const CellResult result = run_one(cell, PerfMode::judge);
  EXPECT_EQ(result.verdict, Verdict::skipped);
  EXPECT_TRUE(result.as_expected);
  EXPECT_EQ(result.performance->runs, 0);
  EXPECT_TRUE(performance_means({result}).empty());
}

// ---- memory -----------------------------------------------------------------------------------------------------

TEST(StandardsTest, MemoryCountsTensorsAndWorkspace) {
  Cell cell = make_cell("heavy");
  cell.standard.mem = 1.1;
  const CellResult result = run_one(cell);
  const MemoryResult& memory = *result.memory;
  // x 3 x 64, w 64 x 5, y 6 x 5; the workspace holds 6 x 64 gathered elements and the weights of two ranks.
  EXPECT_EQ(memory.tensor_bytes, 4u * (192 + 320 + 30));
  EXPECT_EQ(memory.benchmark_workspace, 4u * (384 + 640));
  EXPECT_EQ(memory.device_workspace, memory.benchmark_workspace + 65536);
  EXPECT_DOUBLE_EQ(memory.ratio, (2168.0 + 4096.0 + 65536.0) / (2168.0 + 4096.0));
  EXPECT_EQ(result.verdict, Verdict::heavy);
  EXPECT_FALSE(result.as_expected);
  cell.expect.mem = Verdict::heavy;
  EXPECT_TRUE(run_one(cell).as_expected);
  cell = make_cell("good");
  cell.standard.mem = 1.0;
  EXPECT_EQ(run_one(cell).verdict, Verdict::pass);
  EXPECT_EQ(run_one(cell).memory->ratio, 1.0);
}

// ---- together ---------------------------------------------------------------------------------------------------

TEST(StandardsTest, OneCaseHoldsAllFourStandards) {
  Cell cell = accuracy_cell("good", "cv_fused_double_benchmark");
  cell.standard.bi = BiStandard{};
  cell.standard.bi->relations = kDefaultRelations;
  cell.standard.perf = {0.001, 0.001};
  cell.standard.mem = 1.1;
  const CellResult result = run_one(cell, PerfMode::judge);
  EXPECT_EQ(result.verdict, Verdict::pass);
  EXPECT_EQ(result.relations.size(), 5u);
  EXPECT_EQ(result.accuracy->verdict, Verdict::pass);
  EXPECT_EQ(result.performance->verdict, Verdict::pass);
  EXPECT_EQ(result.memory->verdict, Verdict::pass);
  EXPECT_FALSE(result.digests.empty());
}

}  // namespace
}  // namespace batchproof
