// SPDX-License-Identifier: Apache-2.0
//
// The checker against small operators whose behaviour is known: each verdict, and why it is given.
#include "src/check/runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "batchproof/problem.h"
#include "src/check/layout.h"
#include "src/check/local_host.h"
#include "src/check/relation.h"
#include "src/runtime/fp_env.h"

namespace batchproof {
namespace {

// y(W * M, N) = all_gather(x)(W * M, K) . w(K, N): FP32, one thread, K ascending unless the implementation says not.
enum class Way {
  ascending,
  descending,     // the witness of ascending
  by_owner,       // rows of other ranks descending
  by_batch,       // descending where M > 4
  leaks,          // adds 0 * (element of the next row)
  reports_other,  // claims another implementation ran
  reports_nothing,
  writes_outside,
  leaves_flush,  // leaves flush-to-zero set
  fails,
  drops_workspace,  // adds what the workspace held
  sleeps            // 50 ms in every call
};

const Way kAscending = Way::ascending, kDescending = Way::descending, kByOwner = Way::by_owner,
          kByBatch = Way::by_batch, kLeaks = Way::leaks, kReportsOther = Way::reports_other,
          kReportsNothing = Way::reports_nothing, kWritesOutside = Way::writes_outside,
          kLeavesFlush = Way::leaves_flush, kFails = Way::fails, kDropsWorkspace = Way::drops_workspace,
          kSleeps = Way::sleeps;

const bp_implementation kImplementations[] = {
    {"ascending", "K ascending", nullptr, BP_MODE_INVARIANT, 0, "descending", &kAscending},
    {"descending", "K descending", nullptr, BP_MODE_INVARIANT, BP_IMPL_WITNESS, nullptr, &kDescending},
    {"by-owner", "", "rows of other ranks descending", BP_MODE_INVARIANT, 0, "descending", &kByOwner},
    {"by-batch", "", "descending where M > 4", BP_MODE_INVARIANT, 0, nullptr, &kByBatch},
    {"leaks", "", "adds zero times the next row", BP_MODE_INVARIANT, 0, nullptr, &kLeaks},
    {"reports-other", "", "lies about what ran", BP_MODE_INVARIANT, 0, nullptr, &kReportsOther},
    {"reports-nothing", "", "does not say what ran", BP_MODE_INVARIANT, 0, nullptr, &kReportsNothing},
    {"writes-outside", "", "writes before its output", BP_MODE_INVARIANT, 0, nullptr, &kWritesOutside},
    {"leaves-flush", "", "changes the FP environment", BP_MODE_INVARIANT, 0, nullptr, &kLeavesFlush},
    {"fails", "", "always fails", BP_MODE_INVARIANT, 0, nullptr, &kFails},
    {"drops-workspace", "", "adds what the workspace held", BP_MODE_INVARIANT, 0, nullptr, &kDropsWorkspace},
    {"sleeps", "", nullptr, BP_MODE_INVARIANT, 0, nullptr, &kSleeps},
    {"unpromised", "promises nothing", nullptr, BP_MODE_INVARIANT, 0, nullptr, nullptr},
};

constexpr std::uint32_t kFp32 = BP_DTYPE_BIT(BP_FP32);
const bp_port kPorts[] = {
    {"x", BP_ROW_INPUT, "M, K", 0, 2u, 1, "K", nullptr, BP_SHARDED, 0, kFp32, 0, BP_PORT_PADDED, nullptr, 0, "", 0},
    {"w", BP_WEIGHT, "K, N", -1, 1u, 1, "K", nullptr, BP_PER_RANK, 0, kFp32, 0, 0, nullptr, 0, "", 0},
    {"y", BP_OUTPUT, "W * M, N", 0, 0, 1, nullptr, nullptr, BP_PER_RANK, 0, kFp32, 0, BP_PORT_PADDED, nullptr, 0, "",
     0},
};
const bp_axis_decl kAxes[] = {{"M", "rows per rank"}, {"K", "reduction"}, {"N", "columns"}};
const bp_dtype kModeDtypes[] = {BP_FP32, BP_FP32, BP_FP32};
const bp_dtype_mode kModes[] = {{"fp32", kModeDtypes}};

bp_status validate(const bp_problem* problem, char* error, size_t size) {
  const std::int64_t k = bp_axis_value(problem, "K");
  if (k < 1) return bp_fail(error, size, BP_INVALID, "K = %lld must be at least 1", static_cast<long long>(k));
  return BP_OK;
}

size_t workspace_size(const bp_implementation*, const bp_problem* problem, int32_t) {
  const auto rows = bp_axis_value(problem, "M") * problem->world;
  return sizeof(float) * static_cast<std::size_t>(rows * bp_axis_value(problem, "K"));
}

bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const Way way = *static_cast<const Way*>(context->implementation->data);
  const std::int64_t m = bp_axis_value(context->problem, "M");
  const std::int64_t k = bp_axis_value(context->problem, "K");
  const std::int64_t n = bp_axis_value(context->problem, "N");
  const std::int64_t rows = m * context->world;
  if (way == Way::fails) return bp_fail(context->error, context->error_size, BP_INTERNAL, "this one always fails");
  if (way == Way::sleeps) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  auto* gathered = static_cast<float*>(context->workspace);
  const float stale = rows * k > 0 ? gathered[0] : 0.0f;
  std::vector<float> own(static_cast<std::size_t>(m * k));
  for (std::int64_t i = 0; i < m; ++i)
    std::memcpy(&own[static_cast<std::size_t>(i * k)],
                static_cast<const float*>(tensors[0].data) + i * tensors[0].stride[0], sizeof(float) * k);
  const bp_status status =
      context->comm->all_gather(context->comm, own.data(), gathered, sizeof(float) * own.size(), context->stream);
  if (status != BP_OK) return status;
  for (std::int64_t i = 0; i < rows; ++i) {
    const bool descending =
        way == Way::descending || (way == Way::by_owner && i / m != context->rank) || (way == Way::by_batch && m > 4);
    for (std::int64_t j = 0; j < n; ++j) {
      float sum = 0.0f;
      for (std::int64_t step = 0; step < k; ++step) {
        const std::int64_t kk = descending ? k - 1 - step : step;
        sum += gathered[i * k + kk] * static_cast<const float*>(tensors[1].data)[kk * n + j];
      }
      if (way == Way::leaks && i + 1 < rows) sum += 0.0f * gathered[(i + 1) * k];
      if (way == Way::drops_workspace) sum += stale;
      static_cast<float*>(tensors[2].data)[i * tensors[2].stride[0] + j] = sum;
    }
  }
  if (way == Way::writes_outside) static_cast<float*>(tensors[2].data)[-1] = 1.0f;
  if (way == Way::leaves_flush) set_fp_control(fp_control() | 0x8000u);
  if (way != Way::reports_nothing)
    bp_executed(context, way == Way::reports_other ? "ascending" : context->implementation->id);
  return BP_OK;
}

uint32_t promises(const bp_implementation* implementation, const bp_problem*, const bp_device*) {
  return implementation->data == nullptr ? 0u : ~0u;
}

const bp_operator kGatherMatmul = [] {
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
  table.implementation_count = static_cast<std::uint32_t>(std::size(kImplementations));
  table.implementations = kImplementations;
  table.validate = validate;
  table.workspace_size = workspace_size;
  table.run = run;
  table.promises = promises;
  return table;
}();

Cell make_cell(const std::string& implementation, int world = 2, std::int64_t m = 3, std::int64_t k = 64) {
  Cell cell;
  cell.id = "gather_matmul/" + implementation + "/case/K=64,M=3,W=2";
  cell.op = &kGatherMatmul;
  cell.op_name = kGatherMatmul.name;
  cell.impl = find_implementation(kGatherMatmul, implementation);
  cell.problem.world = world;
  cell.problem.axes = {{"M", m}, {"K", k}, {"N", 5}};
  cell.problem.dtypes = {BP_FP32, BP_FP32, BP_FP32};
  cell.recipes.resize(3);
  BiStandard bi;
  bi.relations = kDefaultRelations | BP_WORLD_SIZE | BP_POISON | BP_THREADS | BP_HISTORY | BP_ALIGNMENT;
  cell.standard.bi = bi;
  return cell;
}

CellResult run_one(const Cell& cell) {
  const RunResult result = run_cells({cell}, RunOptions{});
  return result.cells.at(0);
}

Verdict verdict_of(const CellResult& cell, std::uint32_t relation) {
  for (const RelationResult& result : cell.relations) {
    if (result.relation == relation) return result.verdict;
  }
  ADD_FAILURE() << "relation did not run: " << relation_name(relation);
  return Verdict::error;
}

TEST(RunnerTest, HonestOperatorPassesEveryRelationWithAWitness) {
  const CellResult result = run_one(make_cell("ascending"));
  EXPECT_EQ(result.verdict, Verdict::pass) << result.reason;
  EXPECT_TRUE(result.as_expected);
  EXPECT_EQ(result.executed, "ascending");
  EXPECT_EQ(result.relations.size(), 10u);
  for (const RelationResult& relation : result.relations) {
    EXPECT_EQ(relation.verdict, Verdict::pass) << relation_name(relation.relation) << ": " << relation.reason;
    EXPECT_GT(relation.bytes_compared, 0u) << relation_name(relation.relation);
    EXPECT_TRUE(relation.witness.alive()) << relation_name(relation.relation);
  }
}

TEST(RunnerTest, OwnerDependentOrderIsCaughtWhereRanksSeeIt) {
  const CellResult result = run_one(make_cell("by-owner"));
  EXPECT_TRUE(result.is_control);
  for (const std::uint32_t caught : {BP_CROSS_RANK, BP_POSITION, BP_BATCH_SIZE, BP_WORLD_SIZE})
    EXPECT_EQ(verdict_of(result, caught), Verdict::violation) << relation_name(caught);
  for (const std::uint32_t blind : {BP_NEIGHBOURS, BP_REPEAT, BP_POISON, BP_THREADS})
    EXPECT_EQ(verdict_of(result, blind), Verdict::pass) << relation_name(blind);
  EXPECT_FALSE(result.as_expected);
}

TEST(RunnerTest, BatchDependentOrderIsCaughtByBatchSizeAlone) {
  Cell cell = make_cell("by-batch");
  cell.standard.bi->relations = kDefaultRelations;
  const CellResult result = run_one(cell);
  EXPECT_EQ(verdict_of(result, BP_BATCH_SIZE), Verdict::violation);
  for (const std::uint32_t blind : {BP_NEIGHBOURS, BP_REPEAT, BP_POSITION, BP_CROSS_RANK})
    EXPECT_EQ(verdict_of(result, blind), Verdict::pass) << relation_name(blind);
}

TEST(RunnerTest, MismatchNamesTheFirstByteAndTheVariant) {
  Cell cell = make_cell("by-batch");
  cell.standard.bi->relations = BP_BATCH_SIZE;
  const CellResult result = run_one(cell);
  const RelationResult& relation = result.relations.at(0);
  ASSERT_TRUE(relation.first.has_value());
  EXPECT_EQ(relation.first->port, "y");
  EXPECT_EQ(relation.first->variant, "M = 5 instead of 3");
  EXPECT_EQ(relation.first->byte / 4, relation.first->column);
  EXPECT_NE(relation.first->bytes_a, relation.first->bytes_b);
  ASSERT_TRUE(relation.first->ulp.has_value());
  EXPECT_GE(relation.first->max_ulp, *relation.first->ulp);
  EXPECT_GT(relation.first->rows_differing, 0);
  EXPECT_GT(relation.bytes_differing, 0u);
  EXPECT_LT(relation.bytes_differing, relation.bytes_compared);
}

TEST(RunnerTest, ZeroTimesNanIsSeenByPoisonOnly) {
  const CellResult result = run_one(make_cell("leaks"));
  EXPECT_EQ(verdict_of(result, BP_POISON), Verdict::violation);
  EXPECT_EQ(verdict_of(result, BP_NEIGHBOURS), Verdict::pass);
  EXPECT_EQ(verdict_of(result, BP_BATCH_SIZE), Verdict::pass);
}

TEST(RunnerTest, StaleWorkspaceIsSeenByPoisonAndHistory) {
  const CellResult result = run_one(make_cell("drops-workspace"));
  EXPECT_EQ(verdict_of(result, BP_POISON), Verdict::violation);
  EXPECT_EQ(verdict_of(result, BP_HISTORY), Verdict::violation);
  EXPECT_EQ(verdict_of(result, BP_REPEAT), Verdict::pass);
}

TEST(RunnerTest, ExactInputsAreVacuousAndFail) {
  Cell cell = make_cell("ascending");
  cell.recipes[0].kind = RecipeKind::small_integer;
  cell.recipes[1].kind = RecipeKind::small_integer;
  CellResult result = run_one(cell);
  EXPECT_EQ(result.verdict, Verdict::vacuous);
  EXPECT_FALSE(result.as_expected);
  EXPECT_EQ(verdict_of(result, BP_POSITION), Verdict::vacuous);
  EXPECT_EQ(verdict_of(result, BP_NEIGHBOURS), Verdict::pass);  // a leak shows whatever the order does
  cell.allow_vacuous = "exact on purpose";
  EXPECT_TRUE(run_one(cell).as_expected);
}

TEST(RunnerTest, AutoGoesOverToCancellingWhereTheAccuracyInputsAreDead) {
  Cell cell = make_cell("ascending");
  cell.recipes[0] = RecipeSpec{RecipeKind::constant, 1.0, 0.0, ""};
  cell.recipes[1] = RecipeSpec{RecipeKind::constant, 1.0, 0.0, ""};
  CellResult result = run_one(cell);
  EXPECT_EQ(result.verdict, Verdict::pass) << result.reason;
  EXPECT_EQ(result.inputs, "cancelling: with the accuracy inputs another order moves 0 of 6 rows of y");
  cell.standard.bi->inputs = BiInputs::shared;
  result = run_one(cell);
  EXPECT_EQ(result.verdict, Verdict::vacuous);
  // Equal rows: re-seeding changes nothing.
  EXPECT_EQ(verdict_of(result, BP_POSITION), Verdict::vacuous);
}

TEST(RunnerTest, OneRowHasNoNeighbour) {
  Cell cell = make_cell("ascending", 1, 1);
  cell.standard.bi->relations = BP_NEIGHBOURS | BP_POSITION | BP_CROSS_RANK | BP_POISON;
  const CellResult result = run_one(cell);
  for (const RelationResult& relation : result.relations)
    EXPECT_EQ(relation.verdict, Verdict::vacuous) << relation_name(relation.relation);
}

TEST(RunnerTest, BrokenOperatorsAreErrorsThatNameTheCause) {
  const std::pair<const char*, const char*> cases[] = {
      {"reports-other", "reports-other was requested but ascending ran"},
      {"reports-nothing", "did not report which implementation ran"},
      {"writes-outside", "wrote outside y on rank"},
      {"leaves-flush", "flush-to-zero"},
      {"fails", "this one always fails"},
      {"unpromised", "promises no relation"},
  };
  for (const auto& [implementation, cause] : cases) {
    const CellResult result = run_one(make_cell(implementation));
    EXPECT_EQ(result.verdict, Verdict::error) << implementation;
    EXPECT_NE(result.reason.find(cause), std::string::npos) << implementation << ": " << result.reason;
    EXPECT_FALSE(result.as_expected);
  }
}

TEST(RunnerTest, AnErrorMayBeExpectedByItsText) {
  Cell cell = make_cell("ascending", 2, 3, 0);
  cell.expect.cell = Verdict::error;
  cell.expect.error = "K = 0 must be at least 1";
  EXPECT_TRUE(run_one(cell).as_expected);
  cell.expect.error = "K = 0 is fine";
  EXPECT_FALSE(run_one(cell).as_expected);
}

TEST(RunnerTest, ControlsMustBeCaughtExactlyWhereDeclared) {
  Cell cell = make_cell("by-owner");
  cell.standard.bi->relations = kDefaultRelations;
  cell.expect.relations = {
      {BP_CROSS_RANK, Verdict::violation}, {BP_POSITION, Verdict::violation}, {BP_BATCH_SIZE, Verdict::violation}};
  EXPECT_TRUE(run_one(cell).as_expected);
  cell.expect.relations.erase(BP_POSITION);  // an unexpected catch
  EXPECT_FALSE(run_one(cell).as_expected);
  cell.expect.relations[BP_POSITION] = Verdict::violation;
  cell.expect.relations[BP_NEIGHBOURS] = Verdict::violation;  // a miss
  EXPECT_FALSE(run_one(cell).as_expected);
  cell.expect.relations.erase(BP_NEIGHBOURS);
  cell.expect.relations[BP_WORLD_SIZE] = Verdict::violation;  // never ran
  EXPECT_FALSE(run_one(cell).as_expected);
}

TEST(RunnerTest, TargetsOutOfRangeAreErrors) {
  Cell cell = make_cell("ascending");
  cell.standard.bi->row_positions = {{RowPosition::Kind::index, 6}};
  const CellResult result = run_one(cell);
  EXPECT_EQ(result.verdict, Verdict::error);
  bool named = false;
  for (const RelationResult& relation : result.relations)
    named = named || relation.reason.find("row position 6 is out of range: the problem has 6 logical rows") == 0;
  EXPECT_TRUE(named);
}

TEST(RunnerTest, FreshProcessDigestsAreComparedByRepeat) {
  Cell cell = make_cell("ascending");
  cell.standard.bi->relations = BP_REPEAT;
  RunOptions options;
  options.fresh_process = [](const std::vector<Cell>& cells) { return digest_cells(cells, 1); };
  EXPECT_EQ(run_cells({cell}, options).cells.at(0).verdict, Verdict::pass);
  options.fresh_process = [](const std::vector<Cell>& cells) {
    auto digests = digest_cells(cells, 1);
    digests.begin()->second->at(0).digest = "0000000000000000";
    return digests;
  };
  const CellResult result = run_cells({cell}, options).cells.at(0);
  EXPECT_EQ(result.verdict, Verdict::violation);
  EXPECT_NE(result.relations.at(0).reason.find("a fresh process gives digest 0000000000000000"), std::string::npos);
}

TEST(RunnerTest, FreshProcessDigestsAreComparedForCellsThatShareTheirRuns) {
  Cell cell = make_cell("ascending");
  cell.standard.bi->relations = BP_REPEAT | BP_POSITION;
  Cell other = cell;
  other.id += "/other";
  other.standard.bi->row_positions = {RowPosition{RowPosition::Kind::last, 0}};
  RunOptions options;
  options.fresh_process = [](const std::vector<Cell>& cells) {
    auto digests = digest_cells(cells, 1);
    for (auto& [id, own] : digests) own->at(0).digest = "0000000000000000";
    return digests;
  };
  for (const CellResult& result : run_cells({cell, other}, options).cells)
    EXPECT_EQ(result.verdict, Verdict::violation) << result.id;
}

TEST(RunnerTest, ACellThatTheFreshProcessLeavesOutIsAnError) {
  Cell cell = make_cell("ascending");
  cell.standard.bi->relations = BP_REPEAT;
  RunOptions options;
  options.fresh_process = [](const std::vector<Cell>&) { return CellDigests{}; };
  const CellResult silent = run_cells({cell}, options).cells.at(0);
  EXPECT_EQ(silent.verdict, Verdict::error);
  EXPECT_FALSE(silent.as_expected);
  EXPECT_EQ(silent.relations.at(0).reason, "a fresh process gave no result for this cell");

  options.fresh_process = [](const std::vector<Cell>& cells) {
    return CellDigests{{cells.at(0).id, fail(Error::Kind::operation, "no licence")}};
  };
  const CellResult failed = run_cells({cell}, options).cells.at(0);
  EXPECT_EQ(failed.verdict, Verdict::error);
  EXPECT_EQ(failed.relations.at(0).reason, "in a fresh process the base run failed: no licence");

  // A process that was lost as a whole is the caller's to report: nothing is known about the cell.
  options.fresh_process = [](const std::vector<Cell>&) { return std::nullopt; };
  EXPECT_EQ(run_cells({cell}, options).cells.at(0).verdict, Verdict::pass);
}

TEST(RunnerTest, ACallInThisProcessThatTakesLongerThanTheCellAllowsIsAnError) {
  Cell cell = make_cell("sleeps");
  cell.standard.bi->relations = BP_REPEAT;
  EXPECT_EQ(run_one(cell).verdict, Verdict::pass);
  cell.timeout_s = 0.01;
  const CellResult result = run_one(cell);
  EXPECT_EQ(result.verdict, Verdict::error);
  EXPECT_EQ(result.reason.find("gather_matmul took 0.0"), 0u) << result.reason;
  EXPECT_NE(result.reason.find("limits.timeout_s of the case is 0.01"), std::string::npos) << result.reason;
}

TEST(RunnerTest, DigestsOfACellThatFailsSayWhy) {
  const CellDigests digests = digest_cells({make_cell("fails")}, 1);
  ASSERT_EQ(digests.size(), 1u);
  EXPECT_FALSE(digests.begin()->second.has_value());
}

TEST(RunnerTest, DigestsDependOnContentAndSeedOnly) {
  const Cell cell = make_cell("ascending");
  const auto one = digest_cells({cell}, 1);
  EXPECT_EQ(one.at(cell.id)->at(0).digest, digest_cells({cell}, 1).at(cell.id)->at(0).digest);
  EXPECT_NE(one.at(cell.id)->at(0).digest, digest_cells({cell}, 2).at(cell.id)->at(0).digest);
}

// Each of these differs from the first in one thing that the contents of a tensor follow from.
TEST(RunnerTest, CellsThatShareContentsGiveTheBytesOfCellsAlone) {
  std::vector<Cell> cells = {make_cell("ascending")};
  const auto add = [&](const char* id, const std::function<void(Cell&)>& change) {
    cells.push_back(cells.front());
    cells.back().id = id;
    change(cells.back());
  };
  const auto recipe = [](RecipeKind kind, double lo, double hi) { return RecipeSpec{kind, lo, hi, {}}; };
  cells.front().standard.bi->inputs = BiInputs::shared;
  cells.front().standard.bi->relations = BP_NEIGHBOURS | BP_POISON;
  add("longer", [](Cell& cell) { cell.problem.axes["K"] = 65; });
  add("wider", [](Cell& cell) { cell.problem.axes["N"] = 6; });
  add("more rows", [](Cell& cell) { cell.problem.axes["M"] = 4; });
  add("more ranks", [](Cell& cell) { cell.problem.world = 4; });
  add("deviation of rows", [&](Cell& cell) { cell.recipes[0] = recipe(RecipeKind::normal, 0.0, 2.0); });
  add("mean of rows", [&](Cell& cell) { cell.recipes[0] = recipe(RecipeKind::normal, 1.0, 1.0); });
  add("kind of rows", [&](Cell& cell) { cell.recipes[0] = recipe(RecipeKind::wide_exponent, 0.0, 1.0); });
  add("kind of weights", [&](Cell& cell) { cell.recipes[1] = recipe(RecipeKind::uniform, 0.0, 1.0); });
  add("range of weights", [&](Cell& cell) { cell.recipes[1] = recipe(RecipeKind::uniform, 0.0, 0.5); });
  add("cancelling", [](Cell& cell) { cell.standard.bi->inputs = BiInputs::own; });
  add("cancelling, longer", [](Cell& cell) {
    cell.standard.bi->inputs = BiInputs::own;
    cell.problem.axes["K"] = 65;
  });
  std::set<std::string> different;
  std::map<std::string, std::string> alone;
  for (const Cell& cell : cells) {
    alone[cell.id] = digest_cells({cell}, 1).at(cell.id)->at(0).digest;
    different.insert(alone[cell.id]);
  }
  EXPECT_EQ(different.size(), cells.size());
  for (int order = 0; order < 2; ++order) {
    const CellDigests together = digest_cells(cells, 1);
    for (const Cell& cell : cells) EXPECT_EQ(together.at(cell.id)->at(0).digest, alone[cell.id]) << cell.id;
    const RunResult run = run_cells(cells, RunOptions{});
    for (const CellResult& result : run.cells) EXPECT_EQ(result.digests.at(0).digest, alone[result.id]) << result.id;
    std::reverse(cells.begin(), cells.end());
  }
}

TEST(RunnerTest, FailFastStopsAfterTheFirstFailure) {
  RunOptions options;
  options.fail_fast = true;
  const RunResult result = run_cells({make_cell("fails"), make_cell("ascending")}, options);
  EXPECT_EQ(result.cells.size(), 1u);
  EXPECT_EQ(result.failed(), 1);
}

TEST(LayoutTest, RowsOverRanksAndWorldSizes) {
  LocalHost host(&kGatherMatmul);
  const Cell cell = make_cell("ascending", 4, 2);
  const auto layout = make_layout(host, cell.problem);
  ASSERT_TRUE(layout.has_value());
  EXPECT_EQ(layout->rows, 8);
  const auto places = layout->locations(host, 5);
  ASSERT_EQ(places.size(), 5u);  // x on its owner, y on every rank
  EXPECT_EQ(places[0].rank, 2);
  EXPECT_EQ(places[0].index, 1);
  EXPECT_EQ(places[4].rank, 3);
  EXPECT_EQ(places[4].index, 5);
  const auto two = with_world(host, cell.problem, 2);
  ASSERT_TRUE(two.has_value());
  EXPECT_EQ(two->axis("M"), 4);
  EXPECT_EQ(two->axis("K"), 64);
  EXPECT_FALSE(with_world(host, cell.problem, 3).has_value());
}

TEST(LayoutTest, BatchSizesCoverSmallOnesPowersAndThresholds) {
  bp_operator table = kGatherMatmul;
  const std::int64_t thresholds[] = {128, 100000};
  table.thresholds = thresholds;
  table.threshold_count = 2;
  Problem problem = make_cell("ascending", 2, 20).problem;
  const auto sizes = default_batch_sizes(table, problem, 20);
  for (const std::int64_t size : {1, 2, 16, 17, 31, 32, 33, 63, 64, 65})
    EXPECT_NE(std::find(sizes.begin(), sizes.end(), size), sizes.end()) << size;
  EXPECT_EQ(std::find(sizes.begin(), sizes.end(), 20), sizes.end());
  EXPECT_EQ(sizes.back(), 65);
}

}  // namespace
}  // namespace batchproof
