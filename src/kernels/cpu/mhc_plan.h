// SPDX-License-Identifier: Apache-2.0
//
// How the mHC product is cut: the constant plan of invariant mode and the rules of a public serving engine's default
// dispatch, which fast mode follows and controls copy. docs: ops/mhc/README.md.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_MHC_PLAN_H_
#define BATCHPROOF_SRC_KERNELS_CPU_MHC_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/kernels/cpu/mhc_region.h"

namespace batchproof {

// Columns per segment in invariant mode: a constant, never a function of processors or rows.
constexpr std::int64_t kMhcSegment = 256;
// Columns per K block of the default dispatch, rows per tile.
constexpr std::int64_t kMhcBlockColumns = 64;
constexpr std::int64_t kMhcBlockRows = 64;
// The pins of request B: splits for the four streams and for the broadcast form.
constexpr std::int64_t kMhcPin = 32;
constexpr std::int64_t kMhcPinBroadcast = 16;
// Most rows that take the small kernel; rows at which the fallback product changes kernels.
constexpr std::int64_t kMhcSmallRows = 16;
constexpr std::int64_t kMhcFallbackFew = 128;
constexpr std::int64_t kMhcFallbackPairs = 1024;

// How a product is computed. Everything here can move bytes.
struct MhcPath {
  enum class Kind {
    chain,       // segments of kMhcSegment columns
    descending,  // one chain over all columns, from the last to the first: the order witness
    splits,      // `splits` runs of whole K blocks, the first ones longer by one
    threads,     // the order of a GPU kernel: `threads` per row, `splits` parts of every stream
    external     // a registered backend (mhc_backend.h)
  } kind = Kind::chain;
  std::int64_t splits = 1;
  int threads = 0;
  bool pairs = false;       // threads: two rows per pass; neutral
  bool tf32 = true;         // weights rounded to TF32 (ties away from zero); values are BF16 and exact
  bool unrounded = false;   // fused form: the product sees the FP32 result of post, not the stored BF16
  bool drops_tail = false;  // control: a part's columns beyond a multiple of `threads` are not summed
  bool constant = false;    // chosen without a look at rows and processors
  const char* name = "";    // in refusals: "splits from occupancy"

  bool operator==(const MhcPath&) const = default;
};

// Splits of the default dispatch: processors / ceil(rows / 64), at least 4 K blocks each, at least 1. rows >= 1.
std::int64_t occupancy_splits(std::int64_t processors, std::int64_t columns, std::int64_t rows);
// Splits of the small kernel at `rows` <= kMhcSmallRows: 8 below 8 rows where hidden <= 4096, else 4.
std::int64_t small_kernel_splits(std::int64_t rows, std::int64_t hidden);
// Whether the small kernel covers every column: 256 threads, `splits` parts of a stream.
bool small_kernel_fits(std::int64_t hidden, std::int64_t splits);
// Threads of the fallback product: 1024 below 128 rows where columns % 1024 == 0, else 512.
int fallback_threads(std::int64_t columns, std::int64_t rows);

// What the default dispatch runs.
struct MhcDispatch {
  std::int64_t rows = 0, hidden = 0;
  std::int64_t columns = 0;     // 4 * hidden, or hidden for the broadcast form
  std::int64_t processors = 0;  // streaming multiprocessors
  bool fused = false;           // mhc_fused_post_pre: the small kernel exists
  bool fallback = false;        // no TF32 product with splits
};
MhcPath default_dispatch(const MhcDispatch& dispatch);

// Row counts in [first + 1, last] at which the default dispatch changes the order of a row's sums.
std::vector<std::int64_t> expected_flips(MhcDispatch dispatch, std::int64_t first, std::int64_t last);

// Segment s is [bounds[s], bounds[s + 1]).
std::vector<std::int64_t> product_bounds(const MhcPath& path, std::int64_t columns);
std::vector<MhcProductChunk> product_chunks(const std::vector<std::int64_t>& bounds);
// First column of every step of every split, [splits][steps].
std::vector<std::int64_t> thread_steps(const MhcPath& path, std::int64_t hidden, std::int64_t columns);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_MHC_PLAN_H_
