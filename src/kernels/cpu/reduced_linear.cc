// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/cpu/reduced_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "batchproof/problem.h"
#include "src/kernels/cpu/elements.h"
#include "src/numeric/dtype.h"

namespace batchproof {
namespace {

Product scheduled(int threads) {
  return [threads](const GemmCall& call, const LinearSchedule& order) { return run_scheduled(call, order, threads); };
}

// `tensor` from index `begin` of `axis` on, `count` long.
bp_tensor range(const bp_tensor& tensor, int axis, std::int64_t begin, std::int64_t count) {
  bp_tensor part = tensor;
  part.data = static_cast<char*>(tensor.data) +
              begin * tensor.stride[axis] * static_cast<std::int64_t>(dtype_bytes(tensor.dtype, 1));
  part.shape[axis] = count;
  return part;
}

// Scales that the slices share apply to each slice's own sum; those along K are part of the product.
bool scales_slices(Scaling scaling) { return scaling == Scaling::tensor || scaling == Scaling::token_channel; }

void add_bias(const bp_tensor& bias, std::int64_t m, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j)
      out[i * n + j] = out[i * n + j] + read_float(bias.data, j * bias.stride[0], bias.dtype);
  }
}

// The slices of one rank one by one, each scaled, merged as they come: the counter of finished slices says which.
Result<void> slice_by_slice(const ScaledLinear& linear, std::int64_t slices, std::int64_t segment, int threads,
                            float* out) {
  const std::int64_t m = linear.x->shape[0];
  const std::int64_t k = linear.x->shape[1];
  const std::int64_t n = linear.w->shape[1];
  const std::int64_t length = k / slices;
  std::vector<std::vector<float>> stack;
  for (std::int64_t slice = 0; slice < slices; ++slice) {
    const bp_tensor x = range(*linear.x, 1, slice * length, length);
    const bp_tensor w = range(*linear.w, 0, slice * length, length);
    stack.emplace_back(static_cast<std::size_t>(m * n));
    const bp_tensor y = dense_matrix(stack.back().data(), BP_FP32, m, n);
    ScaledLinear part = linear;
    part.x = &x;
    part.w = &w;
    part.y = &y;
    if (slice > 0) part.bias = nullptr;
    if (const Result<void> done = scaled_linear(part, {segment, 0}, threads, scheduled(threads)); !done) return done;
    for (std::int64_t count = slice + 1; count % 2 == 0; count /= 2) {
      std::vector<float>& left = stack[stack.size() - 2];
      for (std::size_t e = 0; e < left.size(); ++e) left[e] = left[e] + stack.back()[e];
      stack.pop_back();
    }
  }
  std::copy(stack.front().begin(), stack.front().end(), out);
  return {};
}

}  // namespace

std::string tree_error(Scaling scaling, std::int64_t k, int world) {
  if (world < 1 || kWorldSlices % world != 0) {
    return fmt::format("W = {} does not divide the {} slices of the tree; it must be 1, 2, 4, 8 or 16", world,
                       kWorldSlices);
  }
  const std::int64_t atom = scaling == Scaling::block ? kScaleBlock : 1;
  if (k * world % (kWorldSlices * atom) != 0) {
    return fmt::format("K_total = {} is no multiple of {}: 16 slices of whole {}", k * world, kWorldSlices * atom,
                       atom == 1 ? "elements" : "scale blocks of 128");
  }
  return "";
}

Result<void> tree_partial(const ScaledLinear& linear, int world, std::int64_t segment, int threads, float* out) {
  const std::int64_t m = linear.x->shape[0];
  const std::int64_t n = linear.w->shape[1];
  if (std::string wrong = tree_error(linear.scaling, linear.x->shape[1], world); !wrong.empty()) {
    return fail(Error::Kind::usage, wrong);
  }
  if (m == 0 || n == 0) return {};
  const std::int64_t slices = kWorldSlices / world;
  const bool late_bias = linear.bias != nullptr && (!scales_slices(linear.scaling) || linear.bias_after_scale) &&
                         linear.bias->dtype != BP_INT32;
  ScaledLinear part = linear;
  if (late_bias) part.bias = nullptr;
  Result<void> done;
  if (scales_slices(linear.scaling)) {
    done = slice_by_slice(part, slices, segment, threads, out);
  } else {
    const bp_tensor y = dense_matrix(out, BP_FP32, m, n);
    part.y = &y;
    done = scaled_linear(part, {segment, slices}, threads, scheduled(threads));
  }
  if (done && late_bias) add_bias(*linear.bias, m, n, out);
  return done;
}

