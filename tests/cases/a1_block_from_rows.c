/* SPDX-License-Identifier: Apache-2.0
 *
 * A1, kind 1: an RMS norm, here with the projection behind it, whose block is 1024 below 256 rows and 256 from there
 * on. A thread of the block sums every block-th element, then the block adds up as a tree: another block, another tree.
 */
#define CASE_NAME "a1_block_from_rows"
#define CASE_DEFECT "the block of an RMS norm follows the number of rows"
#include "case.h"

static bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const Problem p = problem_of(tensors);
  const int64_t block = p.m < 256 ? 1024 : 256;
  float lanes[1024];
  for (int64_t i = 0; i < p.m; ++i) {
    const float* row = p.x + i * p.k;
    for (int64_t lane = 0; lane < block; ++lane) {
      lanes[lane] = 0.0f;
      for (int64_t k = lane; k < p.k; k += block) lanes[lane] += row[k] * row[k];
    }
    for (int64_t half = block / 2; half > 0; half /= 2) {
      for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    const float scale = 1.0f / sqrtf(lanes[0] / (float)p.k + 1e-6f);
    for (int64_t j = 0; j < p.n; ++j) p.y[i * p.n + j] = scale * chain(&p, i, j, 0, p.k);
  }
  bp_executed(context, kImplementation.id);
  return BP_OK;
}

CASE_EXPORT
