// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/cpu/linear_controls.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <tuple>

#include "src/kernels/cpu/elements.h"
#include "src/kernels/cpu/linear.h"
#include "src/numeric/seed.h"

namespace batchproof {
namespace {

float a_at(const GemmCall& call, std::int64_t i, std::int64_t k) {
  return read_float(call.a.data, i * call.a.row_stride + k * call.a.column_stride, call.a.dtype);
}

Result<void> run_chain(const GemmCall& call, std::int64_t segment, int threads) {
  const Result<Schedule> schedule = make_schedule({std::max<std::int64_t>(segment, 1), 0}, call.k);
  if (!schedule) return tl::unexpected<Error>(schedule.error());
  return gemm(call, *schedule, {threads, std::nullopt});
}

// The same product as FP32 sums without bias.
using Sums = std::vector<float>;
GemmCall into_sums(const GemmCall& call, Sums& sums) {
  sums.assign(static_cast<std::size_t>(call.m * call.n), 0.0f);
  GemmCall out = call;
  out.bias = {};
  out.c = {sums.data(), BP_FP32, call.n};
  return out;
}

// The end of every product: y = round(sum + bias).
void store_sums(const GemmCall& call, const Sums& sums) {
  for (std::int64_t i = 0; i < call.m; ++i) {
    for (std::int64_t j = 0; j < call.n; ++j) {
      float sum = sums[static_cast<std::size_t>(i * call.n + j)];
      if (call.bias.dtype != BP_NONE) sum = sum + read_float(call.bias.data, j * call.bias.stride, call.bias.dtype);
      write_float(call.c.data, i * call.c.row_stride + j, call.c.dtype, sum);
    }
  }
}

// ---- stale_memo ----

// Right but for its key: it lacks the mode.
class PlanMemo {
 public:
  using Key = std::tuple<int, std::int64_t, std::int64_t, std::int64_t, bp_dtype>;
  void store(const Key& key, std::int64_t segment) {
    const std::lock_guard<std::mutex> lock(mutex_);
    plans_[key] = segment;
  }
  // The stored plan, which is then dropped to be tuned anew: later calls are right again. 0: none.
  std::int64_t take(const Key& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = plans_.find(key);
    if (found == plans_.end()) return 0;
    const std::int64_t segment = found->second;
    plans_.erase(found);
    return segment;
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::int64_t> plans_;
};

Result<void> run_stale_memo(const LinearControlCall& control) {
  // Unlike any plan of the invariant mode, whatever K is.
  constexpr std::int64_t kFastSegment = 24;
  static PlanMemo memo;
  const GemmCall& call = control.call;
  const PlanMemo::Key key = {control.rank, call.m, call.n, call.k, call.a.dtype};
  if (control.mode == BP_MODE_FAST) {
    memo.store(key, kFastSegment);
    return run_chain(call, kFastSegment, control.threads);
  }
  const std::int64_t stored = memo.take(key);
  return run_chain(call, stored > 0 ? stored : kGemmSegment, control.threads);
}

// ---- leaks ----

Result<void> run_zero_nan_leak(const LinearControlCall& control) {
  const GemmCall& call = control.call;
  Sums sums;
  if (const Result<void> done = run_chain(into_sums(call, sums), kGemmSegment, control.threads); !done) return done;
  for (std::int64_t i = 0; i < call.m && call.m > 1 && call.k > 0; ++i) {
    const float neighbour = a_at(call, (i + 1) % call.m, 0);
    for (std::int64_t j = 0; j < call.n; ++j) {
      float& sum = sums[static_cast<std::size_t>(i * call.n + j)];
      sum = sum + 0.0f * neighbour;
    }
  }
  store_sums(call, sums);
  return {};
}

Result<void> run_stale_workspace_leak(const LinearControlCall& control) {
  const GemmCall& call = control.call;
  if (control.stale == nullptr) return fail(Error::Kind::internal, "this control needs workspace that nothing wrote");
  Sums sums;
  if (const Result<void> done = run_chain(into_sums(call, sums), kGemmSegment, control.threads); !done) return done;
  for (std::int64_t i = 0; i < call.m; ++i) {
    for (std::int64_t j = 0; j < call.n; ++j) {
      float& sum = sums[static_cast<std::size_t>(i * call.n + j)];
      sum = sum + 0.0f * control.stale[j];
    }
  }
  store_sums(call, sums);
  return {};
}

// ---- arrival_order ----

// A race without its timing: call n of a rank merges in an order drawn from (seed, rank, n).
Result<void> run_arrival_order(const LinearControlCall& control) {
  constexpr std::uint64_t kSeed = 0x61727269u;
  constexpr std::int64_t kSegments = 8;
  constexpr std::size_t kRanks = 256;
  static std::atomic<std::uint64_t> calls[kRanks];
  const std::size_t rank = static_cast<std::size_t>(control.rank) % kRanks;
  const std::uint64_t draw = mix64(mix64(kSeed, rank), calls[rank].fetch_add(1));
  const GemmCall& call = control.call;
  const std::int64_t segment = std::max<std::int64_t>(segment_count(call.k, kSegments), 1);
  std::vector<std::int64_t> order(static_cast<std::size_t>(segment_count(call.k, segment)));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[mix64(draw, i) % i]);
  return gemm_in_order(call, segment, order, control.threads);
}

// ---- batch_scale ----

Result<void> run_batch_scale(const LinearControlCall& control) {
  const GemmCall& call = control.call;
  float largest = 0.0f;
  for (std::int64_t i = 0; i < call.m; ++i) {
    for (std::int64_t k = 0; k < call.k; ++k) {
      const float magnitude = std::fabs(a_at(call, i, k));
      if (!(magnitude <= largest)) largest = magnitude;  // NaN counts as the largest
    }
  }
  const float scale = largest == 0.0f ? 1.0f : largest;
  const float inverse = 1.0f / scale;
  std::vector<std::uint32_t> scaled(static_cast<std::size_t>(call.m * call.k));  // room for every dtype
  for (std::int64_t i = 0; i < call.m; ++i) {
    for (std::int64_t k = 0; k < call.k; ++k) {
      write_float(scaled.data(), i * call.k + k, call.a.dtype, a_at(call, i, k) * inverse);
    }
  }
  Sums sums;
  GemmCall inner = into_sums(call, sums);
  inner.a = {scaled.data(), call.a.dtype, call.k, 1};
  if (const Result<void> done = run_chain(inner, kGemmSegment, control.threads); !done) return done;
  for (float& sum : sums) sum = sum * scale;
  store_sums(call, sums);
  return {};
}

// Sums of segments in `order`, each changed before it is added.
Result<void> gemm_of_parts(const GemmCall& call, std::int64_t segment, const std::vector<std::int64_t>& order,
                           int threads, const std::function<void(float* part)>& change) {
  Sums total(static_cast<std::size_t>(call.m * call.n), 0.0f);
  Sums part;
  for (std::size_t turn = 0; turn < order.size(); ++turn) {
    const std::int64_t begin = order[turn] * segment;
    GemmCall piece = into_sums(call, part);
    piece.k = std::min(segment, call.k - begin);
    const std::int64_t size = call.a.dtype == BP_FP32 ? 4 : 2;
    piece.a.data = static_cast<const char*>(call.a.data) + begin * call.a.column_stride * size;
    piece.b.data = static_cast<const char*>(call.b.data) + begin * call.b.row_stride * size;
    if (const Result<void> done = run_chain(piece, piece.k, threads); !done) return done;
    change(part.data());
    for (std::size_t i = 0; i < total.size(); ++i) total[i] = turn == 0 ? part[i] : total[i] + part[i];
  }
  store_sums(call, total);
  return {};
}

}  // namespace

std::int64_t chunk_of_rows(std::int64_t rows, std::int64_t columns) {
  constexpr double kBudget = 34359738368.0;  // 2^35
  const double area = static_cast<double>(rows) * static_cast<double>(columns);
  std::int64_t chunk = 2048;
  while (chunk > 128 && area * static_cast<double>(chunk * chunk) > kBudget) chunk /= 2;
  return chunk;
}

Result<void> gemm_in_order(const GemmCall& call, std::int64_t segment, const std::vector<std::int64_t>& order,
                           int threads) {
  return gemm_of_parts(call, segment, order, threads, [](float*) {});
}

Result<void> gemm_with_parts(const GemmCall& call, std::int64_t segment, int threads,
                             const std::function<void(float* part)>& change) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(segment_count(call.k, segment)));
  std::iota(order.begin(), order.end(), 0);
  return gemm_of_parts(call, segment, order, threads, change);
}

Result<void> run_linear_control(LinearDefect defect, const LinearControlCall& control) {
  const GemmCall& call = control.call;
  switch (defect) {
    case LinearDefect::none:
      return run_chain(call, kGemmSegment, control.threads);
    case LinearDefect::thread_split:
      return run_chain(call, segment_count(call.k, std::max(control.threads, 1)), control.threads);
    case LinearDefect::chunk_follows_rows:
      return run_chain(call, chunk_of_rows(call.m, call.n), control.threads);
    case LinearDefect::promotion_interval:
      return run_chain(call, call.m <= 16 ? 128 : 512, control.threads);
    case LinearDefect::stale_memo:
      return run_stale_memo(control);
    case LinearDefect::zero_nan_leak:
      return run_zero_nan_leak(control);
    case LinearDefect::stale_workspace_leak:
      return run_stale_workspace_leak(control);
    case LinearDefect::arrival_order:
      return run_arrival_order(control);
    case LinearDefect::batch_scale:
      return run_batch_scale(control);
  }
  return fail(Error::Kind::internal, "unknown defect");
}

}  // namespace batchproof
