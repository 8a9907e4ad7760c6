// SPDX-License-Identifier: Apache-2.0
//
// Device test of the virtual communicator: every collective on device memory against the same call on host memory, byte
// by byte, with ranks that are late and buffers that are overwritten at once.
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "src/comm/reduce.h"
#include "src/comm/thread_world.h"
#include "src/comm/virtual_world.h"
#include "src/numeric/dtype.h"
#include "tests/gpu/case.h"

namespace batchproof::cuda::gpu {
namespace {

using Bytes = std::vector<unsigned char>;

// One call of one rank on its buffers.
struct Case {
  std::string name;
  std::size_t send_bytes = 0, recv_bytes = 0;
  std::function<bp_status(const bp_comm& comm, void* send, void* recv, void* stream)> call;
};

Bytes random_bytes(std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint64_t> words(count / 8 + 1);
  for (std::uint64_t& word : words) word = random();
  Bytes bytes(count);
  std::memcpy(bytes.data(), words.data(), count);
  return bytes;
}

std::vector<Case> cases_of(int world) {
  std::vector<Case> cases;
  const auto w = static_cast<std::size_t>(world);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{33}, std::size_t{70001}, std::size_t{1} << 18}) {
    cases.push_back(
        {fmt::format("all_gather of {}", bytes), bytes, w * bytes,
         [bytes](const bp_comm& c, void* s, void* r, void* stream) { return c.all_gather(&c, s, r, bytes, stream); }});
    cases.push_back(
        {fmt::format("all_to_all of {}", bytes), w * bytes, w * bytes,
         [bytes](const bp_comm& c, void* s, void* r, void* stream) { return c.all_to_all(&c, s, r, bytes, stream); }});
  }
  cases.push_back({"all_gather in place", 0, w * 1000, [](const bp_comm& c, void*, void* r, void* stream) {
                     return c.all_gather(&c, static_cast<char*>(r) + c.rank * 1000, r, 1000, stream);
                   }});
  // Sizes that differ for every pair, some zero; gaps between the blocks.
  const auto size = [](int from, int to) { return static_cast<std::size_t>((from * 31 + to * 17) % 7 * 100 + to); };
  cases.push_back({"all_to_all_v", w * 800, w * 800, [=](const bp_comm& c, void* s, void* r, void* stream) {
                     std::vector<std::size_t> sent, received, places;
                     for (int q = 0; q < world; ++q) {
                       sent.push_back(size(c.rank, q));
                       received.push_back(size(q, c.rank));
                       places.push_back(static_cast<std::size_t>(q) * 800 + 3);
                     }
                     return c.all_to_all_v(&c, s, sent.data(), places.data(), r, received.data(), places.data(),
                                           stream);
                   }});
  for (const bp_dtype dtype : {BP_FP64, BP_FP32, BP_BF16, BP_FP16, BP_INT32, BP_INT64}) {
    for (const bp_reduce_order order : {BP_REDUCE_RANK_ORDER, BP_REDUCE_TREE}) {
      if (!reduce_error(dtype, order, world).empty()) continue;
      const char* way = order == BP_REDUCE_TREE ? "tree" : "rank order";
      for (const std::size_t count : {std::size_t{1}, std::size_t{257}, std::size_t{40001}}) {
        const std::size_t bytes = dtype_bytes(dtype, static_cast<std::int64_t>(count));
        cases.push_back({fmt::format("all_reduce of {} {}, {}", count, dtype_name(dtype), way), bytes, bytes,
                         [=](const bp_comm& c, void* s, void* r, void* stream) {
                           return c.all_reduce(&c, s, r, count, dtype, order, stream);
                         }});
        cases.push_back({fmt::format("all_reduce in place of {} {}, {}", count, dtype_name(dtype), way), 0, bytes,
                         [=](const bp_comm& c, void*, void* r, void* stream) {
                           return c.all_reduce(&c, r, r, count, dtype, order, stream);
                         }});
        cases.push_back({fmt::format("reduce_scatter of {} {}, {}", count, dtype_name(dtype), way), w * bytes, bytes,
                         [=](const bp_comm& c, void* s, void* r, void* stream) {
                           return c.reduce_scatter(&c, s, r, count, dtype, order, stream);
                         }});
      }
    }
  }
  return cases;
}

Result<void> as_result(bp_status status, const std::string& what) {
  if (status == BP_OK) return {};
  return fail(Error::Kind::operation, fmt::format("{}: status {}", what, status));
}

