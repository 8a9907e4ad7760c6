// SPDX-License-Identifier: Apache-2.0
//
// bias and x3 count once per rank; low-bit communication is refused in invariant mode; every constraint. The order of
// sums over ranks is tested with matmul_reduce_scatter and by the suites (relation world_size).
#include <fmt/format.h>
#include <gtest/gtest.h>

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
    if (std::string(op->name) == "matmul_all_reduce") return *op;
  }
  std::abort();
}

Problem problem(int world) {
  Problem out;
  out.world = world;
  out.axes = {{"M", 16}, {"K", 512}, {"N", 8}};
  for (std::uint32_t i = 0; i < table().attr_count; ++i) {
    const bp_attr_decl& attr = table().attrs[i];
    const std::string text = attr.default_value;
    if (attr.type == BP_ATTR_BOOL) out.attrs[attr.name] = text == "true";
    if (attr.type == BP_ATTR_INT) out.attrs[attr.name] = static_cast<std::int64_t>(std::stoll(text));
    if (attr.type == BP_ATTR_STRING) out.attrs[attr.name] = text;
  }
  out.dtypes.assign(table().port_count, BP_NONE);
  for (std::uint32_t port : {0u, 1u, 4u}) out.dtypes[port] = BP_BF16;
  return out;
}

// K = 16 ones: a rank's product is 16, with bias 1 and x3 2 it is 19, W times that on every rank.
TEST(MatmulAllReduce, BiasAndX3CountOncePerRank) {
  for (const char* id : {"cpu-fp32_tree-tree16-chain256", "cpu-vendor_order-chain256"}) {
    const bp_implementation* chosen = nullptr;
    for (std::uint32_t i = 0; i < table().implementation_count; ++i) {
      if (std::string(table().implementations[i].id) == id) chosen = &table().implementations[i];
    }
    ASSERT_NE(chosen, nullptr);
    for (const int world : {1, 2, 4}) {
      Problem described = problem(world);
      described.axes = {{"M", 2}, {"K", 16}, {"N", 3}};
      for (std::uint32_t port = 0; port < 5; ++port) described.dtypes[port] = BP_FP32;
      const Problem::View view(described);
      RankTeam team(world);
      const Result<void> done = team.run([&](int rank, const bp_comm& comm) -> Result<void> {
        std::vector<float> x1(2 * 16, 1.0f), x2(16 * 3, 1.0f), bias(3, 1.0f), x3(2 * 3, 2.0f), y(2 * 3, -1.0f);
        std::vector<bp_tensor> tensors(table().port_count);
        const auto set = [&](std::size_t port, std::vector<float>& data, std::int64_t rows, std::int64_t columns) {
          bp_tensor& tensor = tensors[port];
          tensor.data = data.data();
          tensor.dtype = BP_FP32;
          tensor.ndim = rows == 0 ? 1 : 2;
          tensor.shape[0] = rows == 0 ? columns : rows;
          tensor.shape[1] = columns;
          tensor.stride[0] = rows == 0 ? 1 : columns;
          tensor.stride[1] = 1;
        };
        set(0, x1, 2, 16);
        set(1, x2, 16, 3);
        set(2, bias, 0, 3);
        set(3, x3, 2, 3);
        set(4, y, 2, 3);
        std::vector<char> workspace(table().workspace_size(chosen, view.get(), rank));
        char error[256] = "";
        bp_context context = {};
        context.struct_size = sizeof(context);
        context.rank = rank;
        context.world = world;
        context.threads = 1;
        context.problem = view.get();
        context.implementation = chosen;
        context.comm = &comm;
        context.workspace = workspace.data();
        context.workspace_bytes = workspace.size();
        context.error = error;
        context.error_size = sizeof(error);
        if (table().run(&context, tensors.data()) != BP_OK) return fail(Error::Kind::operation, error);
        for (const float value : y) {
          if (value != 19.0f * static_cast<float>(world)) {
            return fail(Error::Kind::internal, fmt::format("rank {} of {}: {}", rank, world, value));
          }
        }
        return {};
      });
      EXPECT_TRUE(done) << done.error().message;
    }
  }
}

TEST(MatmulAllReduce, LowBitCommunicationPromisesNothingAboutNeighbours) {
  const Problem described = problem(2);
  const Problem::View view(described);
  const bp_device cpu = {sizeof(bp_device), BP_MEMORY_HOST, 0, 0, "cpu"};
  for (std::uint32_t i = 0; i < table().implementation_count; ++i) {
    const bp_implementation& chosen = table().implementations[i];
    if (std::string(chosen.id) != "cpu-fp8comm-tile16") continue;
    EXPECT_EQ(chosen.mode, BP_MODE_FAST);
    EXPECT_EQ(table().promises(&chosen, view.get(), &cpu) & (BP_NEIGHBOURS | BP_BATCH_SIZE | BP_POISON), 0u);
    char error[256] = "";
    bp_context context = {};
    context.world = 2;
    context.mode = BP_MODE_INVARIANT;
    context.problem = view.get();
    context.implementation = &chosen;
    context.error = error;
    context.error_size = sizeof(error);
    EXPECT_EQ(table().run(&context, nullptr), BP_REFUSED);
    EXPECT_NE(std::string(error).find("cpu-fp8comm-tile16 is not batch invariant"), std::string::npos);
    return;
  }
  FAIL() << "no low-bit implementation";
}

TEST(MatmulAllReduce, EveryConstraintHasItsSentence) {
  const auto with = [](auto change) {
    Problem changed = problem(4);
    change(changed);
    char error[256] = "";
    const Problem::View view(changed);
    return std::string(table().validate(view.get(), error, sizeof(error)) == BP_OK ? "accepted" : error);
  };
  EXPECT_EQ(with([](Problem&) {}), "accepted");
  EXPECT_EQ(with([](Problem& p) { p.dtypes[3] = BP_FP32; }), "x3 has the dtype fp32; it must be that of y, bf16");
  EXPECT_EQ(with([](Problem& p) { p.axes["K"] = 0; }), "K = 0 is out of range; it must be 1 to 2147483647");
  EXPECT_EQ(with([](Problem& p) { p.attrs["reduce_op"] = std::string("max"); }),
            "reduce_op max is not supported; it must be sum");
  EXPECT_EQ(with([](Problem& p) { p.dtypes[1] = BP_FP16; }), "x2 has the dtype fp16; it must be that of x1, bf16");
  const auto strict = [&](auto change) {
    return with([&](Problem& p) {
      p.attrs["strict_limits"] = true;
      change(p);
    });
  };
  EXPECT_EQ(strict([](Problem&) {}), "accepted");
  EXPECT_EQ(strict([](Problem& p) { p.axes["K"] = 65536; }),
            "K = 65536 is outside the strict limits; it must be 1 to 65535");
  EXPECT_EQ(strict([](Problem& p) { p.dtypes[4] = BP_FP32; }),
            "y has the dtype fp32; under strict_limits it must be that of x1, bf16");
  EXPECT_EQ(strict([](Problem& p) { p.attrs["block_size"] = std::int64_t{1}; }),
            "block_size = 1; under strict_limits it must be 0");
  EXPECT_EQ(strict([](Problem& p) { p.attrs["comm_turn"] = std::int64_t{1}; }),
            "comm_turn = 1; under strict_limits it must be 0");
}

}  // namespace
}  // namespace batchproof
