// SPDX-License-Identifier: Apache-2.0
//
// Owners of CUDA memory, streams and events. Compiled only where nvcc is.
#ifndef BATCHPROOF_SRC_RUNTIME_CUDA_BUFFER_H_
#define BATCHPROOF_SRC_RUNTIME_CUDA_BUFFER_H_

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <cstddef>
#include <memory>

#include "src/runtime/cuda_device.h"

namespace batchproof::cuda {

// Device memory of the device that was current when it was made.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // Out of memory is an error of kind operation that names the size.
  static Result<DeviceBuffer> make(std::size_t bytes) {
    DeviceBuffer buffer;
    void* data = nullptr;
    if (auto done = cuda_check(fmt::format("allocating {} bytes of CUDA memory", bytes),
                               cudaMalloc(&data, bytes == 0 ? 1 : bytes));
        !done)
      return tl::unexpected<Error>(done.error());
    buffer.data_.reset(data);
    buffer.bytes_ = bytes;
    return buffer;
  }
  void* get() const { return data_.get(); }
  std::size_t bytes() const { return bytes_; }
  Result<void> upload(const void* from, std::size_t bytes) {
    return cuda_check(fmt::format("copying {} bytes to the device", bytes),
                      cudaMemcpy(get(), from, bytes, cudaMemcpyHostToDevice));
  }
  // Waits for the work that was enqueued before on the legacy default stream and on blocking streams.
  Result<void> download(void* to, std::size_t bytes) const {
    return cuda_check(fmt::format("copying {} bytes from the device", bytes),
                      cudaMemcpy(to, get(), bytes, cudaMemcpyDeviceToHost));
  }

 private:
  struct Free {
    void operator()(void* data) const { cudaFree(data); }
  };
  std::unique_ptr<void, Free> data_;
  std::size_t bytes_ = 0;
};

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_RUNTIME_CUDA_BUFFER_H_
