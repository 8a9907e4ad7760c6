// SPDX-License-Identifier: Apache-2.0
//
// Implementations on a device, with a device made of host memory: where tensors lie, what guards catch, what the
// relations stream, graph and processors see and what they must not.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <set>
#include <vector>

#include "batchproof/problem.h"
#include "src/check/local_host.h"
#include "src/check/runner.h"

namespace batchproof {
namespace {

enum class Way {
  honest,
  witness,           // the other order
  second_stream,     // the other order on any stream but the first
  while_captured,    // the other order in a captured call
  few_processors,    // the other order under a limit
  frozen_predicate,  // the order is chosen from the data when the call is made, not when it runs
  before_output,     // writes in front of y
  on_the_host        // no device
};
constexpr Way kWays[] = {Way::honest,         Way::witness,          Way::second_stream, Way::while_captured,
                         Way::few_processors, Way::frozen_predicate, Way::before_output, Way::on_the_host};
constexpr bp_implementation implementation(const char* id, int way, std::uint32_t flags) {
  return {id, "", nullptr, BP_MODE_INVARIANT, flags, way == 1 || way == 7 ? nullptr : "witness", &kWays[way]};
}
const bp_implementation kImplementations[] = {
    implementation("on-the-host", 7, 0),
    implementation("honest", 0, BP_IMPL_CUDA),
    implementation("second-stream", 2, BP_IMPL_CUDA),
    implementation("while-captured", 3, BP_IMPL_CUDA),
    implementation("few-processors", 4, BP_IMPL_CUDA),
    implementation("frozen-predicate", 5, BP_IMPL_CUDA),
    implementation("before-output", 6, BP_IMPL_CUDA),
    implementation("witness", 1, BP_IMPL_CUDA | BP_IMPL_WITNESS),
};

// ---- a device: what a call enqueues runs at once, or is kept while its stream is captured ----

std::vector<std::function<void()>>* g_capture = nullptr;
int g_streams[2];

class FakeDevice final : public Device {
 public:
  const bp_device& description() const override {
    static const bp_device description = {sizeof(bp_device), BP_MEMORY_CUDA, 3, 132, "fake"};
    return description;
  }
  std::string text() const override { return "fake"; }
  Result<void> enter() override { return {}; }
  Result<void*> allocate(std::size_t bytes) override {
    void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    blocks.insert(memory);
    return memory;
  }
  void release(void* memory) override {
    blocks.erase(memory);
    std::free(memory);
  }
  Result<void> copy_in(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
    return {};
  }
  Result<void> copy_out(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
    return {};
  }
  Result<void*> stream(int /*rank*/, int which) override { return static_cast<void*>(&g_streams[which]); }
  Result<void> synchronise(void* /*stream*/) override { return {}; }
  Result<void> keep_busy(void* stream) override {
    EXPECT_EQ(stream, &g_streams[0]);
    ++busy;
    return {};
  }
  Result<std::unique_ptr<CapturedCall>> capture(void* /*stream*/, const std::function<Result<void>()>& call) override {
    struct Kept final : CapturedCall {
      std::vector<std::function<void()>> work;
      Result<void> replay(void* /*stream*/) override {
        for (const auto& each : work) each();
        return {};
      }
    };
    auto kept = std::make_unique<Kept>();
    g_capture = &kept->work;
    const Result<void> done = call();
    g_capture = nullptr;
    if (!done) return tl::unexpected(done.error());
    return kept;
  }

