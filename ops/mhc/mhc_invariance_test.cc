// SPDX-License-Identifier: Apache-2.0
//
// What may not move a byte: instruction set, threads, strides, the rows around, NaN and infinity in them; forms that
// must agree with each other; and the distance to the FP64 reference.
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>

#include "ops/mhc/mhc_case.h"
#include "src/numeric/host_device.h"
#include "src/runtime/cpu.h"

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

bool honest(const bp_implementation& implementation) {
  return implementation.defect == nullptr && std::string(implementation.id).find("external") != 0;
}

#ifdef BATCHPROOF_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

class IsaSetting {
 public:
  explicit IsaSetting(Isa isa) { setenv("BATCHPROOF_ISA", isa_name(isa), 1); }
  ~IsaSetting() { unsetenv("BATCHPROOF_ISA"); }
};

TEST(SameBytesTest, OnEveryInstructionSetAndThreadCount) {
  for (const char* entry : kEntries) {
    for (std::uint32_t i = 0; i < find_table(entry)->implementation_count; ++i) {
      const bp_implementation& implementation = find_table(entry)->implementations[i];
      if ((implementation.flags & BP_IMPL_CUDA) != 0) continue;
      if (!honest(implementation)) continue;
      // 1 and 5: segments over threads, and the small kernel; 19: a remainder of every row tile.
      for (const std::int64_t rows : {1, 5, 19}) {
        Case call(entry, rows, 2048);
        call.make();
        if (kSanitized && rows == 5) continue;
        std::map<std::string, std::vector<std::uint8_t>> first;
        for (const Isa isa : available_isas()) {
          const IsaSetting setting(isa);
          for (const int threads : {1, 2, 7}) {
            const auto ran = call.run(implementation.id, implementation.mode, threads);
            ASSERT_TRUE(ran.has_value()) << entry << ": " << ran.error().message;
            if (first.empty()) first = call.outputs();
            EXPECT_EQ(call.outputs(), first)
                << entry << " " << implementation.id << " M " << rows << " " << isa_name(isa) << " threads " << threads;
          }
        }
      }
    }
  }
}

TEST(SameBytesTest, WhateverThePaddingOfTheRows) {
  for (const char* entry : kEntries) {
    Case call(entry, 6, 80 * 16);
    call.make();
    const std::string id = default_implementation(call.table(), BP_MODE_INVARIANT)->id;
    ASSERT_TRUE(call.run(id).has_value());
    const auto expected = call.outputs();
    // Every tensor with rows or fn gets rows that are 3 elements further apart, at an address off any boundary.
    std::vector<std::vector<std::uint8_t>> storage(call.buffers.size());
    for (std::size_t p = 0; p < call.buffers.size(); ++p) {
      Buffer& buffer = call.buffers[p];
      if (buffer.view.dtype == BP_NONE || buffer.view.ndim < 2) continue;
      const auto size = static_cast<std::int64_t>(buffer.view.dtype == BP_FP32 ? 4 : 2);
      const std::int64_t last = buffer.view.ndim - 1;
      const std::int64_t length = buffer.view.shape[last];
      const std::int64_t lines = static_cast<std::int64_t>(buffer.bytes.size()) / size / length;
      storage[p].assign(static_cast<std::size_t>((lines * (length + 3) + 1) * size), 0xFF);
      std::uint8_t* base = storage[p].data() + size;
      for (std::int64_t line = 0; line < lines; ++line)
        std::memcpy(base + line * (length + 3) * size, buffer.bytes.data() + line * length * size,
                    static_cast<std::size_t>(length * size));
      buffer.view.data = base;
      for (std::int64_t axis = last - 1; axis >= 0; --axis)
        buffer.view.stride[axis] =
            axis == last - 1 ? length + 3 : buffer.view.stride[axis + 1] * buffer.view.shape[axis + 1];
    }
    ASSERT_TRUE(call.run(id).has_value());
    for (std::size_t p = 0; p < call.buffers.size(); ++p) {
      const bp_port& port = call.table().ports[p];
      if (port.kind != BP_OUTPUT || storage[p].empty()) continue;
      const Buffer& buffer = call.buffers[p];
      const auto size = static_cast<std::int64_t>(buffer.view.dtype == BP_FP32 ? 4 : 2);
      const std::int64_t length = buffer.view.shape[buffer.view.ndim - 1];
      const auto& want = expected.at(port.name);
      for (std::int64_t line = 0; line < static_cast<std::int64_t>(want.size()) / size / length; ++line) {
        const std::uint8_t* at = static_cast<std::uint8_t*>(buffer.view.data) + line * (length + 3) * size;
        EXPECT_EQ(std::memcmp(at, want.data() + line * length * size, static_cast<std::size_t>(length * size)), 0)
            << entry << " " << port.name << " line " << line;
        for (std::int64_t gap = 0; gap < 3 * size && line + 1 < static_cast<std::int64_t>(want.size()) / size / length;
             ++gap)
          EXPECT_EQ(at[length * size + gap], 0xFF) << entry << " wrote between rows of " << port.name;
      }
    }
  }
}

