// SPDX-License-Identifier: Apache-2.0
//
// my_op with a deliberate defect: the order of summation follows the number of rows (see `multiply`). It makes the
// same promises as the honest one, and batchproof must catch it.
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "batchproof/operator.h"

namespace {

// An id names whatever can move bytes: backend, arithmetic, order of summation.
constexpr const char* kAscending = "cpu-fp32-ascending";
constexpr const char* kDescending = "cpu-fp32-descending";

const bp_implementation kImplementations[] = {
    // The first is the default. Its witness sums the same products in another order: where even that moves no byte,
    // the inputs could not have shown a fault, and the verdict is "vacuous" in place of "pass".
    {kAscending, "one chain over K, ascending", nullptr, BP_MODE_INVARIANT, 0, kDescending, nullptr},
    {kDescending, "one chain over K, descending", nullptr, BP_MODE_INVARIANT, BP_IMPL_WITNESS, nullptr, nullptr},
};

constexpr std::uint32_t kFp32 = BP_DTYPE_BIT(BP_FP32);
const bp_port kPorts[] = {
    {.name = "x",
     .kind = BP_ROW_INPUT,
     .shape = "M, K",
     .row_axis = 0,
     .reduction_axes = 1u << 1,  // axis 1 is summed over, together with axis 0 of w: the group "K"
     .reduction_block = 1,
     .reduction_group = "K",
     .distribution = BP_REPLICATED,
     .dtypes = kFp32,
     .flags = BP_PORT_PADDED},  // rows may be further apart than K elements; without it stride[0] is K
    {.name = "w",
     .kind = BP_WEIGHT,
     .shape = "K, N",
     .row_axis = -1,  // carries no rows
     .reduction_axes = 1u << 0,
     .reduction_block = 1,
     .reduction_group = "K",
     .distribution = BP_REPLICATED,
     .dtypes = kFp32},
    {.name = "y",
     .kind = BP_OUTPUT,
     .shape = "M, N",
     .row_axis = 0,
     .reduction_block = 1,
     .distribution = BP_REPLICATED,
     .dtypes = kFp32,
     .flags = BP_PORT_PADDED},
};

const bp_axis_decl kAxes[] = {{"M", "rows"}, {"K", "summed over"}, {"N", "columns"}};
const bp_dtype kFp32Ports[] = {BP_FP32, BP_FP32, BP_FP32};
const bp_dtype_mode kDtypeModes[] = {{"fp32", kFp32Ports}};

// What you cannot compute is refused here, with one sentence.
bp_status validate(const bp_problem* problem, char* error, std::size_t error_size) {
  for (std::uint32_t i = 0; i < problem->axis_count; ++i) {
    if (std::strcmp(problem->axes[i].name, "K") == 0 && problem->axes[i].value < 1) {
      std::snprintf(error, error_size, "K = %lld must be at least 1", static_cast<long long>(problem->axes[i].value));
      return BP_INVALID;
    }
  }
  return BP_OK;
}

// The defect: with more than four rows each sum is made of two halves, as when K is split to keep more threads busy.
// (a + b) + (c + d) is not ((a + b) + c) + d in floating point, so a row's bytes follow the size of its batch.
void multiply(const float* x, std::int64_t ldx, const float* w, std::int64_t ldw, float* y, std::int64_t ldy,
              std::int64_t m, std::int64_t k, std::int64_t n, bool descending) {
  const std::int64_t first = m > 4 ? k / 2 : k;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      float sum = 0.0f, second = 0.0f;
      for (std::int64_t step = 0; step < k; ++step) {
        const std::int64_t at = descending ? k - 1 - step : step;
        const float product = x[i * ldx + at] * w[at * ldw + j];
        if (at < first) {
          sum += product;
        } else {
          second += product;
        }
      }
      y[i * ldy + j] = sum + second;
    }
  }
}

bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const bp_tensor &x = tensors[0], &w = tensors[1], &y = tensors[2];
  const char* id = context->implementation->id;
  multiply(static_cast<const float*>(x.data), x.stride[0], static_cast<const float*>(w.data), w.stride[0],
           static_cast<float*>(y.data), y.stride[0], x.shape[0], x.shape[1], w.shape[1],
           std::strcmp(id, kDescending) == 0);
  // Say what really ran: a fallback that nobody asked for is an error, not a pass.
  std::snprintf(context->executed, context->executed_size, "%s", id);
  return BP_OK;
}

// What you claim. A suite may check only what is claimed.
std::uint32_t promises(const bp_implementation*, const bp_problem*, const bp_device*) {
  return BP_REPEAT | BP_NEIGHBOURS | BP_BATCH_SIZE | BP_POSITION | BP_POISON | BP_ALIGNMENT | BP_THREADS | BP_HISTORY;
}

const bp_operator kTable = {
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

}  // namespace

// The one symbol that batchproof looks for. The argument is the harness's version; it refuses a table that it is too
// old for. No exception may leave this function or any function of the table.
extern "C" const bp_operator* const* batchproof_operators(std::uint32_t, std::uint32_t* count) {
  static const bp_operator* const tables[] = {&kTable};
  *count = 1;
  return tables;
}
