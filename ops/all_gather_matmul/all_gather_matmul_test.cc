// SPDX-License-Identifier: Apache-2.0
//
// all_gather_matmul through its table, all ranks at once, as any harness calls it.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "batchproof/operator.h"
#include "batchproof/registry.h"
#include "src/comm/thread_world.h"
#include "src/kernels/cpu/gemm.h"
#include "src/numeric/dtype.h"
#include "src/runtime/problem.h"

namespace batchproof {
namespace {

enum Port { kX1, kX2, kBias, kY, kGatherOut };
const char* const kInvariant = "cpu-fp32fma-chain256";

const bp_operator& table() {
  for (const bp_operator* candidate : registered_operators()) {
    if (std::string(candidate->name) == "all_gather_matmul") return *candidate;
  }
  ADD_FAILURE() << "all_gather_matmul is not registered";
  std::abort();
}

const bp_implementation& implementation(const std::string& id) {
  for (std::uint32_t i = 0; i < table().implementation_count; ++i) {
    if (id == table().implementations[i].id) return table().implementations[i];
  }
  ADD_FAILURE() << "no implementation " << id;
  std::abort();
}

using Bytes = std::vector<std::uint8_t>;

// One string of bytes per row.
struct Rows : std::vector<std::string> {
  using std::vector<std::string>::vector;
};
void PrintTo(const Rows& rows, std::ostream* out) { *out << rows.size() << " rows of bytes"; }

// A problem on W ranks. Logical row i, the weights and the bias depend on their own seeds only; weights are equal on
// all ranks unless asked otherwise.
struct Fixture {
  int world = 2;
  std::int64_t m = 4, k = 64, n = 16;
  bp_dtype dtype = BP_FP32;
  bp_dtype y_dtype = BP_FP32;
  bp_dtype bias_dtype = BP_NONE;
  bool transposed = false;
  bool gather_out = true;
  bool own_weights = false;
  std::int64_t pad = 0;
  int threads = 1;
  bp_mode mode = BP_MODE_INVARIANT;
  std::uint8_t stale = 0;  // what workspace and outputs hold before a call
  std::vector<Bytes> x1 = {}, x2 = {}, bias = {}, y = {}, gathered = {};

  Problem problem() const {
    Problem out;
    out.world = world;
    out.axes = {{"M", m}, {"K", k}, {"N", n}};
    out.attrs = {{"transpose_x2", transposed},   {"strict_limits", false},         {"gather_index", std::int64_t{0}},
                 {"comm_turn", std::int64_t{0}}, {"stream_mode", std::int64_t{1}}, {"block_size", std::int64_t{0}},
                 {"group_size", std::int64_t{0}}};
    out.dtypes = {dtype, dtype, bias_dtype, y_dtype, gather_out ? dtype : static_cast<bp_dtype>(BP_NONE)};
    out.dtypes.resize(table().port_count, BP_NONE);
    return out;
  }

  static void normal_line(Bytes& to, bp_dtype type, std::int64_t at, std::int64_t step, std::int64_t count,
                          unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal;
    for (std::int64_t i = 0; i < count; ++i) encode_element(type, normal(generator), to.data(), at + i * step);
  }

  void fill() {
    const auto ranks = static_cast<std::size_t>(world);
    x1.assign(ranks, Bytes(static_cast<std::size_t>(m * (k + pad)) * 4 + 8, 0xFF));
    x2.assign(ranks, Bytes(static_cast<std::size_t>(transposed ? n * (k + pad) : k * (n + pad)) * 4 + 8, 0xFF));
    bias.assign(ranks, Bytes(static_cast<std::size_t>(n) * 4 + 8, 0xFF));
    y.assign(ranks, Bytes(static_cast<std::size_t>(world * m * (n + pad)) * 8 + 8, 0));
    gathered.assign(ranks, Bytes(static_cast<std::size_t>(world * m * k) * 8 + 8, 0));
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (std::int64_t i = 0; i < m; ++i) {
        normal_line(x1[rank], dtype, i * (k + pad), 1, k,
                    1000u + static_cast<unsigned>(rank) * unsigned(m) + unsigned(i));
      }
      const unsigned own = own_weights ? 100000u * static_cast<unsigned>(rank) : 0u;
      for (std::int64_t i = 0; i < k; ++i) {
        normal_line(x2[rank], dtype, transposed ? i : i * (n + pad), transposed ? k + pad : 1, n,
                    9000u + own + static_cast<unsigned>(i));
      }
      if (bias_dtype != BP_NONE) normal_line(bias[rank], bias_dtype, 0, 1, n, 5u + own);
    }
  }

