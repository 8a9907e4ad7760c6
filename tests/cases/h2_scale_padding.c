/* SPDX-License-Identifier: Apache-2.0
 *
 * H2, kind 6: row scales live in a buffer padded to whole tiles of 8 rows. Nobody writes the padding, and the scale of
 * a tile is taken over all 8. */
#define CASE_NAME "h2_scale_padding"
#define CASE_DEFECT "the scales of padded rows are never written, but read"
#include "case.h"

enum { kTile = 8 };

static int64_t padded(int64_t rows) { return (rows + kTile - 1) / kTile * kTile; }

static size_t workspace(const bp_implementation* implementation, const bp_problem* problem, int32_t rank) {
  (void)implementation;
  (void)rank;
  return sizeof(float) * (size_t)padded(bp_axis_value(problem, "M"));
}

static bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const Problem p = problem_of(tensors);
  float* scales = (float*)context->workspace;
  /* A weight's scale: the same for every row that is there, so that only the padding can show. */
  for (int64_t i = 0; i < p.m; ++i) scales[i] = 1.0f / 64.0f;
  for (int64_t i = 0; i < p.m; ++i) {
    const float* tile = scales + i / kTile * kTile;
    float scale = 0.0f;
    for (int64_t at = 0; at < kTile; ++at) scale = tile[at] > scale ? tile[at] : scale;
    for (int64_t j = 0; j < p.n; ++j) {
      float sum = 0.0f;
      for (int64_t k = 0; k < p.k; ++k) sum += rintf(p.x[i * p.k + k] / scale) * p.w[k * p.n + j];
      p.y[i * p.n + j] = sum * scale;
    }
  }
  bp_executed(context, kImplementation.id);
  return BP_OK;
}

CASE_EXPORT_WITH_WORKSPACE(workspace)
