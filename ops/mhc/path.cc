// SPDX-License-Identifier: Apache-2.0
#include "ops/mhc/path.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <tuple>

#include "batchproof/problem.h"
#include "src/kernels/cpu/mhc_backend.h"

namespace batchproof::mhc {
namespace {

using Plan = Recipe::Plan;
using Defect = Recipe::Defect;
using Kind = MhcPath::Kind;

constexpr std::uint32_t kEverything =
    BP_REPEAT | BP_NEIGHBOURS | BP_BATCH_SIZE | BP_POSITION | BP_POISON | BP_ALIGNMENT | BP_THREADS | BP_HISTORY;

std::int64_t pin_of(Form form) { return is_broadcast(form) ? kMhcPinBroadcast : kMhcPin; }

MhcDispatch dispatch_of(Form form, const Extents& extents, bool fallback) {
  return {extents.rows, extents.hidden, extents.columns, extents.processors, is_fused(form), fallback};
}

MhcPath planned(Form form, const Recipe& recipe, const Extents& extents) {
  MhcPath path;
  path.tf32 = recipe.tf32;
  path.unrounded = recipe.unrounded;
  path.constant = true;
  switch (recipe.plan) {
    case Plan::chain:
      path.name = "segments of 256 columns";
      break;
    case Plan::descending:
      path.kind = Kind::descending;
      path.name = "one descending chain";
      break;
    case Plan::pin:
      path.kind = Kind::splits;
      path.splits = pin_of(form);
      path.name = "pinned splits";
      break;
    case Plan::threads512:
      path.kind = Kind::threads;
      path.threads = 512;
      path.pairs = extents.rows >= kMhcFallbackPairs;
      path.name = "the fallback product with 512 threads";
      break;
    case Plan::occupancy:
    case Plan::fallback:
      return default_dispatch(dispatch_of(form, extents, recipe.plan == Plan::fallback));
    case Plan::external:
      path.kind = Kind::external;
      path.splits = pin_of(form);
      path.name = "an external product";
      break;
  }
  return path;
}

// The defect that it shows: plans of both modes under one key.
MhcPath remembered(Form form, const Recipe& recipe, const Extents& extents, bp_mode mode) {
  static std::mutex mutex;
  static std::map<std::tuple<Form, std::int64_t, std::int64_t, std::int64_t>, MhcPath> memo;
  const std::lock_guard lock(mutex);
  const auto key = std::tuple(form, extents.columns, extents.processors, extents.rows);
  const auto found = memo.find(key);
  if (found != memo.end()) return found->second;
  Recipe fresh = recipe;
  if (mode == BP_MODE_FAST) fresh.plan = Plan::occupancy;
  return memo[key] = planned(form, fresh, extents);
}

}  // namespace

Extents extents_of(Form form, const bp_problem* problem) {
  Extents extents;
  extents.rows = bp_axis_value(problem, "M");
  extents.hidden = bp_axis_value(problem, "H");
  extents.columns = is_broadcast(form) ? extents.hidden : kMhcStreams * extents.hidden;
  extents.processors = bp_attr_int(problem, "processors");
  return extents;
}

MhcPath path_of(Form form, const Recipe& recipe, const Extents& extents, bp_mode mode) {
  switch (recipe.defect) {
    case Defect::occupancy:
      return default_dispatch(dispatch_of(form, extents, false));
    case Defect::fallback: {
      // Its GEMM alone, whatever the form.
      MhcDispatch dispatch = dispatch_of(form, extents, true);
      dispatch.fused = false;
      return default_dispatch(dispatch);
    }
    case Defect::small_kernel: {
      const MhcPath path = default_dispatch(dispatch_of(form, extents, false));
      return path.kind == Kind::threads ? path : planned(form, recipe, extents);
    }
    case Defect::tail_dropped: {
      if (extents.rows > kMhcSmallRows) return planned(form, recipe, extents);
      MhcPath path;
      path.kind = Kind::threads;
      path.splits = small_kernel_splits(extents.rows, extents.hidden);
      path.threads = 256;
      path.tf32 = false;
      path.unrounded = true;
      path.drops_tail = true;
      return path;
    }
    case Defect::stale_memo:
      return remembered(form, recipe, extents, mode);
    default:
      return planned(form, recipe, extents);
  }
}

std::vector<MhcPath> possible_paths(Form form, const Recipe& recipe, const Extents& extents) {
  if (recipe.defect != Defect::stale_memo) return {path_of(form, recipe, extents, BP_MODE_INVARIANT)};
  Recipe fast = recipe;
  fast.plan = Plan::occupancy;
  return {planned(form, recipe, extents), planned(form, fast, extents)};
}

std::uint32_t promised_by(const MhcPath& path, const Extents& extents) {
  // Whatever looks at rows or processors keeps every promise but one.
  if (!path.constant) return kEverything & ~static_cast<std::uint32_t>(BP_BATCH_SIZE);
  switch (path.kind) {
    case Kind::chain:
    case Kind::descending:
      return kEverything;
    case Kind::splits:  // a pin must cut whole K blocks, all parts of one length
      return extents.columns % (path.splits * kMhcBlockColumns) == 0 ? kEverything : 0u;
    case Kind::threads:
      return extents.columns % path.threads == 0 ? kEverything : 0u;
    case Kind::external: {
      const auto backend = mhc_backend();
      const bool able = backend != nullptr && backend->product && backend->invariant &&
                        backend->invariant(extents.columns, path.splits);
      return able ? kEverything : 0u;
    }
  }
  return 0;
}

namespace {

// What an answer depends on, the backend by its generation.
using RefusalKey =
    std::tuple<Form, bp_mode, std::string, MhcPath::Kind, std::int64_t, int, bool, std::int64_t, std::uint64_t>;
struct Refusals {
  std::mutex mutex;
  std::map<RefusalKey, std::string> known;
};
Refusals& refusals() {
  static Refusals one;
  return one;
}

std::string work_out(const char* implementation, const MhcPath& path, const Extents& extents, bp_mode mode) {
  if (mode != BP_MODE_INVARIANT) return "";
  if ((promised_by(path, extents) & BP_BATCH_SIZE) != 0) return "";
  std::string which = path.name;
  if (path.kind == Kind::external) {
    const auto backend = mhc_backend();
    which = backend == nullptr ? "an external product, and none is registered"
                               : fmt::format("the external product {}", backend->name);
  }
  return fmt::format("invariant mode refuses {}: it would reach {}, which is not promised invariant for {} columns{}",
                     implementation, which, extents.columns,
                     path.kind == Kind::splits ? fmt::format(" in {} splits", path.splits) : "");
}

}  // namespace

std::string refusal(Form form, const char* implementation, const MhcPath& path, const Extents& extents, bp_mode mode) {
  Refusals& all = refusals();
  const std::lock_guard lock(all.mutex);
  RefusalKey key(form, mode, implementation, path.kind, path.splits, path.threads, path.constant, extents.columns,
                 mhc_backend_generation());
  const auto found = all.known.find(key);
  if (found != all.known.end()) return found->second;
  return all.known[std::move(key)] = work_out(implementation, path, extents, mode);
}

std::size_t refusals_remembered() {
  Refusals& all = refusals();
  const std::lock_guard lock(all.mutex);
  return all.known.size();
}

}  // namespace batchproof::mhc
