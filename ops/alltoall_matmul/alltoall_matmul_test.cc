// SPDX-License-Identifier: Apache-2.0
//
// Which rows and columns meet, dynamic scales, the reference, every constraint. Invariance: the suites.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "batchproof/operator.h"
#include "batchproof/registry.h"
#include "src/comm/thread_world.h"
#include "src/numeric/bf16.h"
#include "src/runtime/problem.h"

namespace batchproof {
namespace {

const bp_operator& table() {
  for (const bp_operator* op : registered_operators()) {
    if (std::string(op->name) == "alltoall_matmul") return *op;
  }
  std::abort();
}

std::uint32_t port(const std::string& name) {
  for (std::uint32_t i = 0; i < table().port_count; ++i) {
    if (name == table().ports[i].name) return i;
  }
  std::abort();
}

std::vector<bp_dtype> mode_dtypes(const std::string& name) {
  for (std::uint32_t m = 0; m < table().dtype_mode_count; ++m) {
    if (name == table().dtype_modes[m].name)
      return {table().dtype_modes[m].dtypes, table().dtype_modes[m].dtypes + table().port_count};
  }
  std::abort();
}

Problem problem(const std::string& mode, int world, std::int64_t m, std::int64_t k, std::int64_t n) {
  Problem out;
  out.world = world;
  out.axes = {{"M", m}, {"K", k}, {"N", n}};
  for (std::uint32_t i = 0; i < table().attr_count; ++i)
    out.attrs[table().attrs[i].name] = std::string(table().attrs[i].default_value) == "true";
  out.dtypes = mode_dtypes(mode);
  return out;
}

std::string validate(const Problem& described) {
  char error[256] = "";
  const Problem::View view(described);
  return table().validate(view.get(), error, sizeof(error)) == BP_OK ? "accepted" : error;
}

template <class T>
bp_tensor matrix(std::vector<T>& data, bp_dtype dtype, std::int64_t rows, std::int64_t columns) {
  bp_tensor tensor = {};
  tensor.data = data.data();
  tensor.dtype = dtype;
  tensor.ndim = 2;
  tensor.shape[0] = rows;
  tensor.shape[1] = columns;
  tensor.stride[0] = columns;
  tensor.stride[1] = 1;
  return tensor;
}

// Calls `run` or `reference` of every rank; `tensors` is indexed by rank.
Result<void> call(const Problem& described, bool reference, std::vector<std::vector<bp_tensor>>& tensors) {
  const Problem::View view(described);
  RankTeam team(described.world);
  return team.run([&](int rank, const bp_comm& comm) -> Result<void> {
    const bp_implementation* chosen = &table().implementations[0];
    std::vector<char> workspace(table().workspace_size(chosen, view.get(), rank) + 64);
    char error[256] = "";
    bp_context context = {};
    context.struct_size = sizeof(context);
    context.rank = rank;
    context.world = described.world;
    context.threads = 1;
    context.problem = view.get();
    context.implementation = chosen;
    context.comm = &comm;
    context.workspace = workspace.data() + (64 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 64) % 64;
    context.workspace_bytes = workspace.size() - 64;
    context.error = error;
    context.error_size = sizeof(error);
    const bp_tensor* own = tensors[static_cast<std::size_t>(rank)].data();
    const bp_status status = reference ? table().reference(&context, own) : table().run(&context, own);
    if (status != BP_OK) return fail(Error::Kind::operation, error);
    return {};
  });
}

// Small integers, so that sums are exact; `name` tells tensors apart.
float entry(std::int64_t name, std::int64_t i, std::int64_t j) {
  return static_cast<float>((name + 3 * i + 5 * j) % 7 - 3);
}

std::vector<float> entries(std::int64_t name, std::int64_t rows, std::int64_t columns) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) out.push_back(entry(name, i, j));
  }
  return out;
}

// What one rank writes, as run or as reference.
struct Output {
  std::vector<float> values;
  std::vector<double> golden;
  bp_tensor view(bool reference, std::int64_t rows, std::int64_t columns) {
    values.resize(static_cast<std::size_t>(rows * columns));
    golden.resize(values.size());
    return reference ? matrix(golden, BP_FP64, rows, columns) : matrix(values, BP_FP32, rows, columns);
  }
  double at(bool reference, std::int64_t index) const {
    const auto i = static_cast<std::size_t>(index);
    return reference ? golden[i] : static_cast<double>(values[i]);
  }
};

