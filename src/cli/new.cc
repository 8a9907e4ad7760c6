// SPDX-License-Identifier: Apache-2.0
//
// batchproof new: writes a user's operator from the templates of examples/plugin, which are part of the program.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "batchproof/registry.h"
#include "src/cli/command_text.h"
#include "src/cli/exit.h"
#include "src/cli/print.h"
#include "src/cli/verbs.h"
#include "src/runtime/file.h"
#include "src/runtime/words.h"

namespace batchproof::cli {
namespace {

namespace fs = std::filesystem;

struct Template {
  std::string_view language, file, content;
};
constexpr std::string_view kPlaceholder = "my_op";
#include "new_templates.inc"

constexpr std::size_t kLongestName = 64;

// Names of targets that CMake keeps for itself: the new operator is a target of that name.
constexpr std::array<std::string_view, 10> kCMakeTargets = {
    "all",     "clean",          "edit_cache",    "help", "install", "list_install_components",
    "package", "package_source", "rebuild_cache", "test"};

Result<void> check_name(const std::string& name) {
  const auto letter = [](unsigned char c) { return c < 128 && (std::isalnum(c) != 0 || c == '_'); };
  if (name.empty() || name.size() > kLongestName || std::isdigit(static_cast<unsigned char>(name[0])) != 0 ||
      !std::all_of(name.begin(), name.end(), letter)) {
    return fail(Error::Kind::usage,
                fmt::format("new \"{}\": a name is letters, digits and _, not a digit first, at most {} of them", name,
                            kLongestName));
  }
  if (std::find(kCMakeTargets.begin(), kCMakeTargets.end(), name) != kCMakeTargets.end()) {
    return fail(Error::Kind::usage, fmt::format("new {}: CMake keeps this name for itself; take another", name));
  }
  for (const bp_operator* table : registered_operators()) {
    if (name == table->name) {
      return fail(Error::Kind::usage,
                  fmt::format("new {}: this program has an operator of that name; take another", name));
    }
  }
  return {};
}

std::string renamed(std::string_view text, const std::string& name) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t found = std::min(text.find(kPlaceholder, at), text.size());
    result += text.substr(at, found - at);
    if (found < text.size()) result += name;
    at = found + kPlaceholder.size();
  }
  return result;
}

Error at_path(const fs::path& path, const std::error_code& error) {
  return Error{Error::Kind::environment, fmt::format("new: {}: {}", path.string(), error.message())};
}

Result<void> write_files(const fs::path& folder, const std::string& language, const std::string& name) {
  for (const Template& file : kTemplates) {
    if (file.language != language) continue;
    const fs::path path = folder / renamed(file.file, name);
    if (auto written = write_file(path.string(), renamed(file.content, name)); !written) return written;
  }
  return {};
}

}  // namespace

int run_new(const NewFlags& flags) {
  if (const auto valid = check_name(flags.name); !valid) return report_error(valid.error());
  if (flags.language != "c" && flags.language != "c++") {
    return report_error({Error::Kind::usage, fmt::format("--language {}: languages are c and c++", flags.language)});
  }
  const fs::path folder = flags.directory.empty() ? fs::path(flags.name) : fs::path(flags.directory);
  std::error_code error;
  if (fs::exists(fs::symlink_status(folder, error))) {
    return report_error({Error::Kind::usage,
                         fmt::format("new: {} is there already; nothing was written (--directory names another folder)",
                                     folder.string())});
  }
  if (folder.has_parent_path()) {
    fs::create_directories(folder.parent_path(), error);
    if (error) return report_error(at_path(folder.parent_path(), error));
  }
  // Made by this call or not at all: what is removed below is then this call's own.
  if (!fs::create_directory(folder, error)) return report_error(at_path(folder, error));
  if (const auto written = write_files(folder, flags.language, flags.name); !written) {
    fs::remove_all(folder, error);
    return report_error(written.error());
  }
  for (const Template& file : kTemplates) {
    if (file.language == flags.language) fmt::print("{}\n", (folder / renamed(file.file, flags.name)).string());
  }
  note(fmt::format("next: cd {} and follow README.md", shell_join({folder.string()})));
  return kExitOk;
}

}  // namespace batchproof::cli
