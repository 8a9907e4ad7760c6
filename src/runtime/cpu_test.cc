// SPDX-License-Identifier: Apache-2.0
#include "src/runtime/cpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace batchproof {
namespace {

// The kernel's own list of usable features: the independent witness of the detection.
std::set<std::string> kernel_flags() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    return {std::istream_iterator<std::string>(words), std::istream_iterator<std::string>()};
  }
  return {};
}

bool has(const std::vector<Isa>& isas, Isa isa) { return std::find(isas.begin(), isas.end(), isa) != isas.end(); }

TEST(CpuTest, AgreesWithTheKernel) {
  const std::vector<Isa> isas = available_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::plain);
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
  EXPECT_EQ(best_isa(), isas.back());
  const std::set<std::string> flags = kernel_flags();
  const auto all = [&flags](std::initializer_list<const char*> names) {
    return std::all_of(names.begin(), names.end(), [&](const char* name) { return flags.count(name) == 1; });
  };
  EXPECT_EQ(has(isas, Isa::avx2), all({"avx2", "fma", "f16c"}));
  EXPECT_EQ(has(isas, Isa::avx512), all({"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq"}));
}

TEST(CpuTest, NamesRoundTrip) {
  for (const Isa isa : {Isa::plain, Isa::avx2, Isa::avx512}) EXPECT_EQ(isa_from_name(isa_name(isa)), isa);
  EXPECT_EQ(isa_from_name("AVX2"), std::nullopt);
  EXPECT_EQ(isa_from_name(""), std::nullopt);
}

TEST(CpuTest, ASettingChooses) {
  EXPECT_EQ(*choose_isa(nullptr), best_isa());
  EXPECT_EQ(*choose_isa(""), best_isa());
  for (const Isa isa : {Isa::plain, Isa::avx2, Isa::avx512}) {
    const Result<Isa> chosen = choose_isa(isa_name(isa));
    if (has(available_isas(), isa)) {
      ASSERT_TRUE(chosen) << chosen.error().message;
      EXPECT_EQ(*chosen, isa);
    } else {
      ASSERT_FALSE(chosen);
      EXPECT_EQ(chosen.error().kind, Error::Kind::environment);
      EXPECT_NE(chosen.error().message.find(isa_name(isa)), std::string::npos);
      EXPECT_NE(chosen.error().message.find("it has plain"), std::string::npos);
    }
  }
  const Result<Isa> unknown = choose_isa("sse");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().kind, Error::Kind::usage);
  EXPECT_EQ(unknown.error().message, "BATCHPROOF_ISA is \"sse\"; it may be plain, avx2 or avx512");
}

TEST(CpuTest, TheEnvironmentIsReadAtEachCall) {
  ASSERT_EQ(setenv("BATCHPROOF_ISA", "plain", 1), 0);
  EXPECT_EQ(*selected_isa(), Isa::plain);
  ASSERT_EQ(setenv("BATCHPROOF_ISA", "fast", 1), 0);
  EXPECT_FALSE(selected_isa());
  ASSERT_EQ(unsetenv("BATCHPROOF_ISA"), 0);
  EXPECT_EQ(*selected_isa(), best_isa());
}

TEST(CpuTest, TheModelHasAName) {
  const std::string model = cpu_model();
  ASSERT_FALSE(model.empty());
  EXPECT_NE(model.front(), ' ');
  EXPECT_NE(model.back(), ' ');
  for (const char c : model) EXPECT_TRUE(c >= ' ' && c <= '~') << static_cast<int>(c);
}

}  // namespace
}  // namespace batchproof
