// SPDX-License-Identifier: Apache-2.0
//
// Time on the device: medians over replays of a graph of launches, and the copy bandwidth that is the ceiling.
#ifndef BATCHPROOF_TESTS_GPU_CLOCK_H_
#define BATCHPROOF_TESTS_GPU_CLOCK_H_

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "src/kernels/cuda/fill_kernels.h"
#include "tests/gpu/case.h"

namespace batchproof::cuda::gpu {

// Bytes read and written per second by a large copy on an H200 as another program measured it, for floors in runs that
// measure none; copy_bandwidth() finds 7 % less (bench/records/README.md).
constexpr double kQuotedBandwidth = 4.24e12;

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Clock {
 public:
  Clock() {
    must("making a stream", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    must("making an event", cudaEventCreate(&start_));
    must("making an event", cudaEventCreate(&end_));
  }
  // Median microseconds of one of `launches` launches in a graph; 0 where the launch fails.
  // `rest_ms`: to let the card cool before each replay.
  double graph(int launches, int replays, const std::function<bool(int, cudaStream_t)>& launch, int rest_ms = 0) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    must("capturing", cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    bool fine = true;
    for (int i = 0; i < launches && fine; ++i) fine = launch(i, stream_);
    const cudaError_t captured = cudaStreamEndCapture(stream_, &graph);
    if (!fine || captured != cudaSuccess) {
      cudaGetLastError();
      return 0;
    }
    must("instantiating", cudaGraphInstantiate(&exec, graph, 0));
    std::vector<double> times;
    for (int i = -1; i < replays; ++i) {
      if (rest_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(rest_ms));
      must("timing", cudaEventRecord(start_, stream_));
      must("replaying", cudaGraphLaunch(exec, stream_));
      must("timing", cudaEventRecord(end_, stream_));
      must("waiting", cudaEventSynchronize(end_));
      float ms = 0;
      must("timing", cudaEventElapsedTime(&ms, start_, end_));
      if (i >= 0) times.push_back(1000.0 * ms / launches);
    }
    must("destroying", cudaGraphExecDestroy(exec));
    must("destroying", cudaGraphDestroy(graph));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }
  cudaStream_t stream() const { return stream_; }

 private:
  cudaStream_t stream_;
  cudaEvent_t start_, end_;
};

// Bytes read and written per second by a large copy.
inline double copy_bandwidth(Clock& clock) {
  const std::size_t bytes = std::size_t{4} << 30;
  const DeviceBuffer a = must(DeviceBuffer::make(bytes)), b = must(DeviceBuffer::make(bytes));
  must("clearing", cudaMemset(a.get(), 1, bytes));
  const double us = clock.graph(2, 5, [&](int, cudaStream_t s) {
    return launch_copy(a.get(), b.get(), static_cast<std::int64_t>(bytes), s) == cudaSuccess;
  });
  return 2.0 * static_cast<double>(bytes) / (us * 1e-6);
}

}  // namespace batchproof::cuda::gpu

#endif  // BATCHPROOF_TESTS_GPU_CLOCK_H_
