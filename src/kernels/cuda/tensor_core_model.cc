// SPDX-License-Identifier: Apache-2.0
//
// A CPU model of one tensor-core step.
#include "src/kernels/cuda/tensor_core_model.h"

#include <algorithm>
#include <cstring>

namespace batchproof::cuda {
namespace {

// value = sign * significand * 2^(exponent - fraction); subnormals keep the smallest exponent.
struct Parts {
  bool negative = false;
  std::int64_t significand = 0;
  int exponent = 0;
};

struct Format {
  int bytes, exponent_bits, fraction_bits, bias, fraction_kept;
};

constexpr Format kFormats[5] = {
    {2, 8, 7, 127, 7}, {2, 5, 10, 15, 10}, {4, 8, 23, 127, 10}, {1, 4, 3, 7, 3}, {1, 5, 2, 15, 2}};

Parts split(std::uint32_t code, const Format& f) {
  const std::uint32_t fraction = code & ((1u << f.fraction_bits) - 1);
  const int biased = static_cast<int>(code >> f.fraction_bits & ((1u << f.exponent_bits) - 1));
  Parts parts;
  parts.negative = (code >> (f.exponent_bits + f.fraction_bits) & 1) != 0;
  parts.significand = fraction >> (f.fraction_bits - f.fraction_kept);
  if (biased != 0) parts.significand |= std::int64_t{1} << f.fraction_kept;
  parts.exponent = (biased == 0 ? 1 : biased) - f.bias;
  return parts;
}

Parts load(const void* data, int index, const Format& f) {
  std::uint32_t code = 0;
  std::memcpy(&code, static_cast<const std::uint8_t*>(data) + static_cast<std::ptrdiff_t>(index) * f.bytes,
              static_cast<std::size_t>(f.bytes));
  return split(code, f);
}

// magnitude * 2^shift, cut toward zero.
std::int64_t scaled(std::int64_t magnitude, int shift) {
  if (shift >= 0) return magnitude << std::min(shift, 40);
  return shift <= -63 ? 0 : magnitude >> -shift;
}

// sum * 2^unit cut toward zero to `bits` fraction bits; +0 for zero and for what is cut to nothing.
float cut(std::int64_t sum, int unit, int bits) {
  if (sum == 0) return 0.0f;
  const bool negative = sum < 0;
  std::uint64_t magnitude = static_cast<std::uint64_t>(negative ? -sum : sum);
  int top = 63;
  while ((magnitude >> top & 1) == 0) --top;
  int exponent = unit + top;
  // Below the normal range the last place is 2^-149 for 23 bits, 2^(-126 - bits) in general.
  const int keep = exponent >= -126 ? bits : bits - (-126 - exponent);
  if (keep < 0) return 0.0f;
  if (top > keep) magnitude = magnitude >> (top - keep) << (top - keep);
  std::uint32_t code = 0;
  if (exponent > 127) {
    code = 0x7F800000u;
  } else {
    const int place = exponent >= -126 ? exponent - 23 : -149;  // of the code's last bit
    const int shift = unit - place;
    const std::uint64_t significand = shift >= 0 ? magnitude << shift : magnitude >> -shift;
    code = exponent >= -126 ? static_cast<std::uint32_t>(exponent + 127) << 23 | (significand & 0x7FFFFFu)
                            : static_cast<std::uint32_t>(significand);
  }
  if (negative && code != 0) code |= 0x80000000u;
  float value;
  std::memcpy(&value, &code, sizeof(value));
  return value;
}

}  // namespace

StepModel wgmma_model(ModelType type) {
  if (type == ModelType::e4m3 || type == ModelType::e5m2) return {13, 13};
  return {25, 23};
}

float model_dot(ModelType type, const void* a, const void* b, int count, int group, StepModel model) {
  const Format& f = kFormats[static_cast<int>(type)];
  constexpr Format kFp32{4, 8, 23, 127, 23};
  float total = 0.0f;
  for (int first = 0; first < count; first += group) {
    const int end = std::min(count, first + group);
    std::uint32_t code;
    std::memcpy(&code, &total, sizeof(code));
    const Parts start = split(code, kFp32);
    int largest = start.significand != 0 ? start.exponent : -100000;
    for (int k = first; k < end; ++k) {
      const Parts x = load(a, k, f), y = load(b, k, f);
      if (x.significand != 0 && y.significand != 0) largest = std::max(largest, x.exponent + y.exponent);
    }
    if (largest == -100000) continue;
    const int unit = largest - model.fraction_bits;
    std::int64_t sum = scaled(start.significand, start.exponent - 23 - unit);
    if (start.negative) sum = -sum;
    for (int k = first; k < end; ++k) {
      const Parts x = load(a, k, f), y = load(b, k, f);
      const std::int64_t term =
          scaled(x.significand * y.significand, x.exponent + y.exponent - 2 * f.fraction_kept - unit);
      sum += x.negative != y.negative ? -term : term;
    }
    total = cut(sum, unit, model.result_bits);
  }
  return total;
}

}  // namespace batchproof::cuda
