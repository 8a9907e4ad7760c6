// SPDX-License-Identifier: Apache-2.0
//
// Which columns land where, the reference, every constraint. Invariance: the suites.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "batchproof/operator.h"
#include "batchproof/registry.h"
#include "src/comm/thread_world.h"
#include "src/runtime/problem.h"

namespace batchproof {
namespace {

const bp_operator& table() {
  for (const bp_operator* op : registered_operators()) {
    if (std::string(op->name) == "matmul_alltoall") return *op;
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

TEST(MatmulAlltoAll, ColumnBlockDOfEverySourceLandsOnRankD) {
  constexpr std::int64_t kM = 3, kK = 10, kN = 8;
  for (const int world : {1, 2, 4}) {
    for (const bool reference : {false, true}) {
      const auto ranks = static_cast<std::size_t>(world);
      const std::int64_t width = kN / world;
      std::vector<std::vector<float>> x1, x2, bias;
      for (int r = 0; r < world; ++r) {
        x1.push_back(entries(r, kM, kK));
        x2.push_back(entries(2 * r + 1, kK, kN));
        bias.push_back(entries(r + 5, 1, kN));
      }
      std::vector<Output> y(ranks);
      std::vector<std::vector<bp_tensor>> tensors(ranks);
      for (std::size_t r = 0; r < ranks; ++r) {
        tensors[r].resize(table().port_count);
        tensors[r][port("x1")] = matrix(x1[r], BP_FP32, kM, kK);
        tensors[r][port("x2")] = matrix(x2[r], BP_FP32, kK, kN);
        tensors[r][port("bias")] = matrix(bias[r], BP_FP32, kN, 1);
        tensors[r][port("bias")].ndim = 1;
        tensors[r][port("y")] = y[r].view(reference, world * kM, width);
      }
      const Result<void> done = call(problem("fp32", world, kM, kK, kN), reference, tensors);
      ASSERT_TRUE(done) << done.error().message;
      for (std::int64_t row = 0; row < world * kM; ++row) {
        for (std::int64_t j = 0; j < kN; ++j) {
          const std::int64_t source = row / kM;
          float expected = entry(source + 5, 0, j);
          for (std::int64_t k = 0; k < kK; ++k) expected += entry(source, row % kM, k) * entry(2 * source + 1, k, j);
          ASSERT_EQ(y[static_cast<std::size_t>(j / width)].at(reference, row * width + j % width),
                    static_cast<double>(expected))
              << "world " << world << ", row " << row << ", column " << j;
        }
      }
    }
  }
}

TEST(MatmulAlltoAll, EveryConstraintHasItsSentence) {
  const auto with = [](const std::string& mode, bool strict, auto change) {
    Problem changed = problem(mode, 2, 4, 256, 64);
    changed.attrs["strict_limits"] = strict;
    changed.attrs["transpose_x2"] = true;
    change(changed);
    return validate(changed);
  };
  const auto nothing = [](Problem&) {};
  for (const char* mode : {"bf16", "fp16", "mxfp8", "fp8", "int8"}) EXPECT_EQ(with(mode, true, nothing), "accepted");
  EXPECT_EQ(with("fp32", false, nothing), "accepted");
  EXPECT_EQ(with("fp32", true, nothing), "x1 has the dtype fp32; under strict_limits it must be bf16 or fp16");
  EXPECT_EQ(with("bf16", false, [](Problem& p) { p.axes["N"] = 63; }),
            "N = 63 must be a multiple of W = 2: every rank gets N / W columns");
  EXPECT_EQ(with("bf16", true, [](Problem& p) { p.axes["K"] = 65536; }),
            "K = 65536 is outside the strict limits; it must be 1 to 65535");
  EXPECT_EQ(with("bf16", true, [](Problem& p) { p.world = 1; }),
            "W = 1 is outside the strict limits; it must be 2, 4, 8 or 16");
  EXPECT_EQ(with("bf16", true, [](Problem& p) { p.dtypes[port("y")] = BP_FP32; }),
            "y has the dtype fp32; under strict_limits it must be that of x1, bf16");
  EXPECT_EQ(with("int8", true, [](Problem& p) { p.dtypes[port("bias")] = BP_NONE; }),
            "int8 needs a bias under strict_limits; give bias");
  EXPECT_EQ(with("mxfp8", true, [](Problem& p) { p.attrs["transpose_x2"] = false; }),
            "MX scaling under strict_limits takes x2 transposed; set transpose_x2");
  EXPECT_EQ(with("int8", false, [](Problem& p) { p.axes["K"] = 131072; }),
            "K = 131072 is out of range; an INT32 accumulator holds 131071");
}

}  // namespace
}  // namespace batchproof
