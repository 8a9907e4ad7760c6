// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/cpu/grouped_ports.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "batchproof/problem.h"
#include "src/kernels/cpu/scaled_operand.h"
#include "src/numeric/divide.h"
#include "src/numeric/dtype.h"

namespace batchproof {
namespace {

// One product: its ports and the names for messages.
struct ProductPorts {
  std::uint32_t x, w, y, x_scale, w_scale;
  const char *x_name, *w_name, *y_name;
};

bool has(const bp_dtype* dtypes, std::uint32_t port) { return dtypes[port] != BP_NONE; }

std::string dtype_error(const bp_dtype* dtypes, const ProductPorts& ports, Scaling scaling) {
  const bp_dtype x = dtypes[ports.x];
  const bp_dtype w = dtypes[ports.w];
  const bp_dtype y = dtypes[ports.y];
  const auto wrong = [](const std::string& name, bp_dtype dtype, const std::string& right) {
    return fmt::format("{} has the dtype {}; it must be {}", name, dtype_name(dtype), right);
  };
  if (scaling == Scaling::none) {
    if (x != BP_FP32 && x != BP_BF16 && x != BP_FP16) {
      return wrong(ports.x_name, x, is_quantised(x) ? "fp32, bf16 or fp16 without scales" : "fp32, bf16 or fp16");
    }
    if (w != x) return wrong(ports.w_name, w, fmt::format("that of {}, {}", ports.x_name, dtype_name(x)));
    if (y != x && y != BP_FP32) return wrong(ports.y_name, y, fmt::format("{} or fp32", dtype_name(x)));
    return "";
  }
  for (const auto& [name, dtype] : {std::pair(ports.x_name, x), std::pair(ports.w_name, w)}) {
    if (dtype != BP_E4M3 && dtype != BP_E5M2) return wrong(name, dtype, "e4m3 or e5m2 with MX scales");
  }
  if (y != BP_FP32 && y != BP_BF16 && y != BP_FP16) return wrong(ports.y_name, y, "fp32, bf16 or fp16");
  for (const auto& [of, scale] :
       {std::pair(ports.x_name, dtypes[ports.x_scale]), std::pair(ports.w_name, dtypes[ports.w_scale])}) {
    if (scale != BP_E8M0) return wrong(fmt::format("{}_scale", of), scale, "e8m0, for MX scales both products have");
  }
  return "";
}

std::string range_error(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return "";
  return fmt::format("{} = {} is outside the strict limits; it must be {} to {}", name, value, least, most);
}

// What AlltoAllvGroupedMatMul, GroupedMatMulAlltoAllv and their quantised sisters document (CANN ops-transformer,
// mc2/allto_allv_grouped_mat_mul/docs, mc2/grouped_mat_mul_allto_allv/docs, ..._quant_grouped_mat_mul/docs).
std::string strict_error(const bp_problem* problem, const GroupedForm& form, const Routing& routing) {
  const bp_dtype* dtypes = problem->dtypes;
  const bool shared = has(dtypes, kMmX);
  const bool mx = grouped_scaling(dtypes) == Scaling::mx;
  constexpr std::array<int, 5> kWorlds = {8, 16, 32, 64, 128};
  if (std::find(kWorlds.begin(), kWorlds.end(), problem->world) == kWorlds.end()) {
    return fmt::format("W = {} is outside the strict limits; it must be 8, 16, 32, 64 or 128", problem->world);
  }
  const std::int64_t experts = bp_axis_value(problem, "E");
  for (const std::string& wrong : {range_error("M", bp_axis_value(problem, "M"), 1, 52428799),
                                   range_error("K", bp_axis_value(problem, "K"), 1, 65535),
                                   range_error("N", bp_axis_value(problem, "N"), 1, 65535),
                                   range_error("E", experts, 1, mx ? 32 : form.most_experts),
                                   range_error("W * E", problem->world * experts, 1, mx ? 256 : 384),
                                   shared ? range_error("K2", bp_axis_value(problem, "K2"), 1, 12288) : "",
                                   shared ? range_error("N2", bp_axis_value(problem, "N2"), 1, 65535) : "",
                                   shared ? range_error("TOPK", bp_axis_value(problem, "TOPK"), 2, 8) : ""}) {
    if (!wrong.empty()) return wrong;
  }
  if (dtypes[kGmmX] == BP_FP32) return "gmm_x has the dtype fp32; under strict_limits it must be bf16 or fp16";
  for (const auto& [port, name] : {std::pair(kGmmY, form.output), std::pair(kMmY, "mm_y")}) {
    if (!has(dtypes, port)) continue;
    const bool suits = mx ? dtypes[port] != BP_FP32 : dtypes[port] == dtypes[kGmmX];
    if (!suits) {
      return fmt::format("{} has the dtype {}; under strict_limits it must be {}", name, dtype_name(dtypes[port]),
                         mx ? "bf16 or fp16" : fmt::format("that of gmm_x, {}", dtype_name(dtypes[kGmmX])));
    }
  }
  for (std::int64_t rank = 0; rank < problem->world; ++rank) {
    if (routing.sent(rank) == bp_axis_value(problem, "M")) continue;
    return fmt::format("rank {} routes {} of its {} rows; under strict_limits it routes all", rank, routing.sent(rank),
                       bp_axis_value(problem, "M"));
  }
  return "";
}

// The counts of the experts' side say the same as those of the rows' side.
std::string owner_counts_error(const bp_problem* problem, const GroupedForm& form, const Routing& routing) {
  const std::string text = bp_attr_string(problem, form.owner_counts);
  // A list of experts stands in place of all counts.
  if (text.empty() || is_routing_list(bp_attr_string(problem, "routing"))) return "";
  if (bp_attr_string(problem, form.row_counts)[0] == '\0') {
    return fmt::format("{} is there and {} is not; give both, or {} alone", form.owner_counts, form.row_counts,
                       form.row_counts);
  }
  const auto list = integer_list(form.owner_counts, text);
  if (!list) return list.error().message;
  const std::int64_t world = problem->world;
  const std::int64_t experts = world * routing.experts();
  const auto given = static_cast<std::int64_t>(list->size());
  if (given != experts && given != world * experts) {
    return fmt::format("{} has {} entries; it must have W * E = {}, or W times as many for each rank in turn",
                       form.owner_counts, given, experts);
  }
  for (std::int64_t owner = 0; owner < world; ++owner) {
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::int64_t rank = e / routing.experts();
      const std::int64_t expert = e % routing.experts();
      const std::int64_t written = (*list)[static_cast<std::size_t>(given == experts ? e : owner * experts + e)];
      if (written == routing.count(rank, owner, expert)) continue;
      return fmt::format("{} has {} rows between rank {} and expert {} of rank {}; {} has {}", form.owner_counts,
                         written, rank, expert, owner, form.row_counts, routing.count(rank, owner, expert));
    }
  }
  return "";
}

ScaledLinear shared_linear(const bp_context* context, const bp_tensor* tensors) {
  ScaledLinear linear;
  linear.scaling = grouped_scaling(context->problem->dtypes);
  linear.x = &tensors[kMmX];
  linear.w = &tensors[kMmWeight];
  linear.y = &tensors[kMmY];
  if (linear.scaling == Scaling::mx) {
    linear.x_scale = &tensors[kMmXScale];
    linear.w_scale = &tensors[kMmWeightScale];
  }
  return linear;
}

void set_shape(bp_tensor* tensor, std::initializer_list<std::int64_t> shape) {
  tensor->ndim = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), tensor->shape);
}

}  // namespace