// What the ranks' buffers hold before a call, by rank.
struct Inputs {
  std::vector<Bytes> send, recv;
};
Inputs inputs_of(const Case& each, int world) {
  Inputs inputs;
  for (int q = 0; q < world; ++q) {
    inputs.send.push_back(random_bytes(each.send_bytes, static_cast<unsigned>(q) + 1));
    inputs.recv.push_back(random_bytes(each.recv_bytes, static_cast<unsigned>(q) + 100));
  }
  return inputs;
}

// What every rank has received, by host memory.
std::vector<Bytes> on_host(RankTeam& team, const Case& each, const Inputs& inputs) {
  std::vector<Bytes> send = inputs.send, recv = inputs.recv;
  must(team.run([&](int rank, const bp_comm& comm) {
    const auto i = static_cast<std::size_t>(rank);
    return as_result(each.call(comm, send[i].data(), recv[i].data(), nullptr), each.name);
  }));
  return recv;
}

struct Rank {
  cudaStream_t stream = nullptr;
  DeviceBuffer send, recv;
};

constexpr std::size_t kRoom = std::size_t{6} << 20;

// Holds a stream up without work on the device, which would hold up the other streams as well.
void delay(cudaStream_t stream, std::chrono::microseconds* time) {
  must("delaying",
       cudaLaunchHostFunc(
           stream, [](void* given) { std::this_thread::sleep_for(*static_cast<std::chrono::microseconds*>(given)); },
           time));
}

