// SPDX-License-Identifier: Apache-2.0
//
// Every row has one place with its rank and one with its expert, whatever the routing; what a request says wrongly.
#include "src/kernels/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace batchproof {
namespace {

RoutingRequest request(std::int64_t world, std::int64_t rows, std::int64_t experts, const std::string& word) {
  RoutingRequest made;
  made.world = world;
  made.rows = rows;
  made.experts = experts;
  made.word = word;
  made.counts_name = "send_counts";
  return made;
}

Routing made(const RoutingRequest& wanted) {
  Result<Routing> routing = Routing::make(wanted);
  EXPECT_TRUE(routing) << routing.error().message;
  return *std::move(routing);
}

std::string error_of(const RoutingRequest& wanted) {
  const Result<Routing> routing = Routing::make(wanted);
  return routing ? "none" : routing.error().message;
}

std::vector<std::int64_t> loads(const Routing& routing) {
  std::vector<std::int64_t> list;
  for (std::int64_t owner = 0; owner < routing.world(); ++owner) {
    for (std::int64_t expert = 0; expert < routing.experts(); ++expert) list.push_back(routing.load(owner, expert));
  }
  return list;
}

TEST(Routing, PutsEveryRowInOnePlaceInTheStatedOrder) {
  for (const std::string word : {"balanced", "skewed", "all_to_one", "random", "5,-1,0,2,2,2,-1,0,1,0,5,5"}) {
    const Routing routing = made(request(2, 6, 3, word));
    std::set<std::pair<std::int64_t, std::int64_t>> places, landings;
    for (std::int64_t i = 0; i < routing.row_count(); ++i) {
      const Routing::Row& row = routing.row(i);
      EXPECT_EQ(row.rank, i / 6);
      EXPECT_TRUE(places.insert({row.rank, row.place}).second) << word << ", row " << i;
      EXPECT_LT(row.place, 6);
      if (row.owner < 0) {
        EXPECT_GE(row.place, routing.sent(row.rank));
        continue;
      }
      EXPECT_LT(row.place, routing.sent(row.rank));
      EXPECT_TRUE(landings.insert({row.owner, row.landing}).second) << word << ", row " << i;
      EXPECT_LT(row.landing, routing.received(row.owner));
      for (std::int64_t k = 0; k < routing.row_count(); ++k) {
        const Routing::Row& other = routing.row(k);
        if (other.owner < 0) continue;
        if (other.rank == row.rank) {
          const auto key = [](const Routing::Row& at, std::int64_t logical) {
            return std::tuple(at.owner, at.expert, logical);
          };
          EXPECT_EQ(row.place < other.place, key(row, i) < key(other, k));
        }
        if (other.owner == row.owner) {
          const auto key = [](const Routing::Row& at, std::int64_t logical) {
            return std::tuple(at.expert, at.rank, logical);
          };
          EXPECT_EQ(row.landing < other.landing, key(row, i) < key(other, k));
        }
      }
    }
    std::int64_t sent = 0, received = 0;
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      sent += routing.sent(rank);
      received += routing.received(rank);
    }
    EXPECT_EQ(sent, received);
    EXPECT_EQ(sent, static_cast<std::int64_t>(landings.size()));
  }
}

TEST(Routing, WordsLoadTheExpertsAsTheySay) {
  EXPECT_EQ(loads(made(request(2, 6, 3, "balanced"))), std::vector<std::int64_t>(6, 2));
  EXPECT_EQ(loads(made(request(2, 6, 3, ""))), std::vector<std::int64_t>(6, 2));
  EXPECT_EQ(loads(made(request(2, 6, 3, "all_to_one"))), (std::vector<std::int64_t>{12, 0, 0, 0, 0, 0}));
  const auto random = loads(made(request(4, 256, 4, "random")));
  EXPECT_GT(*std::min_element(random.begin(), random.end()), 32);
  EXPECT_LT(*std::max_element(random.begin(), random.end()), 96);
  const auto skewed = loads(made(request(4, 256, 4, "skewed")));
  EXPECT_GT(skewed.front(), 1024 / 16 * 5);  // the share 16^(-1/3) is 0.4
  EXPECT_GT(skewed.front(), 8 * skewed.back());
  RoutingRequest other = request(4, 256, 4, "random");
  other.seed = 1;
  EXPECT_NE(loads(made(other)), random);
}