std::uint32_t grouped_promises(const bp_implementation* implementation, const bp_device* device) {
  const std::uint32_t promised = gathered_promises(implementation, device);
  return (promised & BP_POSITION) != 0 ? promised | BP_ROUTING : promised;
}

std::string grouped_problem_error(const bp_problem* problem, const GroupedForm& form) {
  if (problem->world < 1) return fmt::format("W = {} is out of range; it must be at least 1", problem->world);
  const bp_dtype* dtypes = problem->dtypes;
  const int shared_ports = has(dtypes, kMmX) + has(dtypes, kMmWeight) + has(dtypes, kMmY);
  for (const auto& [port, name] :
       {std::pair(kMmX, "mm_x"), std::pair(kMmWeight, "mm_weight"), std::pair(kMmY, "mm_y")}) {
    if (shared_ports != 0 && !has(dtypes, port)) {
      return fmt::format("mm_x, mm_weight and mm_y go together; {} is missing", name);
    }
  }
  const bool shared = shared_ports != 0;
  std::vector<std::pair<const char*, std::int64_t>> least = {{"M", 0}, {"K", 1}, {"N", 1}, {"E", 1}};
  if (shared) least.insert(least.end(), {{"TOPK", 1}, {"K2", 1}, {"N2", 1}});
  for (const auto& [name, at_least] : least) {
    if (std::string wrong = extent_error(name, bp_axis_value(problem, name), at_least); !wrong.empty()) return wrong;
  }
  const std::int64_t rows = bp_axis_value(problem, "M");
  const std::int64_t experts = bp_axis_value(problem, "E");
  for (const auto& [name, value] :
       {std::pair("W * M", problem->world * rows), std::pair("W * E", problem->world * experts)}) {
    if (std::string wrong = extent_error(name, value, 0); !wrong.empty()) return wrong;
  }
  if (shared && rows % bp_axis_value(problem, "TOPK") != 0) {
    return fmt::format("M = {} must be a multiple of TOPK = {}: a row of mm_x has so many routed rows", rows,
                       bp_axis_value(problem, "TOPK"));
  }
  const Scaling scaling = grouped_scaling(dtypes);
  const ProductPorts gmm = {kGmmX, kGmmWeight, kGmmY, kGmmXScale, kGmmWeightScale, "gmm_x", "gmm_weight", form.output};
  const ProductPorts mm = {kMmX, kMmWeight, kMmY, kMmXScale, kMmWeightScale, "mm_x", "mm_weight", "mm_y"};
  if (std::string wrong = dtype_error(dtypes, gmm, scaling); !wrong.empty()) return wrong;
  if (shared) {
    if (std::string wrong = dtype_error(dtypes, mm, scaling); !wrong.empty()) return wrong;
  }
  if (bp_attr_int(problem, "capacity") < 0) {
    return fmt::format("capacity = {} is out of range; it must be at least 0", bp_attr_int(problem, "capacity"));
  }
  const Result<Routing>& routing = routing_of(routing_request(problem, form.row_counts));
  if (!routing) return routing.error().message;
  if (std::string wrong = owner_counts_error(problem, form, *routing); !wrong.empty()) return wrong;
  return bp_attr_int(problem, "strict_limits") != 0 ? strict_error(problem, form, *routing) : "";
}

