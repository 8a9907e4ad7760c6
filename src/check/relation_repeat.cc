// SPDX-License-Identifier: Apache-2.0
//
// repeat: nothing changes; the same call again, alone and under load. The runner adds a fresh process.
#include <fmt/format.h>

#include <atomic>
#include <thread>
#include <vector>

#include "src/check/relation.h"
#include "src/runtime/thread_pool.h"

namespace batchproof {
namespace {

// Keeps every processor busy while it lives, so that ranks and workers are interrupted at other places.
class Load {
 public:
  Load() {
    for (int i = 0; i < hardware_threads(); ++i) {
      threads_.emplace_back([this] {
        volatile double value = 1.0;
        while (!stop_.load(std::memory_order_relaxed)) value = value * 1.0000001;
      });
    }
  }
  ~Load() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

Result<void> repeat_once(CellSession& session, const std::string& what, RelationFinding* finding) {
  auto again = session.run(session.same());
  if (!again) return tl::unexpected(again.error());
  for (std::int64_t row = 0; row < session.rows(); ++row)
    session.compare_row(session.base(), row, *again, row, static_cast<std::uint64_t>(row), what, &finding->comparison);
  return {};
}

}  // namespace

Result<RelationFinding> check_repeat(CellSession& session) {
  RelationFinding finding;
  const int repeats = session.cell().standard.bi ? session.cell().standard.bi->repeats : BiStandard{}.repeats;
  const int loaded = repeats * 2 / 5;
  for (int i = 0; i < repeats - loaded; ++i) {
    auto done = repeat_once(session, fmt::format("call {} with the same inputs", i + 2), &finding);
    if (!done) return tl::unexpected(done.error());
  }
  if (loaded == 0) return finding;
  const Load load;
  for (int i = 0; i < loaded; ++i) {
    auto done = repeat_once(session, "the same call while every processor is busy", &finding);
    if (!done) return tl::unexpected(done.error());
  }
  return finding;
}

}  // namespace batchproof
