// SPDX-License-Identifier: Apache-2.0
//
// What scaled products accept, and their FP64 reference.
#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "src/kernels/cpu/scaled_linear.h"
#include "src/kernels/cpu/scaled_operand.h"
#include "src/numeric/dtype.h"

namespace batchproof {
namespace {

double element(const bp_tensor& tensor, std::int64_t i, std::int64_t j) {
  return decode_element(tensor.dtype, tensor.data, i * tensor.stride[0] + j * tensor.stride[1]);
}

bool is_fp8(bp_dtype dtype) { return dtype == BP_E4M3 || dtype == BP_E5M2; }

std::string wrong_dtype(const char* port, bp_dtype dtype, const char* allowed, const char* mode) {
  return fmt::format("{} has the dtype {}; {} takes {}", port, dtype_name(dtype), mode, allowed);
}

// Factor of the products of block `b` (along k) in row i and column j.
double block_factor(const ScaledLinear& linear, std::int64_t i, std::int64_t j, std::int64_t b) {
  const auto scale = [](const bp_tensor& tensor, std::int64_t r, std::int64_t c) {
    return static_cast<const float*>(tensor.data)[r * tensor.stride[0] + c * tensor.stride[1]];
  };
  if (linear.scaling == Scaling::mx) {
    return power_of_exponents(mx_exponent(mx_row_code(*linear.x_scale, i, b)),
                              mx_exponent(mx_column_code(*linear.w_scale, b, j)));
  }
  return scale(*linear.x_scale, i / kScaleBlock, b) * scale(*linear.w_scale, b, j / kScaleBlock);
}

// Factor of the whole sum.
double sum_factor(const ScaledLinear& linear, std::int64_t i, std::int64_t j) {
  const auto* w_scale = static_cast<const float*>(linear.w_scale->data);
  const float* x_scale = linear.x_scale == nullptr ? nullptr : static_cast<const float*>(linear.x_scale->data);
  if (linear.scaling == Scaling::tensor) {
    const std::int64_t entry = linear.rows_per_scale > 0 ? i / linear.rows_per_scale : 0;
    return masked_scale(x_scale[entry * linear.x_scale->stride[0]], w_scale[0]);
  }
  const double of_row = x_scale == nullptr ? 1.0 : x_scale[i * linear.x_scale->stride[0]];
  return of_row * w_scale[j * linear.w_scale->stride[1]];
}

}  // namespace

std::string scaled_dtype_error(Scaling scaling, const ScaledDtypes& dtypes) {
  const LinearDtypes& of = dtypes.tensors;
  if (scaling == Scaling::none && is_quantised(of.x)) {
    return fmt::format("x1 has the dtype {} and no scales are there; give x1_scale and x2_scale", dtype_name(of.x));
  }
  if (scaling == Scaling::none) return linear_dtype_error(of);
  const bool by_token = scaling == Scaling::token_channel;
  const bool int8 = by_token && (of.x == BP_INT8 || of.w == BP_INT8);
  const char* mode = by_token                     ? "per-token x per-channel scaling"
                     : scaling == Scaling::tensor ? "per-tensor scaling"
                     : scaling == Scaling::block  ? "per-block scaling"
                                                  : "MX scaling";
  for (const auto& [port, dtype] : {std::pair("x1", of.x), std::pair("x2", of.w)}) {
    if (int8 ? dtype != BP_INT8 : !is_fp8(dtype))
      return wrong_dtype(port, dtype, int8 ? "int8" : by_token ? "int8, e4m3 and e5m2" : "e4m3 and e5m2", mode);
  }
  const bp_dtype scale = scaling == Scaling::mx ? BP_E8M0 : BP_FP32;
  for (const auto& [port, dtype] : {std::pair("x1_scale", dtypes.x_scale), std::pair("x2_scale", dtypes.w_scale)}) {
    const bool may_be_absent = by_token && std::string_view(port) == "x1_scale" && dtype == BP_NONE;
    if (dtype != scale && !may_be_absent) return wrong_dtype(port, dtype, dtype_name(scale), mode);
  }
  if (scaling == Scaling::block && of.bias != BP_NONE) return "per-block scaling takes no bias; leave bias out";
  const bool half_bias = by_token && (of.bias == BP_BF16 || of.bias == BP_FP16);
  const bool bias_suits = of.bias == BP_NONE || of.bias == BP_FP32 || half_bias || (int8 && of.bias == BP_INT32);
  if (!bias_suits) {
    return wrong_dtype("bias", of.bias,
                       int8       ? "fp32, bf16, fp16 and int32"
                       : by_token ? "fp32, bf16 and fp16"
                                  : "fp32",
                       mode);
  }
  if (of.y != BP_FP32 && of.y != BP_BF16 && of.y != BP_FP16) return wrong_dtype("y", of.y, "fp32, bf16 and fp16", mode);
  return "";
}

std::string group_size_error(std::int64_t group, Scaling scaling) {
  if (scaling != Scaling::block && scaling != Scaling::mx) return "";
  const std::int64_t block = scaling == Scaling::mx ? kMxBlock : kScaleBlock;
  const std::int64_t across = scaling == Scaling::mx ? 1 : kScaleBlock;
  const auto fits = [&](int shift, std::int64_t size) {
    const std::int64_t field = group >> shift & 0xFFFF;
    return field == 0 || field == size;
  };
  if (group >= 0 && group >> 48 == 0 && fits(0, block) && fits(16, across) && fits(32, across)) return "";
  return fmt::format("group_size = {} does not suit these scales; it must be 0 or {}", group,
                     block + (across << 16) + (across << 32));
}

Result<void> scaled_linear_reference(const ScaledLinear& linear) {
  const bp_tensor& y = *linear.y;
  if (linear.scaling == Scaling::none) return linear_reference(*linear.x, *linear.w, linear.bias, y);
  if (y.dtype != BP_FP64) return fail(Error::Kind::usage, "the reference writes FP64 outputs only");
  const std::int64_t m = linear.x->shape[0];
  const std::int64_t k = linear.x->shape[1];
  const std::int64_t n = linear.w->shape[1];
  const bool by_block = linear.scaling == Scaling::block || linear.scaling == Scaling::mx;
  const std::int64_t block = !by_block                       ? std::max<std::int64_t>(k, 1)
                             : linear.scaling == Scaling::mx ? kMxBlock
                                                             : kScaleBlock;
  // Decoded once, columns contiguous: it is read m times.
  std::vector<double> right(static_cast<std::size_t>(k * n));
  for (std::int64_t i = 0; i < k; ++i) {
    for (std::int64_t j = 0; j < n; ++j) right[static_cast<std::size_t>(i * n + j)] = element(*linear.w, i, j);
  }
  std::vector<double> sum(static_cast<std::size_t>(n));
  std::vector<double> part(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < m; ++i) {
    std::fill(sum.begin(), sum.end(), 0.0);
    for (std::int64_t begin = 0; begin < k; begin += block) {
      std::fill(part.begin(), part.end(), 0.0);
      for (std::int64_t kk = begin; kk < std::min(k, begin + block); ++kk) {
        const double left = element(*linear.x, i, kk);
        add_multiple(left, right.data() + kk * n, n, part.data());
      }
      for (std::size_t j = 0; j < part.size(); ++j) {
        sum[j] += by_block ? part[j] * block_factor(linear, i, static_cast<std::int64_t>(j), begin / block) : part[j];
      }
    }
    for (std::int64_t j = 0; j < n; ++j) {
      const double addend = linear.bias == nullptr
                                ? 0.0
                                : decode_element(linear.bias->dtype, linear.bias->data, j * linear.bias->stride[0]);
      double value = sum[static_cast<std::size_t>(j)];
      if (by_block) {
        value += addend;
      } else {
        const double factor = sum_factor(linear, i, j);
        value = linear.bias_after_scale && linear.bias != nullptr && linear.bias->dtype != BP_INT32
                    ? value * factor + addend
                    : (value + addend) * factor;
      }
      static_cast<double*>(y.data)[i * y.stride[0] + j * y.stride[1]] = value;
    }
  }
  return {};
}

}  // namespace batchproof
