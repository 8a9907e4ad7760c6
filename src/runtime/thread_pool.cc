// SPDX-License-Identifier: Apache-2.0
//
// One pool per process. A call is a job on its caller's stack: the caller claims parts itself and idle workers join
// it, so a call ends even where no worker is free. All waiting is on condition variables.
#include "src/runtime/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "src/runtime/fp_env.h"

namespace batchproof {
namespace {

constexpr int kMaxWorkers = 256;

// Whether this thread is inside a body: calls from there run inline.
thread_local bool in_body = false;
thread_local bool is_worker = false;

struct Job {
  Job(const std::function<void(std::int64_t)>* work, std::int64_t count, int slots)
      : body(work), parts(count), open_slots(slots) {}

  void claim_parts() noexcept {
    for (;;) {
      const std::int64_t part = next.fetch_add(1, std::memory_order_relaxed);
      if (part >= parts) return;
      (*body)(part);
    }
  }

  const std::function<void(std::int64_t)>* body;
  const std::int64_t parts;
  std::atomic<std::int64_t> next{0};
  // A worker's control word after the job, where a body changed it: handed to the caller, so that a guard around the
  // call sees it.
  std::atomic<std::uint64_t> changed_fp_control{default_fp_control()};
  // Under the pool's mutex.
  int open_slots;
  int helpers = 0;
  std::condition_variable helpers_gone;
};

class Pool {
 public:
  explicit Pool(Pool* previous) : previous_(previous) {}

  // Runs the job to its end; the caller takes part.
  void run(Job* job) {
    {
      std::lock_guard lock(mutex_);
      if (!stopping_) {
        jobs_.push_back(job);
        wanted_ += job->open_slots;
        start_workers();
        for (int i = std::min(job->open_slots, idle_); i > 0; --i) work_.notify_one();
      }
    }
    job->claim_parts();
    std::unique_lock lock(mutex_);
    close(job);
    job->helpers_gone.wait(lock, [job] { return job->helpers == 0; });
  }

  void stop() {
    std::vector<std::thread> workers;
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      workers.swap(workers_);
      work_.notify_all();
    }
    for (std::thread& worker : workers) {
      // exit() called by a body on a worker: that worker cannot wait for itself, nor for others that may wait for it.
      if (is_worker) {
        worker.detach();
      } else {
        worker.join();
      }
    }
  }

 private:
  // The mutex is held. As many workers as the open slots of all calls ask for.
  void start_workers() {
    while (static_cast<int>(workers_.size()) < kMaxWorkers && idle_ + starting_ < wanted_) {
      try {
        workers_.emplace_back([this] { work(); });
      } catch (const std::system_error&) {
        return;  // the system gives no more threads; those that exist and the caller do the work
      }
      ++starting_;
    }
  }

  // The mutex is held. Nobody joins the job from here on.
  void close(Job* job) {
    wanted_ -= job->open_slots;
    job->open_slots = 0;
    const auto listed = std::find(jobs_.begin(), jobs_.end(), job);
    if (listed != jobs_.end()) jobs_.erase(listed);
  }

  void work() {
    is_worker = true;
    in_body = true;
    std::unique_lock lock(mutex_);
    --starting_;
    for (;;) {
      while (jobs_.empty() && !stopping_) {
        ++idle_;
        work_.wait(lock);
        --idle_;
      }
      if (stopping_) return;
      Job* job = jobs_.front();
      --wanted_;
      if (--job->open_slots == 0) jobs_.pop_front();
      ++job->helpers;
      lock.unlock();
      set_fp_control(default_fp_control());
      job->claim_parts();
      const std::uint64_t control = fp_control();
      if (control != default_fp_control()) job->changed_fp_control.store(control, std::memory_order_relaxed);
      lock.lock();
      // Under the mutex: the job is gone as soon as its caller sees no helper.
      if (--job->helpers == 0) job->helpers_gone.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<Job*> jobs_;  // with open slots
  std::vector<std::thread> workers_;
  int wanted_ = 0;  // open slots of all jobs
  int idle_ = 0;
  int starting_ = 0;
  bool stopping_ = false;
  [[maybe_unused]] Pool* const previous_;  // keeps a parent process's pool reachable, so that leak checkers see no leak
};

std::atomic<Pool*> process_pool{nullptr};

// The child of a fork has none of the workers, and condition variables with lost waiters cannot be used again: it
// starts over with a fresh pool. (A body that forks must not return in the child.)
void after_fork_in_child() {
  Pool* inherited = process_pool.load(std::memory_order_relaxed);
  is_worker = false;
  process_pool.store(new Pool(inherited), std::memory_order_relaxed);
}

struct PoolOwner {
  PoolOwner() {
    process_pool.store(new Pool(nullptr), std::memory_order_release);
    pthread_atfork(nullptr, nullptr, after_fork_in_child);
  }
  // The object stays, for calls from destructors that run later; those run inline, for nobody helps.
  ~PoolOwner() { process_pool.load(std::memory_order_acquire)->stop(); }
};

Pool* pool() {
  static const PoolOwner owner;
  return process_pool.load(std::memory_order_acquire);
}

// Bodies on the caller see the default FP environment as those on workers do. What a body leaves changed stays changed.
class CallerFpEnv {
 public:
  CallerFpEnv() : saved_(fp_control()) {
    if (saved_ != default_fp_control()) set_fp_control(default_fp_control());
  }
  ~CallerFpEnv() {
    if (saved_ != default_fp_control() && fp_control() == default_fp_control()) set_fp_control(saved_);
  }
  CallerFpEnv(const CallerFpEnv&) = delete;
  CallerFpEnv& operator=(const CallerFpEnv&) = delete;

 private:
  const std::uint64_t saved_;
};

void run_inline(std::int64_t parts, const std::function<void(std::int64_t)>& body) noexcept {
  for (std::int64_t part = 0; part < parts; ++part) body(part);
}

}  // namespace

void parallel_for(int threads, std::int64_t parts, const std::function<void(std::int64_t part)>& body) {
  if (parts <= 0) return;
  if (in_body) {
    run_inline(parts, body);
    return;
  }
  const CallerFpEnv environment;
  in_body = true;
  const std::int64_t wanted = std::min<std::int64_t>({threads, parts, kMaxWorkers + 1});
  if (wanted <= 1) {
    run_inline(parts, body);
  } else {
    Job job(&body, parts, static_cast<int>(wanted) - 1);
    pool()->run(&job);
    const std::uint64_t changed = job.changed_fp_control.load(std::memory_order_relaxed);
    if (changed != default_fp_control()) set_fp_control(changed);
  }
  in_body = false;
}

int hardware_threads() {
  for (int processors = CPU_SETSIZE; processors <= (1 << 20); processors *= 2) {
    cpu_set_t* set = CPU_ALLOC(processors);
    if (set == nullptr) break;
    const std::size_t size = CPU_ALLOC_SIZE(processors);
    const int status = sched_getaffinity(0, size, set);
    const int count = status == 0 ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace batchproof
