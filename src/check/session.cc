// SPDX-License-Identifier: Apache-2.0
#include "src/check/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "src/numeric/compare.h"
#include "src/numeric/dtype.h"
#include "src/numeric/seed.h"

namespace batchproof {
namespace {

Witness port_witness(Witness::Kind kind, const PortLayout& port, const CellSession::Moved& moved, std::string how) {
  Witness witness;
  witness.kind = kind;
  witness.rows_moved = moved.rows;
  witness.rows_total = moved.total;
  witness.how = std::move(how);
  witness.port = port.port->name;
  return witness;
}

// The expert of every position, as the attribute lists them.
std::string routing_list(const Assignment& rows, std::int64_t experts, std::uint64_t seed) {
  std::string list;
  for (const RowIdentity& row : rows) {
    const auto drawn =
        static_cast<std::int64_t>(mix64(mix64(seed, 0x4000u), row.row) % static_cast<std::uint64_t>(experts));
    list += fmt::format("{}{}", list.empty() ? "" : ",", row.expert.value_or(drawn));
  }
  return list;
}

// Records the difference of two images of a row.
void compare_images(const PortLayout& port, const Run::Image& a, const Run::Image& b, std::uint64_t row,
                    const std::string& what, bool* row_differs, Comparison* comparison) {
  comparison->bytes_compared += a.bytes;
  const RowDifference difference = compare_rows(port.dtype, a.data, b.data, a.elements);
  if (difference.equal()) return;
  *row_differs = true;
  comparison->bytes_differing += difference.bytes_differing;
  comparison->max_ulp = std::max(comparison->max_ulp, difference.max_ulp);
  if (comparison->first) return;
  Mismatch first;
  first.port = port.port->name;
  first.variant = what;
  first.row = static_cast<std::int64_t>(row);
  first.rank_a = a.rank;
  first.rank_b = b.rank;
  first.index_a = a.index;
  first.index_b = b.index;
  first.column = difference.first_element;
  first.byte = difference.first_byte;
  first.dtype = port.dtype;
  first.bytes_a = difference.hex_a;
  first.bytes_b = difference.hex_b;
  first.value_a = difference.value_a;
  first.value_b = difference.value_b;
  first.ulp = difference.ulp;
  comparison->first = std::move(first);
}

}  // namespace

std::vector<Run::Image> Run::images(OperatorHost& host, const PortLayout& port, std::int64_t position) const {
  std::vector<Image> list;
  for (const bp_location& place : layout.locations(host, position)) {
    if (place.port != port.index) continue;
    Image image;
    image.rank = place.rank;
    image.index = place.index;
    const Tensor& tensor = tensors.ranks[place.rank][port.index];
    image.bytes = port.row_bytes();
    image.elements = port.inner;
    if (port.rows_contiguous()) {
      image.data = tensor.at(place.index * tensor.view().stride[port.port->row_axis]);
    } else {
      image.storage.resize(image.bytes);
      read_row(port, tensor, place.index, image.storage.data());
      image.data = image.storage.data();
    }
    list.push_back(std::move(image));
  }
  if (port.shards == 1 || list.empty()) return list;
  // Slices of one logical row: put them together.
  Image whole;
  whole.rank = -1;
  whole.index = list.front().index;
  whole.bytes = port.logical_row_bytes();
  whole.elements = port.inner * port.shards;
  whole.storage.resize(whole.bytes);
  const std::size_t piece = dtype_bytes(port.dtype, port.extent * port.post);
  for (const Image& slice : list) {
    for (std::int64_t p = 0; p < port.pre; ++p)
      std::memcpy(whole.storage.data() + static_cast<std::size_t>(p * port.shards + slice.rank) * piece,
                  slice.data + static_cast<std::size_t>(p) * piece, piece);
  }
  whole.data = whole.storage.data();
  std::vector<Image> one;
  one.push_back(std::move(whole));
  return one;
}

CellSession::CellSession(const Cell& cell, OperatorHost& host, std::vector<RecipeSpec> recipes, std::uint64_t seed,
                         ContentCache* contents)
    : cell_(cell),
      host_(host),
      seed_(seed),
      inputs_(host, std::move(recipes), seed, variant_seed(0), /*equal_weights=*/true, contents) {}

int CellSession::base_threads(int world) const { return std::max(1, host_.processors() / world); }

std::uint64_t CellSession::variant_seed(int variant) const {
  return mix64(seed_, 0x1000u + static_cast<std::uint64_t>(variant));
}

RowIdentity CellSession::identity(std::uint64_t row) const {
  RowIdentity identity{row, variant_seed(0), 1.0, {}};
  if (row < base_experts_.size()) identity.expert = base_experts_[static_cast<std::size_t>(row)];
  return identity;
}

Assignment CellSession::assignment(std::int64_t rows) const {
  Assignment list(static_cast<std::size_t>(rows));
  for (std::size_t row = 0; row < list.size(); ++row) list[row] = identity(row);
  return list;
}

Variant CellSession::same() const {
  Variant variant;
  variant.problem = cell_.problem;
  variant.rows = base_ ? base_->rows : Assignment{};
  variant.implementation = cell_.impl;
  variant.mode = cell_.impl->mode;
  variant.comm_mode = cell_.comm_mode;
  variant.threads = base_threads(cell_.problem.world);
  return variant;
}

Result<void> CellSession::start() {
  auto loaded = inputs_.load_captured();
  if (!loaded) return tl::unexpected(loaded.error());
  auto layout = make_layout(host_, cell_.problem);
  if (!layout) return tl::unexpected(layout.error());
  experts_ = layout->experts();
  for (std::int64_t row = 0; experts_ > 0 && row < layout->rows; ++row)
    base_experts_.push_back(layout->expert_of(host_, row));
  Variant variant = same();
  variant.rows = assignment(layout->rows);
  auto made = run(variant);
  if (!made) return tl::unexpected(made.error());
  base_ = std::make_unique<Run>(*std::move(made));
  return {};
}

Problem CellSession::routed(Problem problem) const {
  const auto rows = base_experts_.empty() ? Result<std::int64_t>(0) : logical_rows(host_.table(), problem);
  if (rows && *rows > 0) problem.attrs[kRoutingAttr] = routing_list(assignment(*rows), experts_, seed_);
  return problem;
}

Result<Problem> CellSession::problem_of(const Variant& variant) {
  auto layout = make_layout(host_, variant.problem);
  if (!layout) return tl::unexpected(layout.error());
  if (static_cast<std::int64_t>(variant.rows.size()) != layout->rows)
    return fail(Error::Kind::internal,
                fmt::format("{} rows were placed in a problem of {}", variant.rows.size(), layout->rows));
  Problem problem = variant.problem;
  if (layout->experts() > 0) problem.attrs[kRoutingAttr] = routing_list(variant.rows, layout->experts(), seed_);
  return problem;
}

Result<Run> CellSession::run(const Variant& variant) {
  Run run;
  const auto problem = problem_of(variant);
  if (!problem) return tl::unexpected(problem.error());
  auto layout = make_layout(host_, *problem);
  if (!layout) return tl::unexpected(layout.error());
  run.layout = *std::move(layout);
  run.rows = variant.rows;
  auto tensors = inputs_.build(run.layout, run.rows, variant.permutation, variant.placement, variant.equal_experts);
  if (!tensors) return tl::unexpected(tensors.error());
  run.tensors = *std::move(tensors);

  RunRequest request;
  request.implementation = variant.implementation;
  request.problem = &run.layout.problem;
  request.mode = variant.mode;
  request.comm_mode = variant.comm_mode;
  request.threads = variant.threads;
  request.stream = variant.stream;
  request.captured = variant.captured;
  request.processors = variant.processors;
  request.workspace_fill = variant.workspace_fill;
  for (const auto& rank : run.tensors.ranks) {
    auto& views = request.tensors.emplace_back();
    for (const Tensor& tensor : rank) views.push_back(tensor.view());
  }
  const auto begin = std::chrono::steady_clock::now();
  auto outcome = host_.run(request);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ++runs_;
  if (!outcome) return tl::unexpected(outcome.error());
  // A plug-in's host has ended a call by now; an operator in this process can only be refused afterwards.
  if (cell_.timeout_s && seconds > *cell_.timeout_s)
    return fail(Error::Kind::operation, fmt::format("{} took {:.3g} s for one call; limits.timeout_s of the case is {}",
                                                    host_.table().name, seconds, *cell_.timeout_s));
  run.executed = outcome->executed;
  if (variant.mode == variant.implementation->mode && run.executed != variant.implementation->id) {
    return fail(
        Error::Kind::operation,
        run.executed.empty()
            ? fmt::format("{} did not report which implementation ran; bp_executed() does it", host_.table().name)
            : fmt::format("{} was requested but {} ran", variant.implementation->id, run.executed));
  }
  for (std::size_t rank = 0; rank < run.tensors.ranks.size(); ++rank) {
    for (std::size_t port = 0; port < run.tensors.ranks[rank].size(); ++port) {
      if (!run.tensors.ranks[rank][port].guards_intact())
        return fail(Error::Kind::operation, fmt::format("{} wrote outside {} on rank {}", host_.table().name,
                                                        host_.table().ports[port].name, rank));
    }
  }
  return run;
}

void CellSession::compare_row(const Run& a, std::int64_t position_a, const Run& b, std::int64_t position_b,
                              std::uint64_t row, const std::string& what, Comparison* comparison) const {
  bool differs = false;
  for (const PortLayout* port : a.layout.outputs()) {
    const auto images_a = a.images(host_, *port, position_a);
    const auto images_b = b.images(host_, b.layout.ports[port->index], position_b);
    if (images_a.size() == 1 && images_b.size() == 1) {
      compare_images(*port, images_a[0], images_b[0], row, what, &differs, comparison);
      continue;
    }
    // Copies on several ranks: the same observer before and after.
    for (const Run::Image& image_a : images_a) {
      for (const Run::Image& image_b : images_b) {
        if (image_a.rank == image_b.rank) compare_images(*port, image_a, image_b, row, what, &differs, comparison);
      }
    }
  }
  if (differs) ++comparison->rows_differing;
}

void CellSession::compare_copies(const Run& run, std::int64_t position, std::uint64_t row, const std::string& what,
                                 Comparison* comparison) const {
  bool differs = false;
  for (const PortLayout* port : run.layout.outputs()) {
    const auto images = run.images(host_, *port, position);
    for (std::size_t i = 1; i < images.size(); ++i)
      compare_images(*port, images[0], images[i], row, what, &differs, comparison);
  }
  if (differs) ++comparison->rows_differing;
}

CellSession::Moved CellSession::rows_moved(const Run& other, const PortLayout& port, std::int64_t except) const {
  Moved moved;
  const PortLayout& other_port = other.layout.ports[port.index];
  const std::int64_t common = std::min(base_->layout.rows, other.layout.rows);
  for (std::int64_t position = 0; position < common; ++position) {
    if (position == except) continue;
    const auto before = base_->images(host_, port, position);
    const auto after = other.images(host_, other_port, position);
    if (!before.empty() && !after.empty()) ++moved.total;
    for (std::size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
      if (std::memcmp(before[i].data, after[i].data, before[i].bytes) != 0) {
        ++moved.rows;
        break;
      }
    }
  }
  return moved;
}

Result<std::map<std::uint32_t, Witness>> CellSession::order_witness() {
  if (order_witness_) return *order_witness_;
  Variant variant = same();
  std::string how;
  Permutation permutation;
  const bp_implementation* other = nullptr;
  if (cell_.impl->order_witness != nullptr) {
    other = find_implementation(host_.table(), cell_.impl->order_witness);
    if (other == nullptr)
      return fail(Error::Kind::operation, fmt::format("{} names the order witness {}, which {} does not have",
                                                      cell_.impl->id, cell_.impl->order_witness, host_.table().name));
    variant.implementation = other;
    variant.mode = other->mode;
    how = fmt::format("order of {}", other->id);
  } else {
    permutation = random_permutation(base_->layout, mix64(seed_, 0x2000u));
    variant.permutation = &permutation;
    for (const auto& [name, source] : permutation) how += (how.empty() ? "" : ", ") + name;
    how = how.empty() ? "no reduction axis to permute" : how + " permuted";
  }
  std::map<std::uint32_t, Witness> witnesses;
  auto reordered = run(variant);
  if (!reordered) return tl::unexpected(reordered.error());
  for (const PortLayout* port : base_->layout.outputs())
    witnesses[port->index] = port_witness(Witness::Kind::order, *port, rows_moved(*reordered, *port, -1), how);
  order_witness_ = witnesses;
  return witnesses;
}

Result<std::map<std::uint32_t, Witness>> CellSession::leak_witness() {
  if (leak_witness_) return *leak_witness_;
  Variant variant = same();
  for (RowIdentity& identity : variant.rows) identity.seed = variant_seed(1);
  auto changed = run(variant);
  if (!changed) return tl::unexpected(changed.error());
  std::map<std::uint32_t, Witness> witnesses;
  for (const PortLayout* port : base_->layout.outputs())
    witnesses[port->index] =
        port_witness(Witness::Kind::leak, *port, rows_moved(*changed, *port, -1), "all rows re-seeded");
  leak_witness_ = witnesses;
  return witnesses;
}

Result<std::vector<std::int64_t>> CellSession::targets() const {
  std::vector<std::int64_t> list;
  const std::int64_t rows = base_->layout.rows;
  const std::vector<RowPosition> fallback = {
      {RowPosition::Kind::index, 0}, {RowPosition::Kind::mid, 0}, {RowPosition::Kind::last, 0}};
  const auto& wanted =
      cell_.standard.bi && !cell_.standard.bi->row_positions.empty() ? cell_.standard.bi->row_positions : fallback;
  for (const RowPosition& position : wanted) {
    std::int64_t row = position.index;
    if (position.kind == RowPosition::Kind::mid) row = rows / 2;
    if (position.kind == RowPosition::Kind::last) row = rows - 1;
    if (rows == 0) return list;
    if (row < 0 || row >= rows)
      return fail(Error::Kind::operation,
                  fmt::format("row position {} is out of range: the problem has {} logical rows, 0 to {}", row, rows,
                              rows - 1));
    if (std::find(list.begin(), list.end(), row) == list.end()) list.push_back(row);
  }
  return list;
}

}  // namespace batchproof
