// SPDX-License-Identifier: Apache-2.0
#include "src/check/tensors.h"

#include <cstring>

#include "src/numeric/dtype.h"

namespace batchproof {
namespace {

constexpr std::size_t kGuardBytes = 256;
constexpr std::byte kGuardPattern{0xA5};

std::size_t byte_offset(std::int64_t elements, bp_dtype dtype) { return dtype_bytes(dtype, elements); }

// Visits the elements of a row (or of a whole tensor where skipped_axis is -1) in axis order, in runs that are one
// piece of memory: visit(element offset, elements).
template <class Visit>
void for_each_piece(const bp_tensor& tensor, int skipped_axis, std::int64_t base, const Visit& visit) {
  int axes[BP_MAX_DIMS];
  int count = 0;
  for (int axis = 0; axis < tensor.ndim; ++axis) {
    if (axis == skipped_axis) continue;
    if (tensor.shape[axis] == 0) return;
    if (tensor.shape[axis] != 1) axes[count++] = axis;
  }
  // The innermost axes that are contiguous make one piece.
  std::int64_t piece = 1;
  int outer = count;
  while (outer > 0 && tensor.stride[axes[outer - 1]] == piece) piece *= tensor.shape[axes[--outer]];
  std::int64_t place[BP_MAX_DIMS] = {};
  while (true) {
    std::int64_t offset = base;
    for (int i = 0; i < outer; ++i) offset += place[i] * tensor.stride[axes[i]];
    visit(offset, piece);
    int i = outer - 1;
    while (i >= 0 && ++place[i] == tensor.shape[axes[i]]) place[i--] = 0;
    if (i < 0) return;
  }
}

template <class Copy>
void walk(const PortLayout& layout, const Tensor& tensor, int skipped_axis, std::int64_t base, const Copy& copy) {
  std::size_t done = 0;
  for_each_piece(tensor.view(), skipped_axis, base, [&](std::int64_t offset, std::int64_t elements) {
    const std::size_t bytes = dtype_bytes(layout.dtype, elements);
    copy(tensor.at(offset), done, bytes);
    done += bytes;
  });
}

}  // namespace

Tensor Tensor::absent(const PortLayout& layout) {
  Tensor tensor;
  tensor.view_.dtype = BP_NONE;
  tensor.view_.ndim = layout.ndim;
  return tensor;
}

Result<Tensor> Tensor::make(OperatorHost& host, const PortLayout& layout, const Placement& placement) {
  Tensor tensor;
  tensor.view_.dtype = layout.dtype;
  tensor.view_.memory = BP_MEMORY_HOST;
  tensor.view_.ndim = layout.ndim;
  const bool padded = placement.padding > 0 && (layout.port->flags & BP_PORT_PADDED) != 0 && layout.ndim >= 2;
  // The leading dimension is the longest stride but one level: the axis stored outermost of the last two.
  std::int64_t storage = layout.elements() > 0 ? 1 : 0;
  for (int axis = 0; axis < layout.ndim; ++axis) {
    tensor.view_.shape[axis] = layout.shape[axis];
    tensor.view_.stride[axis] = layout.stride[axis];
  }
  if (padded) {
    // Rows in storage are the runs of stride 1; every longer stride grows with them.
    std::int64_t row = 1;
    for (int axis = 0; axis < layout.ndim; ++axis) {
      if (layout.stride[axis] == 1 && layout.shape[axis] > 1) row = layout.shape[axis];
    }
    for (int axis = 0; axis < layout.ndim; ++axis) {
      if (layout.stride[axis] >= row && !(layout.stride[axis] == 1 && layout.shape[axis] > 1))
        tensor.view_.stride[axis] = layout.stride[axis] / row * (row + placement.padding);
    }
  }
  for (int axis = 0; axis < layout.ndim && storage > 0; ++axis)
    storage += (layout.shape[axis] - 1) * tensor.view_.stride[axis];
  const std::size_t lead = byte_offset(placement.offset, layout.dtype);
  tensor.bytes_ = dtype_bytes(layout.dtype, storage);
  auto memory = host.allocate(lead + tensor.bytes_ + 2 * kGuardBytes);
  if (!memory) return tl::unexpected(memory.error());
  tensor.memory_ = *memory;
  std::byte* data = tensor.memory_.data + kGuardBytes + lead;
  tensor.view_.data = data;
  std::memset(data - kGuardBytes, static_cast<int>(kGuardPattern), kGuardBytes);
  std::memset(data, placement.fill, tensor.bytes_);
  std::memset(data + tensor.bytes_, static_cast<int>(kGuardPattern), kGuardBytes);
  return tensor;
}

bool Tensor::guards_intact() const {
  if (view_.data == nullptr) return true;
  const std::byte* before = data() - kGuardBytes;
  const std::byte* after = data() + bytes_;
  for (std::size_t i = 0; i < kGuardBytes; ++i) {
    if (before[i] != kGuardPattern || after[i] != kGuardPattern) return false;
  }
  return true;
}

std::byte* Tensor::at(std::int64_t element_offset) const { return data() + byte_offset(element_offset, view_.dtype); }

void read_row(const PortLayout& layout, const Tensor& tensor, std::int64_t index, std::byte* buffer) {
  const int axis = layout.port->row_axis;
  walk(layout, tensor, axis, index * tensor.view().stride[axis],
       [buffer](const std::byte* memory, std::size_t done, std::size_t bytes) {
         std::memcpy(buffer + done, memory, bytes);
       });
}

void write_row(const PortLayout& layout, const Tensor& tensor, std::int64_t index, const std::byte* buffer) {
  const int axis = layout.port->row_axis;
  walk(layout, tensor, axis, index * tensor.view().stride[axis],
       [buffer](std::byte* memory, std::size_t done, std::size_t bytes) { std::memcpy(memory, buffer + done, bytes); });
}

void read_all(const PortLayout& layout, const Tensor& tensor, std::byte* buffer) {
  walk(layout, tensor, -1, 0, [buffer](const std::byte* memory, std::size_t done, std::size_t bytes) {
    std::memcpy(buffer + done, memory, bytes);
  });
}

void write_all(const PortLayout& layout, const Tensor& tensor, const std::byte* buffer) {
  walk(layout, tensor, -1, 0,
       [buffer](std::byte* memory, std::size_t done, std::size_t bytes) { std::memcpy(memory, buffer + done, bytes); });
}

}  // namespace batchproof
