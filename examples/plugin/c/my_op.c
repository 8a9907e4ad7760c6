/* SPDX-License-Identifier: Apache-2.0
 *
 * my_op: y(M, N) = x(M, K) . w(K, N) in FP32. Replace the loop of `multiply` by your kernel, and the ports by your
 * tensors. This file needs operator.h and nothing else of batchproof. */
#include <stdio.h>
#include <string.h>

#include "batchproof/operator.h"

/* An id names whatever can move bytes: backend, arithmetic, order of summation. */
#define ASCENDING "cpu-fp32-ascending"
#define DESCENDING "cpu-fp32-descending"

static const bp_implementation kImplementations[] = {
    /* The first is the default. Its witness sums the same products in another order: where even that moves no byte,
     * the inputs could not have shown a fault, and the verdict is "vacuous" in place of "pass". */
    {ASCENDING, "one chain over K, ascending", NULL, BP_MODE_INVARIANT, 0, DESCENDING, NULL},
    {DESCENDING, "one chain over K, descending", NULL, BP_MODE_INVARIANT, BP_IMPL_WITNESS, NULL, NULL},
};

#define FP32 BP_DTYPE_BIT(BP_FP32)
static const bp_port kPorts[] = {
    {.name = "x",
     .kind = BP_ROW_INPUT,
     .shape = "M, K",
     .row_axis = 0,
     .reduction_axes = 1u << 1, /* axis 1 is summed over, together with axis 0 of w: the group "K" */
     .reduction_block = 1,
     .reduction_group = "K",
     .distribution = BP_REPLICATED,
     .dtypes = FP32,
     .flags = BP_PORT_PADDED}, /* rows may be further apart than K elements; without it stride[0] is K */
    {.name = "w",
     .kind = BP_WEIGHT,
     .shape = "K, N",
     .row_axis = -1, /* carries no rows */
     .reduction_axes = 1u << 0,
     .reduction_block = 1,
     .reduction_group = "K",
     .distribution = BP_REPLICATED,
     .dtypes = FP32},
    {.name = "y",
     .kind = BP_OUTPUT,
     .shape = "M, N",
     .row_axis = 0,
     .reduction_block = 1,
     .distribution = BP_REPLICATED,
     .dtypes = FP32,
     .flags = BP_PORT_PADDED},
};

static const bp_axis_decl kAxes[] = {{"M", "rows"}, {"K", "summed over"}, {"N", "columns"}};
static const bp_dtype kFp32Ports[] = {BP_FP32, BP_FP32, BP_FP32};
static const bp_dtype_mode kDtypeModes[] = {{"fp32", kFp32Ports}};

/* What you cannot compute is refused here, with one sentence. */
static bp_status validate(const bp_problem* problem, char* error, size_t error_size) {
  for (uint32_t i = 0; i < problem->axis_count; ++i) {
    if (strcmp(problem->axes[i].name, "K") == 0 && problem->axes[i].value < 1) {
      snprintf(error, error_size, "K = %lld must be at least 1", (long long)problem->axes[i].value);
      return BP_INVALID;
    }
  }
  return BP_OK;
}

/* Your kernel. Leading dimensions are in elements. */
static void multiply(const float* x, int64_t ldx, const float* w, int64_t ldw, float* y, int64_t ldy, int64_t m,
                     int64_t k, int64_t n, int descending) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0.0f;
      for (int64_t step = 0; step < k; ++step) {
        const int64_t at = descending ? k - 1 - step : step;
        sum += x[i * ldx + at] * w[at * ldw + j];
      }
      y[i * ldy + j] = sum;
    }
  }
}

static bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const bp_tensor *x = &tensors[0], *w = &tensors[1], *y = &tensors[2];
  const char* id = context->implementation->id;
  multiply((const float*)x->data, x->stride[0], (const float*)w->data, w->stride[0], (float*)y->data, y->stride[0],
           x->shape[0], x->shape[1], w->shape[1], strcmp(id, DESCENDING) == 0);
  /* Say what really ran: a fallback that nobody asked for is an error, not a pass. */
  snprintf(context->executed, context->executed_size, "%s", id);
  return BP_OK;
}

/* What you claim. A suite may check only what is claimed. */
static uint32_t promises(const bp_implementation* implementation, const bp_problem* problem, const bp_device* device) {
  (void)implementation;
  (void)problem;
  (void)device;
  return BP_REPEAT | BP_NEIGHBOURS | BP_BATCH_SIZE | BP_POSITION | BP_POISON | BP_ALIGNMENT | BP_THREADS | BP_HISTORY;
}

static const bp_operator kTable = {
    .abi_version = BP_ABI_VERSION,
    .struct_size = sizeof(bp_operator),
    .name = "my_op",
    .summary = "y = x . w in FP32",
    .rows = "M",
    .row_count_axis = "M",
    .flags = BP_OP_THREAD_SAFE,
    .port_count = 3,
    .ports = kPorts,
    .axis_count = 3,
    .axes = kAxes,
    .dtype_mode_count = 1,
    .dtype_modes = kDtypeModes,
    .implementation_count = 2,
    .implementations = kImplementations,
    .validate = validate,
    .run = run,
    .promises = promises,
};

/* The one symbol that batchproof looks for. */
const bp_operator* const* batchproof_operators(uint32_t harness_abi_version, uint32_t* count) {
  static const bp_operator* const tables[] = {&kTable};
  (void)harness_abi_version; /* the harness refuses a table that it is too old for */
  *count = 1;
  return tables;
}
