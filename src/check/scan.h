// SPDX-License-Identifier: Apache-2.0
//
// scan: the batch sizes at which the bytes of a row change. The operator runs at every size of a range; the same rows
// ("victims") are in every batch, and the sizes whose victims have equal bytes form a bit class.
//
// What a batch of M rows holds: below `victims` rows, so many batches that every victim is in one; otherwise the
// victims at rows 0, 1, ..., copies of them from the last row backwards (M - 1 holds victim 0), and filler rows
// between. The copies change their parity and their place in a tile with M; a copy that differs from its victim is a
// place where the position matters. Fillers are rows of their own, 61 different ones. The operator always runs on all M
// rows; where a smaller batch is a prefix of a larger one in memory, the tensors are built once and only the rows that
// change are written.
//
// Inputs are chosen as for check, and every output shows on the victims that another order would move them (C5): a
// class that stands alone because no input could tell means nothing.
#ifndef BATCHPROOF_SRC_CHECK_SCAN_H_
#define BATCHPROOF_SRC_CHECK_SCAN_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "src/check/host.h"
#include "src/check/result.h"
#include "src/runtime/error.h"
#include "src/suite/suite.h"

namespace batchproof {

struct ScanOptions {
  std::int64_t first = 1;  // values of the operator's row-count axis, both ends included
  std::int64_t last = 1;
  std::vector<std::int64_t> sizes;  // not empty: these in place of first..last; ascending
  std::int64_t victims = 32;
  std::uint64_t seed = 1;
  std::function<void(std::int64_t done, std::int64_t total)> progress;  // called after each size
};

// Sizes first..last (consecutive among those that ran) gave the bytes of class `bit_class`; classes count from 0 in the
// order in which they appear, so a class that comes back keeps its number.
struct ScanInterval {
  std::int64_t first = 0;
  std::int64_t last = 0;
  int bit_class = 0;
};

struct ScanFlip {
  std::int64_t at = 0;       // first size with other bytes
  std::int64_t after = 0;    // the size that ran before it
  std::int64_t victims = 0;  // how many victims changed
};

struct ScanPort {
  std::string port;
  int classes = 0;
  std::vector<ScanInterval> intervals;
  std::vector<ScanFlip> flips;
  Witness witness;  // of another order, on the first victims; leak where the output is order-exact
  bool blind() const { return flips.empty() && !witness.alive(); }
};

// A copy of a victim that differed from it inside one batch size.
struct ScanPlace {
  std::string port;
  std::int64_t size = 0;
  std::int64_t row = 0;
  std::int64_t victim = 0;
};

struct ScanResult {
  std::string op;
  std::string implementation;
  std::string axis;                                       // the row-count axis
  std::vector<std::pair<std::string, std::string>> axes;  // the cell's others, as printed
  std::string inputs;                                     // which inputs were chosen, and why
  bool promised = false;                                  // the implementation promises batch_size at every size
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::int64_t victims = 0;
  std::int64_t sizes = 0;             // that ran
  std::int64_t calls = 0;             // of the operator
  std::vector<std::int64_t> refused;  // sizes that the operator does not accept
  std::vector<ScanPort> ports;        // outputs, in the operator's order
  std::vector<ScanFlip> flips;        // of any port; `victims`: the most of any port
  std::vector<ScanPlace> places;      // the first kScanPlaces of them
  std::int64_t places_total = 0;
  double seconds = 0.0;
  bool one_class() const { return flips.empty() && places_total == 0; }
  // The first output of one class that no order could have moved; nullptr: none.
  const ScanPort* blind() const;
  // A promise was broken, or nothing could have been seen.
  bool failed() const { return (promised && !one_class()) || blind() != nullptr; }
};
constexpr std::size_t kScanPlaces = 16;

// Scans the operator, implementation and problem of `cell`, whatever its value of the row-count axis; world sizes above
// 1 as well. Errors: Error::Kind::usage where the range is empty or the operator has no row-count axis; what a call
// reported otherwise. The implementation must report its own id (C7).
Result<ScanResult> scan_rows(const Cell& cell, OperatorHost& host, const ScanOptions& options);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_CHECK_SCAN_H_
