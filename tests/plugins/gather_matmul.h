/* SPDX-License-Identifier: Apache-2.0
 *
 * What the test plug-ins have in common: y(W * M, N) = all_gather(x)(W * M, K) . w(K, N) in FP32, K ascending, through
 * a workspace that holds the gathered x. A file defines GATHER_MATMUL_NAME and includes this. */
#ifndef BATCHPROOF_TESTS_PLUGINS_GATHER_MATMUL_H_
#define BATCHPROOF_TESTS_PLUGINS_GATHER_MATMUL_H_

#include <stdint.h>
#include <string.h>

#include "batchproof/operator.h"
#include "batchproof/problem.h"

#define FP32_BIT BP_DTYPE_BIT(BP_FP32)

static const bp_port kPorts[] = {
    {"x", BP_ROW_INPUT, "M, K", 0, 2u, 1, "K", NULL, BP_SHARDED, 0, FP32_BIT, 0, BP_PORT_PADDED, NULL, 0, NULL, 0},
    {"w", BP_WEIGHT, "K, N", -1, 1u, 1, "K", NULL, BP_PER_RANK, 0, FP32_BIT, 0, 0, NULL, 0, NULL, 0},
    {"y", BP_OUTPUT, "W * M, N", 0, 0, 1, NULL, NULL, BP_PER_RANK, 0, FP32_BIT, 0, BP_PORT_PADDED, NULL, 0, NULL, 0},
};
static const bp_axis_decl kAxes[] = {{"M", "rows per rank"}, {"K", "reduction length"}, {"N", "columns"}};
static const bp_dtype kFp32[] = {BP_FP32, BP_FP32, BP_FP32};
static const bp_dtype_mode kModes[] = {{"fp32", kFp32}};

static inline bp_status matmul_validate(const bp_problem* problem, char* error, size_t error_size) {
  const int64_t k = bp_axis_value(problem, "K");
  if (k < 1) return bp_fail(error, error_size, BP_INVALID, "K = %lld must be at least 1", (long long)k);
  return BP_OK;
}

static inline size_t matmul_workspace(const bp_implementation* implementation, const bp_problem* problem,
                                      int32_t rank) {
  (void)implementation;
  (void)rank;
  return sizeof(float) * (size_t)(bp_axis_value(problem, "M") * problem->world * bp_axis_value(problem, "K"));
}

/* x, w, y and gathered may be any memory that this process can reach; strides as in the tensors. */
static inline bp_status matmul_compute(const bp_context* context, const bp_tensor* tensors, const float* x,
                                       const float* w, float* y, float* gathered, int descending) {
  const int64_t m = tensors[0].shape[0], k = tensors[0].shape[1], n = tensors[1].shape[1];
  const int64_t rows = m * context->world;
  float* own = gathered + context->rank * m * k;
  for (int64_t i = 0; i < m; ++i) memcpy(own + i * k, x + i * tensors[0].stride[0], sizeof(float) * (size_t)k);
  const bp_status status =
      context->comm->all_gather(context->comm, own, gathered, sizeof(float) * (size_t)(m * k), context->stream);
  if (status != BP_OK) return status;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0.0f;
      for (int64_t step = 0; step < k; ++step) {
        const int64_t at = descending ? k - 1 - step : step;
        sum += gathered[i * k + at] * w[at * n + j];
      }
      y[i * tensors[2].stride[0] + j] = sum;
    }
  }
  bp_executed(context, context->implementation->id);
  return BP_OK;
}

static inline bp_status matmul_run(const bp_context* context, const bp_tensor* tensors) {
  return matmul_compute(context, tensors, (const float*)tensors[0].data, (const float*)tensors[1].data,
                        (float*)tensors[2].data, (float*)context->workspace,
                        strcmp(context->implementation->id, "descending") == 0);
}

static inline uint32_t matmul_promises(const bp_implementation* implementation, const bp_problem* problem,
                                       const bp_device* device) {
  (void)implementation;
  (void)problem;
  (void)device;
  return ~0u;
}

#define MATMUL_TABLE(the_name, the_flags, the_implementations, the_run)                                               \
  .abi_version = BP_ABI_VERSION, .struct_size = sizeof(bp_operator), .name = the_name,                                \
  .summary = "all_gather, then a matrix product in FP32", .rows = "W * M", .row_count_axis = "M", .flags = the_flags, \
  .port_count = 3, .ports = kPorts, .axis_count = 3, .axes = kAxes, .dtype_mode_count = 1, .dtype_modes = kModes,     \
  .implementation_count = sizeof(the_implementations) / sizeof((the_implementations)[0]),                             \
  .implementations = the_implementations, .validate = matmul_validate, .workspace_size = matmul_workspace,            \
  .run = the_run, .promises = matmul_promises

#endif /* BATCHPROOF_TESTS_PLUGINS_GATHER_MATMUL_H_ */