TEST(SameBytesTest, M256AgainstSingleRuns) {
  for (const char* entry : kEntries) {
    // The published size for the entry that every layer runs; a sanitizer's build has no time for it.
    const std::int64_t hidden = std::string(entry) == "mhc_fused_post_pre" && !kSanitized ? 4096 : 512;
    Case batch(entry, 256, hidden);
    batch.make(7);
    const std::string id = default_implementation(batch.table(), BP_MODE_INVARIANT)->id;
    ASSERT_TRUE(batch.run(id).has_value());
    Case single(entry, 1, hidden);
    single.make();
    for (std::int64_t row = 0; row < 256; ++row) {
      single.make_rows(7 + static_cast<std::uint64_t>(row));
      ASSERT_TRUE(single.run(id).has_value());
      ASSERT_EQ(batch.row(row), single.outputs()) << entry << " row " << row;
    }
  }
}

// Rows of NaN, infinity and the largest value around the victims; the victims' bytes stay, and a NaN elsewhere is the
// canonical one.
TEST(SameBytesTest, PoisonedNeighboursDoNotLeak) {
  for (const char* entry : kEntries) {
    for (std::uint32_t i = 0; i < find_table(entry)->implementation_count; ++i) {
      const bp_implementation& implementation = find_table(entry)->implementations[i];
      if ((implementation.flags & BP_IMPL_CUDA) != 0) continue;
      if (!honest(implementation)) continue;
      Case call(entry, 9, 1024);
      call.make();
      ASSERT_TRUE(call.run(implementation.id, implementation.mode).has_value());
      std::map<std::int64_t, std::map<std::string, std::vector<std::uint8_t>>> before;
      for (const std::int64_t row : {0, 3, 8}) before[row] = call.row(row);
      for (std::uint32_t p = 0; p < call.table().port_count; ++p) {
        Buffer& buffer = call.buffers[p];
        if (call.table().ports[p].kind != BP_ROW_INPUT) continue;
        const std::int64_t elements =
            static_cast<std::int64_t>(buffer.bytes.size()) / (buffer.view.dtype == BP_FP32 ? 4 : 2);
        const std::int64_t length = elements / 9;
        for (std::int64_t e = 0; e < elements; ++e) {
          const std::int64_t row = e / length;
          if (row == 0 || row == 3 || row == 8) continue;
          const float poison = row % 3 == 0   ? std::numeric_limits<float>::quiet_NaN()
                               : row % 3 == 1 ? std::numeric_limits<float>::infinity()
                                              : std::numeric_limits<float>::max();
          buffer.set(e, poison);
        }
      }
      ASSERT_TRUE(call.run(implementation.id, implementation.mode).has_value());
      for (const std::int64_t row : {0, 3, 8})
        EXPECT_EQ(call.row(row), before[row]) << entry << " " << implementation.id << " row " << row;
      // One canonical NaN is stored.
      std::int64_t stored = 0;
      for (const auto& [name, bytes] : call.outputs()) {
        const bool fp32 = call.at(name).view.dtype == BP_FP32;
        for (std::size_t e = 0; e < bytes.size() / (fp32 ? 4 : 2); ++e) {
          const float value = fp32 ? call.at(name).fp32(static_cast<std::int64_t>(e)) : 0.0f;
          if (fp32 && std::isnan(value)) {
            ++stored;
            EXPECT_EQ(cast_bits<std::uint32_t>(value), 0x7FC00000u) << entry << " " << name;
          }
          if (fp32) continue;
          std::uint16_t bits;
          std::memcpy(&bits, bytes.data() + 2 * e, 2);
          if ((bits & 0x7FFF) > 0x7F80) {
            ++stored;
            ASSERT_TRUE(bits == 0x7FC0) << entry << " " << name;
          }
        }
      }
      EXPECT_GT(stored, 0) << entry << " " << implementation.id;
    }
  }
}

void copy_input(const Case& from, const std::string& name, Case* to, const std::string& to_name) {
  to->at(to_name).bytes = from.buffers[from.port(name)].bytes;
  to->at(to_name).view.data = to->at(to_name).bytes.data();
}

