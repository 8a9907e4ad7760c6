/* SPDX-License-Identifier: Apache-2.0
 *
 * What the plug-ins around real libraries have in common: the table of y(M, N) = x(M, K) . w(K, N) on one rank. With
 * the attribute transpose_w the weight is stored as (N, K), which its strides then say. Nothing here promises more than
 * a library could keep; the table promises every relation so that each is put to the test. */
#ifndef BATCHPROOF_EXAMPLES_LIBRARIES_LIBRARY_MATMUL_H_
#define BATCHPROOF_EXAMPLES_LIBRARIES_LIBRARY_MATMUL_H_

#include <stdint.h>

#include "batchproof/operator.h"
#include "batchproof/problem.h"

#define LIBRARY_DTYPES (BP_DTYPE_BIT(BP_FP32) | BP_DTYPE_BIT(BP_BF16))

static const bp_port kPorts[] = {
    {"x", BP_ROW_INPUT, "M, K", 0, 2u, 1, "K", NULL, BP_REPLICATED, 0, LIBRARY_DTYPES, 0, 0, NULL, 0, NULL},
    {"w", BP_WEIGHT, "K, N", -1, 1u, 1, "K", NULL, BP_REPLICATED, 0, LIBRARY_DTYPES, 0, 0, "transpose_w", 3u, NULL},
    {"y", BP_OUTPUT, "M, N", 0, 0, 1, NULL, NULL, BP_REPLICATED, 0, LIBRARY_DTYPES, 0, 0, NULL, 0, NULL},
};
static const bp_axis_decl kAxes[] = {{"M", "rows"}, {"K", "reduction length"}, {"N", "columns"}};
static const bp_attr_decl kAttrs[] = {{"transpose_w", BP_ATTR_BOOL, "false", "w is stored as (N, K)"}};
static const bp_dtype kFp32[] = {BP_FP32, BP_FP32, BP_FP32};
static const bp_dtype kBf16[] = {BP_BF16, BP_BF16, BP_BF16};
/* A library of FP32 alone takes the first mode only. */
static const bp_dtype_mode kModes[] = {{"fp32", kFp32}, {"bf16", kBf16}};

static inline bp_status library_validate(const bp_problem* problem, char* error, size_t error_size) {
  const char* const names[] = {"M", "K", "N"};
  if (problem->world != 1)
    return bp_fail(error, error_size, BP_INVALID, "W = %d: a library call runs on one rank", (int)problem->world);
  for (int i = 0; i < 3; ++i) {
    const int64_t value = bp_axis_value(problem, names[i]);
    if (value < 1 || value > INT32_MAX)
      return bp_fail(error, error_size, BP_INVALID, "%s = %lld must be from 1 to 2^31 - 1", names[i], (long long)value);
  }
  return BP_OK;
}

static inline uint32_t library_promises(const bp_implementation* implementation, const bp_problem* problem,
                                        const bp_device* device) {
  (void)implementation;
  (void)problem;
  (void)device;
  return ~0u;
}

#define LIBRARY_TABLE(the_name, the_summary, the_modes, the_implementations, the_run) \
  {BP_ABI_VERSION,                                                                    \
   sizeof(bp_operator),                                                               \
   the_name,                                                                          \
   the_summary,                                                                       \
   "M",                                                                               \
   "M",                                                                               \
   NULL,                                                                              \
   NULL,                                                                              \
   0,                                                                                 \
   3,                                                                                 \
   kPorts,                                                                            \
   3,                                                                                 \
   kAxes,                                                                             \
   1,                                                                                 \
   kAttrs,                                                                            \
   the_modes,                                                                         \
   kModes,                                                                            \
   1,                                                                                 \
   the_implementations,                                                               \
   0,                                                                                 \
   NULL,                                                                              \
   library_validate,                                                                  \
   NULL,                                                                              \
   the_run,                                                                           \
   NULL,                                                                              \
   library_promises,                                                                  \
   NULL,                                                                              \
   NULL,                                                                              \
   NULL,                                                                              \
   NULL,                                                                              \
   NULL,                                                                              \
   NULL}

/* Ends a plug-in: the one function that it exports. */
#ifdef __cplusplus
#define LIBRARY_EXTERN extern "C"
#else
#define LIBRARY_EXTERN
#endif
#define LIBRARY_EXPORT(the_table)                                                                                \
  LIBRARY_EXTERN const bp_operator* const* batchproof_operators(uint32_t harness_abi_version, uint32_t* count);  \
  LIBRARY_EXTERN const bp_operator* const* batchproof_operators(uint32_t harness_abi_version, uint32_t* count) { \
    static const bp_operator* const tables[] = {&(the_table)};                                                   \
    (void)harness_abi_version;                                                                                   \
    *count = 1;                                                                                                  \
    return tables;                                                                                               \
  }

#endif /* BATCHPROOF_EXAMPLES_LIBRARIES_LIBRARY_MATMUL_H_ */
