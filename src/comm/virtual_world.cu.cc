// SPDX-License-Identifier: Apache-2.0
//
// CUDA streams as a DeviceQueue.
#include "src/comm/virtual_world.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>

#include "src/comm/cuda_reduce.h"
#include "src/runtime/cuda_device.h"

namespace batchproof {
namespace {

using cuda::cuda_check;

cudaStream_t queue_of(void* stream) { return static_cast<cudaStream_t>(stream); }

class CudaQueue final : public DeviceQueue {
  Result<void> accepts(void* stream) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (auto asked = cuda_check("asking a stream of a virtual rank", cudaStreamIsCapturing(queue_of(stream), &status));
        !asked)
      return asked;
    if (status == cudaStreamCaptureStatusNone) return {};
    return fail(Error::Kind::operation, "virtual ranks cannot communicate in a captured call; call it without a graph");
  }
  Result<void*> make_event() override {
    cudaEvent_t event = nullptr;
    if (auto made =
            cuda_check("making an event of a virtual rank", cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        !made)
      return tl::unexpected(made.error());
    return static_cast<void*>(event);
  }
  void release_event(void* event) override { cudaEventDestroy(static_cast<cudaEvent_t>(event)); }
  Result<void> record(void* event, void* stream) override {
    return cuda_check("recording an event of a virtual rank",
                      cudaEventRecord(static_cast<cudaEvent_t>(event), queue_of(stream)));
  }
  Result<void> wait(void* event, void* stream) override {
    return cuda_check("waiting for a virtual rank",
                      cudaStreamWaitEvent(queue_of(stream), static_cast<cudaEvent_t>(event), 0));
  }
  Result<void> copy(void* to, const void* from, std::size_t bytes, void* stream) override {
    return cuda_check(fmt::format("copying {} bytes between virtual ranks", bytes),
                      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, queue_of(stream)));
  }
  Result<void> sum(bp_dtype dtype, bp_reduce_order order, const std::vector<const void*>& sources, std::size_t count,
                   void* out, void* stream) override {
    if (sources.size() > cuda::kMostReducedRanks)
      return fail(Error::Kind::operation, fmt::format("a sum over {} virtual ranks; at most {} are supported",
                                                      sources.size(), cuda::kMostReducedRanks));
    cuda::ReduceLaunch launch;
    std::copy(sources.begin(), sources.end(), launch.sources);
    launch.world = static_cast<int>(sources.size());
    launch.count = count;
    launch.dtype = dtype;
    launch.tree = order == BP_REDUCE_TREE;
    launch.out = out;
    return cuda_check(fmt::format("summing {} elements of {} virtual ranks", count, sources.size()),
                      cuda::launch_reduce(launch, queue_of(stream)));
  }
};

}  // namespace

DeviceQueue& cuda_queue() {
  static CudaQueue queue;
  return queue;
}

}  // namespace batchproof
