// SPDX-License-Identifier: Apache-2.0
//
// CUDA devices behind the interface of device.h.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <map>
#include <mutex>

#include "src/runtime/cuda_device.h"
#include "src/runtime/device.h"

namespace batchproof {
namespace {

using cuda::cuda_check;

constexpr std::size_t kTrafficBytes = std::size_t{64} << 20;
constexpr int kTrafficPasses = 40;

class CudaGraph final : public CapturedCall {
 public:
  static Result<std::unique_ptr<CapturedCall>> make(cudaGraph_t graph) {
    auto made = std::make_unique<CudaGraph>();
    const Result<void> done =
        cuda_check("instantiating a captured call", cudaGraphInstantiate(&made->executable_, graph, 0));
    cudaGraphDestroy(graph);
    if (!done) return tl::unexpected(done.error());
    return made;
  }
  ~CudaGraph() override {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
  }
  Result<void> replay(void* stream) override {
    return cuda_check("replaying a captured call", cudaGraphLaunch(executable_, static_cast<cudaStream_t>(stream)));
  }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(cuda::DeviceInfo info)
      : info_(std::move(info)),
        description_{sizeof(bp_device), BP_MEMORY_CUDA, info_.ordinal, info_.processors, info_.name.c_str()} {}

  const bp_device& description() const override { return description_; }
  std::string text() const override {
    return fmt::format("cuda:{}: {}, sm_{}{}, {} processors, driver {}.{}, runtime {}.{}", info_.ordinal, info_.name,
                       info_.major, info_.minor, info_.processors, info_.driver / 1000, info_.driver % 1000 / 10,
                       info_.runtime / 1000, info_.runtime % 1000 / 10);
  }
  Result<void> enter() override { return cuda_check("choosing the CUDA device", cudaSetDevice(info_.ordinal)); }
  Result<void*> allocate(std::size_t bytes) override {
    void* memory = nullptr;
    if (auto done = cuda_check(fmt::format("allocating {} bytes of CUDA memory", bytes),
                               cudaMalloc(&memory, bytes == 0 ? 1 : bytes));
        !done)
      return tl::unexpected(done.error());
    return memory;
  }
  void release(void* memory) override { cudaFree(memory); }
  Result<void> copy_in(void* to, const void* from, std::size_t bytes) override {
    return copy(to, from, bytes, cudaMemcpyHostToDevice, "to");
  }
  Result<void> copy_out(void* to, const void* from, std::size_t bytes) override {
    return copy(to, from, bytes, cudaMemcpyDeviceToHost, "from");
  }
  Result<void*> stream(int rank, int which) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    cudaStream_t& stream = streams_[{rank, which}];
    if (stream == nullptr) {
      auto done = cuda_check("making a CUDA stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      if (!done) return tl::unexpected(done.error());
    }
    return static_cast<void*>(stream);
  }
  Result<void> synchronise(void* stream) override {
    return cuda_check("waiting for a CUDA stream", cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
  }
  Result<void> keep_busy(void* stream) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (traffic_ == nullptr) {
        auto memory = allocate(kTrafficBytes);
        if (!memory) return tl::unexpected(memory.error());
        traffic_ = *memory;
      }
    }
    for (int pass = 0; pass < kTrafficPasses; ++pass) {
      auto done = cuda_check("keeping a CUDA stream busy",
                             cudaMemsetAsync(traffic_, pass, kTrafficBytes, static_cast<cudaStream_t>(stream)));
      if (!done) return done;
    }
    return {};
  }
  bool runs_kernels() const override { return true; }
  Result<std::unique_ptr<CapturedCall>> capture(void* stream, const std::function<Result<void>()>& call) override {
    const auto queue = static_cast<cudaStream_t>(stream);
    // Thread-local: a rank's capture must not refuse what another rank does.
    if (auto begun = cuda_check("beginning a capture", cudaStreamBeginCapture(queue, cudaStreamCaptureModeThreadLocal));
        !begun)
      return tl::unexpected(begun.error());
    const Result<void> called = call();
    cudaGraph_t graph = nullptr;
    const Result<void> ended = cuda_check("capturing a call", cudaStreamEndCapture(queue, &graph));
    if (!called || !ended) {
      if (graph != nullptr) cudaGraphDestroy(graph);
      return tl::unexpected(called ? ended.error() : called.error());
    }
    return CudaGraph::make(graph);
  }

 private:
  Result<void> copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, const char* direction) {
    if (bytes == 0) return {};
    if (auto done = cuda_check(fmt::format("copying {} bytes {} the device", bytes, direction),
                               cudaMemcpy(to, from, bytes, kind));
        !done)
      return done;
    // The copy of pageable memory may return before its bytes have arrived, and no other stream waits for this one.
    return cuda_check("waiting for a copy", cudaStreamSynchronize(cudaStreamLegacy));
  }

  const cuda::DeviceInfo info_;
  const bp_device description_;
  std::mutex mutex_;
  std::map<std::pair<int, int>, cudaStream_t> streams_;
  void* traffic_ = nullptr;
};

}  // namespace

Result<Device*> cuda_device(int ordinal) {
  static std::mutex mutex;
  // Never destroyed: the driver may be gone before static objects are.
  static auto& devices = *new std::map<int, CudaDevice*>();
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto found = devices.find(ordinal); found != devices.end()) return found->second;
  Result<cuda::DeviceInfo> info = cuda::device_info(ordinal);
  if (!info) return tl::unexpected(info.error());
  return devices[ordinal] = new CudaDevice(*std::move(info));
}

}  // namespace batchproof
