// SPDX-License-Identifier: Apache-2.0
//
// Registers: MXCSR (Intel SDM volume 1, section 10.2.3; AMD64 manual volume 1, section 4.2.2) and FPCR (Arm ARM,
// section C5.2.8).
#include "src/runtime/fp_env.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#error "the floating-point environment of this processor is not known: add its control register here"
#endif

namespace batchproof {
namespace {

struct ControlBit {
  std::uint64_t mask;
  const char* name;  // what a deviation from the default means
};

#if defined(__x86_64__)

constexpr std::uint64_t kFlags = 0x003f;  // sticky exceptions: not part of the environment that we compare
constexpr std::uint64_t kDefault = 0x1f80;
constexpr std::uint64_t kWritable = 0xffc0;
constexpr int kRoundingShift = 13;
// In the order of the register's two bits.
constexpr const char* kRounding[4] = {nullptr, "rounding toward minus infinity", "rounding toward plus infinity",
                                      "rounding toward zero"};
constexpr ControlBit kBits[] = {{0x8000, "flush-to-zero"},
                                {0x0040, "denormals-are-zero"},
                                {0x0080, "trap on invalid operation"},
                                {0x0100, "trap on denormal operand"},
                                {0x0200, "trap on division by zero"},
                                {0x0400, "trap on overflow"},
                                {0x0800, "trap on underflow"},
                                {0x1000, "trap on inexact result"}};

std::uint64_t read_register() { return _mm_getcsr(); }
void write_register(std::uint64_t value) { _mm_setcsr(static_cast<unsigned>(value)); }

#else

constexpr std::uint64_t kFlags = 0;  // AArch64 keeps them in FPSR
constexpr std::uint64_t kDefault = 0;
// FIZ, AH, NEP; trap enables; FZ16; RMode; FZ; DN; AHP.
constexpr std::uint64_t kWritable = 0x07c89f07;
constexpr int kRoundingShift = 22;
constexpr const char* kRounding[4] = {nullptr, "rounding toward plus infinity", "rounding toward minus infinity",
                                      "rounding toward zero"};
constexpr ControlBit kBits[] = {{0x01000000, "flush-to-zero"},
                                {0x00000001, "denormals-are-zero"},
                                {0x00080000, "FP16 flush-to-zero"},
                                {0x02000000, "default NaN"},
                                {0x04000000, "alternative half precision"},
                                {0x00000002, "alternate handling"},
                                {0x00000004, "scalar results clear the vector"},
                                {0x00000100, "trap on invalid operation"},
                                {0x00000200, "trap on division by zero"},
                                {0x00000400, "trap on overflow"},
                                {0x00000800, "trap on underflow"},
                                {0x00001000, "trap on inexact result"},
                                {0x00008000, "trap on denormal operand"}};

std::uint64_t read_register() {
  std::uint64_t value;
  asm volatile("mrs %0, fpcr" : "=r"(value)::"memory");
  return value;
}
void write_register(std::uint64_t value) { asm volatile("msr fpcr, %0" ::"r"(value) : "memory"); }

#endif

}  // namespace

std::uint64_t fp_control() { return read_register() & kWritable & ~kFlags; }

void set_fp_control(std::uint64_t control) {
  write_register((read_register() & ~kWritable) | (control & kWritable & ~kFlags));
}

std::uint64_t default_fp_control() { return kDefault; }

std::string describe_fp_control(std::uint64_t control) {
  const std::uint64_t difference = control ^ kDefault;
  std::string words;
  const auto add = [&words](const char* word) {
    if (!words.empty()) words += ", ";
    words += word;
  };
  for (const ControlBit& bit : kBits) {
    if ((difference & bit.mask) != 0) add(bit.name);
  }
  const char* rounding = kRounding[(control >> kRoundingShift) & 3];
  if (rounding != nullptr) add(rounding);
  return words;
}

FpEnvGuard::FpEnvGuard() : saved_(fp_control()) { set_fp_control(default_fp_control()); }

FpEnvGuard::~FpEnvGuard() { set_fp_control(saved_); }

std::string FpEnvGuard::check() {
  const std::uint64_t now = fp_control();
  if (now == kDefault) return {};
  set_fp_control(kDefault);
  return describe_fp_control(now);
}

}  // namespace batchproof
