// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>
#include <string_view>

#include "batchproof/problem.h"
#include "src/numeric/seed.h"

namespace batchproof {
namespace {

constexpr std::int64_t kNotSent = -1;

// Drawn by row, so that a row's choice depends on no other row.
std::int64_t drawn(const RoutingRequest& request, std::int64_t row, bool skewed) {
  const std::uint64_t draw =
      mix64(static_cast<std::uint64_t>(request.seed) ^ 0x726F757465ull, static_cast<std::uint64_t>(row));
  const auto experts = static_cast<std::uint64_t>(request.world * request.experts);
  if (!skewed) return static_cast<std::int64_t>(draw % experts);
  // The cube of a uniform number: expert 0 gets the share experts^(-1/3), the last ones next to nothing.
  const std::uint64_t unit = draw >> 48;
  const std::uint64_t cube = unit * unit * unit >> 32;  // below 2^16
  return static_cast<std::int64_t>(cube * experts >> 16);
}

Result<std::vector<std::int64_t>> from_word(const RoutingRequest& request) {
  const std::int64_t experts = request.world * request.experts;
  std::vector<std::int64_t> chosen(static_cast<std::size_t>(request.world * request.rows));
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    if (request.word.empty() || request.word == "balanced") {
      chosen[i] = row % experts;
    } else if (request.word == "all_to_one") {
      chosen[i] = 0;
    } else if (request.word == "skewed" || request.word == "random") {
      chosen[i] = drawn(request, row, request.word == "skewed");
    } else {
      return fail(Error::Kind::usage,
                  fmt::format("routing is \"{}\"; it must be balanced, skewed, all_to_one, random or the list of the "
                              "rows' experts",
                              request.word));
    }
  }
  if (request.capacity <= 0) return chosen;
  std::vector<std::int64_t> load(static_cast<std::size_t>(experts), 0);
  for (std::int64_t& expert : chosen) {
    if (++load[static_cast<std::size_t>(expert)] > request.capacity) expert = kNotSent;
  }
  return chosen;
}

Result<std::vector<std::int64_t>> from_list(const RoutingRequest& request) {
  auto list = integer_list("routing", request.word);
  if (!list) return list;
  const std::int64_t rows = request.world * request.rows;
  if (static_cast<std::int64_t>(list->size()) != rows) {
    return fail(Error::Kind::usage,
                fmt::format("routing lists the experts of {} rows; W * M = {} need one each", list->size(), rows));
  }
  const std::int64_t experts = request.world * request.experts;
  for (const std::int64_t expert : *list) {
    if (expert >= kNotSent && expert < experts) continue;
    return fail(Error::Kind::usage,
                fmt::format("routing names expert {}; the experts are 0 to {}, and -1 is none", expert, experts - 1));
  }
  return list;
}

Result<std::vector<std::int64_t>> from_counts(const RoutingRequest& request) {
  const auto list = integer_list(request.counts_name, request.counts);
  if (!list) return tl::unexpected<Error>(list.error());
  const std::int64_t experts = request.world * request.experts;
  const auto given = static_cast<std::int64_t>(list->size());
  if (given != experts && given != request.world * experts) {
    return fail(Error::Kind::usage,
                fmt::format("{} has {} entries; it must have W * E = {}, or W times as many for each rank in turn",
                            request.counts_name, given, experts));
  }
  std::vector<std::int64_t> chosen;
  for (std::int64_t rank = 0; rank < request.world; ++rank) {
    const auto count_of = [&](std::int64_t e) {
      return (*list)[static_cast<std::size_t>(given == experts ? e : rank * experts + e)];
    };
    std::int64_t sum = 0;
    for (std::int64_t e = 0; e < experts; ++e) {
      if (count_of(e) < 0) {
        return fail(Error::Kind::usage,
                    fmt::format("{} holds {}; counts are at least 0", request.counts_name, count_of(e)));
      }
      sum += std::min(count_of(e), request.rows + 1);
    }
    if (sum != request.rows) {
      return fail(Error::Kind::usage, fmt::format("{} of rank {} has the sum {}; it must be M = {}",
                                                  request.counts_name, rank, sum, request.rows));
    }
    for (std::int64_t e = 0; e < experts; ++e) chosen.insert(chosen.end(), static_cast<std::size_t>(count_of(e)), e);
  }
  return chosen;
}

}  // namespace

bool is_routing_list(const std::string& text) {
  return !text.empty() && (text[0] == '-' || (text[0] >= '0' && text[0] <= '9'));
}

Result<std::vector<std::int64_t>> integer_list(const std::string& name, const std::string& text) {
  std::vector<std::int64_t> list;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    while (at != end && *at == ' ') ++at;
    std::int64_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || (next != end && *next != ',') || (next != end && next + 1 == end)) {
      return fail(Error::Kind::usage,
                  fmt::format("{} is no comma list of integers at \"{}\"", name,
                              std::string_view(at, std::min<std::size_t>(static_cast<std::size_t>(end - at), 16))));
    }
    list.push_back(value);
    at = next == end ? end : next + 1;
  }
  return list;
}

