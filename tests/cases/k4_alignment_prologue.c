/* SPDX-License-Identifier: Apache-2.0
 *
 * K4, kind 14: a scalar prologue until the row's address is a multiple of 32 bytes, then eight lanes. Which element
 * meets which lane follows the address. */
#define CASE_NAME "k4_alignment_prologue"
#define CASE_DEFECT "a scalar prologue runs until the address is aligned"
#include "case.h"

static bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const Problem p = problem_of(tensors);
  for (int64_t i = 0; i < p.m; ++i) {
    const float* row = p.x + i * p.k;
    const int64_t off = (int64_t)((uintptr_t)row / sizeof(float) % 8);
    const int64_t prologue = off == 0 ? 0 : 8 - off;
    for (int64_t j = 0; j < p.n; ++j) {
      const int64_t head = prologue < p.k ? prologue : p.k;
      float lanes[8] = {0};
      float sum = chain(&p, i, j, 0, head);
      for (int64_t k = head; k < p.k; ++k) lanes[(k - head) % 8] += row[k] * p.w[k * p.n + j];
      for (int lane = 0; lane < 8; ++lane) sum += lanes[lane];
      p.y[i * p.n + j] = sum;
    }
  }
  bp_executed(context, kImplementation.id);
  return BP_OK;
}

CASE_EXPORT
