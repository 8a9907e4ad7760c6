/* SPDX-License-Identifier: Apache-2.0
 *
 * An operator with an FP64 reference and an unfused composition as its peer, and with one implementation per standard
 * that it misses; the id says which. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <time.h>

#include "gather_matmul.h"

static const bp_implementation kImplementations[] = {
    {"good", NULL, NULL, BP_MODE_INVARIANT, 0, "descending", NULL},
    {"descending", "K descending", NULL, BP_MODE_INVARIANT, BP_IMPL_WITNESS, NULL, NULL},
    {"unfused", "all_gather, then a matrix product", NULL, BP_MODE_FAST, BP_IMPL_PEER, NULL, NULL},
    {"off", NULL, "adds 1/8 to y", BP_MODE_INVARIANT, 0, "descending", NULL},
    {"sluggish", NULL, NULL, BP_MODE_INVARIANT, 0, "descending", NULL},
    {"greedy", NULL, NULL, BP_MODE_INVARIANT, 0, "descending", NULL},
};

static int is(const bp_implementation* implementation, const char* id) { return strcmp(implementation->id, id) == 0; }

static void sleep_ms(long milliseconds) {
  const struct timespec time = {0, milliseconds * 1000000};
  nanosleep(&time, NULL);
}

static bp_status run(const bp_context* context, const bp_tensor* tensors) {
  if (is(context->implementation, "sluggish")) sleep_ms(20);
  if (is(context->implementation, "unfused")) sleep_ms(4);
  const bp_status status = matmul_run(context, tensors);
  if (status != BP_OK || !is(context->implementation, "off")) return status;
  float* y = (float*)tensors[2].data;
  for (int64_t i = 0; i < tensors[2].shape[0]; ++i) {
    for (int64_t j = 0; j < tensors[2].shape[1]; ++j) y[i * tensors[2].stride[0] + j] += 0.125f;
  }
  return BP_OK;
}

static bp_status reference(const bp_context* context, const bp_tensor* tensors) {
  const int64_t m = tensors[0].shape[0], k = tensors[0].shape[1], n = tensors[1].shape[1];
  float* own = (float*)malloc(sizeof(float) * (size_t)(m * k * (context->world + 1)));
  if (own == NULL) return bp_fail(context->error, context->error_size, BP_ENVIRONMENT, "no memory");
  float* all = own + m * k;
  const float *x = (const float*)tensors[0].data, *w = (const float*)tensors[1].data;
  for (int64_t i = 0; i < m; ++i) memcpy(own + i * k, x + i * tensors[0].stride[0], sizeof(float) * (size_t)k);
  const bp_status status = context->comm->all_gather(context->comm, own, all, sizeof(float) * (size_t)(m * k), NULL);
  for (int64_t i = 0; status == BP_OK && i < m * context->world; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0.0;
      for (int64_t at = 0; at < k; ++at) sum += (double)all[i * k + at] * (double)w[at * n + j];
      ((double*)tensors[2].data)[i * tensors[2].stride[0] + j] = sum;
    }
  }
  free(own);
  return status;
}

static size_t workspace(const bp_implementation* implementation, const bp_problem* problem, int32_t rank) {
  return matmul_workspace(implementation, problem, rank) + (is(implementation, "greedy") ? 65536u : 0u);
}

static const bp_operator kTable = {MATMUL_TABLE("standards", BP_OP_THREAD_SAFE, kImplementations, run)};
static bp_operator g_table;
static const bp_operator* const kTables[] = {&g_table};

const bp_operator* const* batchproof_operators(uint32_t harness_abi_version, uint32_t* count) {
  (void)harness_abi_version;
  g_table = kTable;
  g_table.reference = reference;
  g_table.workspace_size = workspace;
  *count = 1;
  return kTables;
}