// Recipe A is mhc_post followed by mhc_pre, so where a pipeline is cut moves no byte.
TEST(CompositionTest, FusedRecipeAEqualsPostThenPre) {
  for (const bool norm : {false, true}) {
    Case fused("mhc_fused_post_pre", 21, 1280);
    if (!norm) fused.absent("norm_weight");
    fused.make();
    ASSERT_TRUE(fused.run("cpu-bf16res-tf32fn-chain256").has_value());
    Case post("mhc_post", 21, 1280);
    post.make();
    for (const char* name : {"x", "residual", "post_mix", "comb_mix"}) copy_input(fused, name, &post, name);
    ASSERT_TRUE(post.run("cpu-fp32fma-streams").has_value());
    EXPECT_EQ(post.outputs().at("residual_out"), fused.outputs().at("residual_out"));
    Case pre("mhc_pre", 21, 1280);
    if (!norm) pre.absent("norm_weight");
    pre.make();
    copy_input(post, "residual_out", &pre, "residual");
    for (const char* name : {"fn", "hc_scale", "hc_base"}) copy_input(fused, name, &pre, name);
    if (norm) copy_input(fused, "norm_weight", &pre, "norm_weight");
    ASSERT_TRUE(pre.run("cpu-tf32fn-chain256").has_value());
    EXPECT_EQ(pre.outputs().at("post_mix"), fused.outputs().at("post_mix_out"));
    EXPECT_EQ(pre.outputs().at("comb_mix"), fused.outputs().at("comb_mix_out"));
    EXPECT_EQ(pre.outputs().at("layer_input"), fused.outputs().at("layer_input"));
    // Recipe B is not.
    ASSERT_TRUE(fused.run("cpu-fp32res-fp32fma-chain256").has_value());
    EXPECT_EQ(post.outputs().at("residual_out"), fused.outputs().at("residual_out"));
    EXPECT_NE(pre.outputs().at("comb_mix"), fused.outputs().at("comb_mix_out"));
  }
}

// At H = 4096 and 132 processors the default dispatch cuts up to 128 tokens into 64 splits: segments of 256 columns.
TEST(CompositionTest, InvariantModeEqualsFastModeWhereTheCutsAreEqual) {
  for (const auto& [rows, equal] : {std::pair<std::int64_t, bool>{20, true}, {129, false}}) {
    Case call("mhc_pre", rows, 4096);
    call.make();
    ASSERT_TRUE(call.run("cpu-tf32fn-chain256").has_value());
    const auto invariant = call.outputs();
    ASSERT_TRUE(call.run("cpu-fast-occupancy", BP_MODE_FAST).has_value());
    EXPECT_EQ(call.outputs() == invariant, equal) << rows;
  }
}

TEST(DelayedTest, WithoutCarriedCoefficientsTheCollapseIsStreamZero) {
  for (const char* entry : {"mhc_pre_delayed", "mhc_fused_post_pre_delayed"}) {
    Case call(entry, 4, 256);
    call.absent("pre_mix");
    call.absent("norm_weight");
    call.make();
    const std::string id = default_implementation(call.table(), BP_MODE_INVARIANT)->id;
    ASSERT_TRUE(call.run(id).has_value());
    Buffer& streams = call.has("residual_out") ? call.at("residual_out") : call.at("residual");
    for (std::int64_t t = 0; t < 4; ++t) {
      for (std::int64_t h = 0; h < 256; ++h) {
        ASSERT_EQ(call.at("layer_input").bf16(t * 256 + h), streams.bf16(t * 1024 + h));
        const float sum =
            ((streams.bf16(t * 1024 + h) + streams.bf16(t * 1024 + 256 + h)) + streams.bf16(t * 1024 + 512 + h)) +
            streams.bf16(t * 1024 + 768 + h);
        ASSERT_EQ(call.at("streams_mean").bf16(t * 256 + h), bf16_to_float(float_to_bf16(sum * 0.25f)));
      }
    }
  }
}

// The coefficients that mhc_pre uses itself, carried, give its layer input.
TEST(DelayedTest, CarriedCoefficientsAreUsed) {
  Case delayed("mhc_pre_delayed", 4, 256);
  delayed.make();
  ASSERT_TRUE(delayed.run("cpu-tf32fn-chain256").has_value());
  copy_input(delayed, "pre_mix_out", &delayed, "pre_mix");
  ASSERT_TRUE(delayed.run("cpu-tf32fn-chain256").has_value());
  Case pre("mhc_pre", 4, 256);
  pre.make();
  for (const char* name : {"residual", "fn", "hc_scale", "hc_base", "norm_weight"})
    copy_input(delayed, name, &pre, name);
  ASSERT_TRUE(pre.run("cpu-tf32fn-chain256").has_value());
  EXPECT_EQ(pre.outputs().at("layer_input"), delayed.outputs().at("layer_input"));
  EXPECT_EQ(pre.outputs().at("comb_mix"), delayed.outputs().at("comb_mix"));
}