TEST(AlltoAllMatmul, RowsOfThisRankMeetTheirSlicesInRankOrder) {
  constexpr std::int64_t kM = 8, kK = 5, kN = 3;
  for (const int world : {1, 2, 4}) {
    for (const bool reference : {false, true}) {
      const auto ranks = static_cast<std::size_t>(world);
      const std::int64_t own = kM / world;
      const std::int64_t whole = world * kK;
      std::vector<std::vector<float>> x1, x2;
      for (int r = 0; r < world; ++r) {
        x1.push_back(entries(r, kM, kK));
        x2.push_back(entries(r + 4, whole, kN));
      }
      std::vector<Output> y(ranks), moved(ranks);
      std::vector<std::vector<bp_tensor>> tensors(ranks);
      for (std::size_t r = 0; r < ranks; ++r) {
        tensors[r].resize(table().port_count);
        tensors[r][port("x1")] = matrix(x1[r], BP_FP32, kM, kK);
        tensors[r][port("x2")] = matrix(x2[r], BP_FP32, whole, kN);
        tensors[r][port("y")] = y[r].view(reference, own, kN);
        tensors[r][port("all2all_out")] = moved[r].view(reference, own, whole);
      }
      Problem described = problem("fp32", world, kM, kK, kN);
      described.dtypes[port("bias")] = BP_NONE;
      const Result<void> done = call(described, reference, tensors);
      ASSERT_TRUE(done) << done.error().message;
      for (std::int64_t row = 0; row < kM; ++row) {
        const auto r = static_cast<std::size_t>(row / own);
        for (std::int64_t k = 0; k < whole; ++k)
          ASSERT_EQ(moved[r].at(reference, row % own * whole + k), static_cast<double>(entry(k / kK, row, k % kK)));
        for (std::int64_t j = 0; j < kN; ++j) {
          float expected = 0.0f;
          for (std::int64_t k = 0; k < whole; ++k)
            expected += entry(k / kK, row, k % kK) * entry(static_cast<std::int64_t>(r) + 4, k, j);
          ASSERT_EQ(y[r].at(reference, row % own * kN + j), static_cast<double>(expected));
        }
      }
    }
  }
}

// Two rows of very different size on one rank: each has its own scale, so both keep their codes.
TEST(AlltoAllMatmul, DynamicScalesBelongToTheirRow) {
  Problem described = problem("int8_dynamic", 1, 2, 4, 1);
  described.dtypes[port("y")] = BP_FP32;
  described.dtypes[port("bias")] = BP_NONE;
  std::vector<std::uint16_t> x1;
  for (const float value : {127.0f, -64.0f, 32.0f, 0.0f, 1.27e-4f, -0.64e-4f, 0.32e-4f, 0.0f})
    x1.push_back(float_to_bf16(value));
  std::vector<std::int8_t> x2 = {1, 1, 1, 1};
  std::vector<float> scale = {1.0f}, y(2);
  std::vector<std::uint16_t> out(8);
  std::vector<std::vector<bp_tensor>> tensors(1);
  tensors[0].resize(table().port_count);
  tensors[0][port("x1")] = matrix(x1, BP_BF16, 2, 4);
  tensors[0][port("x2")] = matrix(x2, BP_INT8, 4, 1);
  tensors[0][port("x2_scale")] = matrix(scale, BP_FP32, 1, 1);
  tensors[0][port("y")] = matrix(y, BP_FP32, 2, 1);
  tensors[0][port("all2all_out")] = matrix(out, BP_BF16, 2, 4);
  const Result<void> done = call(described, false, tensors);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(y[0], 95.0f);  // 127 - 64 + 32 under the scale 1
  EXPECT_NEAR(y[1], 0.95e-4f, 0.02e-4f);
  EXPECT_EQ(out, x1);
}

TEST(AlltoAllMatmul, EveryConstraintHasItsSentence) {
  const auto with = [](const std::string& mode, bool strict, auto change) {
    Problem changed = problem(mode, 2, 4, 128, 64);
    changed.attrs["strict_limits"] = strict;
    changed.attrs["transpose_x2"] = true;
    change(changed);
    return validate(changed);
  };
  const auto nothing = [](Problem&) {};
  for (const char* mode : {"bf16", "fp16", "mxfp8", "fp8_dynamic", "int8_dynamic"})
    EXPECT_EQ(with(mode, true, nothing), "accepted") << mode;
  EXPECT_EQ(with("fp32", true, nothing), "x1 has the dtype fp32; under strict_limits it must be bf16 or fp16");
  EXPECT_EQ(with("bf16", false, [](Problem& p) { p.axes["M"] = 5; }),
            "M = 5 must be a multiple of W = 2: every rank keeps M / W rows");
  EXPECT_EQ(with("bf16", true, [](Problem& p) { p.axes["K"] = 32768; }),
            "W * K = 65536 is outside the strict limits; it must be 1 to 65535");
  EXPECT_EQ(with("mxfp8", false, [](Problem& p) { p.axes["K"] = 96; }),
            "K = 96 must be a multiple of 64: scales may not cross ranks");
  EXPECT_EQ(with("bf16", false, [](Problem& p) { p.dtypes[port("all2all_out")] = BP_FP32; }),
            "all2all_out has the dtype fp32; it must be that of x1, bf16");
  EXPECT_EQ(with("fp8_dynamic", false, [](Problem& p) { p.dtypes[port("x1")] = BP_FP32; }),
            "x1 has the dtype fp32; with dynamic scales it must be bf16 or fp16");
  EXPECT_EQ(with("fp16", true, [](Problem& p) { p.dtypes[port("bias")] = BP_FP32; }),
            "bias has the dtype fp32; under strict_limits it must be fp16 with fp16");
}

}  // namespace
}  // namespace batchproof
