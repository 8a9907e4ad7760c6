// SPDX-License-Identifier: Apache-2.0
//
// The protocol of virtual ranks on streams made of threads: work runs late, in the order of its stream alone. Where a
// wait is left out the bytes must come out wrong, so that the right ones mean something.
#include "src/comm/virtual_world.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "src/comm/reduce.h"
#include "src/comm/thread_world.h"

namespace batchproof {
namespace {

// Runs what it gets one after the other, on a thread of its own.
class Stream {
 public:
  Stream() : thread_([this] { work(); }) {}
  ~Stream() {
    enqueue(nullptr);
    thread_.join();
  }
  void enqueue(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }
  void finish() {
    std::mutex mutex;
    std::condition_variable done;
    bool over = false;
    enqueue([&] {
      const std::lock_guard lock(mutex);
      over = true;
      done.notify_all();
    });
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return over; });
  }

 private:
  void work() {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !tasks_.empty(); });
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      if (!task) return;
      task();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::thread thread_;
};

class StreamQueue final : public DeviceQueue {
 public:
  // Of the waits of one rank for one other in a call: none is left out; those before the moves; those behind them.
  enum class Without { nothing, ready, done };
  explicit StreamQueue(Without without) : without_(without) {}

  Result<void> accepts(void* stream) override {
    if (stream == nullptr) return fail(Error::Kind::operation, "no stream");
    return {};
  }
  Result<void*> make_event() override {
    ++live;
    return static_cast<void*>(new Event);
  }
  void release_event(void* event) override {
    --live;
    delete static_cast<Event*>(event);
  }
  Result<void> record(void* event, void* stream) override {
    auto flag = std::make_shared<std::atomic<bool>>(false);
    {
      const std::lock_guard lock(mutex_);
      static_cast<Event*>(event)->flag = flag;
      // A call records `ready` first and `done` behind it, so events are told apart by their turn on a stream.
      static_cast<Event*>(event)->done = behind_[stream] % 2 == 1;
      ++behind_[stream];
    }
    on(stream).enqueue([flag] {
      flag->store(true);
      flag->notify_all();
    });
    return {};
  }
  Result<void> wait(void* event, void* stream) override {
    std::shared_ptr<std::atomic<bool>> flag;
    {
      const std::lock_guard lock(mutex_);
      flag = static_cast<Event*>(event)->flag;
      const bool done = static_cast<Event*>(event)->done;
      if (without_ == (done ? Without::done : Without::ready)) return {};
    }
    on(stream).enqueue([flag] { flag->wait(false); });
    return {};
  }
  Result<void> copy(void* to, const void* from, std::size_t bytes, void* stream) override {
    on(stream).enqueue([=] { std::memcpy(to, from, bytes); });
    return {};
  }
  Result<void> sum(bp_dtype dtype, bp_reduce_order order, const std::vector<const void*>& sources, std::size_t count,
                   void* out, void* stream) override {
    on(stream).enqueue([=] { reduce(dtype, order, sources, count, out); });
    return {};
  }

  static Stream& on(void* stream) { return *static_cast<Stream*>(stream); }
  std::atomic<int> live{0};

 private:
  struct Event {
    std::shared_ptr<std::atomic<bool>> flag;
    bool done = false;
  };
  const Without without_;
  std::mutex mutex_;
  std::map<void*, int> behind_;
};

using Numbers = std::vector<std::int32_t>;

void sleep_on(Stream& stream, int milliseconds) {
  stream.enqueue([=] { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); });
}

// Ranks fill `send` late, gather, and overwrite `send` at once; one rank is slower than the others, at either end.
// Returns how many ranks got something else than what was sent.
int wrong_gathers(StreamQueue::Without without, int world, int slow_rank) {
  StreamQueue queue(without);
  std::vector<std::unique_ptr<Stream>> streams;
  for (int rank = 0; rank < world; ++rank) streams.push_back(std::make_unique<Stream>());
  std::vector<Numbers> send(static_cast<std::size_t>(world), Numbers(64, -1));
  std::vector<Numbers> recv(static_cast<std::size_t>(world), Numbers(64 * static_cast<std::size_t>(world), -2));
  const auto memory = virtual_rank_memory(world, queue);
  RankTeam team(world, *memory);
  const auto done = team.run([&](int rank, const bp_comm& comm) -> Result<void> {
    Stream& stream = *streams[static_cast<std::size_t>(rank)];
    std::int32_t* own = send[static_cast<std::size_t>(rank)].data();
    if (rank == slow_rank) sleep_on(stream, 60);
    stream.enqueue([=] { std::fill_n(own, 64, rank); });
    const bp_status status =
        comm.all_gather(&comm, own, recv[static_cast<std::size_t>(rank)].data(), 64 * sizeof(std::int32_t), &stream);
    stream.enqueue([=] { std::fill_n(own, 64, -3); });
    return status == BP_OK ? Result<void>() : fail(Error::Kind::operation, "all_gather");
  });
  EXPECT_TRUE(done.has_value()) << done.error().message;
  for (const auto& stream : streams) stream->finish();
  Numbers expected;
  for (int q = 0; q < world; ++q) expected.insert(expected.end(), 64, q);
  int wrong = 0;
  for (const Numbers& got : recv) wrong += got != expected;
  return wrong;
}

