// SPDX-License-Identifier: Apache-2.0
//
// batchproof doctor: what this build and this machine have, and what is validated where.
#include <fmt/format.h>

#if defined(__GLIBC__)
#include <gnu/libc-version.h>
#endif

#include "batchproof/registry.h"
#include "src/cli/context.h"
#include "src/cli/exit.h"
#include "src/cli/launch.h"
#include "src/cli/select.h"
#include "src/cli/verbs.h"
#include "src/runtime/cpu.h"
#include "src/runtime/device.h"
#include "src/runtime/fp_env.h"
#include "src/runtime/thread_pool.h"

namespace batchproof::cli {
namespace {

void row(const char* name, const std::string& value) { fmt::print("{:<20} {}\n", name, value); }

std::string libc_text() {
#if defined(__GLIBC__)
  return fmt::format("GNU libc {}", gnu_get_libc_version());
#else
  return "not GNU libc";
#endif
}

std::string cuda_text() {
  const Result<Device*> device = cuda_device(0);
  return device ? (*device)->text() : "none: " + device.error().message;
}

std::string available_text() {
  std::string text;
  for (const Isa isa : available_isas()) text += (text.empty() ? "" : ", ") + std::string(isa_name(isa));
  return text;
}

// What is promised is promised where tests ran. Keep this table to what the tests of this version do.
void print_validation() {
  fmt::print("\n# what the tests of this version validate\n");
  fmt::print("# {:<28} {:<10} {}\n", "backend", "validated", "note");
  const auto line = [](const char* backend, const char* validated, const char* text) {
    fmt::print("  {:<28} {:<10} {}\n", backend, validated, text);
  };
  line("x86-64 CPU, plain C++", "yes", "same bytes as AVX2 and AVX-512 where the machine has them");
  line("x86-64 CPU, AVX2 + FMA", "yes", "on machines that have it");
  line("x86-64 CPU, AVX-512", "yes", "on machines that have it");
  line("AArch64 CPU", "no", "meant to compile; no test runs there");
  line("ranks as threads", "yes", "up to 64 ranks");
  if (mpi_built_in()) {
    line("ranks over MPI", "yes", "Open MPI, 2, 4 and 8 processes of one machine, where mpirun is");
  } else {
    line("MPI", "no", "not built in");
  }
  line("virtual ranks on CUDA", "by hand", "./run gpu on one H200, up to 16 ranks; their streams: tests with threads");
  line("CUDA sm_90", "by hand", "./run gpu on one H200 (bench/records); no test of every change runs there");
  line("CUDA sm_80 to sm_89", "no", "compiled; no test runs there");
  line("NCCL", "no", "not built in");
}

}  // namespace

int run_doctor() {
  int code = kExitOk;
  row("version", fmt::format("{} (build {})", program_version(), program_build()));
  row("processor", cpu_model());
  row("threads", std::to_string(hardware_threads()));
  row("instruction sets", available_text());
  if (const Result<Isa> isa = selected_isa()) {
    row("chosen", isa_name(*isa));
  } else {
    row("chosen", "none: " + isa.error().message);
    code = exit_code(isa.error());
  }
  const std::string changes = describe_fp_control(fp_control());
  row("floating point", changes.empty() ? "round to nearest, no flush to zero (as needed)"
                                        : changes + " (set back around every operator call)");
  row("C library", libc_text());
  row("CUDA", cuda_text());
  row("MPI", mpi_built_in() ? "built in" : "not built in");
  row("NCCL", "not built in");
  const std::string folder = ops_folder();
  row("operators", std::to_string(registered_operators().size()));
  row("suites", folder.empty() ? "none found: name suite files on the command line"
                               : fmt::format("{} files below {}", discover_suites().size(), folder));
  print_validation();
  return code;
}

}  // namespace batchproof::cli
