// SPDX-License-Identifier: Apache-2.0
//
// The tensors of one run: guarded memory with a bp_tensor view.
#ifndef BATCHPROOF_SRC_CHECK_TENSORS_H_
#define BATCHPROOF_SRC_CHECK_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/check/host.h"
#include "src/check/layout.h"

namespace batchproof {

// Where a tensor's elements start and how far its rows are apart; what the alignment relation changes.
struct Placement {
  std::int64_t offset = 0;   // elements by which the base address leaves its 64-byte boundary
  std::int64_t padding = 0;  // elements added to the leading dimension of ports that accept it
  std::uint8_t fill = 0x00;  // what outputs and padding hold before the call
};

// Guard bytes lie before and after the elements. Memory may be shared by several tensors that are only read.
class Tensor {
 public:
  static Result<Tensor> make(OperatorHost& host, const PortLayout& layout, const Placement& placement);
  static Tensor absent(const PortLayout& layout);

  const bp_tensor& view() const { return view_; }
  std::byte* data() const { return static_cast<std::byte*>(view_.data); }
  bool guards_intact() const;
  // Address of an element; for packed dtypes of the byte that holds it.
  std::byte* at(std::int64_t element_offset) const;

 private:
  bp_tensor view_{};
  Memory memory_;
  std::size_t bytes_ = 0;  // between the guards
};

// Copies row `index` of a tensor to or from `buffer` (row_bytes, elements in axis order).
void read_row(const PortLayout& layout, const Tensor& tensor, std::int64_t index, std::byte* buffer);
void write_row(const PortLayout& layout, const Tensor& tensor, std::int64_t index, const std::byte* buffer);
// The same for a whole tensor in axis order.
void read_all(const PortLayout& layout, const Tensor& tensor, std::byte* buffer);
void write_all(const PortLayout& layout, const Tensor& tensor, const std::byte* buffer);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_CHECK_TENSORS_H_