  static bp_tensor matrix(void* data, bp_dtype type, std::int64_t rows, std::int64_t columns, std::int64_t row,
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
  }

  std::vector<bp_tensor> tensors(std::size_t rank, bool reference) {
    std::vector<bp_tensor> out(table().port_count);
    out[kX1] = matrix(x1[rank].data(), dtype, m, k, k + pad, 1);
    out[kX2] = matrix(x2[rank].data(), dtype, k, n, transposed ? 1 : n + pad, transposed ? k + pad : 1);
    if (bias_dtype != BP_NONE) {
      out[kBias] = matrix(bias[rank].data(), bias_dtype, n, 1, 1, 1);
      out[kBias].ndim = 1;
    }
    out[kY] = matrix(y[rank].data(), reference ? BP_FP64 : y_dtype, world * m, n, n + pad, 1);
    if (gather_out) out[kGatherOut] = matrix(gathered[rank].data(), reference ? BP_FP64 : dtype, world * m, k, k, 1);
    return out;
  }

  // Calls every rank; the first error, or empty.
  std::string call(const std::string& id, bool reference = false) {
    const bp_implementation& chosen = implementation(id);
    const Problem described = problem();
    const Problem::View view(described);
    RankTeam team(world);
    for (Bytes& each : y) std::fill(each.begin(), each.end(), stale);
    for (Bytes& each : gathered) std::fill(each.begin(), each.end(), stale);
    const Result<void> done = team.run([&](int rank, const bp_comm& comm) -> Result<void> {
      char executed[128] = "";
      char error[256] = "";
      Bytes workspace(table().workspace_size(&chosen, view.get(), rank) + 64, stale);
      bp_context context = {};
      context.struct_size = sizeof(context);
      context.rank = rank;
      context.world = world;
      context.threads = threads;
      context.mode = mode;
      context.problem = view.get();
      context.implementation = &chosen;
      context.comm = &comm;
      context.workspace = workspace.data() + (64 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 64) % 64;
      context.workspace_bytes = workspace.size() - 64;
      context.executed = executed;
      context.executed_size = sizeof(executed);
      context.error = error;
      context.error_size = sizeof(error);
      const std::vector<bp_tensor> ports = tensors(static_cast<std::size_t>(rank), reference);
      const bp_status status =
          reference ? table().reference(&context, ports.data()) : table().run(&context, ports.data());
      if (status != BP_OK) return fail(Error::Kind::operation, error);
      if (!reference && id != executed) return fail(Error::Kind::internal, "executed " + std::string(executed));
      return {};
    });
    return done ? "" : done.error().message;
  }

  Rows rows_of(const Bytes& from, bp_dtype type, std::int64_t columns, std::int64_t stride) const {
    Rows rows;
    for (std::int64_t i = 0; i < world * m; ++i) {
      rows.emplace_back(reinterpret_cast<const char*>(from.data()) + dtype_bytes(type, i * stride),
                        dtype_bytes(type, columns));
    }
    return rows;
  }
  // y of a rank after a successful call.
  Rows run(const std::string& id, std::size_t rank = 0) {
    EXPECT_EQ(call(id), "");
    return rows(rank);
  }
  Rows rows(std::size_t rank) const { return rows_of(y[rank], y_dtype, n, n + pad); }
  Rows gathered_rows(std::size_t rank) const { return rows_of(gathered[rank], dtype, k, k); }

  // x1 of all ranks, one row after the other.
  Rows concatenation() const {
    Rows out;
    for (const Bytes& each : x1) {
      for (std::int64_t i = 0; i < m; ++i) {
        out.emplace_back(reinterpret_cast<const char*>(each.data()) + dtype_bytes(dtype, i * (k + pad)),
                         dtype_bytes(dtype, k));
      }
    }
    return out;
  }

