// SPDX-License-Identifier: Apache-2.0
//
// CUDA devices: what is there, and errors with names.
#include "src/runtime/cuda_device.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

namespace batchproof::cuda {

Error cuda_error(const std::string& what, cudaError_t status) {
  cudaGetLastError();  // a launch error stays behind otherwise and would be blamed on the next call
  const bool missing = status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver ||
                       status == cudaErrorInvalidDevice || status == cudaErrorInitializationError;
  return {missing ? Error::Kind::environment : Error::Kind::operation,
          fmt::format("{}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status))};
}

Result<void> cuda_check(const std::string& what, cudaError_t status) {
  if (status != cudaSuccess) return tl::unexpected<Error>(cuda_error(what, status));
  return {};
}

Result<int> device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver) {  // without a driver, too
    cudaGetLastError();
    return 0;
  }
  if (status != cudaSuccess) return tl::unexpected<Error>(cuda_error("looking for CUDA devices", status));
  return count;
}

Result<DeviceInfo> device_info(int ordinal) {
  static std::mutex mutex;
  static std::map<int, DeviceInfo> known;
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto found = known.find(ordinal); found != known.end()) return found->second;
  const Result<int> count = device_count();
  if (!count) return tl::unexpected<Error>(count.error());
  if (ordinal < 0 || ordinal >= *count)
    return fail(Error::Kind::environment,
                *count == 0 ? std::string("this machine has no CUDA device, or no driver for it")
                            : fmt::format("CUDA device {} does not exist: this machine has {}", ordinal, *count));
  cudaDeviceProp p{};
  if (auto done = cuda_check("reading the CUDA device", cudaGetDeviceProperties(&p, ordinal)); !done)
    return tl::unexpected<Error>(done.error());
  DeviceInfo info;
  info.ordinal = ordinal;
  info.name = p.name;
  info.major = p.major;
  info.minor = p.minor;
  info.processors = p.multiProcessorCount;
  info.block_shared_bytes = static_cast<int>(p.sharedMemPerBlockOptin);
  info.processor_shared_bytes = static_cast<int>(p.sharedMemPerMultiprocessor);
  cudaDriverGetVersion(&info.driver);
  cudaRuntimeGetVersion(&info.runtime);
  known[ordinal] = info;
  return info;
}

Result<DeviceInfo> current_device() {
  int ordinal = 0;
  if (auto done = cuda_check("finding the current CUDA device", cudaGetDevice(&ordinal)); !done)
    return tl::unexpected<Error>(done.error());
  return device_info(ordinal);
}

}  // namespace batchproof::cuda