// ---- accuracy -----------------------------------------------------------------------------------------------------

// Largest |actual - exact| / (absolute + relative * |exact|) over an output; above 1: outside.
double worst_error(Case& actual, Case& exact, const std::string& name, double absolute, double relative) {
  double worst = 0;
  Buffer& a = actual.at(name);
  Buffer& e = exact.at(name);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(e.bytes.size() / 8); ++i) {
    const double value = a.view.dtype == BP_BF16 ? a.bf16(i) : a.fp32(i);
    worst = std::max(worst, std::fabs(value - e.fp64(i)) / (absolute + relative * std::fabs(e.fp64(i))));
  }
  return worst;
}

struct Errors {
  double coefficients = 0;  // post and comb
  double values = 0;        // BF16 outputs
};
Errors errors_of(const std::string& entry, const std::string& id, std::int64_t hidden,
                 const std::function<void(Case&)>& change = {}) {
  Case call(entry, 6, hidden), exact(entry, 6, hidden);
  if (change) change(call), change(exact);
  call.make();
  exact.make(1, true);
  EXPECT_TRUE(call.run(id, find_implementation(call.table(), id)->mode).has_value());
  EXPECT_TRUE(exact.run(id, BP_MODE_INVARIANT, 1, true).has_value());
  Errors errors;
  for (const auto& [name, bytes] : exact.outputs()) {
    if (name == "mixes" || name == "square_sum") continue;
    double& slot = call.at(name).view.dtype == BP_BF16 ? errors.values : errors.coefficients;
    slot = std::max(slot, call.at(name).view.dtype == BP_BF16 ? worst_error(call, exact, name, 5e-2, 1e-2)
                                                              : worst_error(call, exact, name, 4e-3, 4e-3));
  }
  return errors;
}

TEST(AccuracyTest, EveryHonestImplementationIsCloseToTheReference) {
  for (const char* entry : kEntries) {
    for (std::uint32_t i = 0; i < find_table(entry)->implementation_count; ++i) {
      const bp_implementation& implementation = find_table(entry)->implementations[i];
      if ((implementation.flags & BP_IMPL_CUDA) != 0) continue;
      if (!honest(implementation)) continue;
      const Errors errors = errors_of(entry, implementation.id, 2048);
      EXPECT_LT(errors.coefficients, 1.0) << entry << " " << implementation.id;
      EXPECT_LT(errors.values, 1.0) << entry << " " << implementation.id;
    }
  }
}

TEST(AccuracyTest, OnePassOfTheSinkhornIteration) {
  const auto once = [](Case& call) { call.problem.attrs["sinkhorn_repeat"] = std::int64_t{1}; };
  EXPECT_LT(errors_of("mhc_pre", "cpu-tf32fn-chain256", 512, once).coefficients, 1.0);
  // And the reference tells one pass from twenty.
  Case one("mhc_pre", 6, 512), twenty("mhc_pre", 6, 512);
  once(one);
  one.make();
  twenty.make();
  ASSERT_TRUE(one.run("cpu-fp32fma-chain256").has_value());
  ASSERT_TRUE(twenty.run("cpu-fp32fma-chain256").has_value());
  EXPECT_NE(one.outputs().at("comb_mix"), twenty.outputs().at("comb_mix"));
}

// Wrong results, not variances: no relation can see them, the reference does.
TEST(AccuracyTest, WrongButInvariantControlsAreFarFromTheReference) {
  for (const char* entry : {"mhc_post", "mhc_fused_post_pre"})
    EXPECT_GT(errors_of(entry, "control-comb-transposed", 512).values, 10.0) << entry;
  const auto eps = [](Case& call) {
    call.problem.attrs["rms_eps"] = 1e-20;
    call.problem.attrs["hc_pre_eps"] = 0.25;
  };
  EXPECT_LT(errors_of("mhc_pre", "cpu-tf32fn-chain256", 512, eps).coefficients, 1.0);
  EXPECT_GT(errors_of("mhc_pre", "control-one-eps", 512, eps).coefficients, 1.0);
  // With equal eps, as in the published configurations, it is right: one test with equal values shows nothing.
  EXPECT_LT(errors_of("mhc_pre", "control-one-eps", 512).coefficients, 1.0);
}

}  // namespace
}  // namespace batchproof::mhc
