/* SPDX-License-Identifier: Apache-2.0
 *
 * I10, kind 8: every rank adds the ranks' parts beginning with its own, as in a ring. Two addends commute, so two ranks
 * agree; three do not. */
#define CASE_NAME "i10_ring_order"
#define CASE_DEFECT "each rank adds the parts beginning with its own"
#define CASE_SPLIT_K
#define CASE_FLAGS BP_OP_THREAD_SAFE
#include "case.h"

static bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const Problem p = problem_of(tensors);
  const size_t count = (size_t)(p.m * p.n);
  float* parts = (float*)calloc(count * (size_t)(context->world + 1), sizeof(float));
  if (parts == NULL) return bp_fail(context->error, context->error_size, BP_ENVIRONMENT, "no memory");
  float* own = parts + count * (size_t)context->world;
  for (size_t i = 0; i < count; ++i) own[i] = chain(&p, (int64_t)i / p.n, (int64_t)i % p.n, 0, p.k);
  const bp_status status = context->comm->all_gather(context->comm, own, parts, sizeof(float) * count, context->stream);
  if (status == BP_OK) {
    for (size_t i = 0; i < count; ++i) {
      float sum = 0.0f;
      for (int32_t step = 0; step < context->world; ++step)
        sum += parts[count * (size_t)((context->rank + step) % context->world) + i];
      p.y[i] = sum;
    }
    bp_executed(context, kImplementation.id);
  }
  free(parts);
  return status;
}

CASE_EXPORT
