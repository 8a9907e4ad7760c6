/* SPDX-License-Identifier: Apache-2.0
 *
 * I4 and J9, kind 16: above 16 rows another kernel takes over and nobody says so. Its bytes are the same here, so no
 * comparison can find it; the record of what really ran does. */
#define CASE_NAME "i4_silent_fallback"
#define CASE_DEFECT "another kernel takes over above 16 rows"
#include "case.h"

static bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const Problem p = problem_of(tensors);
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) p.y[i * p.n + j] = chain(&p, i, j, 0, p.k);
  }
  bp_executed(context, p.m > 16 ? "generic" : kImplementation.id);
  return BP_OK;
}

CASE_EXPORT
