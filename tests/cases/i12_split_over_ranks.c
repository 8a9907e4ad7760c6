/* SPDX-License-Identifier: Apache-2.0
 *
 * I12, kind 9: a row-parallel linear layer. The ranks add in rank order, so they agree with each other, but where K is
 * cut follows their number. */
#define CASE_NAME "i12_split_over_ranks"
#define CASE_DEFECT "K is cut by the number of ranks"
#define CASE_SPLIT_K
#define CASE_FLAGS BP_OP_THREAD_SAFE
#include "case.h"

static bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const Problem p = problem_of(tensors);
  const size_t count = (size_t)(p.m * p.n);
  float* part = (float*)malloc(sizeof(float) * (count + 1));
  if (part == NULL) return bp_fail(context->error, context->error_size, BP_ENVIRONMENT, "no memory");
  for (size_t i = 0; i < count; ++i) part[i] = chain(&p, (int64_t)i / p.n, (int64_t)i % p.n, 0, p.k);
  const bp_status status =
      context->comm->all_reduce(context->comm, part, p.y, count, BP_FP32, BP_REDUCE_RANK_ORDER, context->stream);
  free(part);
  if (status == BP_OK) bp_executed(context, kImplementation.id);
  return status;
}

CASE_EXPORT