Result<Routing> grouped_routing(const bp_problem* problem, const GroupedForm& form) {
  return routing_of(routing_request(problem, form.row_counts));
}

bp_status grouped_shapes(const bp_problem* problem, const GroupedForm& form, bp_tensor* tensors, char* error,
                         std::size_t error_size) {
  const Result<Routing>& routing = routing_of(routing_request(problem, form.row_counts));
  if (!routing) {
    return bp_fail(error, error_size, BP_INVALID, "%s", routing.error().message.c_str());
  }
  const auto axis = [&](const char* name) { return bp_axis_value(problem, name); };
  const std::int64_t k = axis("K");
  const std::int64_t n = axis("N");
  const auto lies_with_rows = [&](std::uint32_t port) {
    return std::find(form.with_rows.begin(), form.with_rows.end(), port) != form.with_rows.end();
  };
  const auto rows_of = [&](std::uint32_t port) { return lies_with_rows(port) ? axis("M") : routing->most_received(); };
  set_shape(&tensors[kGmmX], {rows_of(kGmmX), k});
  set_shape(&tensors[kGmmXScale], {rows_of(kGmmXScale), blocks_of(k, 2 * kMxBlock), 2});
  set_shape(&tensors[kGmmWeight], {axis("E"), k, n});
  set_shape(&tensors[kGmmWeightScale], {axis("E"), blocks_of(k, 2 * kMxBlock), n, 2});
  set_shape(&tensors[kGmmY], {rows_of(kGmmY), n});
  for (const std::uint32_t port : form.with_experts) {
    if (port >= kGroupedPorts) set_shape(&tensors[port], {rows_of(port), k});  // the rows themselves, moved
  }
  // Absent where the axes are.
  const std::int64_t tokens = axis("TOPK") > 0 ? axis("M") / axis("TOPK") : 0;
  const std::int64_t k2 = std::max<std::int64_t>(axis("K2"), 0);
  const std::int64_t n2 = std::max<std::int64_t>(axis("N2"), 0);
  set_shape(&tensors[kMmX], {tokens, k2});
  set_shape(&tensors[kMmXScale], {tokens, blocks_of(k2, 2 * kMxBlock), 2});
  set_shape(&tensors[kMmWeight], {k2, n2});
  set_shape(&tensors[kMmWeightScale], {blocks_of(k2, 2 * kMxBlock), n2, 2});
  set_shape(&tensors[kMmY], {tokens, n2});
  return BP_OK;
}

