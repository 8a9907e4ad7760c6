// SPDX-License-Identifier: Apache-2.0
//
// The guard against the real thing: a library whose constructor flips flush-to-zero when it is loaded.
#include "src/runtime/fp_env.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cfenv>
#include <limits>
#include <string>

namespace batchproof {
namespace {

constexpr const char* kLibrary = BATCHPROOF_TESTDATA_DIR "/flip_on_load.so";

// Opaque to the optimiser, so that the arithmetic happens under the environment of the moment.
float half_of(float number) {
  volatile float value = number;
  volatile float half = 0.5f;
  return value * half;
}
float third() {
  volatile float one = 1.0f;
  volatile float three = 3.0f;
  return one / three;
}

class FpEnvTest : public testing::Test {
 protected:
  void SetUp() override { set_fp_control(default_fp_control()); }
  void TearDown() override {
    set_fp_control(default_fp_control());
    if (library_ != nullptr) dlclose(library_);
  }
  void load() {
    library_ = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
  }
  void call(const char* name) {
    const auto function = reinterpret_cast<void (*)()>(dlsym(library_, name));
    ASSERT_NE(function, nullptr) << name;
    function();
  }

  void* library_ = nullptr;
};

// "flush-to-zero" on AArch64 covers inputs as well; x86-64 has two bits.
bool names_flush(const std::string& text) {
#if defined(__x86_64__)
  return text == "flush-to-zero, denormals-are-zero";
#else
  return text == "flush-to-zero";
#endif
}

TEST_F(FpEnvTest, TheDefaultIsWhatAProcessStartsWith) {
  // A fresh thread inherits the process default unless somebody changed it; SetUp wrote it, so read-back is the point.
  EXPECT_EQ(fp_control(), default_fp_control());
  EXPECT_EQ(describe_fp_control(default_fp_control()), "");
  EXPECT_EQ(std::fegetround(), FE_TONEAREST);
  EXPECT_GT(half_of(std::numeric_limits<float>::min()), 0.0f);
}

TEST_F(FpEnvTest, LoadingTheLibraryFlipsTheEnvironmentAndTheGuardNamesIt) {
  FpEnvGuard guard;
  ASSERT_EQ(guard.check(), "");
  load();
  // The flip is real: a denormal result is gone.
  EXPECT_EQ(half_of(std::numeric_limits<float>::min()), 0.0f);
  const std::string changed = guard.check();
  EXPECT_TRUE(names_flush(changed)) << changed;
  EXPECT_EQ(fp_control(), default_fp_control());
  EXPECT_GT(half_of(std::numeric_limits<float>::min()), 0.0f);
  EXPECT_EQ(guard.check(), "");
}

TEST_F(FpEnvTest, NamesRoundingAndFlushTogether) {
  load();
  set_fp_control(default_fp_control());
  FpEnvGuard guard;
  const float nearest = third();
  call("flip_rounding");
  EXPECT_LT(third(), nearest);
  EXPECT_EQ(guard.check(), "rounding toward zero");
  EXPECT_EQ(third(), nearest);
  call("flip_flush");
  call("flip_rounding");
  const std::string both = guard.check();
  ASSERT_NE(both.find(", rounding toward zero"), std::string::npos) << both;
  EXPECT_TRUE(names_flush(both.substr(0, both.find(", rounding")))) << both;
}

TEST_F(FpEnvTest, NamesAnUnmaskedException) {
  load();
  set_fp_control(default_fp_control());
  FpEnvGuard guard;
  call("trap_division");
  const std::string changed = guard.check();
#if defined(__x86_64__)
  EXPECT_EQ(changed, "trap on division by zero");
#else
  // An AArch64 core without trapped exceptions ignores the bit.
  EXPECT_TRUE(changed.empty() || changed == "trap on division by zero") << changed;
#endif
  EXPECT_EQ(fp_control(), default_fp_control());
}

TEST_F(FpEnvTest, EveryRoundingDirectionHasItsName) {
  const struct {
    int mode;
    const char* name;
  } kModes[] = {{FE_DOWNWARD, "rounding toward minus infinity"},
                {FE_UPWARD, "rounding toward plus infinity"},
                {FE_TOWARDZERO, "rounding toward zero"},
                {FE_TONEAREST, ""}};
  for (const auto& mode : kModes) {
    ASSERT_EQ(std::fesetround(mode.mode), 0);
    EXPECT_EQ(describe_fp_control(fp_control()), mode.name);
  }
}

TEST_F(FpEnvTest, TheDestructorRestoresWhatWasThereBefore) {
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  const std::uint64_t before = fp_control();
  {
    FpEnvGuard guard;
    EXPECT_EQ(fp_control(), default_fp_control());
    load();
    EXPECT_NE(fp_control(), default_fp_control());
  }
  EXPECT_EQ(fp_control(), before);
  EXPECT_EQ(describe_fp_control(fp_control()), "rounding toward plus infinity");
}

TEST_F(FpEnvTest, StickyFlagsAreNotAChange) {
  FpEnvGuard guard;
  std::feclearexcept(FE_ALL_EXCEPT);
  volatile float inexact = third();
  static_cast<void>(inexact);
  ASSERT_NE(std::fetestexcept(FE_INEXACT), 0);
  EXPECT_EQ(guard.check(), "");
  set_fp_control(default_fp_control());
  EXPECT_NE(std::fetestexcept(FE_INEXACT), 0) << "setting the control word must not clear flags";
}

}  // namespace
}  // namespace batchproof
