// SPDX-License-Identifier: Apache-2.0
//
// position: the same rows in another order, so that every row changes its index, its place in a tile and its owner
// rank.
#include <fmt/format.h>

#include <set>

#include "src/check/relation.h"
#include "src/numeric/seed.h"

namespace batchproof {
namespace {

using Places = std::vector<std::int64_t>;

struct Order {
  std::string what;
  Places position_of;  // by row
};

Places rotated(std::int64_t count, std::int64_t shift) {
  Places places(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) places[static_cast<std::size_t>(i)] = (i + shift) % count;
  return places;
}

Places shuffled(std::int64_t count, std::uint64_t seed) {
  Places places = rotated(count, 0);
  for (std::int64_t i = count - 1; i > 0; --i) {
    const auto j =
        static_cast<std::int64_t>(mix64(seed, static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(i + 1));
    std::swap(places[static_cast<std::size_t>(i)], places[static_cast<std::size_t>(j)]);
  }
  return places;
}

// Rows that share a scale stay together: their blocks move, and the rows inside them.
Places moved(const Places& blocks, const Places& inside) {
  Places places;
  const auto block = static_cast<std::int64_t>(inside.size());
  for (const std::int64_t to : blocks) {
    for (const std::int64_t lane : inside) places.push_back(to * block + lane);
  }
  return places;
}

// One row on (other parity, other edge), one rank on, half the batch on, and a random order.
std::vector<Order> orders_of(std::int64_t rows, int world, std::uint64_t seed) {
  std::vector<Order> orders;
  std::set<std::int64_t> shifts = {1 % rows, rows / 2};
  if (rows % world == 0) shifts.insert(rows / world % rows);
  shifts.erase(0);
  for (const std::int64_t shift : shifts)
    orders.push_back({fmt::format("rows moved by {}", shift), rotated(rows, shift)});
  if (rows > 2) orders.push_back({"rows in a random order", shuffled(rows, seed)});
  return orders;
}

}  // namespace

Result<RelationFinding> check_position(CellSession& session) {
  RelationFinding finding;
  const std::int64_t rows = session.rows();
  if (rows < 2) {
    finding.void_reason = fmt::format("{} logical row: there is no other position", rows);
    return finding;
  }
  const int world = session.cell().problem.world;
  const std::uint64_t seed = mix64(session.seed(), 0x3000u);
  const std::int64_t block = session.base().layout.row_block();
  std::vector<Order> orders;
  if (block == 1) {
    orders = orders_of(rows, world, seed);
  } else if (rows % block != 0) {
    finding.skip_reason =
        fmt::format("{} rows are no whole number of blocks of {} rows that share a scale", rows, block);
    return finding;
  } else {
    for (const Order& inside : orders_of(block, 1, seed)) {
      orders.push_back({inside.what + fmt::format(" inside each block of {}", block),
                        moved(rotated(rows / block, 0), inside.position_of)});
    }
    if (rows > block) {
      for (const Order& blocks : orders_of(rows / block, world, seed)) {
        orders.push_back(
            {fmt::format("blocks of {} ", block) + blocks.what, moved(blocks.position_of, rotated(block, 1))});
      }
    }
  }

  for (const Order& order : orders) {
    Variant variant = session.same();
    for (std::int64_t row = 0; row < rows; ++row)
      variant.rows[static_cast<std::size_t>(order.position_of[static_cast<std::size_t>(row)])] =
          session.identity(static_cast<std::uint64_t>(row));
    auto reordered = session.run(variant);
    if (!reordered) return tl::unexpected(reordered.error());
    for (std::int64_t row = 0; row < rows; ++row)
      session.compare_row(session.base(), row, *reordered, order.position_of[static_cast<std::size_t>(row)],
                          static_cast<std::uint64_t>(row), order.what, &finding.comparison);
  }
  return finding;
}

}  // namespace batchproof
