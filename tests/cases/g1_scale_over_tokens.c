/* SPDX-License-Identifier: Apache-2.0
 *
 * G1, kind 5: activations are quantised to 8 bits with one scale over all rows, so a loud neighbour takes a quiet row's
 * bits away. */
#define CASE_NAME "g1_scale_over_tokens"
#define CASE_DEFECT "one dynamic scale over all rows"
#include "case.h"

static bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const Problem p = problem_of(tensors);
  float largest = 0.0f;
  for (int64_t i = 0; i < p.m * p.k; ++i) largest = fmaxf(largest, fabsf(p.x[i]));
  const float scale = largest > 0.0f ? largest / 127.0f : 1.0f;
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      float sum = 0.0f;
      for (int64_t k = 0; k < p.k; ++k) sum += rintf(p.x[i * p.k + k] / scale) * p.w[k * p.n + j];
      p.y[i * p.n + j] = sum * scale;
    }
  }
  bp_executed(context, kImplementation.id);
  return BP_OK;
}

CASE_EXPORT
