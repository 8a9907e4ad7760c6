// SPDX-License-Identifier: Apache-2.0
//
// The local host with an operator that has memory of its own, and with one that throws.
#include "src/check/rank_runner.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "batchproof/problem.h"
#include "src/check/local_host.h"

namespace batchproof {
namespace {

constexpr std::uint32_t kFp32 = BP_DTYPE_BIT(BP_FP32);
const bp_port kPorts[] = {
    {"x", BP_ROW_INPUT, "M, K", 0, 0, 1, nullptr, nullptr, BP_REPLICATED, 0, kFp32, 0, BP_PORT_PADDED, nullptr, 0, "",
     0},
    {"y", BP_OUTPUT, "M, K", 0, 0, 1, nullptr, nullptr, BP_REPLICATED, 0, kFp32, 0, BP_PORT_PADDED, nullptr, 0, "", 0},
};
const bp_axis_decl kAxes[] = {{"M", ""}, {"K", ""}};
const bp_implementation kImplementations[] = {
    {"doubles", "", nullptr, BP_MODE_INVARIANT, 0, nullptr, nullptr},
    {"adds-stale", "y = 2 x + what y held", nullptr, BP_MODE_INVARIANT, 0, nullptr, nullptr},
    {"changes-input", "", "writes to x", BP_MODE_INVARIANT, 0, nullptr, nullptr},
    {"behind-output", "", "writes behind y", BP_MODE_INVARIANT, 0, nullptr, nullptr},
    {"behind-workspace", "", "writes behind the workspace", BP_MODE_INVARIANT, 0, nullptr, nullptr},
    {"throws", "", "throws", BP_MODE_INVARIANT, 0, nullptr, nullptr},
};

// A device whose pointers are the complement of real ones: whoever follows one falls.
int g_blocks = 0;
bool g_full = false;
void* hidden(void* pointer) { return reinterpret_cast<void*>(~reinterpret_cast<std::uintptr_t>(pointer)); }
void* device_alloc(std::size_t bytes, std::int32_t) {
  if (g_full) return nullptr;
  ++g_blocks;
  return hidden(std::malloc(bytes));  // NOLINT(clang-analyzer-unix.Malloc): device_release frees it
}
void device_release(void* pointer, std::int32_t) {
  --g_blocks;
  std::free(hidden(pointer));
}
bp_status device_copy(void* to, const void* from, std::size_t bytes, std::int32_t direction, std::int32_t) {
  void* source = const_cast<void*>(from);
  std::memcpy(direction == 0 ? hidden(to) : to, direction == 0 ? source : hidden(source), bytes);
  return BP_OK;
}
bp_status device_synchronise(std::int32_t) { return BP_OK; }

std::size_t workspace_size(const bp_implementation*, const bp_problem*, std::int32_t) { return 20; }

bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const bool opaque = tensors[0].memory == BP_MEMORY_OPAQUE;
  const auto real = [&](void* pointer) { return opaque ? hidden(pointer) : pointer; };
  const std::string id = context->implementation->id;
  if (id == "throws") throw std::runtime_error("out of tiles");
  auto* x = static_cast<float*>(real(tensors[0].data));
  auto* y = static_cast<float*>(real(tensors[1].data));
  auto* workspace = static_cast<unsigned char*>(real(context->workspace));
  const std::int64_t m = tensors[0].shape[0];
  const std::int64_t k = tensors[0].shape[1];
  std::memset(workspace, 1, context->workspace_bytes);
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < k; ++j) {
      float& out = y[i * tensors[1].stride[0] + j];
      out = 2.0f * x[i * tensors[0].stride[0] + j] + (id == "adds-stale" ? out : 0.0f);
    }
  }
  if (id == "changes-input") x[1] += 1.0f;
  if (id == "behind-output") y[(m - 1) * tensors[1].stride[0] + k] = 1.0f;
  if (id == "behind-workspace") workspace[20] ^= 1;
  bp_executed(context, context->implementation->id);
  return BP_OK;
}

bp_operator make_table(bool own_memory) {
  bp_operator table{};
  table.abi_version = BP_ABI_VERSION;
  table.struct_size = sizeof(bp_operator);
  table.name = "doubles";
  table.rows = "M";
  table.row_count_axis = "M";
  table.flags = BP_OP_THREAD_SAFE;
  table.port_count = 2;
  table.ports = kPorts;
  table.axis_count = 2;
  table.axes = kAxes;
  table.implementation_count = 6;
  table.implementations = kImplementations;
  table.workspace_size = workspace_size;
  table.run = run;
  table.promises = [](const bp_implementation*, const bp_problem*, const bp_device* device) -> std::uint32_t {
    return device->memory == BP_MEMORY_OPAQUE ? BP_REPEAT : BP_NEIGHBOURS;
  };
  if (own_memory) {
    table.alloc = device_alloc;
    table.release = device_release;
    table.copy = device_copy;
    table.synchronise = device_synchronise;
  }
  return table;
}

