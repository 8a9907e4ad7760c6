// SPDX-License-Identifier: Apache-2.0
//
// Fail closed (C8): every entry and every implementation in both modes, external products with and without the
// capability, memos whose key must hold the mode; and what validate refuses.
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "ops/mhc/mhc_case.h"
#include "ops/mhc/path.h"
#include "src/kernels/cpu/mhc_backend.h"

namespace batchproof::mhc {
namespace {

constexpr const char* kEntries[] = {"mhc_pre",
                                    "mhc_pre_broadcast",
                                    "mhc_post",
                                    "mhc_fused_post_pre",
                                    "hc_head",
                                    "mhc_pre_delayed",
                                    "mhc_pre_broadcast_delayed",
                                    "mhc_fused_post_pre_delayed"};

// A product that somebody else's library would compute: one sum per split.
std::shared_ptr<MhcBackend> fake_backend(bool able) {
  auto backend = std::make_shared<MhcBackend>();
  backend->name = "fake-tf32-splitk";
  if (able) backend->invariant = [](std::int64_t, std::int64_t) { return true; };
  backend->product = [](const MhcProductShape& shape, const std::uint16_t* residual, const float* fn, float* sums,
                        float* squares) -> Result<void> {
    for (std::int64_t s = 0; s < shape.splits; ++s) {
      for (std::int64_t row = 0; row < shape.rows; ++row) {
        const std::int64_t begin = shape.columns * s / shape.splits, end = shape.columns * (s + 1) / shape.splits;
        float square = 0.0f;
        for (std::int64_t c = 0; c < 24; ++c) {
          float sum = 0.0f;
          square = 0.0f;
          for (std::int64_t k = begin; k < end; ++k) {
            const float value = bf16_to_float(residual[row * shape.columns + k]);
            sum += value * fn[c * shape.columns + k];
            square += value * value;
          }
          sums[(s * shape.rows + row) * 24 + c] = sum;
        }
        squares[s * shape.rows + row] = square;
      }
    }
    return {};
  };
  return backend;
}

class GuardTest : public testing::Test {
 protected:
  void TearDown() override { set_mhc_backend(nullptr); }