TEST(Routing, CapacityKeepsTheFirstRowsOfAnExpert) {
  RoutingRequest wanted = request(2, 6, 3, "all_to_one");
  wanted.capacity = 8;
  const Routing routing = made(wanted);
  EXPECT_EQ(loads(routing), (std::vector<std::int64_t>{8, 0, 0, 0, 0, 0}));
  EXPECT_EQ(routing.sent(0), 6);
  EXPECT_EQ(routing.sent(1), 2);
  // A list is final.
  wanted.word = "0,0,0,0,0,0,0,0,0,0,0,0";
  EXPECT_EQ(made(wanted).load(0, 0), 12);
}

TEST(Routing, CountsAreRowsInTheirOrder) {
  RoutingRequest wanted = request(2, 4, 2, "skewed");
  wanted.counts = "1,0,2,1";
  const Routing routing = made(wanted);
  EXPECT_EQ(routing.count(0, 0, 0), 1);
  EXPECT_EQ(routing.count(1, 1, 0), 2);
  EXPECT_EQ(routing.row(6).place, 2);  // the rows of a rank lie as they are
  EXPECT_EQ(routing.row(6).owner, 1);
  EXPECT_EQ(routing.row(6).landing, 3);  // expert 0 of rank 1: two rows of rank 0 lie before
  wanted.counts = "1,0,2,1,0,0,1,3";     // rank by rank
  EXPECT_EQ(made(wanted).count(1, 1, 1), 3);
  EXPECT_EQ(made(wanted).count(1, 0, 0), 0);
}

TEST(Routing, EveryWrongRequestHasItsSentence) {
  EXPECT_EQ(error_of(request(2, 2, 2, "even")),
            "routing is \"even\"; it must be balanced, skewed, all_to_one, random or the list of the rows' experts");
  EXPECT_EQ(error_of(request(2, 2, 2, "0,1,2")), "routing lists the experts of 3 rows; W * M = 4 need one each");
  EXPECT_EQ(error_of(request(2, 2, 2, "0,1,4,3")), "routing names expert 4; the experts are 0 to 3, and -1 is none");
  EXPECT_EQ(error_of(request(2, 2, 2, "0,1,x,3")), "routing is no comma list of integers at \"x,3\"");
  EXPECT_EQ(error_of(request(2, 2, 2, "0,1,2,")), "routing is no comma list of integers at \"2,\"");
  EXPECT_EQ(error_of(request(0, 2, 2, "balanced")), "W = 0, M = 2, E = 2 is no routing; they must be at least 1, 0, 1");
  const auto with_counts = [](const std::string& counts) {
    RoutingRequest wanted = request(2, 4, 2, "");
    wanted.counts = counts;
    return error_of(wanted);
  };
  EXPECT_EQ(with_counts("1,2"),
            "send_counts has 2 entries; it must have W * E = 4, or W times as many for each rank in turn");
  EXPECT_EQ(with_counts("1,2,-1,0"), "send_counts holds -1; counts are at least 0");
  EXPECT_EQ(with_counts("1,2,1,1"), "send_counts of rank 0 has the sum 5; it must be M = 4");
  EXPECT_EQ(with_counts("4,0,0,0,1,0,2,0"), "send_counts of rank 1 has the sum 3; it must be M = 4");
  EXPECT_EQ(with_counts("9223372036854775807,9223372036854775807,0,0"),
            "send_counts of rank 0 has the sum 10; it must be M = 4");
}

}  // namespace
}  // namespace batchproof
