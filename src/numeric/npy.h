// SPDX-License-Identifier: Apache-2.0
//
// Reads captured tensors: the .npy format, versions 1.0 to 3.0 (NumPy documentation, numpy.lib.format).
#ifndef BATCHPROOF_SRC_NUMERIC_NPY_H_
#define BATCHPROOF_SRC_NUMERIC_NPY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "batchproof/operator.h"
#include "src/runtime/error.h"

namespace batchproof {

// A row-major array with at least one element.
class NpyArray {
 public:
  // Accepts little-endian f2, f4, f8, i1, i2, i4, i8, u1, u2 in C order. Every other file is a usage error that names
  // the file, what is wrong with it and what would be right.
  static Result<NpyArray> read(const std::string& path);
  // As read, from the file's bytes; `name` stands for the path in errors.
  static Result<NpyArray> parse(std::string_view bytes, const std::string& name);

  const std::vector<std::int64_t>& shape() const { return shape_; }
  // The first axis; 1 for a scalar and for a vector: a vector is one row.
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  char kind() const { return kind_; }       // 'f', 'i' or 'u'
  int item_bytes() const { return item_; }  // 1, 2, 4 or 8
  const std::byte* data() const { return data_.data(); }
  // Element `index` in row-major order as a number; i8 beyond 2^53 rounds.
  double value(std::int64_t index) const;
  // Bits of element `index` where the items are codes of `dtype` as they are (u2 for BF16; u1 for E4M3, E5M2, E8M0 and,
  // one code per item, E2M1) or have its very type (f4 for FP32, i1 for INT8, ...).
  bool stores(bp_dtype dtype) const;
  std::uint64_t bits(std::int64_t index) const;

 private:
  NpyArray() = default;
  std::vector<std::int64_t> shape_;
  std::int64_t rows_ = 0;
  std::int64_t columns_ = 0;
  char kind_ = 'f';
  int item_ = 0;
  std::vector<std::byte> data_;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_NUMERIC_NPY_H_
