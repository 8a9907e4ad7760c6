/* SPDX-License-Identifier: Apache-2.0
 *
 * B6, kind 2: the parts that K is cut into are whatever fills the device: processors / ceil(M / 64). */
#define CASE_NAME "b6_split_from_occupancy"
#define CASE_DEFECT "K is cut into processors / ceil(M / 64) parts"
#include "case.h"

static bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const Problem p = problem_of(tensors);
  const int64_t processors = context->processors > 0 ? context->processors : 16;
  const int64_t tiles = (p.m + 63) / 64;
  const int64_t splits = processors / tiles > 1 ? processors / tiles : 1;
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) p.y[i * p.n + j] = split_chain(&p, i, j, splits);
  }
  bp_executed(context, kImplementation.id);
  return BP_OK;
}

CASE_EXPORT
