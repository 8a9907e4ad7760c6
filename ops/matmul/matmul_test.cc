// SPDX-License-Identifier: Apache-2.0
//
// matmul through its table, as any harness calls it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "batchproof/operator.h"
#include "batchproof/registry.h"
#include "src/comm/thread_world.h"
#include "src/kernels/cpu/gemm.h"
#include "src/kernels/cpu/linear_controls.h"
#include "src/numeric/dtype.h"
#include "src/runtime/problem.h"

namespace batchproof {
namespace {

enum Port { kX1, kX2, kBias, kY };

const bp_operator& table() {
  for (const bp_operator* candidate : registered_operators()) {
    if (std::string(candidate->name) == "matmul") return *candidate;
  }
  ADD_FAILURE() << "matmul is not registered";
  std::abort();
}

const bp_implementation& implementation(const std::string& id) {
  for (std::uint32_t i = 0; i < table().implementation_count; ++i) {
    if (id == table().implementations[i].id) return table().implementations[i];
  }
  ADD_FAILURE() << "no implementation " << id;
  std::abort();
}

// One string of bytes per row.
struct Rows : std::vector<std::string> {
  using std::vector<std::string>::vector;
};
void PrintTo(const Rows& rows, std::ostream* out) { *out << rows.size() << " rows of bytes"; }

struct Outcome {
  bp_status status = BP_OK;
  std::string error;
  std::string executed;
};

// One problem with its memory. Weights and row i depend on their own seeds only.
struct Fixture {
  std::int64_t m, k, n;
  bp_dtype dtype = BP_FP32;
  bp_dtype y_dtype = BP_FP32;
  bp_dtype bias_dtype = BP_NONE;
  bool transposed = false;
  std::int64_t pad = 0;
  int threads = 1;
  bp_mode mode = BP_MODE_INVARIANT;
  std::vector<float> workspace = {};
  std::vector<std::uint8_t> x1 = {}, x2 = {}, bias = {}, y = {};

  Problem problem() const {
    Problem out;
    out.axes = {{"M", m}, {"K", k}, {"N", n}};
    out.attrs = {{"transpose_x2", transposed}};
    out.dtypes = {dtype, dtype, bias_dtype, y_dtype};
    out.dtypes.resize(table().port_count, BP_NONE);
    return out;
  }

  void fill() {
    const auto line = [&](std::vector<std::uint8_t>& to, bp_dtype type, std::int64_t at, std::int64_t step,
                          std::int64_t count, unsigned seed) {
      std::mt19937 generator(seed);
      std::normal_distribution<double> normal;
      for (std::int64_t i = 0; i < count; ++i) encode_element(type, normal(generator), to.data(), at + i * step);
    };
    x1.assign(static_cast<std::size_t>(m * (k + pad)) * 4, 0xFF);
    x2.assign(static_cast<std::size_t>((transposed ? n * (k + pad) : k * (n + pad))) * 4, 0xFF);
    bias.assign(static_cast<std::size_t>(n) * 4, 0xFF);
    y.assign(static_cast<std::size_t>(m * (n + pad)) * 4, 0xFF);
    workspace.assign(static_cast<std::size_t>(n), 0.0f);
    for (std::int64_t i = 0; i < m; ++i) line(x1, dtype, i * (k + pad), 1, k, 1000u + static_cast<unsigned>(i));
    for (std::int64_t i = 0; i < k; ++i) {
      line(x2, dtype, transposed ? i : i * (n + pad), transposed ? k + pad : 1, n, 9000u + static_cast<unsigned>(i));
    }
    if (bias_dtype != BP_NONE) line(bias, bias_dtype, 0, 1, n, 5);
  }

  std::vector<bp_tensor> tensors(void* output, bp_dtype output_dtype) {
    const auto matrix = [](void* data, bp_dtype type, std::int64_t rows, std::int64_t columns, std::int64_t row,
                           std::int64_t column) {
      bp_tensor tensor = {};
      tensor.data = data;
      tensor.dtype = type;
      tensor.ndim = 2;
      tensor.shape[0] = rows;
      tensor.shape[1] = columns;
      tensor.stride[0] = row;
      tensor.stride[1] = column;
      return tensor;
    };
    std::vector<bp_tensor> out;
    out.push_back(matrix(x1.data(), dtype, m, k, k + pad, 1));
    out.push_back(matrix(x2.data(), dtype, k, n, transposed ? 1 : n + pad, transposed ? k + pad : 1));
    out.push_back({});
    if (bias_dtype != BP_NONE) {
      out.back() = matrix(bias.data(), bias_dtype, n, 1, 1, 1);
      out.back().ndim = 1;
    }
    out.push_back(matrix(output, output_dtype, m, n, n + pad, 1));
    out.resize(table().port_count);
    return out;
  }

