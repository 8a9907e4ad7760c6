// SPDX-License-Identifier: Apache-2.0
#include "src/check/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "src/numeric/dtype.h"
#include "src/runtime/expression.h"

namespace batchproof {
namespace {

std::int64_t product(const std::int64_t* values, int begin, int end) {
  std::int64_t result = 1;
  for (int i = begin; i < end; ++i) result *= values[i];
  return result;
}

Expression::Lookup axis_lookup(const Problem& problem) {
  return [&problem](std::string_view symbol) -> std::optional<std::int64_t> {
    if (symbol == "W") return problem.world;
    const auto found = problem.axes.find(std::string(symbol));
    if (found == problem.axes.end()) return std::nullopt;
    return found->second;
  };
}

// Row-major strides, with the two axes of `transposed_axes` exchanged in storage.
void fill_strides(const bp_port& port, bool transposed, PortLayout* layout) {
  int order[BP_MAX_DIMS];
  for (int axis = 0; axis < layout->ndim; ++axis) order[axis] = axis;
  if (transposed) {
    int first = -1;
    for (int axis = 0; axis < layout->ndim; ++axis) {
      if ((port.transposed_axes >> axis & 1u) == 0) continue;
      if (first < 0) {
        first = axis;
      } else {
        std::swap(order[first], order[axis]);
      }
    }
  }
  std::int64_t stride = 1;
  for (int place = layout->ndim - 1; place >= 0; --place) {
    layout->stride[order[place]] = stride;
    stride *= std::max<std::int64_t>(layout->shape[order[place]], 1);
  }
}

// Splits a row's elements at a sharded axis that is not the row axis.
void fill_row_split(const bp_port& port, int world, PortLayout* layout) {
  const int row_axis = layout->rows >= 0 ? port.row_axis : -1;
  std::int64_t inner_shape[BP_MAX_DIMS];
  int inner_ndim = 0;
  int sharded = -1;
  for (int axis = 0; axis < layout->ndim; ++axis) {
    if (axis == row_axis) continue;
    if (port.distribution == BP_SHARDED && axis == port.sharded_axis) sharded = inner_ndim;
    inner_shape[inner_ndim++] = layout->shape[axis];
  }
  layout->inner = product(inner_shape, 0, inner_ndim);
  layout->extent = layout->inner;
  if (sharded >= 0) {
    layout->pre = product(inner_shape, 0, sharded);
    layout->extent = inner_shape[sharded];
    layout->post = product(inner_shape, sharded + 1, inner_ndim);
    layout->shards = world;
  }
  layout->rows_sharded = layout->rows >= 0 && port.distribution == BP_SHARDED && port.sharded_axis == port.row_axis;
}

bool bool_attr(const Problem& problem, const char* name) {
  if (name == nullptr) return false;
  const auto found = problem.attrs.find(name);
  return found != problem.attrs.end() && std::holds_alternative<bool>(found->second) && std::get<bool>(found->second);
}

}  // namespace

std::int64_t PortLayout::elements() const { return product(shape, 0, ndim); }
std::size_t PortLayout::bytes() const { return dtype_bytes(dtype, elements()); }
std::size_t PortLayout::row_bytes() const { return dtype_bytes(dtype, inner); }
std::size_t PortLayout::logical_row_bytes() const { return dtype_bytes(dtype, inner * shards); }

bool PortLayout::rows_contiguous() const {
  std::int64_t expected = 1;
  for (int axis = ndim - 1; axis >= 0; --axis) {
    if (rows >= 0 && axis == port->row_axis) continue;
    if (shape[axis] != 1 && stride[axis] != expected) return false;
    expected *= shape[axis];
  }
  return true;
}

bool PortLayout::sharded_by_experts() const {
  return present() && !is_output() && rows < 0 && port->distribution == BP_SHARDED && port->sharded_axis == 0;
}

bool PortLayout::order_exact() const { return exact_inputs || declared_exact(); }

std::vector<const PortLayout*> Layout::outputs() const {
  std::vector<const PortLayout*> list;
  for (const PortLayout& port : ports) {
    if (port.is_output() && port.carries_rows()) list.push_back(&port);
  }
  return list;
}

std::int64_t Layout::row_block() const {
  std::int64_t block = 1;
  for (const PortLayout& port : ports) {
    if (port.carries_rows()) block = std::max(block, port.row_block);
  }
  return block;
}

std::vector<bp_location> Layout::locations(OperatorHost& host, std::int64_t position) const {
  if (auto own = host.locate(problem, position)) return *std::move(own);
  std::vector<bp_location> list;
  for (const PortLayout& port : ports) {
    if (!port.carries_rows()) continue;
    const auto entries = [&](std::int64_t count) { return (count + port.row_block - 1) / port.row_block; };
    if (port.rows_sharded) {
      const std::int64_t own = rows / problem.world;  // of one rank
      if (own == 0 || own * problem.world != rows || port.rows != entries(own)) continue;
      list.push_back({port.index, static_cast<std::int32_t>(position / own), position % own / port.row_block});
    } else if (port.rows == entries(rows)) {
      for (int rank = 0; rank < problem.world; ++rank) list.push_back({port.index, rank, position / port.row_block});
    }
  }
  return list;
}

std::int64_t Layout::experts() const {
  const auto attr = problem.attrs.find(kRoutingAttr);
  if (attr == problem.attrs.end() || !std::holds_alternative<std::string>(attr->second)) return 0;
  for (const PortLayout& port : ports) {
    if (port.holds_experts()) return port.shape[0] * problem.world;
  }
  return 0;
}

std::int64_t Layout::expert_of(OperatorHost& host, std::int64_t position) const {
  for (const bp_location& place : locations(host, position)) {
    const PortLayout& port = ports[place.port];
    if (port.holds_experts()) return place.rank * port.shape[0] + place.index;
  }
  return -1;
}

Result<std::int64_t> logical_rows(const bp_operator& table, const Problem& problem) {
  auto rows = Expression::parse(table.rows);
  if (!rows) return tl::unexpected(rows.error());
  return rows->evaluate(axis_lookup(problem));
}

Result<Layout> make_layout(OperatorHost& host, const Problem& problem) {
  const bp_operator& table = host.table();
  Layout layout;
  layout.problem = problem;
  const auto row_count = logical_rows(table, problem);
  if (!row_count) return tl::unexpected(row_count.error());
  layout.rows = *row_count;
  auto tensors = host.shapes(problem);
  if (!tensors) return tl::unexpected(tensors.error());
  for (std::uint32_t i = 0; i < table.port_count; ++i) {
    const bp_port& port = table.ports[i];
    PortLayout entry;
    entry.index = i;
    entry.port = &port;
    entry.dtype = problem.dtypes[i];
    entry.ndim = (*tensors)[i].ndim;
    std::copy_n((*tensors)[i].shape, BP_MAX_DIMS, entry.shape);
    if (entry.present()) {
      if (port.row_axis >= 0) entry.rows = entry.shape[port.row_axis];
      entry.row_block = std::max(port.row_block, 1);
      fill_strides(port, bool_attr(problem, port.transposed_by), &entry);
      fill_row_split(port, problem.world, &entry);
    }
    layout.ports.push_back(entry);
  }
  const bool exact = std::any_of(layout.ports.begin(), layout.ports.end(), [](const PortLayout& port) {
    const bool factor = port.present() && (port.port->kind == BP_ROW_INPUT || port.port->kind == BP_WEIGHT);
    return factor && port.order_exact();
  });
  for (PortLayout& port : layout.ports) port.exact_inputs = exact && port.is_output();
  return layout;
}

Result<std::vector<bp_tensor>> symbolic_shapes(const bp_operator& table, const Problem& problem) {
  std::vector<bp_tensor> tensors(table.port_count);
  for (std::uint32_t i = 0; i < table.port_count; ++i) {
    bp_tensor& tensor = tensors[i];
    tensor.dtype = problem.dtypes[i];
    if (tensor.dtype == BP_NONE) continue;
    auto shape = parse_shape(table.ports[i].shape);
    if (!shape) return tl::unexpected(shape.error());
    auto extents = evaluate_shape(*shape, axis_lookup(problem));
    if (!extents) return tl::unexpected(extents.error());
    if (extents->size() > BP_MAX_DIMS) {
      return fail(Error::Kind::usage, fmt::format("port {} of {} has {} axes; at most {} are possible",
                                                  table.ports[i].name, table.name, extents->size(), BP_MAX_DIMS));
    }
    tensor.ndim = static_cast<std::int32_t>(extents->size());
    std::copy(extents->begin(), extents->end(), tensor.shape);
  }
  return tensors;
}

Result<Problem> with_world(OperatorHost& host, const Problem& problem, int world) {
  const bp_operator& table = host.table();
  std::set<std::string> divided;
  for (std::uint32_t i = 0; i < table.port_count; ++i) {
    const bp_port& port = table.ports[i];
    if (port.distribution != BP_SHARDED || problem.dtypes[i] == BP_NONE) continue;
    auto shape = parse_shape(port.shape);
    if (!shape || port.sharded_axis >= static_cast<int>(shape->size())) continue;
    const Expression& extent = (*shape)[static_cast<std::size_t>(port.sharded_axis)];
    if (extent.is_single_symbol() && port.kind != BP_OUTPUT) divided.insert(extent.symbols().front());
  }
  Problem result = problem;
  result.world = world;
  for (const std::string& name : divided) {
    const std::int64_t total = problem.axis(name) * problem.world;
    if (total % world != 0) {
      return fail(Error::Kind::operation,
                  fmt::format("{} = {} over {} ranks does not divide over {}", name, total, problem.world, world));
    }
    result.axes[name] = total / world;
  }
  auto valid = host.validate(result);
  if (!valid) return tl::unexpected(valid.error());
  return result;
}

std::vector<ReductionGroup> reduction_groups(const Layout& layout) {
  std::map<std::string, ReductionGroup> groups;
  for (const PortLayout& port : layout.ports) {
    if (!port.present() || port.is_output() || port.port->reduction_group == nullptr || port.port->reduction_axes == 0)
      continue;
    ReductionGroup& group = groups[port.port->reduction_group];
    group.name = port.port->reduction_group;
    group.block = std::max<std::int64_t>(group.block, port.port->reduction_block);
    // A block scale covers a rounded-up length; the true one is that of a port with single entries.
    if (port.port->reduction_block > 1) continue;
    std::int64_t length = 1;
    for (int axis = 0; axis < port.ndim; ++axis) {
      if ((port.port->reduction_axes >> axis & 1u) == 0) continue;
      length *= port.shape[axis];
      const bool sharded = port.port->distribution == BP_SHARDED && port.port->sharded_axis == axis;
      if (sharded) length *= layout.problem.world;
    }
    group.length = std::max(group.length, length);
  }
  std::vector<ReductionGroup> list;
  for (auto& [name, group] : groups) list.push_back(group);
  return list;
}

std::vector<ElementPlace> element_places(const PortLayout& port) {
  std::int64_t extents[BP_MAX_DIMS] = {};
  const int skipped = port.rows >= 0 ? port.port->row_axis : -1;
  std::int64_t count = 1;
  for (int axis = 0; axis < port.ndim; ++axis) {
    extents[axis] = port.shape[axis];
    if (port.shards > 1 && axis == port.port->sharded_axis) extents[axis] *= port.shards;
    if (axis != skipped) count *= extents[axis];
  }
  std::vector<ElementPlace> places(static_cast<std::size_t>(count));
  std::int64_t at[BP_MAX_DIMS] = {};
  for (ElementPlace& place : places) {
    for (int axis = 0; axis < port.ndim; ++axis) {
      if (axis == skipped) continue;
      std::int64_t& index = (port.port->reduction_axes >> axis & 1u) != 0 ? place.entry : place.other;
      index = index * extents[axis] + at[axis];
    }
    for (int axis = port.ndim - 1; axis >= 0; --axis) {
      if (axis == skipped) continue;
      if (++at[axis] < extents[axis]) break;
      at[axis] = 0;
    }
  }
  return places;
}

}  // namespace batchproof
