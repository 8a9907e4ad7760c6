// SPDX-License-Identifier: Apache-2.0
//
// A device beside the host, as the checker uses it: memory, streams, captured calls. No CUDA header: the library is
// compiled with and without CUDA, and cuda_device() says what is missing.
#ifndef BATCHPROOF_SRC_RUNTIME_DEVICE_H_
#define BATCHPROOF_SRC_RUNTIME_DEVICE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "batchproof/operator.h"
#include "src/runtime/error.h"

namespace batchproof {

// What a call enqueued on a stream while it was captured.
class CapturedCall {
 public:
  virtual ~CapturedCall() = default;
  virtual Result<void> replay(void* stream) = 0;
};

// Every function but description and text needs enter() on its thread. Errors name what was tried and the device's own
// error; kind environment where the device is missing, operation otherwise.
class Device {
 public:
  virtual ~Device() = default;
  virtual const bp_device& description() const = 0;
  virtual std::string text() const = 0;  // "cuda:0: NVIDIA H200, sm_90, 132 processors, driver 13.0"
  virtual Result<void> enter() = 0;      // makes it current on this thread
  virtual Result<void*> allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) = 0;
  // Complete when they return.
  virtual Result<void> copy_in(void* to, const void* from, std::size_t bytes) = 0;
  virtual Result<void> copy_out(void* to, const void* from, std::size_t bytes) = 0;
  // A rank's stream: 0 is the usual one. They wait for no other stream.
  virtual Result<void*> stream(int rank, int which) = 0;
  // Waits for the stream; a launch that failed is reported here.
  virtual Result<void> synchronise(void* stream) = 0;
  // Enqueues some milliseconds of memory traffic.
  virtual Result<void> keep_busy(void* stream) = 0;
  // Whether CUDA kernels of this library run on its memory: it is a CUDA device of this process.
  virtual bool runs_kernels() const { return false; }
  // Captures what `call` enqueues on the stream; its error where it fails.
  virtual Result<std::unique_ptr<CapturedCall>> capture(void* stream, const std::function<Result<void>()>& call) = 0;
};

// The CUDA device of that ordinal, made once; lives as long as the process. Error of kind environment where this build,
// this machine or this ordinal has none.
Result<Device*> cuda_device(int ordinal);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_RUNTIME_DEVICE_H_