  // visit(table, implementation, problem) for everything that every entry has.
  template <class Visit>
  static void for_each_implementation(const Visit& visit) {
    for (const char* entry : kEntries) {
      const bp_operator& table = *find_table(entry);
      const Problem problem = default_problem(table, 3, 2048);
      const Problem::View view(problem);
      for (std::uint32_t i = 0; i < table.implementation_count; ++i) visit(table, table.implementations[i], view.get());
    }
  }
};

bool is_external(const bp_implementation& implementation) {
  return std::string(implementation.id).find("external") == 0;
}

TEST_F(GuardTest, EveryEntryTimesEveryImplementation) {
  set_mhc_backend(fake_backend(false));
  int refused = 0;
  for (const char* entry : kEntries) {
    ASSERT_NE(find_table(entry), nullptr) << entry;
    for (std::uint32_t i = 0; i < find_table(entry)->implementation_count; ++i) {
      const bp_implementation& implementation = find_table(entry)->implementations[i];
      if ((implementation.flags & BP_IMPL_CUDA) != 0) continue;
      Case call(entry, 3, 2048);  // 2048 columns per stream: every split count and every kernel fits
      call.make();
      const auto before = call.outputs();
      const auto strict = call.run(implementation.id, BP_MODE_INVARIANT);
      if (implementation.mode == BP_MODE_FAST || is_external(implementation)) {
        ++refused;
        ASSERT_FALSE(strict.has_value()) << entry << " " << implementation.id;
        EXPECT_NE(strict.error().message.find("invariant mode refuses"), std::string::npos) << strict.error().message;
        EXPECT_NE(strict.error().message.find(implementation.id), std::string::npos) << strict.error().message;
        EXPECT_NE(strict.error().message.find(entry), std::string::npos) << strict.error().message;
        if (is_external(implementation)) {
          EXPECT_NE(strict.error().message.find("fake-tf32-splitk"), std::string::npos) << strict.error().message;
        }
        EXPECT_EQ(call.outputs(), before) << "a refused call wrote something";
      } else {
        ASSERT_TRUE(strict.has_value()) << entry << ": " << strict.error().message;
        EXPECT_EQ(strict->executed, implementation.id);
        EXPECT_NE(call.outputs(), before);
      }
      // Fast mode runs everything.
      const auto free = call.run(implementation.id, BP_MODE_FAST);
      ASSERT_TRUE(free.has_value()) << entry << " " << implementation.id << ": " << free.error().message;
      EXPECT_EQ(free->executed, implementation.id);
    }
  }
  EXPECT_EQ(refused, 15);
}

// Refused before anything asks for a device.
TEST_F(GuardTest, FastModeOnADeviceIsRefusedInInvariantMode) {
  int refused = 0;
  for_each_implementation([&](const bp_operator& table, const bp_implementation& implementation,
                              const bp_problem* problem) {
    if ((implementation.flags & BP_IMPL_CUDA) == 0 || implementation.mode != BP_MODE_FAST) return;
    const std::vector<bp_tensor> tensors(table.port_count);
    char error[256] = "";
    bp_context context = {};
    context.struct_size = sizeof(context);
    context.world = 1;
    context.mode = BP_MODE_INVARIANT;
    context.problem = problem;
    context.implementation = &implementation;
    context.error = error;
    context.error_size = sizeof(error);
    EXPECT_EQ(table.run(&context, tensors.data()), BP_REFUSED) << table.name << ": " << error;
    EXPECT_NE(std::string(error).find(std::string("invariant mode refuses ") + implementation.id), std::string::npos)
        << error;
    ++refused;
  });
  EXPECT_GT(refused, 0);
}

TEST_F(GuardTest, PromisesMatchTheRefusals) {
  set_mhc_backend(fake_backend(false));
  for_each_implementation(
      [](const bp_operator& table, const bp_implementation& implementation, const bp_problem* problem) {
        const std::uint32_t promised = table.promises(&implementation, problem, nullptr);
        if ((implementation.flags & BP_IMPL_CUDA) != 0) {
          EXPECT_EQ(promised, 0u) << table.name << " " << implementation.id << " without a device";
          return;
        }
        const bool variant = implementation.mode == BP_MODE_FAST || is_external(implementation);
        EXPECT_EQ((promised & BP_BATCH_SIZE) != 0, !variant) << table.name << " " << implementation.id;
        if (is_external(implementation)) {
          EXPECT_EQ(promised, 0u) << table.name;
        } else {
          EXPECT_NE(promised & BP_NEIGHBOURS, 0u) << table.name << " " << implementation.id;
        }
      });
}

TEST_F(GuardTest, AnExternalProductRunsOnceItSaysThatItIsInvariant) {
  Case call("mhc_pre", 5, 512);
  call.make();
  const auto none = call.run("external-split32");
  ASSERT_FALSE(none.has_value());
  EXPECT_NE(none.error().message.find("none is registered"), std::string::npos) << none.error().message;
  set_mhc_backend(fake_backend(true));
  const auto able = call.run("external-split32");
  ASSERT_TRUE(able.has_value()) << able.error().message;
  EXPECT_EQ(able->executed, "external-split32");
  const auto outputs = call.outputs();
  // Replaced by one that cannot say it: the answer that was remembered for the first does not count any more.
  set_mhc_backend(fake_backend(false));
  EXPECT_FALSE(call.run("external-split32").has_value());
  // A backend that says it for some shapes only.
  auto some = fake_backend(true);
  some->invariant = [](std::int64_t columns, std::int64_t splits) { return columns == 2048 && splits == 32; };
  set_mhc_backend(some);
  ASSERT_TRUE(call.run("external-split32").has_value());
  EXPECT_EQ(call.outputs(), outputs);
  Case other("mhc_pre", 5, 1024);
  other.make();
  EXPECT_FALSE(other.run("external-split32").has_value());
}

// The seed of this family refused whenever a backend without the capability was loaded, used or not.
TEST_F(GuardTest, ABackendThatIsNotOnThePathRefusesNothing) {
  set_mhc_backend(fake_backend(false));
  Case call("mhc_pre", 5, 512);
  call.make();
  EXPECT_TRUE(call.run("cpu-tf32fn-chain256").has_value());
}

TEST_F(GuardTest, AnAnswerIsRememberedPerMode) {
  const Extents extents{3, 4096, 16384, 132};
  MhcPath path;
  path.kind = MhcPath::Kind::splits;
  path.splits = 44;
  path.name = "splits from occupancy";
  const std::size_t before = refusals_remembered();
  EXPECT_EQ(refusal(Form::pre, "memo-test", path, extents, BP_MODE_FAST), "");
  EXPECT_EQ(refusals_remembered(), before + 1);
  const std::string why = refusal(Form::pre, "memo-test", path, extents, BP_MODE_INVARIANT);
  EXPECT_NE(why.find("in 44 splits"), std::string::npos) << why;
  EXPECT_EQ(refusals_remembered(), before + 2);
  EXPECT_EQ(refusal(Form::pre, "memo-test", path, extents, BP_MODE_INVARIANT), why);
  EXPECT_EQ(refusal(Form::pre, "memo-test", path, extents, BP_MODE_FAST), "");
  EXPECT_EQ(refusals_remembered(), before + 2);  // asked once each
}

// H = 1024, 35 tokens, 7 processors: fast mode takes 7 splits, the pin 32.
TEST_F(GuardTest, FastModeLeavesNothingBehindButInTheStaleMemo) {
  Case call("mhc_pre", 35, 1024);
  call.problem.attrs["processors"] = std::int64_t{7};
  call.make();
  ASSERT_TRUE(call.run("cpu-tf32fn-split32").has_value());
  const auto pinned = call.outputs();
  ASSERT_TRUE(call.run("cpu-fast-occupancy", BP_MODE_FAST).has_value());
  const auto fast = call.outputs();
  EXPECT_NE(fast, pinned);
  ASSERT_TRUE(call.run("cpu-tf32fn-split32").has_value());
  EXPECT_EQ(call.outputs(), pinned);
  // The control: fast mode was first to see this shape, and its plan is what invariant mode gets.
  ASSERT_TRUE(call.run("control-stale-memo", BP_MODE_FAST).has_value());
  EXPECT_EQ(call.outputs(), fast);
  ASSERT_TRUE(call.run("control-stale-memo", BP_MODE_INVARIANT).has_value());
  EXPECT_EQ(call.outputs(), fast);
}

TEST_F(GuardTest, APinThatDoesNotDivideIsRefused) {
  Case call("mhc_pre", 5, 528);  // 33 K blocks
  call.make();
  const auto ran = call.run("cpu-tf32fn-split32");
  ASSERT_FALSE(ran.has_value());
  EXPECT_NE(ran.error().message.find("not promised invariant for 2112 columns in 32 splits"), std::string::npos)
      << ran.error().message;
  EXPECT_TRUE(call.run("cpu-tf32fn-chain256").has_value());
}

TEST(ValidateTest, EveryConstraintHasASentence) {
  struct Bad {
    const char* entry;
    const char* name;
    AttrValue value;
    const char* text;
  };
  const Bad attributes[] = {
      {"mhc_pre", "sinkhorn_repeat", std::int64_t{0}, "sinkhorn_repeat = 0 must be from 1"},
      {"mhc_fused_post_pre", "sinkhorn_repeat", std::int64_t{1001}, "sinkhorn_repeat = 1001"},
      {"mhc_pre", "rms_eps", -1e-6, "rms_eps = -1e-06 must be finite and at least 0"},
      {"mhc_pre_broadcast", "hc_pre_eps", std::nan(""), "hc_pre_eps = "},
      {"mhc_pre", "hc_sinkhorn_eps", INFINITY, "hc_sinkhorn_eps = inf"},
      {"mhc_pre", "norm_eps", -1.0, "norm_eps = -1"},
      {"hc_head", "rms_eps", -1.0, "rms_eps = -1"},
      {"mhc_pre", "post_mult", INFINITY, "post_mult = inf must be finite"},
      {"mhc_pre", "processors", std::int64_t{0}, "processors = 0 must be at least 1"},
  };
  for (const Bad& bad : attributes) {
    LocalHost host(find_table(bad.entry));
    Problem problem = default_problem(*find_table(bad.entry), 2, 64);
    ASSERT_TRUE(host.validate(problem).has_value()) << bad.entry;
    problem.attrs[bad.name] = bad.value;
    const auto valid = host.validate(problem);
    ASSERT_FALSE(valid.has_value()) << bad.text;
    EXPECT_NE(valid.error().message.find(bad.text), std::string::npos) << valid.error().message;
  }
  for (const char* entry : kEntries) {
    LocalHost host(find_table(entry));
    const auto sentence = [&](const std::function<void(Problem&)>& change) {
      Problem problem = default_problem(*find_table(entry), 2, 64);
      change(problem);
      const auto valid = host.validate(problem);
      return valid.has_value() ? std::string("accepted") : valid.error().message;
    };
    EXPECT_EQ(sentence([](Problem& p) { p.axes["M"] = 0; }), "accepted");
    EXPECT_NE(sentence([](Problem& p) { p.axes["M"] = -1; }).find("M = -1"), std::string::npos);
    EXPECT_NE(sentence([](Problem& p) { p.axes["H"] = 0; }).find("H = 0 must be a positive multiple"),
              std::string::npos);
    EXPECT_NE(sentence([](Problem& p) { p.axes["H"] = 65; }).find("H = 65"), std::string::npos);
    EXPECT_NE(sentence([](Problem& p) { p.world = 2; }).find("W = 2"), std::string::npos);
    EXPECT_NE(sentence([](Problem& p) { p.dtypes[0] = BP_FP16; }).find("has a dtype"), std::string::npos);
    EXPECT_NE(sentence([](Problem& p) { p.dtypes[0] = BP_NONE; }).find("is missing"), std::string::npos);
  }
  // The broadcast form always normalises.
  Problem broadcast = default_problem(*find_table("mhc_pre_broadcast"), 2, 64);
  broadcast.dtypes[4] = BP_NONE;
  const auto valid = LocalHost(find_table("mhc_pre_broadcast")).validate(broadcast);
  ASSERT_FALSE(valid.has_value());
  EXPECT_NE(valid.error().message.find("norm_weight is missing"), std::string::npos) << valid.error().message;
}

TEST(EmptyTest, NoTokensGiveEmptyOutputs) {
  for (const char* entry : kEntries) {
    const bp_operator& table = *find_table(entry);
    for (std::uint32_t i = 0; i < table.implementation_count; ++i) {
      if (is_external(table.implementations[i]) || (table.implementations[i].flags & BP_IMPL_CUDA) != 0) continue;
      Case call(entry, 0, 2048);
      call.make();
      for (Buffer& buffer : call.buffers) {
        if (buffer.bytes.empty()) buffer.view.data = nullptr;
      }
      const auto ran = call.run(table.implementations[i].id, table.implementations[i].mode);
      EXPECT_TRUE(ran.has_value()) << entry << " " << table.implementations[i].id << ": " << ran.error().message;
    }
  }
}

TEST(StrideTest, ColumnsThatAreNotContiguousAreRefusedBeforeAnythingIsWritten) {
  for (const char* entry : kEntries) {
    Case call(entry, 2, 64);
    call.make();
    const auto before = call.outputs();
    Buffer& first = call.buffers[0];
    first.view.stride[first.view.ndim - 1] = 2;
    const auto ran = call.run(default_implementation(call.table(), BP_MODE_INVARIANT)->id);
    ASSERT_FALSE(ran.has_value()) << entry;
    EXPECT_NE(ran.error().message.find("columns must be contiguous"), std::string::npos) << ran.error().message;
    EXPECT_EQ(call.outputs(), before);
  }
}

}  // namespace
}  // namespace batchproof::mhc
