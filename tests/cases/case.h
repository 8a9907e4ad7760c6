/* SPDX-License-Identifier: Apache-2.0
 *
 * What the rebuilt cases have in common: the table of y(M, N) = x(M, K) . w(K, N) in FP32 and small sums in a fixed
 * order. A case defines CASE_NAME and CASE_DEFECT, includes this, writes `run`, and ends with CASE_EXPORT.
 *
 * The one implementation is named after the case. It has no order witness: the harness permutes K instead. */
#ifndef BATCHPROOF_TESTS_CASES_CASE_H_
#define BATCHPROOF_TESTS_CASES_CASE_H_

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "batchproof/operator.h"
#include "batchproof/problem.h"

#define FP32_BIT BP_DTYPE_BIT(BP_FP32)

/* More than one rank: x and w are split along K, and every rank has the whole y. K counts what one rank holds. */
#ifdef CASE_SPLIT_K
#define CASE_X_PORT BP_SHARDED, 1
#define CASE_W_PORT BP_SHARDED, 0
#else
#define CASE_X_PORT BP_REPLICATED, 0
#define CASE_W_PORT BP_REPLICATED, 0
#endif
#ifndef CASE_FLAGS
#define CASE_FLAGS 0
#endif

static const bp_port kPorts[] = {
    {"x", BP_ROW_INPUT, "M, K", 0, 2u, 1, "K", NULL, CASE_X_PORT, FP32_BIT, 0, 0, NULL, 0, NULL, 0},
    {"w", BP_WEIGHT, "K, N", -1, 1u, 1, "K", NULL, CASE_W_PORT, FP32_BIT, 0, 0, NULL, 0, NULL, 0},
    {"y", BP_OUTPUT, "M, N", 0, 0, 1, NULL, NULL, BP_REPLICATED, 0, FP32_BIT, 0, 0, NULL, 0, NULL, 0},
};
static const bp_axis_decl kAxes[] = {{"M", "rows"}, {"K", "reduction length"}, {"N", "columns"}};
static const bp_dtype kFp32[] = {BP_FP32, BP_FP32, BP_FP32};
static const bp_dtype_mode kModes[] = {{"fp32", kFp32}};
static const bp_implementation kImplementation = {
    CASE_NAME, "the case as it was reported", NULL, BP_MODE_INVARIANT, 0, NULL, NULL};

/* The tensors of one call; contiguous, for no port declares padding. */
typedef struct Problem {
  int64_t m, k, n;
  const float *x, *w;
  float* y;
} Problem;

static inline Problem problem_of(const bp_tensor* tensors) {
  Problem p;
  p.m = tensors[0].shape[0];
  p.k = tensors[0].shape[1];
  p.n = tensors[1].shape[1];
  p.x = (const float*)tensors[0].data;
  p.w = (const float*)tensors[1].data;
  p.y = (float*)tensors[2].data;
  return p;
}

/* Row i times column j over [begin, end), ascending, one chain. */
static inline float chain(const Problem* p, int64_t i, int64_t j, int64_t begin, int64_t end) {
  float sum = 0.0f;
  for (int64_t k = begin; k < end; ++k) sum += p->x[i * p->k + k] * p->w[k * p->n + j];
  return sum;
}

/* As chain over all of K, cut into `splits` parts that are added in order. */
static inline float split_chain(const Problem* p, int64_t i, int64_t j, int64_t splits) {
  const int64_t part = (p->k + splits - 1) / splits;
  float sum = 0.0f;
  for (int64_t begin = 0; begin < p->k; begin += part)
    sum += chain(p, i, j, begin, begin + part < p->k ? begin + part : p->k);
  return sum;
}

static inline bp_status case_validate(const bp_problem* problem, char* error, size_t error_size) {
  if (bp_axis_value(problem, "K") < 1) return bp_fail(error, error_size, BP_INVALID, "K must be at least 1");
  return BP_OK;
}

static inline uint32_t case_promises(const bp_implementation* implementation, const bp_problem* problem,
                                     const bp_device* device) {
  (void)implementation;
  (void)problem;
  (void)device;
  return ~0u;
}

#define CASE_EXPORT_WITH_WORKSPACE(the_workspace)                                                 \
  static const bp_operator kTable = {.abi_version = BP_ABI_VERSION,                               \
                                     .struct_size = sizeof(bp_operator),                          \
                                     .name = CASE_NAME,                                           \
                                     .summary = CASE_DEFECT,                                      \
                                     .rows = "M",                                                 \
                                     .row_count_axis = "M",                                       \
                                     .flags = CASE_FLAGS,                                         \
                                     .port_count = 3,                                             \
                                     .ports = kPorts,                                             \
                                     .axis_count = 3,                                             \
                                     .axes = kAxes,                                               \
                                     .dtype_mode_count = 1,                                       \
                                     .dtype_modes = kModes,                                       \
                                     .implementation_count = 1,                                   \
                                     .implementations = &kImplementation,                         \
                                     .validate = case_validate,                                   \
                                     .workspace_size = the_workspace,                             \
                                     .run = run,                                                  \
                                     .promises = case_promises};                                  \
  const bp_operator* const* batchproof_operators(uint32_t harness_abi_version, uint32_t* count) { \
    static const bp_operator* const tables[] = {&kTable};                                         \
    (void)harness_abi_version;                                                                    \
    *count = 1;                                                                                   \
    return tables;                                                                                \
  }
#define CASE_EXPORT CASE_EXPORT_WITH_WORKSPACE(NULL)

#endif /* BATCHPROOF_TESTS_CASES_CASE_H_ */
