/* SPDX-License-Identifier: Apache-2.0
 *
 * H3, kind 6: rows are mixed in tiles of four through a mask of zeros and ones, as a decode step multiplies zero
 * probabilities with stale values. Zero times a number is nothing; zero times NaN is NaN. */
#define CASE_NAME "h3_zero_times_nan"
#define CASE_DEFECT "neighbours are masked by a multiplication with zero"
#include "case.h"

static bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const Problem p = problem_of(tensors);
  for (int64_t i = 0; i < p.m; ++i) {
    const int64_t first = i / 4 * 4, end = first + 4 < p.m ? first + 4 : p.m;
    for (int64_t j = 0; j < p.n; ++j) {
      float sum = 0.0f;
      for (int64_t other = first; other < end; ++other) sum += (other == i ? 1.0f : 0.0f) * chain(&p, other, j, 0, p.k);
      p.y[i * p.n + j] = sum;
    }
  }
  bp_executed(context, kImplementation.id);
  return BP_OK;
}

CASE_EXPORT
