// SPDX-License-Identifier: Apache-2.0
//
// position: the same rows in another order, so that every row changes its index, its place in a tile and its owner
// rank.
#include <fmt/format.h>

#include <numeric>
#include <set>

#include "src/check/relation.h"
#include "src/numeric/seed.h"

namespace batchproof {
namespace {

struct Order {
  std::string what;
  std::vector<std::int64_t> position_of;  // by row
};

Order rotation(std::int64_t rows, std::int64_t shift) {
  Order order{fmt::format("rows moved by {}", shift), std::vector<std::int64_t>(static_cast<std::size_t>(rows))};
  for (std::int64_t row = 0; row < rows; ++row) order.position_of[static_cast<std::size_t>(row)] = (row + shift) % rows;
  return order;
}

Order shuffled(std::int64_t rows, std::uint64_t seed) {
  Order order{"rows in a random order", std::vector<std::int64_t>(static_cast<std::size_t>(rows))};
  std::iota(order.position_of.begin(), order.position_of.end(), 0);
  for (std::int64_t i = rows - 1; i > 0; --i) {
    const auto j =
        static_cast<std::int64_t>(mix64(seed, static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(i + 1));
    std::swap(order.position_of[static_cast<std::size_t>(i)], order.position_of[static_cast<std::size_t>(j)]);
  }
  return order;
}

}  // namespace

Result<RelationFinding> check_position(CellSession& session) {
  RelationFinding finding;
  const std::int64_t rows = session.rows();
  if (rows < 2) {
    finding.void_reason = fmt::format("{} logical row: there is no other position", rows);
    return finding;
  }
  // One row on (other parity, other edge), one rank on, half the batch on, and a random order.
  std::set<std::int64_t> shifts = {1, rows / 2};
  const int world = session.cell().problem.world;
  if (rows % world == 0) shifts.insert(rows / world % rows);
  shifts.erase(0);
  std::vector<Order> orders;
  for (const std::int64_t shift : shifts) orders.push_back(rotation(rows, shift));
  if (rows > 2) orders.push_back(shuffled(rows, mix64(session.seed(), 0x3000u)));

  for (const Order& order : orders) {
    Variant variant = session.same();
    for (std::int64_t row = 0; row < rows; ++row)
      variant.rows[static_cast<std::size_t>(order.position_of[static_cast<std::size_t>(row)])] =
          session.identity(static_cast<std::uint64_t>(row));
    auto moved = session.run(variant);
    if (!moved) return tl::unexpected(moved.error());
    for (std::int64_t row = 0; row < rows; ++row)
      session.compare_row(session.base(), row, *moved, order.position_of[static_cast<std::size_t>(row)],
                          static_cast<std::uint64_t>(row), order.what, &finding.comparison);
  }
  return finding;
}

}  // namespace batchproof
