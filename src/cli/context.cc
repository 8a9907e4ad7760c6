// SPDX-License-Identifier: Apache-2.0
//
// Collects the context of a run.
#include "src/cli/context.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>

#include "src/cli/command_text.h"
#include "src/numeric/digest.h"
#include "src/runtime/cpu.h"
#include "src/runtime/file.h"
#include "src/runtime/thread_pool.h"

namespace batchproof::cli {

std::string program_version() { return BATCHPROOF_VERSION; }

std::string program_build() {
#ifdef BATCHPROOF_BUILD
  return BATCHPROOF_BUILD;
#else
  return "unknown";
#endif
}

std::string device_text() {
  const Result<Isa> isa = selected_isa();
  const int threads = hardware_threads();
  return fmt::format("cpu: {}, {} thread{}, {}", cpu_model(), threads, threads == 1 ? "" : "s",
                     isa ? isa_name(*isa) : "no usable instruction set");
}

Result<RunContext> make_context(const std::vector<std::string>& words, const Selection& selection, bool digests) {
  if (const Result<Isa> isa = selected_isa(); !isa) return tl::unexpected(isa.error());
  RunContext context;
  context.version = program_version();
  context.build = program_build();
  context.command_line = shell_join(words);
  context.device = selection.options.device != nullptr ? selection.options.device->text() : device_text();
  context.communicator = selection.options.device != nullptr ? "virtual" : "threads";
  context.seed = selection.options.seed;
  context.date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  context.settings = selection.options.settings;
  if (!digests) return context;
  const Result<std::string> program = file_digest("/proc/self/exe");
  if (!program) return tl::unexpected(program.error());
  context.build_ids.emplace_back("program", *program);
  for (const auto& plugin : selection.plugins) context.build_ids.emplace_back(plugin->path(), plugin->build_id());
  for (const Suite& suite : selection.suites) context.build_ids.emplace_back(suite.path, digest_hex(suite.build_id));
  return context;
}

}  // namespace batchproof::cli
