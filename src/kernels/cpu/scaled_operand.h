// SPDX-License-Identifier: Apache-2.0
//
// Quantised operands as FP32 matrices: codes decoded, E8M0 scales of 32-blocks folded in. Every decoding is exact.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_SCALED_OPERAND_H_
#define BATCHPROOF_SRC_KERNELS_CPU_SCALED_OPERAND_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "batchproof/operator.h"

namespace batchproof {

inline std::int64_t blocks_of(std::int64_t length, std::int64_t block) { return (length + block - 1) / block; }

struct DecodedMatrix {
  std::unique_ptr<float[]> data;
  std::int64_t row_stride = 0;
  std::int64_t column_stride = 1;
};

// Rows [begin, begin + count) of x (m, k), dense and row-major.
DecodedMatrix decode_matrix(const bp_tensor& x, std::int64_t begin, std::int64_t count, int threads);
// w (k, n), dense in the order in which it is stored (k or n outermost).
DecodedMatrix decode_weights(const bp_tensor& w, int threads);
// w (k, n), dense, k outermost.
DecodedMatrix decode_rows_by_k(const bp_tensor& w, int threads);
// x (m, k) times 2^(e - 127) of x_scale (m, ceil(k / 64), 2).
DecodedMatrix decode_mx_rows(const bp_tensor& x, const bp_tensor& x_scale, int threads);
// w (k, n) times 2^(e - 127) of w_scale (ceil(k / 64), n, 2), dense in the order in which w is stored.
DecodedMatrix decode_mx_columns(const bp_tensor& w, const bp_tensor& w_scale, int threads);

// Exponents e - 127 of the scales that are not NaN.
struct ExponentRange {
  int low = 1;
  int high = 0;
  bool empty() const { return low > high; }
  void add(std::uint8_t code);
};
ExponentRange mx_range_of_row(const bp_tensor& x_scale, std::int64_t i, std::int64_t k);
ExponentRange mx_range_of_columns(const bp_tensor& w_scale, std::int64_t k);

// Code of the scale of 32-block `block`: of row i of x_scale (rows, pairs, 2); of column j of w_scale (pairs, columns,
// 2).
inline std::uint8_t mx_row_code(const bp_tensor& scale, std::int64_t i, std::int64_t block) {
  return static_cast<const std::uint8_t*>(
      scale.data)[i * scale.stride[0] + block / 2 * scale.stride[1] + block % 2 * scale.stride[2]];
}
inline std::uint8_t mx_column_code(const bp_tensor& scale, std::int64_t block, std::int64_t j) {
  return static_cast<const std::uint8_t*>(
      scale.data)[block / 2 * scale.stride[0] + j * scale.stride[1] + block % 2 * scale.stride[2]];
}

// e - 127; kMxNanExponent for 255.
constexpr int kMxNanExponent = 1 << 16;
inline int mx_exponent(std::uint8_t code) { return code == 255 ? kMxNanExponent : static_cast<int>(code) - 127; }
// 2^(a + b), NaN where either is.
double power_of_exponents(int a, int b);
// Exponents of w_scale by block, then column: [ceil(k / 32)][n].
std::vector<int> mx_exponents_by_block(const bp_tensor& w_scale, std::int64_t k);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_SCALED_OPERAND_H_
