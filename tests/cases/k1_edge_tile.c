/* SPDX-License-Identifier: Apache-2.0
 *
 * K1, kind 4: whole tiles of four rows use a kernel of four partial sums, the rows that are left over a plain one. */
#define CASE_NAME "k1_edge_tile"
#define CASE_DEFECT "the rows behind the last whole tile have another kernel"
#include "case.h"

static bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const Problem p = problem_of(tensors);
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) p.y[i * p.n + j] = split_chain(&p, i, j, i < p.m / 4 * 4 ? 4 : 1);
  }
  bp_executed(context, kImplementation.id);
  return BP_OK;
}

CASE_EXPORT
