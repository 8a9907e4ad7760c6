// SPDX-License-Identifier: Apache-2.0
//
// Schedule: where the reduction axis is cut into segments and in which order the segment sums merge (C1).
//
// It is built from the logical (global) reduction length and a policy, and from nothing else. It has no member and no
// constructor argument for rows, ranks, processors, threads or occupancy: those may change tiles, grid and who computes
// what, because they change time, never bytes.
#ifndef BATCHPROOF_SRC_SCHEDULE_SCHEDULE_H_
#define BATCHPROOF_SRC_SCHEDULE_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "src/runtime/error.h"

namespace batchproof {

// Half-open range of reduction indices. A segment's sum starts from +0.
struct Segment {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const Segment&) const = default;
};

// chain(L): segments of L, the last may be short; t = s0; t = t + s1; t = t + s2; ...
struct ChainPolicy {
  std::int64_t segment_length;
};

// tree(slices): equal contiguous slices, each a multiple of `atom`; chain(segment_length) inside a slice; a balanced
// binary tree above: level by level, neighbours merge left + right. Ranks that hold whole subtrees give the same bytes.
struct TreePolicy {
  std::int64_t slices;          // a power of two
  std::int64_t atom;            // smallest unit that the arithmetic cannot cut
  std::int64_t segment_length;  // of the chain inside a slice
};

class Schedule {
 public:
  static Result<Schedule> make(std::int64_t reduction_length, ChainPolicy policy);
  // Fails where the length is not a multiple of slices * atom.
  static Result<Schedule> make(std::int64_t reduction_length, TreePolicy policy);

  std::int64_t reduction_length() const { return length_; }
  // All segments in ascending order; none where the length is zero.
  const std::vector<Segment>& segments() const { return segments_; }
  // chain: 1. tree: the policy's.
  std::int64_t slices() const { return slices_; }
  // First segment of slice `i`, with segments of slice i being [slice_begin(i), slice_begin(i + 1)).
  std::int64_t slice_begin(std::int64_t i) const { return slice_begin_[i]; }
  // "chain256", "tree16-chain64": part of an implementation's id.
  const std::string& name() const { return name_; }

 private:
  Schedule() = default;
  std::int64_t length_ = 0;
  std::int64_t slices_ = 1;
  std::vector<Segment> segments_;
  std::vector<std::int64_t> slice_begin_;
  std::string name_;
};

// Sums `values` as the schedule merges segment sums: the plain statement of the merge order, used by references, by
// reductions over ranks and by tests. `values` has one entry per segment.
float merge_segment_sums(const Schedule& schedule, const std::vector<float>& values);

// The balanced tree above a power-of-two number of slice sums: ((v0+v1)+(v2+v3))+...
float merge_tree(const float* values, std::int64_t count, std::int64_t stride = 1);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_SCHEDULE_SCHEDULE_H_
