// SPDX-License-Identifier: Apache-2.0
//
// From a recipe to the path that a call really takes, and whether that path is promised invariant (C8).
#ifndef BATCHPROOF_OPS_MHC_PATH_H_
#define BATCHPROOF_OPS_MHC_PATH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ops/mhc/form.h"
#include "src/kernels/cpu/mhc_plan.h"

namespace batchproof::mhc {

struct Extents {
  std::int64_t rows = 0;
  std::int64_t hidden = 0;
  std::int64_t columns = 0;  // of the product
  std::int64_t processors = 0;
};
Extents extents_of(Form form, const bp_problem* problem);

// The path of a call. `mode` matters to one control only.
MhcPath path_of(Form form, const Recipe& recipe, const Extents& extents, bp_mode mode);

// Every path that path_of may give for these extents, without its side effect: for sizes.
std::vector<MhcPath> possible_paths(Form form, const Recipe& recipe, const Extents& extents);

// Relations that a path promises at these extents; 0: none, so invariant mode refuses it.
std::uint32_t promised_by(const MhcPath& path, const Extents& extents);

// Empty where invariant mode may take the path, else the sentence that refuses it. Asked once per (form, path kind,
// splits, columns, backend, mode) and remembered.
std::string refusal(Form form, const char* implementation, const MhcPath& path, const Extents& extents, bp_mode mode);

// Answers that refusal() has worked out so far, for tests.
std::size_t refusals_remembered();

}  // namespace batchproof::mhc

#endif  // BATCHPROOF_OPS_MHC_PATH_H_
