/* SPDX-License-Identifier: Apache-2.0
 *
 * E5, kind 5: rows are sorted by expert, and the place of a row among its expert's rows decides which slice of K a
 * block begins with. A row's bytes follow from how many rows before it chose the same expert. */
#include <stdint.h>
#include <stdlib.h>

#include "batchproof/operator.h"
#include "batchproof/problem.h"

#define FP32_BIT BP_DTYPE_BIT(BP_FP32)
#define SLICES 4

enum { kX, kW, kY, kPorts };

static const bp_port kPortTable[kPorts] = {
    {"x", BP_ROW_INPUT, "M, K", 0, 2u, 1, "K", NULL, BP_REPLICATED, 0, FP32_BIT, 0, 0, NULL, 0, NULL, 0},
    {"w", BP_WEIGHT, "E, K, N", -1, 2u, 1, "K", NULL, BP_SHARDED, 0, FP32_BIT, 0, 0, NULL, 0, NULL, 0},
    {"y", BP_OUTPUT, "M, N", 0, 0, 1, NULL, NULL, BP_REPLICATED, 0, FP32_BIT, 0, 0, NULL, 0, NULL, 0},
};
static const bp_axis_decl kAxes[] = {
    {"M", "rows"}, {"K", "reduction length"}, {"N", "columns"}, {"E", "experts of one rank"}};
static const bp_attr_decl kAttrs[] = {{"routing", BP_ATTR_STRING, "", "the rows' experts; empty: row modulo experts"}};
static const bp_dtype kFp32[kPorts] = {BP_FP32, BP_FP32, BP_FP32};
static const bp_dtype_mode kModes[] = {{"fp32", kFp32}};
static const bp_implementation kImplementation = {
    "e5_block_from_place", "the case as it was reported", NULL, BP_MODE_INVARIANT, 0, NULL, NULL};

/* The expert of a row; -1: none; -2: the list has no such row. */
static int64_t expert_of(const bp_problem* problem, int64_t row) {
  const char* at = bp_attr_string(problem, "routing");
  if (*at == '\0') return row % bp_axis_value(problem, "E");
  for (int64_t i = 0;; ++i) {
    char* end = NULL;
    const long long value = strtoll(at, &end, 10);
    if (end == at) return -2;
    if (i == row) return (int64_t)value;
    if (*end != ',') return -2;
    at = end + 1;
  }
}

static bp_status validate(const bp_problem* problem, char* error, size_t error_size) {
  if (problem->world != 1) return bp_fail(error, error_size, BP_INVALID, "this operator runs on one rank");
  const int64_t rows = bp_axis_value(problem, "M");
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t expert = expert_of(problem, i);
    if (expert < -1 || expert >= bp_axis_value(problem, "E"))
      return bp_fail(error, error_size, BP_INVALID, "routing has no expert for row %lld", (long long)i);
  }
  return BP_OK;
}

static size_t locate(const bp_problem* problem, int64_t row, bp_location* places, size_t capacity) {
  const int64_t expert = expert_of(problem, row);
  const bp_location all[] = {{kX, 0, row}, {kY, 0, row}, {kW, 0, expert}};
  /* A row without an expert has no output. */
  const size_t count = expert < 0 ? 1 : 3;
  for (size_t i = 0; i < count && i < capacity; ++i) places[i] = all[i];
  return count;
}

static bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const int64_t rows = tensors[kX].shape[0], columns = tensors[kX].shape[1], n = tensors[kY].shape[1];
  const int64_t part = (columns + SLICES - 1) / SLICES;
  const float* x = (const float*)tensors[kX].data;
  float* y = (float*)tensors[kY].data;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t expert = expert_of(context->problem, i);
    if (expert < 0) continue;
    int64_t place = 0;
    for (int64_t before = 0; before < i; ++before) place += expert_of(context->problem, before) == expert;
    const float* w = (const float*)tensors[kW].data + expert * columns * n;
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0.0f;
      for (int64_t step = 0; step < SLICES; ++step) {
        const int64_t begin = (place + step) % SLICES * part;
        for (int64_t k = begin; k < begin + part && k < columns; ++k) sum += x[i * columns + k] * w[k * n + j];
      }
      y[i * n + j] = sum;
    }
  }
  bp_executed(context, kImplementation.id);
  return BP_OK;
}

static uint32_t promises(const bp_implementation* implementation, const bp_problem* problem, const bp_device* device) {
  (void)implementation;
  (void)problem;
  (void)device;
  return ~0u;
}

static const bp_operator kTable = {.abi_version = BP_ABI_VERSION,
                                   .struct_size = sizeof(bp_operator),
                                   .name = "e5_block_from_place",
                                   .summary = "the first slice of K follows from a row's place among its expert's",
                                   .rows = "M",
                                   .row_count_axis = "M",
                                   .port_count = kPorts,
                                   .ports = kPortTable,
                                   .axis_count = 4,
                                   .axes = kAxes,
                                   .attr_count = 1,
                                   .attrs = kAttrs,
                                   .dtype_mode_count = 1,
                                   .dtype_modes = kModes,
                                   .implementation_count = 1,
                                   .implementations = &kImplementation,
                                   .validate = validate,
                                   .locate = locate,
                                   .run = run,
                                   .promises = promises};

const bp_operator* const* batchproof_operators(uint32_t harness_abi_version, uint32_t* count) {
  static const bp_operator* const tables[] = {&kTable};
  (void)harness_abi_version;
  *count = 1;
  return tables;
}
