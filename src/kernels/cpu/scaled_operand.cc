// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/cpu/scaled_operand.h"

#include <algorithm>
#include <array>
#include <limits>

#include "src/kernels/cpu/scaled_linear.h"
#include "src/numeric/dtype.h"
#include "src/numeric/e8m0.h"
#include "src/numeric/host_device.h"
#include "src/runtime/thread_pool.h"

namespace batchproof {
namespace {

using Table = std::array<float, 256>;

Table make_table(bp_dtype dtype) {
  Table table;
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    table[static_cast<std::size_t>(code)] = static_cast<float>(decode_element(dtype, &byte, 0));
  }
  return table;
}

const Table& table_of(bp_dtype dtype) {
  static const Table e4m3 = make_table(BP_E4M3);
  static const Table e5m2 = make_table(BP_E5M2);
  static const Table int8 = make_table(BP_INT8);
  return dtype == BP_E4M3 ? e4m3 : dtype == BP_E5M2 ? e5m2 : int8;
}

// decode(line, first code, target) for every line, written to dense lines of `length`.
template <class Decode>
void decode_lines(const std::uint8_t* from, std::int64_t lines, std::int64_t line_stride, std::int64_t length,
                  int threads, float* to, const Decode& decode) {
  constexpr std::int64_t kLinesPerPart = 16;
  parallel_for(threads, blocks_of(lines, kLinesPerPart), [&](std::int64_t part) {
    const std::int64_t end = std::min(lines, (part + 1) * kLinesPerPart);
    for (std::int64_t line = part * kLinesPerPart; line < end; ++line)
      decode(line, from + line * line_stride, to + line * length);
  });
}

DecodedMatrix dense(std::int64_t lines, std::int64_t length) {
  DecodedMatrix out;
  out.data.reset(new float[static_cast<std::size_t>(std::max<std::int64_t>(lines * length, 1))]);
  out.row_stride = length;
  return out;
}

bool stored_by_column(const bp_tensor& w) { return w.stride[1] != 1 && w.stride[0] == 1; }

const std::uint8_t* codes(const bp_tensor& tensor) { return static_cast<const std::uint8_t*>(tensor.data); }

DecodedMatrix transposed(DecodedMatrix matrix) {
  std::swap(matrix.row_stride, matrix.column_stride);
  return matrix;
}

}  // namespace

DecodedMatrix decode_matrix(const bp_tensor& x, std::int64_t begin, std::int64_t count, int threads) {
  const std::int64_t length = x.shape[1];
  const std::int64_t stride = x.stride[1];
  const Table& table = table_of(x.dtype);
  DecodedMatrix out = dense(count, length);
  decode_lines(codes(x) + begin * x.stride[0], count, x.stride[0], length, threads, out.data.get(),
               [&](std::int64_t, const std::uint8_t* source, float* target) {
                 for (std::int64_t i = 0; i < length; ++i) target[i] = table[source[i * stride]];
               });
  return out;
}

DecodedMatrix decode_weights(const bp_tensor& w, int threads) {
  if (!stored_by_column(w)) return decode_rows_by_k(w, threads);
  bp_tensor lines = w;
  std::swap(lines.shape[0], lines.shape[1]);
  std::swap(lines.stride[0], lines.stride[1]);
  return transposed(decode_matrix(lines, 0, lines.shape[0], threads));
}

DecodedMatrix decode_rows_by_k(const bp_tensor& w, int threads) { return decode_matrix(w, 0, w.shape[0], threads); }

DecodedMatrix decode_mx_rows(const bp_tensor& x, const bp_tensor& x_scale, int threads) {
  const std::int64_t k = x.shape[1];
  DecodedMatrix out = dense(x.shape[0], k);
  const Table& table = table_of(x.dtype);
  decode_lines(codes(x), x.shape[0], x.stride[0], k, threads, out.data.get(),
               [&](std::int64_t row, const std::uint8_t* source, float* target) {
                 for (std::int64_t at = 0; at < k; at += kMxBlock) {
                   const float scale = e8m0_to_float(mx_row_code(x_scale, row, at / kMxBlock));
                   const std::int64_t end = std::min(k, at + kMxBlock);
                   for (std::int64_t i = at; i < end; ++i) target[i] = table[source[i * x.stride[1]]] * scale;
                 }
               });
  return out;
}

DecodedMatrix decode_mx_columns(const bp_tensor& w, const bp_tensor& w_scale, int threads) {
  const std::int64_t k = w.shape[0];
  const std::int64_t n = w.shape[1];
  const Table& table = table_of(w.dtype);
  if (stored_by_column(w)) {
    DecodedMatrix out = dense(n, k);
    decode_lines(codes(w), n, w.stride[1], k, threads, out.data.get(),
                 [&](std::int64_t column, const std::uint8_t* source, float* target) {
                   for (std::int64_t at = 0; at < k; at += kMxBlock) {
                     const float scale = e8m0_to_float(mx_column_code(w_scale, at / kMxBlock, column));
                     const std::int64_t end = std::min(k, at + kMxBlock);
                     for (std::int64_t i = at; i < end; ++i) target[i] = table[source[i]] * scale;
                   }
                 });
    return transposed(std::move(out));
  }
  // k outermost: the scales of a block of 32 lines are the same, column by column.
  std::vector<float> scales(static_cast<std::size_t>(blocks_of(k, kMxBlock) * n));
  for (std::int64_t block = 0; block < blocks_of(k, kMxBlock); ++block) {
    for (std::int64_t j = 0; j < n; ++j)
      scales[static_cast<std::size_t>(block * n + j)] = e8m0_to_float(mx_column_code(w_scale, block, j));
  }
  DecodedMatrix out = dense(k, n);
  decode_lines(codes(w), k, w.stride[0], n, threads, out.data.get(),
               [&](std::int64_t line, const std::uint8_t* source, float* target) {
                 const float* scale = scales.data() + line / kMxBlock * n;
                 for (std::int64_t j = 0; j < n; ++j) target[j] = table[source[j * w.stride[1]]] * scale[j];
               });
  return out;
}

void ExponentRange::add(std::uint8_t code) {
  if (code == kE8m0Nan) return;
  const int exponent = mx_exponent(code);
  const bool first = empty();
  low = first ? exponent : std::min(low, exponent);
  high = first ? exponent : std::max(high, exponent);
}

ExponentRange mx_range_of_row(const bp_tensor& x_scale, std::int64_t i, std::int64_t k) {
  ExponentRange range;
  for (std::int64_t block = 0; block < blocks_of(k, kMxBlock); ++block) range.add(mx_row_code(x_scale, i, block));
  return range;
}

ExponentRange mx_range_of_columns(const bp_tensor& w_scale, std::int64_t k) {
  ExponentRange range;
  for (std::int64_t block = 0; block < blocks_of(k, kMxBlock); ++block) {
    for (std::int64_t j = 0; j < w_scale.shape[1]; ++j) range.add(mx_column_code(w_scale, block, j));
  }
  return range;
}

double power_of_exponents(int a, int b) {
  if (a == kMxNanExponent || b == kMxNanExponent) return std::numeric_limits<double>::quiet_NaN();
  return power_of_two(a + b);  // normal: each is within 127 of 0
}

std::vector<int> mx_exponents_by_block(const bp_tensor& w_scale, std::int64_t k) {
  std::vector<int> out;
  for (std::int64_t block = 0; block < blocks_of(k, kMxBlock); ++block) {
    for (std::int64_t j = 0; j < w_scale.shape[1]; ++j) out.push_back(mx_exponent(mx_column_code(w_scale, block, j)));
  }
  return out;
}

}  // namespace batchproof
