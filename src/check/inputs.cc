// SPDX-License-Identifier: Apache-2.0
#include "src/check/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "src/check/device_inputs.h"
#include "src/numeric/dtype.h"
#include "src/numeric/seed.h"

namespace batchproof {
namespace {

bool is_cancelling(const RecipeSpec& spec) { return spec.kind == RecipeKind::cancelling; }

std::string shape_key(const PortLayout& port) {
  std::string key = fmt::format("{}:{}:", port.index, static_cast<int>(port.dtype));
  for (int axis = 0; axis < port.ndim; ++axis) key += fmt::format("{}/{},", port.shape[axis], port.stride[axis]);
  return key;
}

// For every element: the element whose content it takes where entry e takes that of from_entry[e].
std::vector<std::int64_t> moved_entries(const std::vector<ElementPlace>& places,
                                        const std::vector<std::int64_t>& from_entry) {
  std::int64_t others = 0;
  for (const ElementPlace& place : places) others = std::max(others, place.other + 1);
  std::vector<std::int64_t> element_of(places.size());
  for (std::size_t e = 0; e < places.size(); ++e)
    element_of[static_cast<std::size_t>(places[e].entry * others + places[e].other)] = static_cast<std::int64_t>(e);
  std::vector<std::int64_t> sources(places.size());
  for (std::size_t e = 0; e < places.size(); ++e) {
    const std::int64_t from = from_entry[static_cast<std::size_t>(places[e].entry)];
    sources[e] = element_of[static_cast<std::size_t>(from * others + places[e].other)];
  }
  return sources;
}

// For every element of a port's logical row (or tensor): the element whose content it takes under the permutation.
std::vector<std::int64_t> permuted_sources(const PortLayout& port, const std::vector<std::int64_t>& source) {
  const std::vector<ElementPlace> places = element_places(port);
  const std::int64_t block = port.port->reduction_block;
  std::int64_t entries = 0;
  for (const ElementPlace& place : places) entries = std::max(entries, place.entry + 1);
  std::vector<std::int64_t> from_entry;
  for (std::int64_t entry = 0; entry < entries; ++entry) {
    // Padding of a block scale lies beyond the reduction length and stays.
    const auto k = static_cast<std::size_t>(entry * block);
    from_entry.push_back(k < source.size() ? source[k] / block : entry);
  }
  return moved_entries(places, from_entry);
}

void gather_elements(bp_dtype dtype, const std::vector<std::int64_t>& sources, const std::byte* from, std::byte* to) {
  const int bits = dtype_bits(dtype);
  if (bits < 8) {
    for (std::size_t e = 0; e < sources.size(); ++e) {
      const auto s = static_cast<std::size_t>(sources[e]);
      const unsigned code = std::to_integer<unsigned>(from[s / 2]) >> (s % 2 * 4) & 0xFu;
      const std::byte mask{static_cast<unsigned char>(0xFu << (e % 2 * 4))};
      to[e / 2] = (to[e / 2] & ~mask) | std::byte{static_cast<unsigned char>(code << (e % 2 * 4))};
    }
    return;
  }
  const std::size_t size = static_cast<std::size_t>(bits) / 8;
  for (std::size_t e = 0; e < sources.size(); ++e)
    std::memcpy(to + e * size, from + static_cast<std::size_t>(sources[e]) * size, size);
}

// ---- scales that several rows share ----

// Rows among which a port counts its blocks.
std::int64_t rows_of_blocks(const Layout& layout, const PortLayout& port) {
  return port.rows_sharded ? std::max<std::int64_t>(layout.rows / layout.problem.world, 1) : layout.rows;
}

bool begins_block(const Layout& layout, const PortLayout& port, std::int64_t position) {
  return position % rows_of_blocks(layout, port) % port.row_block == 0;
}

// The identity of the scale of the block that begins at `position`. A scale goes with the row that keeps its content:
// the first one that is neither re-seeded nor poisoned, else the first. A row belongs to block row / row_block.
RowIdentity block_identity(const Layout& layout, const PortLayout& port, const Assignment& rows, std::uint64_t row_seed,
                           std::int64_t position) {
  const std::int64_t own = rows_of_blocks(layout, port);
  const std::int64_t end = std::min(position + port.row_block, position / own * own + own);
  std::int64_t anchor = position;
  for (std::int64_t p = position; p < end; ++p) {
    const RowIdentity& row = rows[static_cast<std::size_t>(p)];
    if (row.seed != row_seed || row.poison) continue;
    anchor = p;
    break;
  }
  RowIdentity identity = rows[static_cast<std::size_t>(anchor)];
  identity.row /= static_cast<std::uint64_t>(port.row_block);
  return identity;
}

// For every element of a scale: the element whose content it takes so that partner blocks have equal scales.
std::vector<std::int64_t> partner_sources(const PortLayout& port, const CancellingPairs& pairs) {
  std::vector<std::int64_t> block_of;
  const std::vector<ElementPlace> places = element_places(port);
  std::int64_t entries = 0;
  for (const ElementPlace& place : places) entries = std::max(entries, place.entry + 1);
  for (std::int64_t entry = 0; entry < entries; ++entry) block_of.push_back(pairs.canonical_block(entry));
  return moved_entries(places, block_of);
}

// As numbers: an integer's negative is more than another sign bit. Floats of whole bytes have it in their last one.
void negate_elements(bp_dtype dtype, std::int64_t count, std::byte* data) {
  if (is_floating(dtype) && dtype_bits(dtype) >= 8) {
    const std::size_t size = static_cast<std::size_t>(dtype_bits(dtype)) / 8;
    for (std::int64_t e = 0; e < count; ++e) data[static_cast<std::size_t>(e + 1) * size - 1] ^= std::byte{0x80};
    return;
  }
  for (std::int64_t e = 0; e < count; ++e) encode_element(dtype, -decode_element(dtype, data, e), data, e);
}

// Lines of a weight whose reduction index follows the line: both members of a pair have the line of the lower one, the
// upper one negated; a line without a partner is zero, because nothing cancels it. `extents` of the whole tensor.
std::vector<std::byte> paired_lines(const PortLayout& port, const std::int64_t* extents, const CancellingPairs& pairs,
                                    const std::vector<std::byte>& lines) {
  const std::vector<ElementPlace> places = element_places(port);
  const std::int64_t columns = extents[port.ndim - 1];
  // The nearest line with another index, all other axes equal, is this far away.
  std::int64_t step = 1;
  for (int axis = port.ndim - 2; axis >= 0 && (port.port->reduction_axes >> axis & 1u) == 0; --axis)
    step *= extents[axis];
  const std::size_t line_bytes = dtype_bytes(port.dtype, columns);
  std::vector<std::byte> paired(lines.size());
  for (std::size_t line = 0; line * line_bytes < lines.size(); ++line) {
    const std::int64_t k = places[line * static_cast<std::size_t>(columns)].entry;
    if (pairs.unpaired(k)) continue;
    const std::size_t from = line - static_cast<std::size_t>((k - pairs.canonical(k)) * step);
    std::byte* to = paired.data() + line * line_bytes;
    std::memcpy(to, lines.data() + from * line_bytes, line_bytes);
    if (pairs.negated(k)) negate_elements(port.dtype, columns, to);
  }
  return paired;
}

}  // namespace

Permutation random_permutation(const Layout& layout, std::uint64_t seed) {
  Permutation permutation;
  for (const ReductionGroup& group : reduction_groups(layout)) {
    if (group.length == 0) continue;
    std::vector<std::int64_t> source(static_cast<std::size_t>(group.length));
    std::iota(source.begin(), source.end(), 0);
    const std::int64_t blocks = group.length / group.block;  // a short last block stays where it is
    for (std::int64_t i = blocks - 1; i > 0; --i) {
      const std::int64_t j = static_cast<std::int64_t>(
          mix64(seed ^ name_hash(group.name), static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(i + 1));
      for (std::int64_t lane = 0; lane < group.block; ++lane)
        std::swap(source[static_cast<std::size_t>(i * group.block + lane)],
                  source[static_cast<std::size_t>(j * group.block + lane)]);
    }
    permutation[group.name] = std::move(source);
  }
  return permutation;
}

InputBuilder::InputBuilder(OperatorHost& host, std::vector<RecipeSpec> recipes, std::uint64_t seed,
                           std::uint64_t row_seed, bool equal_weights, ContentCache* shared)
    : host_(host),
      recipes_(std::move(recipes)),
      seed_(seed),
      row_seed_(row_seed),
      equal_weights_(equal_weights),
      own_(shared == nullptr ? std::make_unique<ContentCache>() : nullptr),
      contents_(shared == nullptr ? *own_ : *shared) {}

Result<void> InputBuilder::load_captured() {
  for (std::uint32_t port = 0; port < recipes_.size(); ++port) {
    if (recipes_[port].kind != RecipeKind::file) continue;
    auto array = NpyArray::read(recipes_[port].file);
    if (!array) return tl::unexpected(array.error());
    captured_.emplace(port, *std::move(array));
  }
  return {};
}

FillRequest InputBuilder::request_for(const PortLayout& port, std::uint64_t seed, std::uint64_t base_seed) const {
  FillRequest request;
  request.spec = recipes_[port.index];
  request.dtype = port.dtype;
  request.seed = seed;
  request.base_seed = base_seed;
  request.name = name_hash(port.port->name);
  request.scale = port.port->kind == BP_SCALE;
  const auto captured = captured_.find(port.index);
  if (captured != captured_.end()) request.captured = &captured->second;
  return request;
}

const CancellingPairs* InputBuilder::pairs(const Layout& layout, const PortLayout& port) {
  if (port.port->reduction_group == nullptr || port.port->reduction_axes == 0) return nullptr;
  for (const ReductionGroup& group : reduction_groups(layout)) {
    if (group.name != port.port->reduction_group || group.length == 0) continue;
    auto& slot = pairs_[fmt::format("{}:{}:{}", group.name, group.length, group.block)];
    if (!slot) slot = std::make_unique<CancellingPairs>(seed_ ^ name_hash(group.name), group.length, group.block);
    return slot.get();
  }
  return nullptr;
}

// Whether a scale belongs to tensors that cancel.
bool InputBuilder::cancels(const Layout& layout, const PortLayout& port) const {
  if (port.port->kind != BP_SCALE || port.port->reduction_axes == 0 || port.port->reduction_group == nullptr)
    return false;
  return std::any_of(layout.ports.begin(), layout.ports.end(), [&](const PortLayout& other) {
    return other.present() && is_cancelling(recipes_[other.index]) && other.port->reduction_group != nullptr &&
           std::string_view(other.port->reduction_group) == port.port->reduction_group;
  });
}

void InputBuilder::pair_scales(const Layout& layout, const PortLayout& port, Row* content) {
  const CancellingPairs* partner = cancels(layout, port) ? pairs(layout, port) : nullptr;
  if (partner == nullptr) return;
  Row paired(content->size());
  gather_elements(port.dtype, partner_sources(port, *partner), content->data(), paired.data());
  *content = std::move(paired);
}

std::string InputBuilder::content_name(const Layout& layout, const PortLayout& port) {
  const RecipeSpec& spec = recipes_[port.index];
  std::string name =
      fmt::format("{}:{}:{}:{}:{}:{}:{}", port.port->name, static_cast<int>(port.port->kind), recipe_name(spec),
                  static_cast<int>(port.dtype), seed_, row_seed_, port.port->reduction_axes);
  for (int axis = 0; axis < port.ndim; ++axis) {
    if (port.rows >= 0 && axis == port.port->row_axis) continue;
    const bool whole = port.port->distribution == BP_SHARDED && axis == port.port->sharded_axis;
    name += fmt::format(":{}", port.shape[axis] * (whole ? port.shards : 1));
  }
  const bool paired = is_cancelling(spec) || cancels(layout, port);
  if (const CancellingPairs* partner = paired ? pairs(layout, port) : nullptr; partner != nullptr)
    name += fmt::format(":{}:{}:{}:{}", port.port->reduction_group, partner->length(), partner->block(),
                        port.port->reduction_block);
  return name;
}

ContentCache::Content InputBuilder::logical_row(const Layout& layout, const PortLayout& port, std::uint64_t tensor,
                                                const RowIdentity& identity) {
  ContentCache::Key key{tensor, identity.row, identity.seed, 0,
                        identity.poison ? static_cast<int>(*identity.poison) : -1};
  std::memcpy(&key.magnitude, &identity.magnitude, sizeof key.magnitude);
  // Every row is the same one then.
  if (identity.poison) key.row = key.seed = key.magnitude = 0;
  return contents_.get(key, [&] {
    const std::int64_t elements = port.inner * port.shards;
    Row row(port.logical_row_bytes());
    if (identity.poison) {
      fill_poison(*identity.poison, port.dtype, elements, row.data());
    } else if (elements > 0) {
      FillRequest request = request_for(port, identity.seed, row_seed_);
      request.row = identity.row;
      request.count = elements;
      request.magnitude = identity.magnitude;
      if (is_cancelling(request.spec)) request.pairs = pairs(layout, port);
      make_inputs(host_.device(), request, 1, row.data());
      pair_scales(layout, port, &row);
    }
    return row;
  });
}

InputBuilder::Row InputBuilder::make_logical_weight(const Layout& layout, const PortLayout& port, std::uint64_t seed) {
  // "Row" is every axis but the last, flattened.
  std::int64_t extents[BP_MAX_DIMS];
  const bool slice = port.port->distribution == BP_SHARDED;
  for (int axis = 0; axis < port.ndim; ++axis)
    extents[axis] = port.shape[axis] * (slice && axis == port.port->sharded_axis ? port.shards : 1);
  const std::int64_t columns = port.ndim > 0 ? extents[port.ndim - 1] : 1;
  std::int64_t lines = 1;
  for (int axis = 0; axis + 1 < port.ndim; ++axis) lines *= extents[axis];

  const RecipeSpec& spec = recipes_[port.index];
  const CancellingPairs* partner = is_cancelling(spec) ? pairs(layout, port) : nullptr;
  const bool along_column = port.ndim > 0 && (port.port->reduction_axes >> (port.ndim - 1) & 1u) != 0;

  FillRequest request = request_for(port, seed, seed);
  request.count = columns;
  const std::size_t line_bytes = dtype_bytes(port.dtype, columns);
  Row logical(line_bytes * static_cast<std::size_t>(lines));
  request.reduction_input = partner != nullptr;
  if (partner != nullptr && along_column) {
    request.pairs = partner;
    request.negate_along_column = true;
  }
  make_inputs(host_.device(), request, lines, logical.data());
  if (partner != nullptr && !along_column) logical = paired_lines(port, extents, *partner, logical);
  pair_scales(layout, port, &logical);
  return logical;
}

ContentCache::Content InputBuilder::logical_weight(const Layout& layout, const PortLayout& port, std::uint64_t seed) {
  return contents_.get({contents_.number("weight:" + content_name(layout, port)), 0, seed, 0, -1},
                       [&] { return make_logical_weight(layout, port, seed); });
}

Result<Tensor> InputBuilder::weight(const Layout& layout, const PortLayout& port, int rank,
                                    const Permutation* permutation, const Placement& placement) {
  const bool own = port.port->distribution == BP_PER_RANK && !equal_weights_;
  const bool slice = port.port->distribution == BP_SHARDED;
  const std::string key =
      fmt::format("{}{}:{}:{}:{}:{}", shape_key(port), own || slice ? rank : 0, permutation != nullptr,
                  placement.offset, placement.padding, placement.padding > 0 ? placement.fill : 0);
  const auto found = weights_.find(key);
  if (found != weights_.end()) return found->second;

  const std::uint64_t seed = own ? mix64(seed_, static_cast<std::uint64_t>(rank) + 1) : seed_;
  const ContentCache::Content content = logical_weight(layout, port, seed);
  const std::byte* logical = content->data();
  Row moved;
  if (permutation != nullptr && port.port->reduction_group != nullptr && port.port->reduction_axes != 0 &&
      permutation->count(port.port->reduction_group) != 0) {
    moved.resize(content->size());
    gather_elements(port.dtype, permuted_sources(port, permutation->at(port.port->reduction_group)), logical,
                    moved.data());
    logical = moved.data();
  }

  auto tensor = Tensor::make(host_, port, placement);
  if (!tensor) return tensor;
  if (!slice || port.shards == 1) {
    write_all(port, *tensor, logical);
  } else {
    const std::size_t piece = dtype_bytes(port.dtype, port.extent * port.post);
    std::vector<std::byte> own_part(piece * static_cast<std::size_t>(port.pre));
    for (std::int64_t p = 0; p < port.pre; ++p)
      std::memcpy(own_part.data() + static_cast<std::size_t>(p) * piece,
                  logical + static_cast<std::size_t>(p * port.shards + rank) * piece, piece);
    write_all(port, *tensor, own_part.data());
  }
  weights_.emplace(key, *tensor);
  return tensor;
}

Result<Tensor> InputBuilder::equal_weight(const Layout& layout, const PortLayout& port, const Permutation* permutation,
                                          const Placement& placement) {
  auto first = weight(layout, port, 0, permutation, placement);
  if (!first || port.shape[0] == 0) return first;
  std::vector<std::byte> all(port.bytes());
  read_all(port, *first, all.data());
  const std::size_t slice = all.size() / static_cast<std::size_t>(port.shape[0]);
  for (std::size_t at = slice; at < all.size(); at += slice) std::memcpy(all.data() + at, all.data(), slice);
  auto tensor = Tensor::make(host_, port, placement);
  if (tensor) write_all(port, *tensor, all.data());
  return tensor;
}

Result<void> InputBuilder::fill_rows(const Layout& layout, const Assignment& rows, const Permutation* permutation,
                                     RunTensors* tensors) {
  std::vector<std::vector<std::int64_t>> sources(layout.ports.size());
  std::vector<Row> scratch(layout.ports.size());
  std::vector<std::uint64_t> numbers(layout.ports.size());
  for (const PortLayout& port : layout.ports) {
    if (!port.carries_rows() || port.is_output()) continue;
    numbers[port.index] = contents_.number("row:" + content_name(layout, port));
    if (permutation == nullptr) continue;
    if (port.port->reduction_group == nullptr || permutation->count(port.port->reduction_group) == 0) continue;
    sources[port.index] = permuted_sources(port, permutation->at(port.port->reduction_group));
    scratch[port.index].resize(port.logical_row_bytes());
  }
  for (std::int64_t position = 0; position < layout.rows; ++position) {
    for (const bp_location& place : layout.locations(host_, position)) {
      const PortLayout& port = layout.ports[place.port];
      if (port.is_output() || !port.carries_rows() || port.inner == 0) continue;
      const bool shared = port.row_block > 1;
      if (shared && !begins_block(layout, port, position)) continue;
      const RowIdentity identity =
          shared ? block_identity(layout, port, rows, row_seed_, position) : rows[static_cast<std::size_t>(position)];
      const ContentCache::Content content = logical_row(layout, port, numbers[place.port], identity);
      const std::byte* data = content->data();
      if (!sources[place.port].empty()) {
        gather_elements(port.dtype, sources[place.port], data, scratch[place.port].data());
        data = scratch[place.port].data();
      }
      const Tensor& tensor = tensors->ranks[place.rank][place.port];
      if (port.shards == 1) {
        write_row(port, tensor, place.index, data);
        continue;
      }
      const std::size_t piece = dtype_bytes(port.dtype, port.extent * port.post);
      Row part(port.row_bytes());
      for (std::int64_t p = 0; p < port.pre; ++p)
        std::memcpy(part.data() + static_cast<std::size_t>(p) * piece,
                    data + static_cast<std::size_t>(p * port.shards + place.rank) * piece, piece);
      write_row(port, tensor, place.index, part.data());
    }
  }
  return {};
}

Result<RunTensors> InputBuilder::build(const Layout& layout, const Assignment& rows, const Permutation* permutation,
                                       const Placement& placement, bool equal_experts) {
  RunTensors tensors;
  tensors.ranks.resize(static_cast<std::size_t>(layout.problem.world));
  for (int rank = 0; rank < layout.problem.world; ++rank) {
    for (const PortLayout& port : layout.ports) {
      if (!port.present()) {
        tensors.ranks[rank].push_back(Tensor::absent(port));
        continue;
      }
      const bool shared = !port.is_output() && !port.carries_rows();
      const bool equal = equal_experts && port.sharded_by_experts();
      auto tensor = !shared ? Tensor::make(host_, port, placement)
                    : equal ? equal_weight(layout, port, permutation, placement)
                            : weight(layout, port, rank, permutation, placement);
      if (!tensor) return tl::unexpected(tensor.error());
      tensors.ranks[rank].push_back(*std::move(tensor));
    }
  }
  auto filled = fill_rows(layout, rows, permutation, &tensors);
  if (!filled) return tl::unexpected(filled.error());
  return tensors;
}

}  // namespace batchproof