  Outcome call(const bp_implementation& chosen, bool want_reference, void* output, bp_dtype output_dtype) {
    const Problem described = problem();
    const Problem::View view(described);
    const ThreadWorld world(1);
    char executed[128] = "";
    char error[256] = "";
    bp_context context = {};
    context.struct_size = sizeof(context);
    context.world = 1;
    context.threads = threads;
    context.mode = mode;
    context.problem = view.get();
    context.implementation = &chosen;
    context.comm = world.comm(0);
    context.workspace = workspace.data();
    context.workspace_bytes = workspace.size() * sizeof(float);
    context.executed = executed;
    context.executed_size = sizeof(executed);
    context.error = error;
    context.error_size = sizeof(error);
    const std::vector<bp_tensor> ports = tensors(output, output_dtype);
    Outcome outcome;
    outcome.status = want_reference ? table().reference(&context, ports.data()) : table().run(&context, ports.data());
    outcome.error = error;
    outcome.executed = executed;
    return outcome;
  }

  // y, without padding, row by row.
  Rows run(const std::string& id) {
    const Outcome outcome = call(implementation(id), false, y.data(), y_dtype);
    EXPECT_EQ(outcome.status, BP_OK) << outcome.error;
    EXPECT_EQ(outcome.executed, id);
    Rows rows;
    for (std::int64_t i = 0; i < m; ++i) {
      const char* at = reinterpret_cast<const char*>(y.data()) + dtype_bytes(y_dtype, i * (n + pad));
      rows.emplace_back(at, dtype_bytes(y_dtype, n));
    }
    return rows;
  }

