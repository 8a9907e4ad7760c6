// SPDX-License-Identifier: Apache-2.0
//
// The two-path controls: what request A describes. No test at equal shape and position can see them, since neither path
// looks at other rows; the same slot on another rank, another owner and another world size do.
#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "ops/all_gather_matmul/all_gather_matmul.h"
#include "src/kernels/cpu/linear.h"
#include "src/kernels/cpu/linear_controls.h"

namespace batchproof {
namespace {

constexpr std::int64_t kLocalChunk = 128;
constexpr std::int64_t kGatherChunk = 256;

Result<void> run_chunks(const GemmCall& call, std::int64_t chunk, int threads) {
  const Result<Schedule> schedule = make_schedule({chunk, 0}, call.k);
  if (!schedule) return tl::unexpected<Error>(schedule.error());
  return gemm(call, *schedule, {threads, std::nullopt});
}

Result<void> run_descending(const GemmCall& call, int threads) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(segment_count(call.k, kLocalChunk)));
  std::iota(order.rbegin(), order.rend(), 0);
  return gemm_in_order(call, kLocalChunk, order, threads);
}

}  // namespace

Result<void> run_two_path_control(TwoPathDefect defect, const GemmCall& gathered, std::int64_t m, int rank,
                                  int threads) {
  const auto gather_path = [&](const GemmCall& call) {
    return defect == TwoPathDefect::chunk_pair ? run_chunks(call, kGatherChunk, threads)
                                               : run_descending(call, threads);
  };
  const std::int64_t begin = rank * m;
  const std::int64_t end = begin + m;
  Result<void> done = run_chunks(rows_of(gathered, begin, m), kLocalChunk, threads);
  if (done && begin > 0) done = gather_path(rows_of(gathered, 0, begin));
  if (done && end < gathered.m) done = gather_path(rows_of(gathered, end, gathered.m - end));
  return done;
}

}  // namespace batchproof
