// SPDX-License-Identifier: Apache-2.0
//
// Inputs by way of a CUDA device.
#include "src/check/device_inputs.h"

#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <vector>

#include "src/kernels/cuda/fill.h"
#include "src/numeric/dtype.h"
#include "src/runtime/cuda_buffer.h"

namespace batchproof {
namespace {

// A recipe for a dtype, in one of its forms.
using Form = std::tuple<RecipeKind, bp_dtype, bool, bool>;

struct Room {
  cuda::DeviceBuffer memory;
  bool failed = false;  // the host makes everything from now on
  std::set<Form> compared;
};

bool make(Room* room, const cuda::CudaFill& wanted, void* out, std::size_t bytes) {
  if (room->memory.bytes() < bytes) {
    Result<cuda::DeviceBuffer> memory = cuda::DeviceBuffer::make(bytes);
    if (!memory) return false;
    room->memory = *std::move(memory);
  }
  cuda::CudaFill fill = wanted;
  fill.out = room->memory.get();
  return cuda_fill(fill, nullptr) && room->memory.download(out, bytes);
}

}  // namespace

bool fill_on_device(Device* device, const FillRequest& request, std::int64_t rows, void* out) {
  const bool packed = dtype_bits(request.dtype) == 4;
  if (device == nullptr || !device->runs_kernels() || request.count * rows < kDeviceInputs) return false;
  if (request.pairs != nullptr || request.spec.kind == RecipeKind::file || request.column != 0) return false;
  if (packed && request.count % 2 != 0) return false;
  if (!device->enter()) return false;
  static std::mutex mutex;
  // Never destroyed: the driver may be gone before static objects are.
  static auto& rooms = *new std::map<int, Room>();
  const std::lock_guard<std::mutex> lock(mutex);
  Room& room = rooms[device->description().ordinal];
  if (room.failed) return false;
  cuda::CudaFill fill;
  fill.kind = request.spec.kind;
  fill.dtype = request.dtype;
  fill.seed = request.seed;
  fill.name = request.name;
  fill.row = request.row;
  fill.rows = rows;
  fill.columns = request.count;
  fill.row_stride = request.count;
  fill.lo = request.spec.lo;
  fill.hi = request.spec.hi;
  fill.magnitude = request.magnitude;
  fill.scale = request.scale;
  fill.reduction_input = request.reduction_input;
  const std::size_t row_bytes = dtype_bytes(request.dtype, request.count);
  room.failed = !make(&room, fill, out, row_bytes * static_cast<std::size_t>(rows));
  // A device whose arithmetic is another one would be seen by its own inputs alone: the first row of each form is made
  // twice.
  if (!room.failed &&
      room.compared.insert({request.spec.kind, request.dtype, request.scale, request.reduction_input}).second) {
    std::vector<std::byte> first(row_bytes);
    batchproof::fill(request, first.data());
    room.failed = std::memcmp(out, first.data(), row_bytes) != 0;
  }
  return !room.failed;
}

}  // namespace batchproof