Result<void> chain_partial(const ScaledLinear& linear, std::int64_t segment, int threads, bp_dtype dtype, void* out) {
  const bp_tensor y = dense_matrix(out, dtype, linear.x->shape[0], linear.w->shape[1]);
  ScaledLinear part = linear;
  part.y = &y;
  return scaled_linear(part, {segment, 0}, threads, scheduled(threads));
}

void store_rows(const void* rows, bp_dtype from, const bp_tensor& y) {
  for (std::int64_t i = 0; i < y.shape[0]; ++i) {
    for (std::int64_t j = 0; j < y.shape[1]; ++j)
      write_float(y.data, i * y.stride[0] + j, y.dtype, read_float(rows, i * y.shape[1] + j, from));
  }
}

Result<void> partial_reference(const ScaledLinear& linear, double* out) {
  const bp_tensor y = dense_matrix(out, BP_FP64, linear.x->shape[0], linear.w->shape[1]);
  ScaledLinear part = linear;
  part.y = &y;
  return scaled_linear_reference(part);
}

std::string reduced_problem_error(const bp_problem* problem, const ReducedPorts& ports) {
  if (problem->world < 1) return fmt::format("W = {} is out of range; it must be at least 1", problem->world);
  for (const auto& [name, least] : {std::pair("M", 0), std::pair("K", 1), std::pair("N", 0)}) {
    if (std::string wrong = extent_error(name, bp_axis_value(problem, name), least); !wrong.empty()) return wrong;
  }
  const bp_dtype* dtypes = problem->dtypes;
  const Scaling scaling = scaling_of(dtypes, ports.scales);
  const ScaledDtypes of_product = {{dtypes[ports.x1], dtypes[ports.x2], dtypes[ports.bias], dtypes[ports.y]},
                                   scale_dtype(dtypes, ports.scales.x1_scale, scaling),
                                   scale_dtype(dtypes, ports.scales.x2_scale, scaling)};
  if (std::string wrong = scaled_dtype_error(scaling, of_product); !wrong.empty()) return wrong;
  if (std::string wrong = group_size_error(bp_attr_int(problem, "group_size"), scaling); !wrong.empty()) return wrong;
  const std::int64_t k = bp_axis_value(problem, "K");
  if (scaling == Scaling::token_channel && k > kInt8LongestK) {
    return fmt::format("K = {} is out of range; an INT32 accumulator holds {}", k, kInt8LongestK);
  }
  // A pair of MX scales, and a scale block, belong to one rank.
  const std::int64_t block = scaling == Scaling::mx ? 2 * kMxBlock : scaling == Scaling::block ? kScaleBlock : 1;
  if (problem->world > 1 && k % block != 0) {
    return fmt::format("K = {} must be a multiple of {}: scales may not cross ranks", k, block);
  }
  return "";
}

ScaledLinear reduced_linear_of(const bp_context* context, const bp_tensor* tensors, const ReducedPorts& ports) {
  ScaledLinear linear;
  linear.scaling = scaling_of(context->problem->dtypes, ports.scales);
  linear.x = &tensors[ports.x1];
  linear.w = &tensors[ports.x2];
  linear.bias = tensors[ports.bias].dtype == BP_NONE ? nullptr : &tensors[ports.bias];
  linear.x_scale = scale_tensor(tensors, ports.scales.x1_scale, linear.scaling);
  linear.w_scale = scale_tensor(tensors, ports.scales.x2_scale, linear.scaling);
  linear.bias_after_scale = bp_attr_int(context->problem, "bias_after_scale") != 0;
  return linear;
}

}  // namespace batchproof
