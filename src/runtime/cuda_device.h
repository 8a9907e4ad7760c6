// SPDX-License-Identifier: Apache-2.0
//
// CUDA devices: what is there, and errors with names. Compiled only where nvcc is (BATCHPROOF_HAVE_CUDA).
#ifndef BATCHPROOF_SRC_RUNTIME_CUDA_DEVICE_H_
#define BATCHPROOF_SRC_RUNTIME_CUDA_DEVICE_H_

#include <cuda_runtime.h>

#include <string>

#include "src/runtime/error.h"

namespace batchproof::cuda {

struct DeviceInfo {
  int ordinal = 0;
  std::string name;
  int major = 0, minor = 0;
  int processors = 0;
  int block_shared_bytes = 0;      // dynamic shared memory that one block may have
  int processor_shared_bytes = 0;  // of one processor
  int driver = 0, runtime = 0;     // 13000: 13.0
};

// How many devices; none where there is no driver.
Result<int> device_count();
// Memoised. Error of kind environment where the device does not exist.
Result<DeviceInfo> device_info(int ordinal);
// Of the device that is current on this thread.
Result<DeviceInfo> current_device();

// "cudaMalloc of 12 GiB: out of memory (cudaErrorMemoryAllocation)". Kind operation; environment for a missing device
// or driver. Clears the runtime's last error.
Error cuda_error(const std::string& what, cudaError_t status);
Result<void> cuda_check(const std::string& what, cudaError_t status);

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_RUNTIME_CUDA_DEVICE_H_