std::vector<Rank> make_ranks(int world) {
  std::vector<Rank> ranks(static_cast<std::size_t>(world));
  for (Rank& rank : ranks) {
    must("making a stream", cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
    rank.send = must(DeviceBuffer::make(kRoom));
    rank.recv = must(DeviceBuffer::make(kRoom));
  }
  return ranks;
}

// Ranks whose bytes differ from the host's. Buffers are filled behind a delay on some streams, and `send` is
// overwritten right behind the call. `offset`: where buffers begin.
int differing(RankTeam& team, std::vector<Rank>& ranks, const Case& each, const Inputs& inputs,
              const std::vector<Bytes>& expected, std::size_t offset, int late,
              std::chrono::microseconds late_by = std::chrono::microseconds(1000)) {
  const int world = team.world();
  std::vector<DeviceBuffer> staged;
  for (int q = 0; q < world; ++q) {
    const auto i = static_cast<std::size_t>(q);
    // Stale, until the stream itself writes what counts.
    must("clearing", cudaMemset(ranks[i].send.get(), 0x11, each.send_bytes + offset));
    must("clearing", cudaMemset(ranks[i].recv.get(), 0x22, each.recv_bytes + offset));
    staged.push_back(must(DeviceBuffer::make(each.send_bytes + each.recv_bytes)));
    must(staged.back().upload(inputs.send[i].data(), each.send_bytes));
    must("staging", cudaMemcpy(static_cast<char*>(staged.back().get()) + each.send_bytes, inputs.recv[i].data(),
                               each.recv_bytes, cudaMemcpyHostToDevice));
  }
  must("waiting", cudaDeviceSynchronize());
  must(team.run([&](int rank, const bp_comm& comm) -> Result<void> {
    const auto i = static_cast<std::size_t>(rank);
    cudaStream_t stream = ranks[i].stream;
    char* send = static_cast<char*>(ranks[i].send.get()) + offset;
    char* recv = static_cast<char*>(ranks[i].recv.get()) + offset;
    if (rank == late) delay(stream, &late_by);
    const char* from = static_cast<const char*>(staged[i].get());
    must("filling", cudaMemcpyAsync(send, from, each.send_bytes, cudaMemcpyDeviceToDevice, stream));
    must("filling", cudaMemcpyAsync(recv, from + each.send_bytes, each.recv_bytes, cudaMemcpyDeviceToDevice, stream));
    const bp_status status = each.call(comm, send, recv, stream);
    must("overwriting", cudaMemsetAsync(send, 0x33, each.send_bytes, stream));
    return as_result(status, each.name);
  }));
  must("waiting", cudaDeviceSynchronize());
  int count = 0;
  for (int q = 0; q < world; ++q) {
    const auto i = static_cast<std::size_t>(q);
    Bytes got(each.recv_bytes);
    must("reading", cudaMemcpy(got.data(), static_cast<char*>(ranks[i].recv.get()) + offset, each.recv_bytes,
                               cudaMemcpyDeviceToHost));
    count += got != expected[i];
  }
  return count;
}

// CUDA's queue without its waits: what the events are for.
class Careless final : public DeviceQueue {
 public:
  Result<void> accepts(void* s) override { return cuda_queue().accepts(s); }
  Result<void*> make_event() override { return cuda_queue().make_event(); }
  void release_event(void* e) override { cuda_queue().release_event(e); }
  Result<void> record(void* e, void* s) override { return cuda_queue().record(e, s); }
  Result<void> wait(void*, void*) override { return {}; }
  Result<void> copy(void* to, const void* from, std::size_t n, void* s) override {
    return cuda_queue().copy(to, from, n, s);
  }
  Result<void> sum(bp_dtype d, bp_reduce_order o, const std::vector<const void*>& v, std::size_t n, void* out,
                   void* s) override {
    return cuda_queue().sum(d, o, v, n, out, s);
  }
};

void refuses_capture(RankTeam& team, std::vector<Rank>& ranks, Score& score) {
  cudaStream_t stream = ranks[0].stream;
  cudaGraph_t graph = nullptr;
  must("capturing", cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const auto done = team.run([&](int rank, const bp_comm& comm) {
    return as_result(comm.barrier(&comm, ranks[static_cast<std::size_t>(rank)].stream), "barrier");
  });
  must("capturing", cudaStreamEndCapture(stream, &graph));
  must("destroying", cudaGraphDestroy(graph));
  score.line(!done && done.error().message.find("cannot communicate in a captured call") != std::string::npos,
             "a captured call: " + (done ? "not refused" : done.error().message));
}

// Microseconds of one call on all ranks, from the first rank's start to the last rank's end on the device and host.
void time_of(RankTeam& team, std::vector<Rank>& ranks, std::size_t bytes) {
  constexpr int kCalls = 20;
  double best = 0;
  for (int repeat = 0; repeat < 4; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    must(team.run([&](int rank, const bp_comm& comm) -> Result<void> {
      Rank& own = ranks[static_cast<std::size_t>(rank)];
      for (int i = 0; i < kCalls; ++i) {
        const bp_status status = comm.all_gather(&comm, own.send.get(), own.recv.get(), bytes, own.stream);
        if (status != BP_OK) return as_result(status, "all_gather");
      }
      return cuda_check("waiting", cudaStreamSynchronize(own.stream));
    }));
    const double us =
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / kCalls;
    best = repeat == 0 ? us : std::min(best, us);
  }
  fmt::print("# all_gather, {} ranks, {} bytes each: {:.1f} us\n", team.world(), bytes, best);
}

int check(bool brief) {
  Score score;
  for (const int world : brief ? std::vector<int>{4} : std::vector<int>{1, 2, 3, 4, 8, 16}) {
    const auto memory = virtual_rank_memory(world, cuda_queue());
    RankTeam host(world), device(world, *memory);
    std::vector<Rank> ranks = make_ranks(world);
    int wrong = 0, calls = 0;
    std::string first;
    for (const Case& each : cases_of(world)) {
      if (brief && each.recv_bytes > 4000) continue;
      const Inputs inputs = inputs_of(each, world);
      const std::vector<Bytes> expected = on_host(host, each, inputs);
      for (const std::size_t offset : {std::size_t{0}, std::size_t{8}, std::size_t{1}}) {
        for (const int late : {-1, 0, world - 1}) {
          if (brief && (late >= 0 || offset == 8)) continue;
          if (each.recv_bytes > 100000 && late == world - 1) continue;
          const int found = differing(device, ranks, each, inputs, expected, offset, late);
          if (found != 0 && first.empty())
            first = fmt::format("; first: {}, offset {}, late rank {}", each.name, offset, late);
          wrong += found;
          ++calls;
        }
      }
    }
    score.line(wrong == 0,
               fmt::format("{} ranks: {} calls against host memory, {} ranks differ{}", world, calls, wrong, first));
    if (brief) continue;
    if (world > 1) {
      Careless queue;
      const auto without = virtual_rank_memory(world, queue);
      RankTeam careless(world, *without);
      const Case each = cases_of(world)[2];
      const Inputs inputs = inputs_of(each, world);
      const int found =
          differing(careless, ranks, each, inputs, on_host(host, each, inputs), 0, 0, std::chrono::milliseconds(50));
      score.line(found > 0, fmt::format("{} ranks: control without waits, {} ranks differ", world, found));
    }
    refuses_capture(device, ranks, score);
    for (const std::size_t bytes : {std::size_t{1024}, kRoom / 16}) time_of(device, ranks, bytes);
    for (const Rank& rank : ranks) must("destroying", cudaStreamDestroy(rank.stream));
  }
  std::printf("%d passed, %d failed\n", score.passed, score.failed);
  return score.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace batchproof::cuda::gpu

int main(int argc, char** argv) {
  const std::string part = argc > 1 ? argv[1] : "";
  if (part == "correct") return batchproof::cuda::gpu::check(false);
  if (part == "sanitize") return batchproof::cuda::gpu::check(true);
  std::fprintf(stderr, "usage: virtual_check correct | sanitize\n");
  return 2;
}
