// SPDX-License-Identifier: Apache-2.0
#include "src/plugin/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <set>

#include "src/plugin/signals.h"
#include "src/plugin/table.h"
#include "src/runtime/fp_env.h"

namespace batchproof {
namespace {

constexpr std::uint32_t kMaxOperators = 1024;

}  // namespace

Result<Library> Library::load(const std::string& path) {
  Library library;
  set_fp_control(default_fp_control());
  const SignalHandlers handlers = SignalHandlers::now();
  const sigset_t mask = signal_mask();
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    return fail(Error::Kind::usage,
                fmt::format("{}: cannot be loaded: {}", path, reason != nullptr ? reason : "no reason was given"));
  }
  const auto function = reinterpret_cast<bp_operators_function>(dlsym(handle, BP_OPERATORS_SYMBOL));
  if (function == nullptr)
    return fail(Error::Kind::usage,
                fmt::format("{}: exports no {}; a plug-in defines this function (bp_operators_function in "
                            "batchproof/operator.h, extern \"C\" in C++)",
                            path, BP_OPERATORS_SYMBOL));
  std::uint32_t count = 0;
  const bp_operator* const* tables = function(BP_ABI_VERSION, &count);
  if (const std::string changed = describe_fp_control(fp_control()); !changed.empty())
    library.notes_.push_back(fmt::format("sets {} when loaded", changed));
  set_fp_control(default_fp_control());
  if (const std::string changed = SignalHandlers::now().changed_since(handlers); !changed.empty())
    library.notes_.push_back(fmt::format("installs handlers for {} when loaded", changed));
  if (const std::string changed = mask_change(mask, signal_mask()); !changed.empty())
    library.notes_.push_back(fmt::format("changes the signal mask when loaded: {}", changed));

  if (tables == nullptr || count == 0)
    return fail(Error::Kind::usage, fmt::format("{}: {} returned no operator", path, BP_OPERATORS_SYMBOL));
  if (count > kMaxOperators)
    return fail(Error::Kind::usage, fmt::format("{}: {} says that there are {} operators; at most {}", path,
                                                BP_OPERATORS_SYMBOL, count, kMaxOperators));
  std::set<std::string> names;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (tables[i] == nullptr)
      return fail(Error::Kind::usage, fmt::format("{}: {} returned {} operators, but entry {} is NULL", path,
                                                  BP_OPERATORS_SYMBOL, count, i));
    if (auto checked = check_table(*tables[i]); !checked)
      return fail(Error::Kind::usage, fmt::format("{}: {}", path, checked.error().message));
    if (!names.insert(tables[i]->name).second)
      return fail(Error::Kind::usage, fmt::format("{}: operator {} is there twice", path, tables[i]->name));
    library.tables_.push_back(tables[i]);
  }
  return library;
}

}  // namespace batchproof
