// SPDX-License-Identifier: Apache-2.0
//
// Cutting of the reduction axis and the plain statement of the merge order (C1).
#include "src/schedule/schedule.h"

#include <fmt/format.h>

#include <algorithm>

namespace batchproof {
namespace {

// More segments than this are a mistake in a problem, not a schedule: 2^22 segments take 64 MiB. A power of two, so
// that a tree whose chain over the whole length fits fits as well.
constexpr std::int64_t kMaxSegments = std::int64_t{1} << 22;

tl::unexpected<Error> bad(std::string message) { return fail(Error::Kind::usage, std::move(message)); }

// Why a chain of `segment_length` over `length` indices cannot be built; empty: it can.
std::string chain_error(std::int64_t length, std::int64_t segment_length) {
  if (length < 0) return fmt::format("reduction length is {}, it must be 0 or more", length);
  if (segment_length < 1) return fmt::format("segment length is {}, it must be 1 or more", segment_length);
  const std::int64_t segments = length / segment_length + (length % segment_length != 0 ? 1 : 0);
  if (segments > kMaxSegments) {
    return fmt::format("reduction length {} in segments of {} gives {} segments, at most {} are allowed", length,
                       segment_length, segments, kMaxSegments);
  }
  return {};
}

void append_chain(std::int64_t begin, std::int64_t end, std::int64_t segment_length, std::vector<Segment>* segments) {
  while (begin < end) {
    const std::int64_t next = end - begin > segment_length ? begin + segment_length : end;
    segments->push_back({begin, next});
    begin = next;
  }
}

// The chain over values[begin, end); +0 where there are none.
float merge_chain(const std::vector<float>& values, std::int64_t begin, std::int64_t end) {
  if (begin == end) return 0.0f;
  float total = values[begin];
  for (std::int64_t i = begin + 1; i < end; ++i) total = total + values[i];
  return total;
}

}  // namespace

Result<Schedule> Schedule::make(std::int64_t reduction_length, ChainPolicy policy) {
  if (std::string error = chain_error(reduction_length, policy.segment_length); !error.empty()) {
    return bad(std::move(error));
  }
  Schedule schedule;
  schedule.length_ = reduction_length;
  append_chain(0, reduction_length, policy.segment_length, &schedule.segments_);
  schedule.slice_begin_ = {0, static_cast<std::int64_t>(schedule.segments_.size())};
  schedule.name_ = fmt::format("chain{}", policy.segment_length);
  return schedule;
}

Result<Schedule> Schedule::make(std::int64_t reduction_length, TreePolicy policy) {
  if (policy.slices < 1 || (policy.slices & (policy.slices - 1)) != 0) {
    return bad(fmt::format("slices is {}, it must be a power of two: 1, 2, 4, ...", policy.slices));
  }
  if (policy.slices > kMaxSegments) {
    return bad(fmt::format("slices is {}, at most {} are allowed", policy.slices, kMaxSegments));
  }
  if (policy.atom < 1) return bad(fmt::format("atom is {}, it must be 1 or more", policy.atom));
  if (std::string error = chain_error(reduction_length, policy.segment_length); !error.empty()) {
    return bad(std::move(error));
  }
  // First by slices, then by atom: the product itself could overflow.
  const std::int64_t slice = reduction_length / policy.slices;
  if (reduction_length % policy.slices != 0 || slice % policy.atom != 0) {
    const std::string unit = policy.atom <= INT64_MAX / policy.slices
                                 ? fmt::format("{}", policy.slices * policy.atom)
                                 : fmt::format("{} * {}", policy.slices, policy.atom);
    return bad(fmt::format(
        "reduction length {} cannot be cut into {} equal slices of whole atoms of {}: it must be a multiple of {}",
        reduction_length, policy.slices, policy.atom, unit));
  }
  Schedule schedule;
  schedule.length_ = reduction_length;
  schedule.slices_ = policy.slices;
  schedule.slice_begin_.push_back(0);
  for (std::int64_t i = 0; i < policy.slices; ++i) {
    append_chain(i * slice, (i + 1) * slice, policy.segment_length, &schedule.segments_);
    schedule.slice_begin_.push_back(static_cast<std::int64_t>(schedule.segments_.size()));
  }
  schedule.name_ = fmt::format("tree{}-chain{}", policy.slices, policy.segment_length);
  return schedule;
}

float merge_segment_sums(const Schedule& schedule, const std::vector<float>& values) {
  std::vector<float> slices(schedule.slices());
  for (std::int64_t i = 0; i < schedule.slices(); ++i) {
    slices[i] = merge_chain(values, schedule.slice_begin(i), schedule.slice_begin(i + 1));
  }
  return merge_tree(slices.data(), schedule.slices());
}

float merge_tree(const float* values, std::int64_t count, std::int64_t stride) {
  if (count <= 0) return 0.0f;
  if (count == 1) return values[0];
  // Halving from the top pairs the same neighbours as merging level by level from the bottom: count is a power of two.
  const std::int64_t half = count / 2;
  return merge_tree(values, half, stride) + merge_tree(values + half * stride, half, stride);
}

}  // namespace batchproof
