// SPDX-License-Identifier: Apache-2.0
#include "src/runtime/cpu.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace batchproof {
namespace {

constexpr std::array<Isa, 3> kIsas = {Isa::plain, Isa::avx2, Isa::avx512};

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

#if defined(__x86_64__)
// __builtin_cpu_supports asks XCR0 too, so a set that the operating system does not save counts as absent.
bool has_avx2() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return false;
  const bool f16c = (ecx & bit_F16C) != 0;  // not every compiler's builtin knows this word
  return f16c && __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0;
}

// Brand string: leaves 0x80000002 to 0x80000004, 48 characters.
std::string brand() {
  if (__get_cpuid_max(0x80000000u, nullptr) < 0x80000004u) return {};
  char text[49] = {};
  for (unsigned leaf = 0; leaf < 3; ++leaf) {
    unsigned words[4] = {};
    __get_cpuid(0x80000002u + leaf, &words[0], &words[1], &words[2], &words[3]);
    std::memcpy(text + 16 * leaf, words, sizeof(words));
  }
  return trimmed(text);
}
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }

std::string brand() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = trimmed(line.substr(0, colon));
    if (key == "model name" || key == "Model" || key == "cpu model") return trimmed(line.substr(colon + 1));
  }
  return {};
}
#endif

bool available(Isa isa) {
  static const bool avx2 = has_avx2();
  static const bool avx512 = has_avx512();
  return isa == Isa::plain || (isa == Isa::avx2 && avx2) || (isa == Isa::avx512 && avx512);
}

std::string names(const std::vector<Isa>& isas) {
  std::string list;
  for (const Isa isa : isas) list += fmt::format("{}{}", list.empty() ? "" : ", ", isa_name(isa));
  return list;
}

}  // namespace

const char* isa_name(Isa isa) { return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "plain"; }

std::optional<Isa> isa_from_name(std::string_view name) {
  for (const Isa isa : kIsas) {
    if (name == isa_name(isa)) return isa;
  }
  return std::nullopt;
}

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : kIsas) {
    if (available(isa)) isas.push_back(isa);
  }
  return isas;
}

Isa best_isa() { return available(Isa::avx512) ? Isa::avx512 : available(Isa::avx2) ? Isa::avx2 : Isa::plain; }

Result<Isa> choose_isa(const char* setting) {
  if (setting == nullptr || setting[0] == '\0') return best_isa();
  const std::optional<Isa> isa = isa_from_name(setting);
  if (!isa) {
    return fail(Error::Kind::usage, fmt::format("BATCHPROOF_ISA is \"{}\"; it may be plain, avx2 or avx512", setting));
  }
  if (!available(*isa)) {
    return fail(Error::Kind::environment,
                fmt::format("BATCHPROOF_ISA is {}, which this processor cannot run; it has {}", setting,
                            names(available_isas())));
  }
  return *isa;
}

Result<Isa> selected_isa() { return choose_isa(std::getenv("BATCHPROOF_ISA")); }

std::string cpu_model() {
  const std::string name = brand();
  if (!name.empty()) return name;
  utsname system{};
  return uname(&system) == 0 ? std::string(system.machine) : std::string("unknown processor");
}

}  // namespace batchproof
