// SPDX-License-Identifier: Apache-2.0
//
// rms_norm: y = x / sqrt(mean(x^2) + eps) * weight, per row of H columns. One rounding: the FP32 product is stored.
#include "ops/rms_norm/rms_norm.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "batchproof/operator.h"
#include "batchproof/problem.h"
#include "batchproof/registry.h"
#include "src/kernels/cpu/linear.h"
#include "src/kernels/cpu/rms_norm.h"
#include "src/kernels/cuda/rms_norm.h"
#include "src/numeric/bf16.h"
#include "src/runtime/operator_table.h"

namespace batchproof {
namespace {

// The order of the square sum for a number of rows.
struct Recipe {
  RmsNormOrder order;
  bool by_rows = false;  // control and fast mode: the block size of a GPU kernel follows the rows
};
struct CudaRecipe {
  cuda::CudaRmsOrder order = cuda::CudaRmsOrder::chunks;
  bool by_alignment = false;  // control: tensors that begin elsewhere take another order
};
struct Plan {
  Recipe cpu = {};
  bool on_cuda = false;
  CudaRecipe cuda = {};
  constexpr bool by_rows() const { return on_cuda ? cuda.order == cuda::CudaRmsOrder::warps : cpu.by_rows; }
};
// Of a block with few rows and with many (kRmsFewRows).
constexpr int kFewRowsThreads = 1024;
constexpr int kManyRowsThreads = 256;

constexpr Plan kChain{};
constexpr Plan kDescending{.cpu = {{kRmsSegment, true, 0}, false}};
constexpr Plan kByRows{.cpu = {{kRmsSegment, false, kManyRowsThreads}, true}};
constexpr Plan kCudaChunks{.on_cuda = true};
constexpr Plan kCudaDescending{.on_cuda = true, .cuda = {.order = cuda::CudaRmsOrder::descending}};
constexpr Plan kCudaWarps{.on_cuda = true, .cuda = {.order = cuda::CudaRmsOrder::warps}};
constexpr Plan kCudaByAlignment{.on_cuda = true, .cuda = {.by_alignment = true}};

constexpr const char* kCudaWitnessId = "cuda-fp32-lane32-descending";

const Plan& plan_of(const bp_implementation* implementation) { return *static_cast<const Plan*>(implementation->data); }

RmsNormOrder order_of(const Recipe& recipe, std::int64_t rows) {
  RmsNormOrder order = recipe.order;
  if (recipe.by_rows) order.threads = rows < kRmsFewRows ? kFewRowsThreads : kManyRowsThreads;
  return order;
}

const bp_implementation kImplementations[] = {
    {"cpu-fp32-strand16-chain256", "square sum in 16 strands and segments of 256 columns", nullptr, BP_MODE_INVARIANT,
     0, "cpu-fp32-strand16-descending", &kChain},
    {"cpu-fast-block-by-rows", "1024 interleaved sums below 256 rows, else 256", nullptr, BP_MODE_FAST, 0,
     "cpu-fp32-strand16-descending", &kByRows},
    {"cpu-fp32-strand16-descending", "the same from the last column to the first", nullptr, BP_MODE_INVARIANT,
     BP_IMPL_WITNESS, nullptr, &kDescending},
    {"control-block-by-rows", "the fast order", "the number of sums follows the rows", BP_MODE_INVARIANT, 0,
     "cpu-fp32-strand16-descending", &kByRows},
    {"cuda-fp32-lane32-chain512", "square sum of 32 lanes in chunks of 512 columns", nullptr, BP_MODE_INVARIANT,
     BP_IMPL_CUDA, kCudaWitnessId, &kCudaChunks},
    {"cuda-fast-warps-by-rows", "8 warps a row below 256 rows, else 2; each adds its own columns", nullptr,
     BP_MODE_FAST, BP_IMPL_CUDA, kCudaWitnessId, &kCudaWarps},
    {kCudaWitnessId, "the same from the last column to the first", nullptr, BP_MODE_INVARIANT,
     BP_IMPL_WITNESS | BP_IMPL_CUDA, nullptr, &kCudaDescending},
    {"cuda-control-warps-by-rows", "the fast order", "the number of warps that add a row follows the rows",
     BP_MODE_INVARIANT, BP_IMPL_CUDA, kCudaWitnessId, &kCudaWarps},
    {"cuda-control-alignment", "two paths", "tensors that do not begin at a multiple of 16 bytes take another order",
     BP_MODE_INVARIANT, BP_IMPL_CUDA, kCudaWitnessId, &kCudaByAlignment},
};

constexpr std::uint32_t kDtypes = BP_DTYPE_BIT(BP_BF16) | BP_DTYPE_BIT(BP_FP32);
const bp_port kPorts[] = {
    {"x", BP_ROW_INPUT, "M, H", 0, 1u << 1, 1, "H", nullptr, BP_REPLICATED, 0, kDtypes, 0, BP_PORT_PADDED, nullptr, 0,
     "", 0},
    {"weight", BP_WEIGHT, "H", -1, 0, 1, nullptr, nullptr, BP_REPLICATED, 0, kDtypes, 0, BP_PORT_OPTIONAL, nullptr, 0,
     "", 0},
    {"y", BP_OUTPUT, "M, H", 0, 0, 1, nullptr, nullptr, BP_REPLICATED, 0, kDtypes, 0, BP_PORT_PADDED, nullptr, 0, "",
     0},
};
const bp_axis_decl kAxes[] = {{"M", "rows"}, {"H", "columns"}};
const bp_attr_decl kAttrs[] = {{"eps", BP_ATTR_FLOAT, "1e-6", "added to the mean square inside the root"}};
const bp_dtype kBf16Ports[] = {BP_BF16, BP_BF16, BP_BF16};
const bp_dtype kFp32Ports[] = {BP_FP32, BP_FP32, BP_FP32};
const bp_dtype_mode kDtypeModes[] = {{"bf16", kBf16Ports}, {"fp32", kFp32Ports}};
constexpr std::int64_t kThresholds[] = {kRmsFewRows};

constexpr std::uint32_t kEverything =
    BP_REPEAT | BP_NEIGHBOURS | BP_BATCH_SIZE | BP_POSITION | BP_POISON | BP_ALIGNMENT | BP_THREADS | BP_HISTORY;

// Nothing where the memory is the other one. No device: that of the implementation.
std::uint32_t promises(const bp_implementation* implementation, const bp_problem*, const bp_device* device) {
  const Plan& plan = plan_of(implementation);
  const bool cuda_memory = device != nullptr ? device->memory == BP_MEMORY_CUDA : plan.on_cuda;
  if (cuda_memory != plan.on_cuda) return 0;
  std::uint32_t all = kEverything;
  if (plan.on_cuda) all |= BP_STREAM | BP_GRAPH | BP_PROCESSORS;
  // The control promises what the others do: that is its lie.
  return plan.by_rows() && implementation->defect == nullptr ? all & ~static_cast<std::uint32_t>(BP_BATCH_SIZE) : all;
}

bp_status validate(const bp_problem* problem, char* error, size_t size) {
  const std::int64_t rows = bp_axis_value(problem, "M");
  const std::int64_t columns = bp_axis_value(problem, "H");
  if (problem->world != 1) return bp_fail(error, size, BP_INVALID, "W = %d: rms_norm runs on one rank", problem->world);
  if (rows < 0) return bp_fail(error, size, BP_INVALID, "M = %lld must be at least 0", static_cast<long long>(rows));
  if (columns < 1 || columns > (std::int64_t{1} << 24))
    return bp_fail(error, size, BP_INVALID, "H = %lld must be from 1 to 2^24", static_cast<long long>(columns));
  for (int port = 0; port < 3; ++port) {
    const bp_dtype dtype = problem->dtypes[port];
    if (port == 1 && dtype == BP_NONE) continue;
    if (dtype != BP_BF16 && dtype != BP_FP32)
      return bp_fail(error, size, BP_INVALID, "%s must be BF16 or FP32", kPorts[port].name);
    if (dtype != problem->dtypes[0])
      return bp_fail(error, size, BP_INVALID, "%s must have the dtype of x", kPorts[port].name);
  }
  const bp_attr* eps = bp_find_attr(problem, "eps");
  if (eps != nullptr && !(std::isfinite(eps->f) && eps->f >= 0))
    return bp_fail(error, size, BP_INVALID, "eps = %g must be finite and at least 0", eps->f);
  return BP_OK;
}

bp_status check_tensors(const bp_tensor* tensors, bp_memory memory, char* error, size_t size) {
  for (int port = 0; port < 3; ++port) {
    const bp_tensor& t = tensors[port];
    if (t.dtype == BP_NONE || t.shape[0] == 0) continue;
    if (t.data == nullptr) return bp_fail(error, size, BP_INVALID, "%s has no memory", kPorts[port].name);
    if (t.memory != memory)
      return bp_fail(error, size, BP_INVALID, "%s is not in %s memory", kPorts[port].name,
                     memory == BP_MEMORY_HOST ? "host" : "CUDA");
    const std::int32_t last = t.ndim - 1;
    if (t.shape[last] > 1 && t.stride[last] != 1)
      return bp_fail(error, size, BP_INVALID, "%s: columns must be contiguous, their stride is %lld", kPorts[port].name,
                     static_cast<long long>(t.stride[last]));
  }
  return BP_OK;
}

float eps_of(const bp_problem* problem) {
  const bp_attr* eps = bp_find_attr(problem, "eps");
  return eps != nullptr ? static_cast<float>(eps->f) : 1e-6f;
}

// What both kernels are called with.
template <class Call>
Call call_of(const bp_context* context, const bp_tensor* tensors) {
  Call call;
  call.rows = bp_axis_value(context->problem, "M");
  call.columns = bp_axis_value(context->problem, "H");
  call.dtype = context->problem->dtypes[0];
  call.x = tensors[0].data;
  call.x_row = tensors[0].stride[0];
  call.weight = tensors[1].dtype == BP_NONE ? nullptr : tensors[1].data;
  call.y = tensors[2].data;
  call.y_row = tensors[2].stride[0];
  call.eps = eps_of(context->problem);
  return call;
}

Result<void> run_on_cpu(const bp_context* context, const bp_tensor* tensors) {
  auto call = call_of<RmsNormCall>(context, tensors);
  call.order = order_of(plan_of(context->implementation).cpu, call.rows);
  call.threads = context->threads;
  return rms_norm(call);
}

#ifdef BATCHPROOF_HAVE_CUDA
Result<void> run_on_cuda(const bp_context* context, const bp_tensor* tensors) {
  const CudaRecipe& recipe = plan_of(context->implementation).cuda;
  auto call = call_of<cuda::CudaRmsNormCall>(context, tensors);
  call.order = recipe.order;
  call.processors = context->processors;
  if (call.order == cuda::CudaRmsOrder::warps) call.warps = rms_fast_warps(call.rows);
  if (recipe.by_alignment && reinterpret_cast<std::uintptr_t>(call.x) % 16 != 0)
    call.order = cuda::CudaRmsOrder::descending;
  return cuda::cuda_rms_norm(call, context->stream);
}
#else
Result<void> run_on_cuda(const bp_context* context, const bp_tensor* /*tensors*/) {
  return fail(Error::Kind::environment,
              std::string(context->implementation->id) + " is not in this build: it has no CUDA");
}
#endif

bp_status run(const bp_context* context, const bp_tensor* tensors) {
  char* error = context->error;
  const size_t size = context->error_size;
  const bp_implementation* implementation = context->implementation;
  const bool on_cuda = plan_of(implementation).on_cuda;
  if (validate(context->problem, error, size) != BP_OK) return BP_INVALID;
  if (check_tensors(tensors, on_cuda ? BP_MEMORY_CUDA : BP_MEMORY_HOST, error, size) != BP_OK) return BP_INVALID;
  if (context->mode == BP_MODE_INVARIANT && (promises(implementation, context->problem, nullptr) & BP_BATCH_SIZE) == 0)
    return bp_fail(error, size, BP_REFUSED, "rms_norm: invariant mode refuses %s: its block size follows the rows",
                   implementation->id);
  const bp_status status =
      operator_call(context, [&] { return on_cuda ? run_on_cuda(context, tensors) : run_on_cpu(context, tensors); });
  if (status == BP_OK) bp_executed(context, implementation->id);
  return status;
}

bp_status reference(const bp_context* context, const bp_tensor* tensors) {
  const bp_status valid = validate(context->problem, context->error, context->error_size);
  if (valid != BP_OK) return valid;
  const std::int64_t rows = bp_axis_value(context->problem, "M");
  const std::int64_t columns = bp_axis_value(context->problem, "H");
  const bp_attr* eps = bp_find_attr(context->problem, "eps");
  const auto element = [&](const bp_tensor& t, std::int64_t at) -> double {
    return t.dtype == BP_BF16 ? bf16_to_float(static_cast<const std::uint16_t*>(t.data)[at])
                              : static_cast<const float*>(t.data)[at];
  };
  for (std::int64_t i = 0; i < rows; ++i) {
    double squares = 0;
    for (std::int64_t j = 0; j < columns; ++j) {
      const double value = element(tensors[0], i * tensors[0].stride[0] + j * tensors[0].stride[1]);
      squares += value * value;
    }
    const double r = 1.0 / std::sqrt(squares / static_cast<double>(columns) + (eps != nullptr ? eps->f : 1e-6));
    for (std::int64_t j = 0; j < columns; ++j) {
      double value = element(tensors[0], i * tensors[0].stride[0] + j * tensors[0].stride[1]) * r;
      if (tensors[1].dtype != BP_NONE) value *= element(tensors[1], j * tensors[1].stride[0]);
      static_cast<double*>(tensors[2].data)[i * tensors[2].stride[0] + j * tensors[2].stride[1]] = value;
    }
  }
  return BP_OK;
}

const bp_operator kTable =
    operator_table({.name = "rms_norm", .summary = "y = x / sqrt(mean(x^2) + eps) * weight"},
                   BP_OP_THREAD_SAFE | BP_OP_GRAPH_SAFE, kPorts, kAxes, kAttrs, kDtypeModes, kImplementations,
                   kThresholds, {.validate = validate, .run = run, .reference = reference, .promises = promises});

BATCHPROOF_REGISTER(kTable);

}  // namespace
}  // namespace batchproof
