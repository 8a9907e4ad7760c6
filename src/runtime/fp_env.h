// SPDX-License-Identifier: Apache-2.0
//
// The floating-point environment around an operator call (C10). A library built with fast-math flips flush-to-zero and
// denormals-are-zero when it is loaded; an operator could leave another rounding mode behind.
#ifndef BATCHPROOF_SRC_RUNTIME_FP_ENV_H_
#define BATCHPROOF_SRC_RUNTIME_FP_ENV_H_

#include <cstdint>
#include <string>

namespace batchproof {

// Control bits of the floating-point unit (MXCSR on x86-64, FPCR on AArch64), without the sticky exception flags.
std::uint64_t fp_control();
void set_fp_control(std::uint64_t control);
// Round to nearest even, no flush to zero, no denormals-are-zero, exceptions masked.
std::uint64_t default_fp_control();
// What differs from the default, as words: "flush-to-zero, denormals-are-zero, rounding toward zero"; empty: nothing.
std::string describe_fp_control(std::uint64_t control);

// Sets the default environment; the destructor restores what was there before.
class FpEnvGuard {
 public:
  FpEnvGuard();
  ~FpEnvGuard();
  FpEnvGuard(const FpEnvGuard&) = delete;
  FpEnvGuard& operator=(const FpEnvGuard&) = delete;
  // After the guarded call: what the call changed, in words; empty: nothing. Puts the default back.
  std::string check();

 private:
  std::uint64_t saved_;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_RUNTIME_FP_ENV_H_
