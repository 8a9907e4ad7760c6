// SPDX-License-Identifier: Apache-2.0
//
// Which processor this is and which of the kernels' instruction sets it can run. The choice changes time, never bytes.
#ifndef BATCHPROOF_SRC_RUNTIME_CPU_H_
#define BATCHPROOF_SRC_RUNTIME_CPU_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/runtime/error.h"

namespace batchproof {

// In ascending order of width. avx2 means AVX2, FMA and F16C; avx512 adds AVX-512 F, BW, VL and DQ.
enum class Isa { plain, avx2, avx512 };

const char* isa_name(Isa isa);  // "plain", "avx2", "avx512"
std::optional<Isa> isa_from_name(std::string_view name);

// What the processor has and the operating system keeps across context switches, ascending; plain is always there.
std::vector<Isa> available_isas();
// The widest available.
Isa best_isa();

// The instruction set that a setting asks for; NULL and "" ask for the widest. A word that is none is an error of kind
// usage, an instruction set that this machine lacks is one of kind environment.
Result<Isa> choose_isa(const char* setting);
// choose_isa of the environment variable BATCHPROOF_ISA, read at each call.
Result<Isa> selected_isa();

// "AMD EPYC 9654 96-Core Processor"; the architecture where the system does not tell more.
std::string cpu_model();

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_RUNTIME_CPU_H_