TEST(VirtualWorldTest, StreamsWaitForWhatTheOthersSendAndRead) {
  for (const int world : {1, 2, 5}) {
    for (const int slow : {0, world - 1}) {
      EXPECT_EQ(wrong_gathers(StreamQueue::Without::nothing, world, slow), 0) << world << " ranks";
    }
  }
}

// The controls: what is read before it is there, what is overwritten before it is read.
TEST(VirtualWorldTest, WithoutTheWaitsTheBytesAreWrong) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer calls these the races that they are, and finds none in the other tests";
#endif
  EXPECT_GE(wrong_gathers(StreamQueue::Without::ready, 3, 0), 2);
  EXPECT_GE(wrong_gathers(StreamQueue::Without::done, 3, 0), 1);
}

// The same calls on host memory and on streams, with results that feed the next call.
TEST(VirtualWorldTest, SequencesOfCollectivesGiveTheBytesOfHostMemory) {
  for (const int world : {1, 3, 4, 8}) {
    const auto calls = [world](int rank, const bp_comm& comm, void* stream, float* a, float* b) -> Result<void> {
      const auto count = static_cast<std::size_t>(world) * 5;
      std::vector<std::size_t> sizes(static_cast<std::size_t>(world), 5 * sizeof(float)), offsets;
      for (int q = 0; q < world; ++q) offsets.push_back(static_cast<std::size_t>(q) * 5 * sizeof(float));
      const bp_reduce_order tree = (world & (world - 1)) == 0 ? BP_REDUCE_TREE : BP_REDUCE_RANK_ORDER;
      for (int round = 0; round < 6; ++round) {
        for (const bp_status status :
             {comm.all_to_all(&comm, a, b, 5 * sizeof(float), stream), comm.barrier(&comm, stream),
              comm.all_reduce(&comm, b, b, count, BP_FP32, BP_REDUCE_RANK_ORDER, stream),
              comm.all_to_all_v(&comm, b, sizes.data(), offsets.data(), a, sizes.data(), offsets.data(), stream),
              comm.reduce_scatter(&comm, a, b, 5, BP_FP32, tree, stream), comm.all_gather(&comm, b, a, 0, stream),
              comm.all_gather(&comm, b, a, 5 * sizeof(float), stream),
              comm.all_to_all(&comm, a, b, 5 * sizeof(float), stream),
              comm.all_reduce(&comm, b, a, count, BP_FP32, tree, stream)}) {
          if (status != BP_OK) return fail(Error::Kind::operation, "rank " + std::to_string(rank));
        }
      }
      return {};
    };
    const auto count = static_cast<std::size_t>(world) * 5;
    const auto start = [&](int rank) {
      std::vector<float> values(count);
      for (std::size_t i = 0; i < count; ++i) values[i] = 1.0f / static_cast<float>(3 * i + 7u * unsigned(rank) + 1);
      return values;
    };
    std::vector<std::vector<float>> host(static_cast<std::size_t>(world)), device(host);
    RankTeam plain(world);
    ASSERT_TRUE(plain.run([&](int rank, const bp_comm& comm) {
      std::vector<float> a = start(rank), b(count);
      Result<void> done = calls(rank, comm, nullptr, a.data(), b.data());
      host[static_cast<std::size_t>(rank)] = a;
      return done;
    }));
    StreamQueue queue(StreamQueue::Without::nothing);
    {
      const auto memory = virtual_rank_memory(world, queue);
      RankTeam team(world, *memory);
      ASSERT_TRUE(team.run([&](int rank, const bp_comm& comm) {
        Stream stream;
        std::vector<float> a = start(rank), b(count);
        Result<void> done = calls(rank, comm, &stream, a.data(), b.data());
        stream.finish();
        device[static_cast<std::size_t>(rank)] = a;
        return done;
      }));
      EXPECT_GT(queue.live, 0);
    }
    EXPECT_EQ(queue.live, 0);
    for (int rank = 0; rank < world; ++rank)
      EXPECT_EQ(std::memcmp(host[static_cast<std::size_t>(rank)].data(), device[static_cast<std::size_t>(rank)].data(),
                            count * sizeof(float)),
                0)
          << world << " ranks, rank " << rank;
  }
}

TEST(VirtualWorldTest, ARefusedStreamIsAnErrorOnAllRanksAndTheNextRunWorks) {
  StreamQueue queue(StreamQueue::Without::nothing);
  const auto memory = virtual_rank_memory(3, queue);
  RankTeam team(3, *memory);
  std::vector<std::unique_ptr<Stream>> streams;
  for (int rank = 0; rank < 3; ++rank) streams.push_back(std::make_unique<Stream>());
  for (const bool refused : {true, false}) {
    const auto done = team.run([&](int rank, const bp_comm& comm) -> Result<void> {
      // Rank 1 has met the others before, rank 2 has none.
      void* stream = streams[static_cast<std::size_t>(rank)].get();
      if (comm.barrier(&comm, stream) != BP_OK) return fail(Error::Kind::operation, "first");
      if (comm.barrier(&comm, refused && rank == 2 ? nullptr : stream) != BP_OK)
        return fail(Error::Kind::operation, "second");
      return {};
    });
    EXPECT_EQ(done.has_value(), !refused);
    if (!done) {
      EXPECT_EQ(done.error().message, "rank 2: barrier: no stream");
    }
    for (const auto& stream : streams) stream->finish();
  }
}

}  // namespace
}  // namespace batchproof