  std::set<void*> blocks;
  int busy = 0;
};

// ---- y(M) = x(M, K) . w(K) ----

constexpr std::uint32_t kFp32 = BP_DTYPE_BIT(BP_FP32);
const bp_port kPorts[] = {
    {"x", BP_ROW_INPUT, "M, K", 0, 2u, 1, "K", nullptr, BP_REPLICATED, 0, kFp32, 0, BP_PORT_PADDED, nullptr, 0, "", 0},
    {"w", BP_WEIGHT, "K", -1, 1u, 1, "K", nullptr, BP_REPLICATED, 0, kFp32, 0, 0, nullptr, 0, "", 0},
    {"y", BP_OUTPUT, "M", 0, 0, 1, nullptr, nullptr, BP_REPLICATED, 0, kFp32, 0, 0, nullptr, 0, "", 0},
};
const bp_axis_decl kAxes[] = {{"M", "rows"}, {"K", "reduction"}};

std::vector<bp_tensor> g_seen;

bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const Way way = *static_cast<const Way*>(context->implementation->data);
  g_seen.assign(tensors, tensors + 3);
  const bp_tensor x = tensors[0];
  const auto* w = static_cast<const float*>(tensors[1].data);
  auto* y = static_cast<float*>(tensors[2].data);
  const auto* rows = static_cast<const float*>(x.data);
  const bool descending = way == Way::witness || (way == Way::second_stream && context->stream != &g_streams[0]) ||
                          (way == Way::while_captured && g_capture != nullptr) ||
                          (way == Way::few_processors && context->processors > 0 && context->processors < 60);
  // The call runs before its tensors are filled in: what it reads now is not what it will work on.
  const float early = way == Way::frozen_predicate && g_capture != nullptr ? rows[0] + 1e6f : 0.0f;
  const auto work = [=] {
    for (std::int64_t i = 0; i < x.shape[0]; ++i) {
      float sum = 0.0f;
      for (std::int64_t k = 0; k < x.shape[1]; ++k) {
        const std::int64_t kk = descending ? x.shape[1] - 1 - k : k;
        sum += rows[i * x.stride[0] + kk] * w[kk];
      }
      y[i] = sum + early;
    }
    if (way == Way::before_output) y[-1] = 1.0f;
  };
  if (g_capture != nullptr)
    g_capture->push_back(work);
  else
    work();
  bp_executed(context, context->implementation->id);
  return BP_OK;
}

std::uint32_t promises(const bp_implementation*, const bp_problem*, const bp_device* device) {
  return device->memory == BP_MEMORY_CUDA ? (device->ordinal == 3 ? ~0u : 0u) : BP_REPEAT | BP_STREAM;
}

bp_operator make_table(std::uint32_t flags) {
  bp_operator table{};
  table.abi_version = BP_ABI_VERSION;
  table.struct_size = sizeof(bp_operator);
  table.name = "dot";
  table.rows = "M";
  table.row_count_axis = "M";
  table.flags = flags;
  table.port_count = 3;
  table.ports = kPorts;
  table.axis_count = 2;
  table.axes = kAxes;
  table.implementation_count = static_cast<std::uint32_t>(std::size(kImplementations));
  table.implementations = kImplementations;
  table.run = run;
  table.promises = promises;
  return table;
}
const bp_operator kDot = make_table(BP_OP_THREAD_SAFE | BP_OP_GRAPH_SAFE);
const bp_operator kUncapturable = make_table(BP_OP_THREAD_SAFE);

constexpr std::uint32_t kDeviceRelations = BP_STREAM | BP_GRAPH | BP_PROCESSORS;

CellResult check(const bp_operator& table, const char* id, std::uint32_t relations, Device* device) {
  Cell cell;
  cell.id = std::string("dot/") + id + "/case/K=200,M=3";
  cell.op = &table;
  cell.op_name = table.name;
  cell.impl = find_implementation(table, id);
  cell.problem.axes = {{"M", 3}, {"K", 200}};
  cell.problem.dtypes = {BP_FP32, BP_FP32, BP_FP32};
  cell.recipes.resize(3);
  cell.standard.bi = BiStandard{};
  cell.standard.bi->relations = relations;
  RunOptions options;
  options.device = device;
  return run_cells({cell}, options).cells.at(0);
}

// Names of the relations that found something.
std::set<std::string> caught(const char* id) {
  FakeDevice device;
  std::set<std::string> names;
  const CellResult result = check(kDot, id, kDeviceRelations | BP_REPEAT | BP_ALIGNMENT | BP_HISTORY, &device);
  EXPECT_EQ(result.executed, id) << result.reason;
  EXPECT_EQ(result.relations.size(), 6u);
  for (const RelationResult& relation : result.relations) {
    EXPECT_GT(relation.bytes_compared, 0u) << relation_name(relation.relation) << ": " << relation.reason;
    if (relation.verdict == Verdict::violation) names.insert(relation_name(relation.relation));
  }
  EXPECT_EQ(device.busy, 3);
  return names;
}

TEST(DeviceRelations, FindWhatTheyChangeAndNothingElse) {
  using Names = std::set<std::string>;
  EXPECT_EQ(caught("honest"), Names{});
  EXPECT_EQ(caught("second-stream"), Names{"stream"});
  EXPECT_EQ(caught("while-captured"), Names{"graph"});
  EXPECT_EQ(caught("frozen-predicate"), Names{"graph"});
  EXPECT_EQ(caught("few-processors"), Names{"processors"});
}

TEST(DeviceRelations, AreSkippedWhereThereIsNothingToChange) {
  FakeDevice device;
  const CellResult host = check(kDot, "on-the-host", BP_STREAM, &device);
  ASSERT_EQ(host.relations.size(), 1u);
  EXPECT_EQ(host.relations[0].verdict, Verdict::skipped);
  EXPECT_EQ(host.relations[0].reason, "on-the-host does not run on a CUDA device: it has no streams");
  const CellResult graph = check(kUncapturable, "honest", BP_GRAPH, &device);
  EXPECT_EQ(graph.relations.at(0).reason, "dot does not say that its calls may be captured");
}

TEST(DeviceHost, TensorsLieInDeviceMemoryAtTheHostsPlace) {
  FakeDevice device;
  {
    LocalHost host(&kDot, {}, &device);
    alignas(64) float x[64] = {};
    alignas(64) float w[64] = {1, 10, 100};
    alignas(64) float y[64] = {};
    x[5] = 1, x[6] = 2, x[7] = 3;
    Problem problem;
    problem.axes = {{"M", 1}, {"K", 3}};
    problem.dtypes = {BP_FP32, BP_FP32, BP_FP32};
    const auto tensor = [](float* data, int ndim, std::int64_t a, std::int64_t b) {
      bp_tensor view{};
      view.data = data;
      view.dtype = BP_FP32;
      view.ndim = ndim;
      view.shape[0] = a, view.shape[1] = b;
      view.stride[0] = ndim == 2 ? b : 1, view.stride[1] = 1;
      return view;
    };
    RunRequest request;
    request.implementation = find_implementation(kDot, "honest");
    request.problem = &problem;
    request.tensors = {{tensor(x + 5, 2, 1, 3), tensor(w, 1, 3, 0), tensor(y + 2, 1, 1, 0)}};
    ASSERT_TRUE(host.run(request).has_value());
    EXPECT_EQ(y[2], 321.0f);
    for (int port = 0; port < 3; ++port) {
      EXPECT_EQ(g_seen[static_cast<std::size_t>(port)].memory, BP_MEMORY_CUDA);
      const auto place = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 64; };
      const void* here = request.tensors[0][static_cast<std::size_t>(port)].data;
      EXPECT_NE(g_seen[static_cast<std::size_t>(port)].data, here);
      EXPECT_EQ(place(g_seen[static_cast<std::size_t>(port)].data), place(here));
    }
    request.implementation = find_implementation(kDot, "before-output");
    const auto wrote = host.run(request);
    ASSERT_FALSE(wrote.has_value());
    EXPECT_NE(wrote.error().message.find("dot wrote in front of y"), std::string::npos) << wrote.error().message;
    EXPECT_EQ(*host.promises(*request.implementation, problem), ~0u);  // it was told which device
    EXPECT_FALSE(device.blocks.empty());
  }
  EXPECT_TRUE(device.blocks.empty());  // released
}

TEST(DeviceHost, WithoutADeviceTheCellIsAnError) {
  const CellResult result = check(kDot, "honest", BP_REPEAT, nullptr);
  EXPECT_EQ(result.verdict, Verdict::error);
  EXPECT_EQ(result.reason, "honest runs on a CUDA device; choose one with --device cuda");
}

}  // namespace
}  // namespace batchproof