std::size_t grouped_locate(const bp_problem* problem, const GroupedForm& form, std::int64_t row, bp_location* places,
                           std::size_t capacity) {
  const Result<Routing>& routing = routing_of(routing_request(problem, form.row_counts));
  if (!routing || row < 0 || row >= routing->row_count()) return 0;
  std::size_t count = 0;
  const auto add = [&](std::uint32_t port, std::int64_t rank, std::int64_t index) {
    if (!has(problem->dtypes, port)) return;
    if (count < capacity) places[count] = {port, static_cast<std::int32_t>(rank), index};
    ++count;
  };
  const Routing::Row& at = routing->row(row);
  // A row that is not sent has a place among its rank's inputs and none among outputs.
  for (const std::uint32_t port : form.with_rows) {
    if (at.owner >= 0 || port != kGmmY) add(port, at.rank, at.place);
  }
  for (const std::uint32_t port : form.with_experts) {
    if (at.owner >= 0) add(port, at.owner, at.landing);
  }
  if (at.owner >= 0) add(kGmmWeight, at.owner, at.expert);
  const std::int64_t rows = bp_axis_value(problem, "M");
  const std::int64_t own = row % rows;
  const std::int64_t choices = bp_axis_value(problem, "TOPK");
  if (choices > 0 && own % choices == 0 && own / choices < rows / choices) {
    for (const std::uint32_t port : {kMmX, kMmXScale, kMmY}) add(port, at.rank, own / choices);
  }
  return count;
}

Result<void> check_shared_expert(const bp_context* context, const bp_tensor* tensors) {
  if (!has(context->problem->dtypes, kMmX)) return {};
  if (const Result<void> fits = check_scaled_linear(shared_linear(context, tensors)); !fits) {
    return fail(fits.error().kind, fmt::format("mm_x . mm_weight: {}", fits.error().message));
  }
  return {};
}

Result<void> shared_expert(const bp_context* context, const bp_tensor* tensors, const GroupedPlan& plan) {
  if (!has(context->problem->dtypes, kMmX)) return {};
  const ScaledLinear linear = shared_linear(context, tensors);
  const std::int64_t rows = linear.x->shape[0];
  std::int64_t length = plan.segment;
  if (context->implementation->mode == BP_MODE_FAST) length = fast_segment(rows, linear.x->shape[1]);
  if (plan.defect == GroupedDefect::shared_tile) length = segment_of_load(rows);
  return scaled_linear(linear, {length, 0}, context->threads,
                       [&](const GemmCall& call, const LinearSchedule& schedule) {
                         return run_scheduled(call, schedule, context->threads);
                       });
}

Result<void> shared_expert_reference(const bp_context* context, const bp_tensor* tensors) {
  if (!has(context->problem->dtypes, kMmX)) return {};
  return scaled_linear_reference(shared_linear(context, tensors));
}

std::size_t grouped_buffer(std::int64_t rows, std::size_t line) {
  constexpr std::size_t kAlign = 64;
  return align_up(static_cast<std::size_t>(rows) * line, kAlign);
}

Result<RowBuffer> contiguous_rows(const char* name, const bp_tensor& tensor, std::int64_t count, char* room) {
  if (tensor.memory != BP_MEMORY_HOST) {
    return fail(Error::Kind::environment, fmt::format("{} must lie in host memory for a CPU implementation", name));
  }
  std::int64_t columns = 1;
  for (int axis = tensor.ndim - 1; axis > 0; --axis) {
    if (tensor.shape[axis] > 1 && tensor.stride[axis] != columns) {
      return fail(Error::Kind::usage, fmt::format("the elements of a row of {} must be contiguous", name));
    }
    columns *= tensor.shape[axis];
  }
  RowBuffer buffer = {static_cast<char*>(tensor.data), dtype_bytes(tensor.dtype, columns)};
  if (count <= 1 || tensor.stride[0] == columns) return buffer;
  for (std::int64_t i = 0; i < count; ++i)
    std::memcpy(room + static_cast<std::size_t>(i) * buffer.line,
                static_cast<const char*>(tensor.data) + dtype_bytes(tensor.dtype, i * tensor.stride[0]), buffer.line);
  buffer.data = room;
  return buffer;
}

}  // namespace batchproof