  double element(std::int64_t i, std::int64_t j) const { return decode_element(y_dtype, y.data(), i * (n + pad) + j); }
};

std::string validate(const Problem& problem) {
  char error[256] = "";
  const Problem::View view(problem);
  return table().validate(view.get(), error, sizeof(error)) == BP_OK ? "accepted" : error;
}

TEST(Matmul, EveryImplementationIsNearTheReference) {
  for (std::uint32_t i = 0; i < table().implementation_count; ++i) {
    const bp_implementation& chosen = table().implementations[i];
    if ((chosen.flags & BP_IMPL_CUDA) != 0) continue;  // the device program of tests/gpu compares those
    for (const bp_dtype dtype : {BP_FP32, BP_BF16, BP_FP16}) {
      for (const bool transposed : {false, true}) {
        Fixture fixture{.m = 5,
                        .k = 320,
                        .n = 33,
                        .dtype = dtype,
                        .y_dtype = transposed ? dtype : BP_FP32,
                        .bias_dtype = dtype,
                        .transposed = transposed,
                        .pad = 3,
                        .mode = chosen.mode};
        fixture.fill();
        fixture.run(chosen.id);
        std::vector<double> exact(static_cast<std::size_t>(5 * 36));
        ASSERT_EQ(fixture.call(chosen, true, exact.data(), BP_FP64).status, BP_OK);
        // One rounding of y, and rounding of a sum of 320 products of order one; G-like scaling is not used here.
        const double unit = fixture.y_dtype == BP_BF16 ? 0x1p-8 : fixture.y_dtype == BP_FP16 ? 0x1p-11 : 0x1p-24;
        for (std::int64_t r = 0; r < 5; ++r) {
          for (std::int64_t j = 0; j < 33; ++j) {
            const double want = exact[static_cast<std::size_t>(r * 36 + j)];
            ASSERT_NEAR(fixture.element(r, j), want, unit * std::fabs(want) + 320 * 0x1p-24 * 40) << chosen.id;
          }
        }
        // The reference is a sum in FP64 of the stored inputs: check one element by hand.
        double by_hand = decode_element(dtype, fixture.bias.data(), 7);
        for (std::int64_t s = 0; s < 320; ++s) {
          by_hand += decode_element(dtype, fixture.x1.data(), 2 * 323 + s) *
                     decode_element(dtype, fixture.x2.data(), transposed ? 7 * 323 + s : s * 36 + 7);
        }
        ASSERT_NEAR(exact[2 * 36 + 7], by_hand, 1e-12 * 320);
      }
    }
  }
}

TEST(Matmul, InvariantRowsDoNotDependOnTheBatch) {
  for (const std::string id : {"cpu-fp32fma-chain256", "cpu-fp32fma-tree16-chain256"}) {
    for (const bool transposed : {false, true}) {
      Fixture large{.m = 140, .k = 528, .n = 40, .transposed = transposed};
      large.fill();
      const Rows all = large.run(id);
      for (const std::int64_t m : {1, 2, 11, 12, 13, 14, 31, 128, 129}) {
        for (const int threads : {1, 3}) {
          Fixture small{.m = m, .k = 528, .n = 40, .transposed = transposed, .threads = threads};
          small.fill();
          const Rows rows = small.run(id);
          for (std::size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(rows[i], all[i]) << id << " row " << i << " of " << m;
        }
      }
    }
  }
}

TEST(Matmul, IdsNameTheSchedule) {
  const std::string chain = "cpu-fp32fma-" + Schedule::make(512, ChainPolicy{kGemmSegment})->name();
  const std::string tree = "cpu-fp32fma-" + Schedule::make(512, TreePolicy{16, 1, kGemmSegment})->name();
  Fixture fixture{.m = 3, .k = 1040, .n = 50};
  fixture.fill();
  const Rows chained = fixture.run(chain);
  const Rows treed = fixture.run(tree);
  EXPECT_NE(chained, treed);
  // And the bytes are those of that schedule.
  GemmCall call;
  call.m = 3, call.n = 50, call.k = 1040;
  std::vector<float> c(150);
  call.a = {fixture.x1.data(), BP_FP32, 1040, 1};
  call.b = {fixture.x2.data(), BP_FP32, 50, 1};
  call.c = {c.data(), BP_FP32, 50};
  ASSERT_TRUE(gemm(call, *Schedule::make(1040, TreePolicy{16, 1, kGemmSegment})));
  EXPECT_EQ(std::memcmp(c.data(), treed[0].data(), 200), 0);
  ASSERT_TRUE(gemm(call, *Schedule::make(1040, ChainPolicy{kGemmSegment})));
  EXPECT_EQ(std::memcmp(c.data(), chained[0].data(), 200), 0);
}

TEST(Matmul, TheFirstImplementationOfAModeIsInvariantAndWitnessesExist) {
  EXPECT_EQ(table().implementations[0].mode, BP_MODE_INVARIANT);
  EXPECT_EQ(table().implementations[0].defect, nullptr);
  std::set<std::string> ids;
  for (std::uint32_t i = 0; i < table().implementation_count; ++i) {
    const bp_implementation& each = table().implementations[i];
    EXPECT_TRUE(ids.insert(each.id).second) << each.id;
    if (each.order_witness == nullptr) continue;
    EXPECT_TRUE((implementation(each.order_witness).flags & BP_IMPL_WITNESS) != 0) << each.id;
  }
}

TEST(Matmul, TheWitnessMovesBytes) {
  for (const std::int64_t k : {4, 256, 512}) {
    Fixture fixture{.m = 4, .k = k, .n = 64};
    fixture.fill();
    const auto rows = fixture.run("cpu-fp32fma-chain256");
    const auto other = fixture.run("cpu-fp32fma-chain2");
    for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_NE(rows[i], other[i]) << "K = " << k;
  }
}

TEST(Matmul, EmptyShapes) {
  Fixture no_rows{.m = 0, .k = 8, .n = 4};
  no_rows.fill();
  EXPECT_TRUE(no_rows.run("cpu-fp32fma-chain256").empty());
  Fixture no_columns{.m = 2, .k = 8, .n = 0};
  no_columns.fill();
  EXPECT_EQ(no_columns.run("cpu-fp32fma-chain256").size(), 2u);
  Fixture no_sum{.m = 2, .k = 0, .n = 4, .bias_dtype = BP_FP32};
  no_sum.fill();
  no_sum.run("cpu-fp32fma-chain256");
  for (int j = 0; j < 4; ++j) EXPECT_EQ(no_sum.element(1, j), decode_element(BP_FP32, no_sum.bias.data(), j));
}

TEST(Matmul, EveryConstraintHasItsSentence) {
  const Fixture fixture{.m = 2, .k = 8, .n = 4};
  const auto with = [&](auto change) {
    Problem problem = fixture.problem();
    change(problem);
    return validate(problem);
  };
  EXPECT_EQ(with([](Problem&) {}), "accepted");
  EXPECT_EQ(with([](Problem& p) { p.world = 2; }), "matmul runs on one rank, not on 2");
  EXPECT_EQ(with([](Problem& p) { p.axes.erase("K"); }), "K = -1 is out of range; it must be 0 to 2147483647");
  EXPECT_EQ(with([](Problem& p) { p.axes["M"] = std::int64_t{1} << 31; }),
            "M = 2147483648 is out of range; it must be 0 to 2147483647");
  EXPECT_EQ(with([](Problem& p) { p.axes["N"] = -5; }), "N = -5 is out of range; it must be 0 to 2147483647");
  EXPECT_EQ(with([](Problem& p) { p.dtypes[kX1] = BP_FP64; }), "x1 has the dtype fp64; it must be fp32, bf16 or fp16");
  EXPECT_EQ(with([](Problem& p) { p.dtypes[kX1] = BP_INT8; }),
            "x1 has the dtype int8 and no scales are there; give x1_scale and x2_scale");
  EXPECT_EQ(with([](Problem& p) {
              p.dtypes = {BP_INT8, BP_INT8, BP_NONE, BP_FP16, BP_NONE, BP_FP32,
                          BP_NONE, BP_NONE, BP_NONE, BP_FP32, BP_NONE, BP_NONE};
              p.axes["K"] = 131072;
            }),
            "K = 131072 is out of range; an INT32 accumulator holds 131071");
  EXPECT_EQ(with([](Problem& p) { p.dtypes[kX2] = BP_BF16; }), "x2 has the dtype bf16; it must be that of x1, fp32");
  EXPECT_EQ(with([](Problem& p) { p.dtypes[kBias] = BP_BF16; }), "bias has the dtype bf16; it must be fp32");
  EXPECT_EQ(with([](Problem& p) {
              p.dtypes[kX1] = p.dtypes[kX2] = BP_FP16, p.dtypes[kBias] = BP_NONE, p.dtypes[kY] = BP_BF16;
            }),
            "y has the dtype bf16; it must be fp16 or fp32");
  EXPECT_EQ(with([](Problem& p) { p.dtypes = {BP_BF16, BP_BF16, BP_FP32, BP_FP32}; }), "accepted");
}

TEST(Matmul, InvariantModeRefusesTheFastImplementation) {
  Fixture fixture{.m = 2, .k = 8, .n = 4};
  fixture.fill();
  const Outcome outcome = fixture.call(implementation("cpu-fast"), false, fixture.y.data(), BP_FP32);
  EXPECT_EQ(outcome.status, BP_REFUSED);
  EXPECT_EQ(
      outcome.error,
      "cpu-fast is not batch invariant and is refused in invariant mode; choose an invariant implementation or mode "
      "fast");
  EXPECT_EQ(outcome.executed, "");
  EXPECT_EQ(fixture.y[0], 0xFF);
}

TEST(Matmul, TreesNeedWholeSlices) {
  Fixture fixture{.m = 2, .k = 40, .n = 4};
  fixture.fill();
  const bp_implementation& tree = implementation("cpu-fp32fma-tree16-chain256");
  const Outcome outcome = fixture.call(tree, false, fixture.y.data(), BP_FP32);
  EXPECT_EQ(outcome.status, BP_INVALID);
  EXPECT_NE(outcome.error.find("40"), std::string::npos) << outcome.error;
  const bp_device cpu = {sizeof(bp_device), BP_MEMORY_HOST, 0, 0, "cpu"};
  const Problem problem = fixture.problem();
  const Problem::View view(problem);
  EXPECT_EQ(table().promises(&tree, view.get(), &cpu), 0u);
  EXPECT_NE(table().promises(&table().implementations[0], view.get(), &cpu) & BP_BATCH_SIZE, 0u);
  EXPECT_EQ(table().promises(&implementation("cpu-fast"), view.get(), &cpu) & BP_BATCH_SIZE, 0u);
}

// ---- controls: each differs where its defect says, and only there ----

TEST(MatmulControls, ChunkFollowsRows) {
  // The table of the tiling that it stands for: first M at which the block shrinks.
  EXPECT_EQ(chunk_of_rows(128, 64), 2048);
  EXPECT_EQ(chunk_of_rows(129, 64), 1024);
  EXPECT_EQ(chunk_of_rows(256, 128), 1024);
  EXPECT_EQ(chunk_of_rows(257, 128), 512);
  EXPECT_EQ(chunk_of_rows(257, 512), 256);
  EXPECT_EQ(chunk_of_rows(512, 512), 256);
  EXPECT_EQ(chunk_of_rows(100000, 4096), 128);
  const auto first_row = [](std::int64_t m, std::int64_t k) {
    Fixture fixture{.m = m, .k = k, .n = 256};
    fixture.fill();
    return fixture.run("control-d-chunk-follows-rows")[0];
  };
  EXPECT_EQ(first_row(32, 2048), first_row(1, 2048));
  EXPECT_NE(first_row(33, 2048), first_row(32, 2048));
  EXPECT_EQ(first_row(33, 1024), first_row(32, 1024));
}

TEST(MatmulControls, ThreadSplit) {
  const auto rows = [](int threads) {
    Fixture fixture{.m = 3, .k = 512, .n = 64, .threads = threads};
    fixture.fill();
    return fixture.run("control-thread-split");
  };
  EXPECT_EQ(rows(1), rows(1));
  EXPECT_NE(rows(1), rows(2));
  EXPECT_NE(rows(2), rows(4));
}

TEST(MatmulControls, StaleMemo) {
  const auto rows = [](std::int64_t m, bp_mode mode) {
    Fixture fixture{.m = m, .k = 512, .n = 64, .mode = mode};
    fixture.fill();
    return fixture.run("control-stale-memo");
  };
  const auto clean = rows(7, BP_MODE_INVARIANT);
  EXPECT_EQ(rows(7, BP_MODE_INVARIANT), clean);
  rows(8, BP_MODE_FAST);
  EXPECT_EQ(rows(7, BP_MODE_INVARIANT), clean);  // another shape's plan
  EXPECT_NE(rows(8, BP_MODE_INVARIANT)[0], clean[0]);
  EXPECT_EQ(rows(8, BP_MODE_INVARIANT)[0], clean[0]);  // tuned anew
}

TEST(MatmulControls, ZeroNanLeak) {
  Fixture fixture{.m = 4, .k = 64, .n = 8};
  fixture.fill();
  const auto clean = fixture.run("control-zero-nan-leak");
  EXPECT_EQ(clean, fixture.run("cpu-fp32fma-chain256"));
  for (int s = 0; s < 64; ++s) encode_element(BP_FP32, 1e4, fixture.x1.data(), 3 * 64 + s);
  EXPECT_EQ(fixture.run("control-zero-nan-leak")[2], clean[2]);
  for (int s = 0; s < 64; ++s) encode_element(BP_FP32, std::nan(""), fixture.x1.data(), 3 * 64 + s);
  const auto poisoned = fixture.run("control-zero-nan-leak");
  EXPECT_NE(poisoned[2], clean[2]);
  EXPECT_EQ(poisoned[1], clean[1]);
}

TEST(MatmulControls, StaleWorkspaceLeak) {
  Fixture fixture{.m = 4, .k = 64, .n = 8};
  const Problem problem = fixture.problem();
  const Problem::View view(problem);
  EXPECT_EQ(table().workspace_size(&implementation("control-stale-workspace-leak"), view.get(), 0), 8 * sizeof(float));
  EXPECT_EQ(table().workspace_size(&implementation("cpu-fp32fma-chain256"), view.get(), 0), 0u);
  fixture.fill();
  const auto clean = fixture.run("control-stale-workspace-leak");
  EXPECT_EQ(clean, fixture.run("cpu-fp32fma-chain256"));
  std::memset(fixture.workspace.data(), 0xFF, 8 * sizeof(float));
  EXPECT_NE(fixture.run("control-stale-workspace-leak"), clean);
}

TEST(MatmulControls, ArrivalOrder) {
  Fixture fixture{.m = 4, .k = 512, .n = 64};
  fixture.fill();
  const auto first = fixture.run("control-arrival-order");
  EXPECT_NE(fixture.run("control-arrival-order"), first);
}

}  // namespace
}  // namespace batchproof