// x(2, 3) with rows 5 elements apart, y(2, 3) with rows 4 apart; y holds 100 before the call.
struct Call {
  Problem problem;
  std::vector<float> x = {1, 2, 3, -1, -1, 4, 5, 6, -1};
  std::vector<float> y = {100, 100, 100, -7, 100, 100, 100, -8};
  RunRequest request;

  explicit Call(const char* implementation) {
    problem.axes = {{"M", 2}, {"K", 3}};
    problem.dtypes = {BP_FP32, BP_FP32};
    const auto tensor = [](std::vector<float>& data, std::int64_t stride) {
      bp_tensor view{};
      view.data = data.data();
      view.dtype = BP_FP32;
      view.ndim = 2;
      view.shape[0] = 2;
      view.shape[1] = 3;
      view.stride[0] = stride;
      view.stride[1] = 1;
      return view;
    };
    request.problem = &problem;
    for (const bp_implementation& each : kImplementations) {
      if (std::strcmp(each.id, implementation) == 0) request.implementation = &each;
    }
    request.tensors = {{tensor(x, 5), tensor(y, 4)}};
  }
};

class OwnMemoryTest : public testing::TestWithParam<bool> {};

TEST_P(OwnMemoryTest, OutputsArriveWithTheirPaddingAsItWas) {
  const bp_operator table = make_table(GetParam());
  {
    LocalHost host(&table);
    Call call("doubles");
    const auto outcome = host.run(call.request);
    ASSERT_TRUE(outcome.has_value()) << outcome.error().message;
    EXPECT_EQ(outcome->executed, "doubles");
    EXPECT_EQ(call.y, (std::vector<float>{2, 4, 6, -7, 8, 10, 12, -8}));
    EXPECT_EQ(g_blocks, GetParam() ? 3 : 0);
    Call again("adds-stale");
    ASSERT_TRUE(host.run(again.request).has_value());
    EXPECT_EQ(again.y, (std::vector<float>{102, 104, 106, -7, 108, 110, 112, -8}));
    EXPECT_EQ(*host.promises(kImplementations[0], call.problem),
              static_cast<std::uint32_t>(GetParam() ? BP_REPEAT : BP_NEIGHBOURS));
  }
  EXPECT_EQ(g_blocks, 0);  // released
}

TEST_P(OwnMemoryTest, ExceptionsAreErrors) {
  const bp_operator table = make_table(GetParam());
  LocalHost host(&table);
  Call call("throws");
  const auto outcome = host.run(call.request);
  ASSERT_FALSE(outcome.has_value());
  EXPECT_NE(outcome.error().message.find("doubles threw a C++ exception out of run: out of tiles"), std::string::npos);
  EXPECT_TRUE(host.threw());
}

TEST_P(OwnMemoryTest, WritesBehindTheWorkspaceAreErrors) {
  const bp_operator table = make_table(GetParam());
  LocalHost host(&table);
  Call call("behind-workspace");
  const auto outcome = host.run(call.request);
  ASSERT_FALSE(outcome.has_value());
  EXPECT_NE(outcome.error().message.find("doubles wrote outside its workspace of 20 bytes"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(HostAndDevice, OwnMemoryTest, testing::Bool());

TEST(DeviceTest, FaultsOnTheDeviceAreNamed) {
  const bp_operator table = make_table(true);
  LocalHost host(&table);
  Call input("changes-input");
  auto outcome = host.run(input.request);
  ASSERT_FALSE(outcome.has_value());
  EXPECT_NE(outcome.error().message.find("doubles changed its input x"), std::string::npos);
  EXPECT_EQ(input.x[1], 2.0f);  // the host's copy is untouched
  Call output("behind-output");
  outcome = host.run(output.request);
  ASSERT_FALSE(outcome.has_value());
  EXPECT_NE(outcome.error().message.find("doubles wrote behind the end of y"), std::string::npos);
  LocalHost other(&table);
  g_full = true;
  Call full("doubles");
  outcome = other.run(full.request);
  g_full = false;
  ASSERT_FALSE(outcome.has_value());
  EXPECT_NE(outcome.error().message.find("doubles could not allocate 276 bytes of its own memory"), std::string::npos);
}

}  // namespace
}  // namespace batchproof