RoutingRequest routing_request(const bp_problem* problem, const char* counts_attr) {
  RoutingRequest request;
  request.world = problem->world;
  request.rows = bp_axis_value(problem, "M");
  request.experts = bp_axis_value(problem, "E");
  request.word = bp_attr_string(problem, "routing");
  request.seed = bp_attr_int(problem, "routing_seed");
  request.capacity = bp_attr_int(problem, "capacity");
  request.counts = bp_attr_string(problem, counts_attr);
  request.counts_name = counts_attr;
  return request;
}

Result<Routing> Routing::make(const RoutingRequest& request) {
  if (request.world < 1 || request.rows < 0 || request.experts < 1) {
    return fail(Error::Kind::usage, fmt::format("W = {}, M = {}, E = {} is no routing; they must be at least 1, 0, 1",
                                                request.world, request.rows, request.experts));
  }
  const auto chosen = is_routing_list(request.word) ? from_list(request)
                      : !request.counts.empty()     ? from_counts(request)
                                                    : from_word(request);
  if (!chosen) return tl::unexpected<Error>(chosen.error());

  Routing routing;
  routing.world_ = request.world;
  routing.experts_ = request.experts;
  const std::int64_t experts = request.world * request.experts;
  routing.counts_.assign(static_cast<std::size_t>(request.world * experts), 0);
  routing.rows_.resize(chosen->size());
  for (std::size_t i = 0; i < chosen->size(); ++i) {
    Row& row = routing.rows_[i];
    row.rank = static_cast<std::int64_t>(i) / request.rows;
    const std::int64_t expert = (*chosen)[i];
    if (expert == kNotSent) continue;
    row.owner = expert / request.experts;
    row.expert = expert % request.experts;
    // For now the place inside the block of this rank and expert.
    row.landing = routing.counts_[static_cast<std::size_t>(row.rank * experts + expert)]++;
  }
  // Where each block begins, on the rank that has the rows and on the rank that has the expert.
  std::vector<std::int64_t> at_rank(routing.counts_.size());
  std::vector<std::int64_t> at_owner(routing.counts_.size());
  std::vector<std::int64_t> sent(static_cast<std::size_t>(request.world), 0);
  for (std::int64_t owner = 0; owner < request.world; ++owner) {
    std::int64_t received = 0;
    for (std::int64_t expert = 0; expert < request.experts; ++expert) {
      for (std::int64_t rank = 0; rank < request.world; ++rank) {
        const auto block = static_cast<std::size_t>((rank * request.world + owner) * request.experts + expert);
        std::int64_t& own = sent[static_cast<std::size_t>(rank)];
        at_rank[block] = own;
        at_owner[block] = received;
        own += routing.counts_[block];
        received += routing.counts_[block];
      }
    }
  }
  for (Row& row : routing.rows_) {
    if (row.owner < 0) {
      row.place = sent[static_cast<std::size_t>(row.rank)]++;
      continue;
    }
    const auto block = static_cast<std::size_t>((row.rank * request.world + row.owner) * request.experts + row.expert);
    row.place = at_rank[block] + row.landing;
    row.landing += at_owner[block];
  }
  return routing;
}

std::int64_t Routing::sent(std::int64_t rank) const {
  const auto begin = counts_.begin() + rank * world_ * experts_;
  return std::accumulate(begin, begin + world_ * experts_, std::int64_t{0});
}

std::int64_t Routing::load(std::int64_t owner, std::int64_t expert) const {
  std::int64_t rows = 0;
  for (std::int64_t rank = 0; rank < world_; ++rank) rows += count(rank, owner, expert);
  return rows;
}

std::int64_t Routing::received(std::int64_t owner) const {
  std::int64_t rows = 0;
  for (std::int64_t expert = 0; expert < experts_; ++expert) rows += load(owner, expert);
  return rows;
}

std::int64_t Routing::between(std::int64_t rank, std::int64_t owner) const {
  std::int64_t rows = 0;
  for (std::int64_t expert = 0; expert < experts_; ++expert) rows += count(rank, owner, expert);
  return rows;
}

std::int64_t Routing::most_received() const {
  std::int64_t most = 0;
  for (std::int64_t owner = 0; owner < world_; ++owner) most = std::max(most, received(owner));
  return most;
}

const Result<Routing>& routing_of(const RoutingRequest& request) {
  struct Last {
    RoutingRequest request;
    Result<Routing> routing;
  };
  thread_local std::optional<Last> last;
  if (!last || !(last->request == request)) last.emplace(Last{request, Routing::make(request)});
  return last->routing;
}

}  // namespace batchproof
