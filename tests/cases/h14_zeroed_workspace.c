/* SPDX-License-Identifier: Apache-2.0
 *
 * H14, kind 6 and history: the sums are collected in a workspace that is taken to be zero. The first call is right;
 * after that it depends on who had the memory before. */
#define CASE_NAME "h14_zeroed_workspace"
#define CASE_DEFECT "the workspace is taken to be zero"
#include "case.h"

static size_t workspace(const bp_implementation* implementation, const bp_problem* problem, int32_t rank) {
  (void)implementation;
  (void)rank;
  return sizeof(float) * (size_t)(bp_axis_value(problem, "M") * bp_axis_value(problem, "N"));
}

static bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const Problem p = problem_of(tensors);
  float* sums = (float*)context->workspace;
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      sums[i * p.n + j] += chain(&p, i, j, 0, p.k);
      p.y[i * p.n + j] = sums[i * p.n + j];
    }
  }
  bp_executed(context, kImplementation.id);
  return BP_OK;
}

CASE_EXPORT_WITH_WORKSPACE(workspace)