  // The product of the concatenation on one rank, by the GEMM itself.
  Rows product(std::size_t rank) const {
    std::string all;
    for (const std::string& row : concatenation()) all += row;
    Bytes out(static_cast<std::size_t>(world * m * n) * 4 + 8);
    GemmCall gemm_call;
    gemm_call.m = world * m;
    gemm_call.n = n;
    gemm_call.k = k;
    gemm_call.a = {all.data(), dtype, k, 1};
    gemm_call.b = {x2[rank].data(), dtype, transposed ? 1 : n + pad, transposed ? k + pad : 1};
    if (bias_dtype != BP_NONE) gemm_call.bias = {bias[rank].data(), bias_dtype, 1};
    gemm_call.c = {out.data(), y_dtype, n};
    EXPECT_TRUE(gemm(gemm_call, *Schedule::make(k, ChainPolicy{256})));
    return rows_of(out, y_dtype, n, n);
  }
};

TEST(AllGatherMatmul, YIsTheProductOfTheConcatenationOnEveryRank) {
  unsigned turn = 0;
  for (const int world : {1, 2, 3, 4, 8}) {
    for (const bp_dtype dtype : {BP_FP32, BP_BF16, BP_FP16}) {
      for (const bool transposed : {false, true}) {
        ++turn;
        Fixture fixture{.world = world,
                        .m = 1 + turn % 5,
                        .k = 300,
                        .n = 21,
                        .dtype = dtype,
                        .y_dtype = turn % 3 == 0 ? BP_FP32 : dtype,
                        .bias_dtype = turn % 2 == 0 ? dtype : static_cast<bp_dtype>(BP_NONE),
                        .transposed = transposed,
                        .gather_out = turn % 4 != 0,
                        .own_weights = true,
                        .pad = turn % 2 == 0 ? 3 : 0,
                        .threads = 1 + static_cast<int>(turn % 3),
                        .stale = 0xFF};
        fixture.fill();
        ASSERT_EQ(fixture.call(kInvariant), "");
        for (std::size_t rank = 0; rank < static_cast<std::size_t>(world); ++rank) {
          ASSERT_EQ(fixture.rows(rank), fixture.product(rank)) << "rank " << rank << " of " << world;
          if (!fixture.gather_out) continue;
          ASSERT_TRUE(fixture.gathered_rows(rank) == fixture.concatenation()) << world;
        }
      }
    }
  }
}

TEST(AllGatherMatmul, EveryImplementationIsNearTheReference) {
  for (std::uint32_t i = 0; i < table().implementation_count; ++i) {
    const bp_implementation& chosen = table().implementations[i];
    for (const bp_dtype dtype : {BP_FP32, BP_BF16}) {
      Fixture fixture{.world = 3,
                      .m = 2,
                      .k = 520,
                      .n = 9,
                      .dtype = dtype,
                      .bias_dtype = BP_FP32,
                      .own_weights = true,
                      .mode = chosen.mode};
      fixture.fill();
      if ((chosen.flags & BP_IMPL_CUDA) != 0) {
        // These tensors lie in host memory: refused, and nothing is written.
        EXPECT_NE(fixture.call(chosen.id).find("CUDA"), std::string::npos) << chosen.id;
        EXPECT_EQ(fixture.y[0], Bytes(fixture.y[0].size(), fixture.stale)) << chosen.id;
        continue;
      }
      ASSERT_EQ(fixture.call(chosen.id), "");
      const std::vector<Bytes> computed = fixture.y;
      ASSERT_EQ(fixture.call(chosen.id, true), "");
      // FP32 sums of 520 products of order one; a batch scale rounds BF16 inputs once more.
      const double bound =
          std::string(chosen.id) == "control-g-batch-scale" && dtype == BP_BF16 ? 520 * 0x1p-8 : 520 * 0x1p-24 * 40;
      for (std::size_t rank = 0; rank < 3; ++rank) {
        for (std::int64_t at = 0; at < 6 * 9; ++at) {
          const double want = decode_element(BP_FP64, fixture.y[rank].data(), at);
          ASSERT_NEAR(decode_element(BP_FP32, computed[rank].data(), at), want, bound) << chosen.id;
        }
        for (std::int64_t at = 0; at < 2 * 520; ++at) {
          ASSERT_EQ(decode_element(BP_FP64, fixture.gathered[rank].data(), 2 * 520 + at),
                    decode_element(dtype, fixture.x1[1].data(), at));
        }
      }
    }
  }
}

TEST(AllGatherMatmul, InvariantRowsDependOnNeitherRanksNorBatchNorThreads) {
  // Eight logical rows on 1, 2, 4 and 8 ranks, and inside larger batches.
  Fixture whole{.world = 1, .m = 8, .k = 600, .n = 40};
  whole.fill();
  const Rows expected = whole.run(kInvariant);
  for (const int world : {2, 4, 8}) {
    for (const std::int64_t m : {8 / world, 16, 17}) {
      for (const int threads : {1, 4}) {
        Fixture fixture{.world = world, .m = m, .k = 600, .n = 40, .threads = threads};
        fixture.fill();
        ASSERT_EQ(fixture.call(kInvariant), "");
        for (std::size_t rank = 0; rank < static_cast<std::size_t>(world); ++rank) {
          const Rows rows = fixture.rows(rank);
          ASSERT_TRUE(Rows(rows.begin(), rows.begin() + 8) == expected) << "W = " << world << ", M = " << m;
        }
      }
    }
  }
}

TEST(AllGatherMatmul, EmptyShapes) {
  Fixture no_rows{.world = 2, .m = 0};
  no_rows.fill();
  EXPECT_EQ(no_rows.call(kInvariant), "");
  EXPECT_TRUE(no_rows.rows(1).empty());
  // No columns: only the gather.
  Fixture no_columns{.world = 3, .m = 2, .n = 0, .stale = 0xFF};
  no_columns.fill();
  EXPECT_EQ(no_columns.call(kInvariant), "");
  for (std::size_t rank = 0; rank < 3; ++rank)
    EXPECT_TRUE(no_columns.gathered_rows(rank) == no_columns.concatenation());
}

std::string validate(const Problem& problem) {
  char error[256] = "";
  const Problem::View view(problem);
  return table().validate(view.get(), error, sizeof(error)) == BP_OK ? "accepted" : error;
}

TEST(AllGatherMatmul, EveryConstraintHasItsSentence) {
  const auto with = [&](auto change) {
    Problem problem = Fixture{.world = 2, .k = 512}.problem();
    change(problem);
    return validate(problem);
  };
  EXPECT_EQ(with([](Problem&) {}), "accepted");
  EXPECT_EQ(with([](Problem& p) { p.world = 0; }), "W = 0 is out of range; it must be at least 1");
  EXPECT_EQ(with([](Problem& p) { p.axes["K"] = 0; }), "K = 0 is out of range; it must be 1 to 2147483647");
  EXPECT_EQ(with([](Problem& p) { p.axes["N"] = std::int64_t{1} << 40; }),
            "N = 1099511627776 is out of range; it must be 0 to 2147483647");
  EXPECT_EQ(with([](Problem& p) { p.axes.erase("M"); }), "M = -1 is out of range; it must be 0 to 2147483647");
  EXPECT_EQ(with([](Problem& p) { p.axes["M"] = 2000000000; }),
            "W * M = 4000000000 is out of range; it must be 0 to 2147483647");
  EXPECT_EQ(with([](Problem& p) { p.dtypes[kX1] = BP_E4M3; }),
            "x1 has the dtype e4m3 and no scales are there; give x1_scale and x2_scale");
  EXPECT_EQ(with([](Problem& p) { p.dtypes[kX2] = BP_FP16; }), "x2 has the dtype fp16; it must be that of x1, fp32");
  EXPECT_EQ(with([](Problem& p) { p.dtypes[kBias] = BP_FP16; }), "bias has the dtype fp16; it must be fp32");
  EXPECT_EQ(with([](Problem& p) { p.dtypes[kY] = BP_FP16; }), "y has the dtype fp16; it must be fp32");
  EXPECT_EQ(with([](Problem& p) { p.dtypes[kGatherOut] = BP_BF16; }),
            "gather_out has the dtype bf16; it must be that of x1, fp32");
  EXPECT_EQ(with([](Problem& p) { p.attrs["gather_index"] = std::int64_t{1}; }),
            "gather_index = 1 is not supported; it must be 0 (gather x1)");
  // What the strict limits forbid is free without them.
  EXPECT_EQ(with([](Problem& p) {
              p.world = 3;
              p.axes["K"] = 4;
              for (const char* name : {"comm_turn", "stream_mode", "block_size", "group_size"}) {
                p.attrs[name] = std::int64_t{7};
              }
            }),
            "accepted");
}

TEST(AllGatherMatmul, StrictLimitsHaveTheirSentences) {
  const auto with = [&](auto change) {
    Problem problem =
        Fixture{.world = 2, .k = 512, .dtype = BP_BF16, .y_dtype = BP_BF16, .bias_dtype = BP_BF16}.problem();
    problem.attrs["strict_limits"] = true;
    change(problem);
    return validate(problem);
  };
  EXPECT_EQ(with([](Problem&) {}), "accepted");
  EXPECT_EQ(with([](Problem& p) { p.axes["K"] = 256; }), "accepted");
  EXPECT_EQ(with([](Problem& p) { p.axes["K"] = 65534; }), "accepted");
  EXPECT_EQ(with([](Problem& p) { p.axes["K"] = 128; }),
            "K = 128 is outside the strict limits; it must be 256 to 65534");
  EXPECT_EQ(with([](Problem& p) { p.axes["K"] = 65535; }),
            "K = 65535 is outside the strict limits; it must be 256 to 65534");
  EXPECT_EQ(with([](Problem& p) { p.world = 3; }),
            "W = 3 is outside the strict limits; it must be 2, 4, 8, 16, 32 or 64");
  EXPECT_EQ(with([](Problem& p) { std::fill_n(p.dtypes.begin(), 5, bp_dtype{BP_FP32}); }),
            "x1 has the dtype fp32; under strict_limits it must be bf16 or fp16");
  EXPECT_EQ(with([](Problem& p) { p.dtypes[kBias] = BP_FP32; }),
            "bias has the dtype fp32; under strict_limits it must be that of x1, bf16");
  EXPECT_EQ(with([](Problem& p) { p.dtypes[kY] = BP_FP32; }),
            "y has the dtype fp32; under strict_limits it must be that of x1, bf16");
  EXPECT_EQ(with([](Problem& p) { p.attrs["comm_turn"] = std::int64_t{2}; }),
            "comm_turn = 2; under strict_limits it must be 0");
  EXPECT_EQ(with([](Problem& p) { p.attrs["stream_mode"] = std::int64_t{0}; }),
            "stream_mode = 0; under strict_limits it must be 1");
  EXPECT_EQ(with([](Problem& p) { p.attrs["block_size"] = std::int64_t{1}; }),
            "block_size = 1; under strict_limits it must be 0");
  EXPECT_EQ(with([](Problem& p) { p.attrs["group_size"] = std::int64_t{4295032864}; }),
            "group_size = 4295032864; under strict_limits it must be 0 where scales have no blocks");
}

// The dtypes of a mode of the table.
std::vector<bp_dtype> mode_dtypes(const std::string& name) {
  for (std::uint32_t m = 0; m < table().dtype_mode_count; ++m) {
    const bp_dtype_mode& mode = table().dtype_modes[m];
    if (name == mode.name) return {mode.dtypes, mode.dtypes + table().port_count};
  }
  ADD_FAILURE() << "no dtype mode " << name;
  return {};
}

TEST(AllGatherMatmul, ScalesHaveTheirSentences) {
  const auto with = [&](const std::string& mode, bool strict, auto change) {
    Problem problem = Fixture{.world = 2, .m = 128, .k = 512}.problem();
    problem.dtypes = mode_dtypes(mode);
    problem.attrs["strict_limits"] = strict;
    problem.attrs["transpose_x2"] = true;
    change(problem);
    return validate(problem);
  };
  const auto nothing = [](Problem&) {};
  for (const char* mode : {"mxfp8", "mxfp8_e5m2", "mxfp8_e4m3_e5m2", "mxfp8_e5m2_e4m3", "fp8", "fp8_e5m2", "fp8_block"})
    EXPECT_EQ(with(mode, true, nothing), "accepted") << mode;
  EXPECT_EQ(with("int8", false, nothing), "accepted");
  EXPECT_EQ(with("int8", true, nothing), "int8 takes no bias under strict_limits; leave bias out");
  EXPECT_EQ(with("int8", true,
                 [](Problem& p) {
                   p.dtypes[kBias] = BP_NONE;
                   p.dtypes[kY] = BP_FP32;
                 }),
            "y has the dtype fp32; under strict_limits int8 gives fp16 or bf16");
  EXPECT_EQ(with("mxfp8", true, [](Problem& p) { p.attrs["transpose_x2"] = false; }),
            "MX scaling under strict_limits takes x2 transposed; set transpose_x2");
  EXPECT_EQ(with("mxfp8", false, [](Problem& p) { p.dtypes[kBias] = BP_BF16; }),
            "bias has the dtype bf16; MX scaling takes fp32");
  EXPECT_EQ(with("fp8_block", false, [](Problem& p) { p.axes["M"] = 64; }),
            "M = 64 must be a multiple of 128: a scale block may not cross ranks");
  EXPECT_EQ(with("fp8_block", false, [](Problem& p) { p.dtypes[kBias] = BP_FP32; }),
            "per-block scaling takes no bias; leave bias out");
  // Packed block sizes; a zero field follows from the shapes.
  for (const std::int64_t group : {std::int64_t{0}, std::int64_t{4295032864}, std::int64_t{32}, std::int64_t{65568}})
    EXPECT_EQ(with("mxfp8", true, [&](Problem& p) { p.attrs["group_size"] = group; }), "accepted") << group;
  EXPECT_EQ(with("mxfp8", false, [](Problem& p) { p.attrs["group_size"] = std::int64_t{549764202624}; }),
            "group_size = 549764202624 does not suit these scales; it must be 0 or 4295032864");
  EXPECT_EQ(with("fp8_block", false, [](Problem& p) { p.attrs["group_size"] = std::int64_t{549764202624}; }),
            "accepted");
}

TEST(AllGatherMatmul, InvariantModeRefusesTheFastImplementation) {
  Fixture fixture{.world = 2};
  fixture.fill();
  EXPECT_NE(fixture.call("cpu-fast").find("cpu-fast is not batch invariant and is refused"), std::string::npos);
  const bp_device cpu = {sizeof(bp_device), BP_MEMORY_HOST, 0, 0, "cpu"};
  const Problem problem = fixture.problem();
  const Problem::View view(problem);
  const std::uint32_t fast = table().promises(&implementation("cpu-fast"), view.get(), &cpu);
  EXPECT_EQ(fast & (BP_CROSS_RANK | BP_POSITION | BP_BATCH_SIZE | BP_WORLD_SIZE), 0u);
  EXPECT_NE(fast & BP_NEIGHBOURS, 0u);
}

TEST(AllGatherMatmul, FastModeDependsOnTheOwner) {
  // 4 own rows take one segment, 28 gathered rows take segments of 512.
  Fixture fixture{.world = 8, .m = 4, .k = 1100, .n = 32, .mode = BP_MODE_FAST};
  fixture.fill();
  const Rows on_owner = fixture.run("cpu-fast", 0);
  const Rows elsewhere = fixture.rows(1);
  EXPECT_NE(on_owner[0], elsewhere[0]);
  EXPECT_EQ(on_owner[31], fixture.rows(2)[31]);
}

TEST(AllGatherMatmul, WitnessesExist) {
  for (std::uint32_t i = 0; i < table().implementation_count; ++i) {
    const bp_implementation& each = table().implementations[i];
    if (each.order_witness == nullptr) continue;
    EXPECT_NE(implementation(each.order_witness).flags & BP_IMPL_WITNESS, 0u) << each.id;
  }
}

// ---- controls: each differs where its defect says, and only there ----

TEST(AllGatherMatmulControls, TwoPathDefectsShowOnAnotherRankOnly) {
  struct Defect {
    const char* id;
    std::int64_t alive, dead;
  };
  // Chunks of 128 and 256 agree while K is one chunk of either; two chunks in either order agree.
  for (const Defect& defect : {Defect{"control-a-chunk-pair", 512, 128}, Defect{"control-b-other-order", 384, 256}}) {
    for (const int world : {2, 4}) {
      Fixture fixture{.world = world, .m = 4, .k = defect.alive, .n = 64};
      fixture.fill();
      const Rows first = fixture.run(defect.id, 0);
      const Rows second = fixture.rows(1);
      for (std::size_t i = 0; i < first.size(); ++i) {
        const bool local_somewhere = i / 4 <= 1;
        EXPECT_EQ(first[i] != second[i], local_somewhere) << defect.id << " row " << i;
      }
      // At equal shape and position nothing moves, whatever the neighbours are.
      Fixture changed = fixture;
      Fixture::normal_line(changed.x1[1], BP_FP32, 0, 1, defect.alive, 77);
      const Rows again = changed.run(defect.id, 0);
      EXPECT_EQ(again[0], first[0]);
      EXPECT_EQ(again[5], first[5]);
      EXPECT_NE(again[4], first[4]);

      Fixture blind{.world = world, .m = 4, .k = defect.dead, .n = 64};
      blind.fill();
      const Rows on_owner = blind.run(defect.id, 0);
      EXPECT_EQ(blind.rows(1), on_owner) << defect.id;
    }
  }
}

TEST(AllGatherMatmulControls, ChunkFollowsRows) {
  const auto first_row = [](int world, std::int64_t m, std::int64_t k) {
    Fixture fixture{.world = world, .m = m, .k = k, .n = 256};
    fixture.fill();
    return fixture.run("control-d-chunk-follows-rows")[0];
  };
  EXPECT_EQ(first_row(2, 16, 2048), first_row(2, 1, 2048));
  EXPECT_NE(first_row(2, 17, 2048), first_row(2, 16, 2048));
  EXPECT_EQ(first_row(4, 8, 2048), first_row(2, 16, 2048));  // it sees all rows, however they are divided
  EXPECT_EQ(first_row(2, 17, 256), first_row(2, 16, 256));
}

TEST(AllGatherMatmulControls, BatchScaleSeesEveryRow) {
  Fixture fixture{.world = 2, .m = 4, .k = 256, .n = 32};
  fixture.fill();
  const Rows clean = fixture.run("control-g-batch-scale", 0);
  EXPECT_EQ(fixture.rows(1), clean);
  Fixture louder = fixture;
  encode_element(BP_FP32, 1e4, louder.x1[1].data(), 3 * 256 + 17);  // the last row, on the other rank
  EXPECT_NE(louder.run("control-g-batch-scale", 0)[0], clean[0]);
  Fixture quieter = fixture;
  encode_element(BP_FP32, 1e-3, quieter.x1[1].data(), 3 * 256 + 17);
  EXPECT_EQ(quieter.run("control-g-batch-scale", 0)[0], clean[0]);  // the largest magnitude stays
}

TEST(AllGatherMatmulControls, SharedDefects) {
  const auto fixture = [] {
    Fixture out{.world = 2, .m = 3, .k = 512, .n = 32};
    out.fill();
    return out;
  };
  const Rows invariant = fixture().run(kInvariant);
  {
    Fixture one = fixture();
    Fixture two = fixture();
    two.threads = 2;
    const Rows once = one.run("control-thread-split");
    EXPECT_EQ(one.run("control-thread-split"), once);
    EXPECT_NE(two.run("control-thread-split"), once);
  }
  {
    Fixture leaky = fixture();
    EXPECT_EQ(leaky.run("control-zero-nan-leak"), invariant);
    encode_element(BP_FP32, INFINITY, leaky.x1[1].data(), 0);  // first row of rank 1 is row 3
    const Rows poisoned = leaky.run("control-zero-nan-leak");
    EXPECT_NE(poisoned[2], invariant[2]);
    EXPECT_EQ(poisoned[1], invariant[1]);
  }
  {
    Fixture leaky = fixture();
    EXPECT_EQ(leaky.run("control-stale-workspace-leak"), invariant);
    leaky.stale = 0xFF;
    EXPECT_NE(leaky.run("control-stale-workspace-leak"), invariant);
    EXPECT_EQ(leaky.run(kInvariant), invariant);
  }
  {
    Fixture memo = fixture();
    EXPECT_EQ(memo.run("control-stale-memo"), invariant);
    memo.mode = BP_MODE_FAST;
    memo.run("control-stale-memo");
    memo.mode = BP_MODE_INVARIANT;
    EXPECT_NE(memo.run("control-stale-memo"), invariant);
    EXPECT_EQ(memo.run("control-stale-memo"), invariant);
  }
  {
    Fixture race = fixture();
    const Rows first = race.run("control-arrival-order");
    EXPECT_NE(race.run("control-arrival-order"), first);
  }
}

}  // namespace
}  // namespace batchproof
