// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/cpu/grouped_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/kernels/cpu/elements.h"
#include "src/kernels/cpu/linear_controls.h"
#include "src/kernels/cpu/scaled_operand.h"
#include "src/numeric/dtype.h"

namespace batchproof {
namespace {

// Rows [begin, begin + count) of a tensor.
bp_tensor rows_of(const bp_tensor& tensor, std::int64_t begin, std::int64_t count) {
  bp_tensor part = tensor;
  if (tensor.data != nullptr) {
    part.data = static_cast<char*>(tensor.data) + dtype_bytes(tensor.dtype, begin * tensor.stride[0]);
  }
  part.shape[0] = count;
  return part;
}

// Entry `index` along the first axis, which goes.
bp_tensor entry_of(const bp_tensor& tensor, std::int64_t index) {
  bp_tensor part = rows_of(tensor, index, 1);
  --part.ndim;
  for (int axis = 0; axis < part.ndim; ++axis) {
    part.shape[axis] = tensor.shape[axis + 1];
    part.stride[axis] = tensor.stride[axis + 1];
  }
  return part;
}

// The product of one expert.
struct Group {
  ScaledLinear linear;
  std::int64_t expert = 0;
  std::int64_t begin = 0;
  bp_tensor x = {}, x_scale = {}, w = {}, w_scale = {}, y = {};
};

// Calls visit(group) for every expert that received rows.
template <class Visit>
Result<void> for_each_group(const GroupedLinear& grouped, const Visit& visit) {
  std::int64_t begin = 0;
  for (std::int64_t expert = 0; expert < grouped.routing->experts(); ++expert) {
    const std::int64_t count = grouped.routing->load(grouped.owner, expert);
    if (count == 0) continue;
    Group group;
    group.expert = expert;
    group.begin = begin;
    group.x = rows_of(*grouped.x, begin, count);
    group.w = entry_of(*grouped.w, expert);
    group.y = rows_of(*grouped.y, begin, count);
    group.linear.scaling = grouped.scaling;
    group.linear.x = &group.x;
    group.linear.w = &group.w;
    group.linear.y = &group.y;
    if (grouped.scaling == Scaling::mx) {
      group.x_scale = rows_of(*grouped.x_scale, begin, count);
      group.w_scale = entry_of(*grouped.w_scale, expert);
      group.linear.x_scale = &group.x_scale;
      group.linear.w_scale = &group.w_scale;
    }
    if (const Result<void> done = visit(group); !done) {
      return fail(done.error().kind, fmt::format("expert {}: {}", expert, done.error().message));
    }
    begin += count;
  }
  return {};
}

// ---- defects ----

// Blocks of rows of one rank each, K in slices from that rank's own one on.
Result<void> multiply_from_rank(const GroupedLinear& grouped, const Group& group, const GemmCall& call, int threads) {
  const std::int64_t world = grouped.routing->world();
  const std::int64_t slice = std::max<std::int64_t>(blocks_of(call.k, world), 1);
  std::int64_t begin = 0;
  for (std::int64_t rank = 0; rank < world; ++rank) {
    const std::int64_t count = grouped.routing->count(rank, grouped.owner, group.expert);
    if (count == 0) continue;
    const std::int64_t slices = segment_count(call.k, slice);
    std::vector<std::int64_t> order;
    for (std::int64_t step = 0; step < slices; ++step) order.push_back((rank + step) % slices);
    const Result<void> done = gemm_in_order(batchproof::rows_of(call, begin, count), slice, order, threads);
    if (!done) return done;
    begin += count;
  }
  return {};
}

// Rows that landed in the last tile of the rank's buffer, unless it is full, take another path than the rest.
Result<void> multiply_by_tile(const GroupedLinear& grouped, const Group& group, const GemmCall& call,
                              const LinearSchedule& schedule, int threads) {
  constexpr std::int64_t kTile = 8;
  constexpr std::int64_t kEdgeSegment = 32;
  const std::int64_t full = grouped.routing->received(grouped.owner) / kTile * kTile;
  const std::int64_t inside = std::clamp<std::int64_t>(full - group.begin, 0, call.m);
  if (inside > 0) {
    const Result<void> done = run_scheduled(batchproof::rows_of(call, 0, inside), schedule, threads);
    if (!done || inside == call.m) return done;
  }
  return run_scheduled(batchproof::rows_of(call, inside, call.m - inside), {kEdgeSegment, 0}, threads);
}

// The last tile of a group holds rows of the next expert, or rows that nobody sent. A mask would keep them out of the
// sum; without one 0 * (their content) joins it, which is nothing until that content is not finite.
void leak_padded_rows(const GroupedLinear& grouped, const Group& group) {
  constexpr std::int64_t kTile = 16;
  const bp_tensor& x = *grouped.x;
  const std::int64_t rows = group.x.shape[0];
  const std::int64_t end = std::min(group.begin + blocks_of(rows, kTile) * kTile, x.shape[0]);
  bool leaks = false;
  for (std::int64_t i = group.begin + rows; i < end && x.shape[1] > 0; ++i)
    leaks |= !std::isfinite(decode_element(x.dtype, x.data, i * x.stride[0]));
  const std::int64_t first = (blocks_of(rows, kTile) - 1) * kTile;
  for (std::int64_t i = first; leaks && i < rows; ++i) {
    for (std::int64_t j = 0; j < group.y.shape[1]; ++j)
      write_float(group.y.data, i * group.y.stride[0] + j, group.y.dtype, std::numeric_limits<float>::quiet_NaN());
  }
}

// ---- fast mode ----

// Sees the batch twice: the rows of this rank are multiplied at once, those of the others after the exchange, and
// either part takes its segments from its number of rows.
Result<void> multiply_fast(const GroupedLinear& grouped, const Group& group, const GemmCall& call, int threads) {
  std::int64_t before = 0;
  for (std::int64_t rank = 0; rank < grouped.owner; ++rank)
    before += grouped.routing->count(rank, grouped.owner, group.expert);
  const std::int64_t own = grouped.routing->count(grouped.owner, grouped.owner, group.expert);
  const auto part = [&](std::int64_t begin, std::int64_t count, std::int64_t rows_of_path) -> Result<void> {
    if (count == 0) return {};
    return run_scheduled(batchproof::rows_of(call, begin, count), {fast_segment(rows_of_path, call.k), 0}, threads);
  };
  Result<void> done = part(before, own, own);
  if (done) done = part(0, before, call.m - own);
  return done ? part(before + own, call.m - before - own, call.m - own) : done;
}

// ---- exchange ----

using Counts = std::vector<std::int64_t>;

Result<void> exchange(const bp_context* context, const char* what, const RowBuffer& from, const Counts& send,
                      const RowBuffer& to, const Counts& receive) {
  std::vector<std::size_t> send_bytes, send_offsets, receive_bytes, receive_offsets;
  const auto fill = [&](const Counts& counts, std::vector<std::size_t>& bytes, std::vector<std::size_t>& offsets) {
    std::size_t offset = 0;
    for (const std::int64_t count : counts) {
      bytes.push_back(static_cast<std::size_t>(count) * from.line);
      offsets.push_back(offset);
      offset += bytes.back();
    }
  };
  fill(send, send_bytes, send_offsets);
  fill(receive, receive_bytes, receive_offsets);
  const bp_comm* comm = context->comm;
  const bp_status status = comm->all_to_all_v(comm, from.data, send_bytes.data(), send_offsets.data(), to.data,
                                              receive_bytes.data(), receive_offsets.data(), context->stream);
  if (status != BP_OK) {
    return fail(Error::Kind::operation, fmt::format("rank {}: the all-to-all of {} failed", context->rank, what));
  }
  return {};
}

// Visits the blocks of rows that rank `owner` holds: visit(begin by rank then expert, begin by expert then rank,
// count).
template <class Visit>
void for_each_block(const Routing& routing, std::int64_t owner, const Visit& visit) {
  std::vector<std::int64_t> by_expert;
  std::int64_t begin = 0;
  for (std::int64_t expert = 0; expert < routing.experts(); ++expert) {
    for (std::int64_t rank = 0; rank < routing.world(); ++rank) {
      by_expert.push_back(begin);
      begin += routing.count(rank, owner, expert);
    }
  }
  begin = 0;
  for (std::int64_t rank = 0; rank < routing.world(); ++rank) {
    for (std::int64_t expert = 0; expert < routing.experts(); ++expert) {
      const std::int64_t count = routing.count(rank, owner, expert);
      if (count > 0) visit(begin, by_expert[static_cast<std::size_t>(expert * routing.world() + rank)], count);
      begin += count;
    }
  }
}

// Rows between this rank and each other one: as their rank, and as the experts' rank.
Counts own_rows(const Routing& routing, std::int64_t rank) {
  Counts counts;
  for (std::int64_t owner = 0; owner < routing.world(); ++owner) counts.push_back(routing.between(rank, owner));
  return counts;
}
Counts landed_rows(const Routing& routing, std::int64_t owner) {
  Counts counts;
  for (std::int64_t rank = 0; rank < routing.world(); ++rank) counts.push_back(routing.between(rank, owner));
  return counts;
}

}  // namespace

std::int64_t segment_of_load(std::int64_t rows) { return rows <= 4 ? 512 : rows <= 16 ? 128 : 32; }

Result<void> check_grouped_linear(const GroupedLinear& grouped) {
  for (const auto& [name, tensor, ndim] :
       {std::tuple("the rows", grouped.x, 2), std::tuple("the weights", grouped.w, 3),
        std::tuple("the product", grouped.y, 2)}) {
    if (tensor->memory != BP_MEMORY_HOST) {
      return fail(Error::Kind::environment,
                  fmt::format("{} of a grouped product must lie in host memory for a CPU implementation", name));
    }
    if (tensor->ndim != ndim) {
      return fail(Error::Kind::usage,
                  fmt::format("{} of a grouped product have {} axes; they must have {}", name, tensor->ndim, ndim));
    }
  }
  const std::int64_t needed = grouped.routing->received(grouped.owner);
  if (grouped.x->shape[0] < needed || grouped.y->shape[0] < needed) {
    return fail(Error::Kind::usage, fmt::format("rank {} receives {} rows; its tensors hold {} and {}", grouped.owner,
                                                needed, grouped.x->shape[0], grouped.y->shape[0]));
  }
  if (grouped.w->shape[0] != grouped.routing->experts()) {
    return fail(Error::Kind::usage, fmt::format("the weights are those of {} experts; it must be {}",
                                                grouped.w->shape[0], grouped.routing->experts()));
  }
  return for_each_group(grouped, [](const Group& group) { return check_scaled_linear(group.linear); });
}

Result<void> grouped_linear(const GroupedLinear& grouped, const GroupedPlan& plan,
                            const bp_implementation& implementation, int threads) {
  return for_each_group(grouped, [&](const Group& group) -> Result<void> {
    const Product product = [&](const GemmCall& call, const LinearSchedule& schedule) -> Result<void> {
      if ((implementation.flags & BP_IMPL_PEER) != 0) {
        return run_scheduled(call, {fast_segment(call.m, call.k), 0}, threads);
      }
      if (implementation.mode == BP_MODE_FAST) return multiply_fast(grouped, group, call, threads);
      switch (plan.defect) {
        case GroupedDefect::tile_from_load:
          return run_scheduled(call, {segment_of_load(call.m), 0}, threads);
        case GroupedDefect::k_starts_at_rank:
          return multiply_from_rank(grouped, group, call, threads);
        case GroupedDefect::edge_tile:
          return multiply_by_tile(grouped, group, call, schedule, threads);
        case GroupedDefect::expert_scale:
          return run_linear_control(LinearDefect::batch_scale,
                                    {call, threads, static_cast<int>(grouped.owner), BP_MODE_INVARIANT, nullptr});
        case GroupedDefect::none:
        case GroupedDefect::padded_row_leak:
        case GroupedDefect::shared_tile:
          break;
      }
      return run_scheduled(call, schedule, threads);
    };
    const Result<void> done = scaled_linear(group.linear, {plan.segment, 0}, threads, product);
    if (done && plan.defect == GroupedDefect::padded_row_leak) leak_padded_rows(grouped, group);
    return done;
  });
}

Result<void> grouped_linear_reference(const GroupedLinear& grouped) {
  return for_each_group(grouped, [](const Group& group) { return scaled_linear_reference(group.linear); });
}

Result<void> rows_to_experts(const bp_context* context, const Routing& routing, const char* what, const RowBuffer& own,
                             const RowBuffer& between, const RowBuffer& landed) {
  const std::int64_t rank = context->rank;
  const Result<void> done = exchange(context, what, own, own_rows(routing, rank), between, landed_rows(routing, rank));
  if (!done) return done;
  for_each_block(routing, rank, [&](std::int64_t by_rank, std::int64_t by_expert, std::int64_t count) {
    std::memcpy(landed.row(by_expert), between.row(by_rank), static_cast<std::size_t>(count) * landed.line);
  });
  return {};
}

Result<void> rows_from_experts(const bp_context* context, const Routing& routing, const char* what,
                               const RowBuffer& landed, const RowBuffer& between, const RowBuffer& own) {
  const std::int64_t rank = context->rank;
  for_each_block(routing, rank, [&](std::int64_t by_rank, std::int64_t by_expert, std::int64_t count) {
    std::memcpy(between.row(by_rank), landed.row(by_expert), static_cast<std::size_t>(count) * landed.line);
  });
  return exchange(context, what, between, landed_rows(routing, rank), own, own_rows(routing, rank));
}

}  // namespace batchproof
