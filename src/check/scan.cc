// SPDX-License-Identifier: Apache-2.0
#include "src/check/scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "src/check/choose_inputs.h"
#include "src/check/inputs.h"
#include "src/check/layout.h"
#include "src/check/session.h"
#include "src/numeric/digest.h"
#include "src/numeric/seed.h"
#include "src/runtime/thread_pool.h"

namespace batchproof {
namespace {

constexpr std::int64_t kFillers = 61;
constexpr int kRoomTries = 256;  // an operator may want multiples of some block
constexpr std::uint8_t kStale[2] = {0x5A, 0xA5};

// Victim `victim` sits at logical row `row` of a batch.
struct Seat {
  std::int64_t row = 0;
  std::int64_t victim = 0;
};
using Batch = std::vector<Seat>;

// The batches of one size: together they hold every victim at least once.
std::vector<Batch> batches_of(std::int64_t rows, std::int64_t victims) {
  std::vector<Batch> list;
  if (rows < victims) {
    for (std::int64_t begin = 0; begin < victims; begin += rows) {
      Batch& batch = list.emplace_back();
      for (std::int64_t row = 0; row < rows; ++row) batch.push_back({row, (begin + row) % victims});
    }
    return list;
  }
  Batch& batch = list.emplace_back();
  for (std::int64_t row = 0; row < victims; ++row) batch.push_back({row, row});
  for (std::int64_t victim = 0; victim < victims && rows - 1 - victim >= victims; ++victim)
    batch.push_back({rows - 1 - victim, victim});
  return list;
}

// Digest of one row of one output port.
using Seen = std::function<void(std::uint32_t port, const Seat& seat, std::uint64_t digest)>;

class Scanner {
 public:
  virtual ~Scanner() = default;
  // Runs one batch of `size` rows along the row-count axis and shows every output row of every seat.
  virtual Result<void> run(std::int64_t size, const Batch& batch, const Seen& seen) = 0;
};

std::uint64_t row_seed(std::uint64_t seed) { return mix64(seed, 0x1000u); }

RowIdentity victim_identity(std::uint64_t seed, std::int64_t victim) {
  return {static_cast<std::uint64_t>(victim), row_seed(seed), 1.0, {}};
}
RowIdentity filler_identity(std::uint64_t seed, std::int64_t victims, std::int64_t row) {
  return {static_cast<std::uint64_t>(victims + row % kFillers), row_seed(seed), 1.0, {}};
}

// ---- any operator -------------------------------------------------------------------------------------------------

// Builds every batch anew; rows may be spread over ranks.
class AnyScanner final : public Scanner {
 public:
  AnyScanner(const Cell& cell, OperatorHost& host, const ScanOptions& options)
      : host_(host), options_(options), session_(cell, host, cell.recipes, options.seed) {}

  Result<void> run(std::int64_t size, const Batch& batch, const Seen& seen) override {
    if (!started_) {
      // Reads captured tensors.
      if (auto started = session_.start(); !started) return started;
      started_ = true;
    }
    Variant variant = session_.same();
    variant.problem.axes[host_.table().row_count_axis] = size;
    variant.problem = session_.routed(variant.problem);
    auto layout = make_layout(host_, variant.problem);
    if (!layout) return tl::unexpected(layout.error());
    variant.rows.clear();
    for (std::int64_t row = 0; row < layout->rows; ++row)
      variant.rows.push_back(filler_identity(options_.seed, options_.victims, row));
    for (const Seat& seat : batch)
      variant.rows[static_cast<std::size_t>(seat.row)] = victim_identity(options_.seed, seat.victim);
    auto ran = session_.run(variant);
    if (!ran) return tl::unexpected(ran.error());
    for (const PortLayout* port : ran->layout.outputs()) {
      for (const Seat& seat : batch) {
        // Every copy on every rank counts.
        for (const Run::Image& image : ran->images(host_, *port, seat.row))
          seen(port->index, seat, digest_bytes(image.data, image.bytes));
      }
    }
    return {};
  }

 private:
  OperatorHost& host_;
  const ScanOptions& options_;
  CellSession session_;
  bool started_ = false;
};

// ---- one rank, rows outermost -------------------------------------------------------------------------------------

class PrefixScanner final : public Scanner {
 public:
  // Nothing where a batch is not a prefix of a larger one in memory.
  static Result<std::unique_ptr<PrefixScanner>> make(const Cell& cell, OperatorHost& host, const ScanOptions& options,
                                                     std::int64_t most) {
    auto scanner = std::make_unique<PrefixScanner>(cell, host, options);
    // At least one row more than any batch has: what is written behind a batch is seen.
    Problem problem = cell.problem;
    std::int64_t& rows = problem.axes[host.table().row_count_axis];
    rows = std::max(most, options.victims) + 1;
    for (int tries = 0; tries < kRoomTries && !host.validate(problem); ++tries) ++rows;
    if (problem.world != 1 || host.locate(problem, 0) || !host.validate(problem)) return nullptr;
    auto layout = make_layout(host, problem);
    if (!layout) return tl::unexpected(layout.error());
    for (const PortLayout& port : layout->ports) {
      if (port.carries_rows() && (port.port->row_axis != 0 || port.rows != layout->rows || port.shards != 1 ||
                                  (port.ndim > 1 && port.stride[0] < port.inner)))
        return nullptr;
    }
    scanner->largest_ = *std::move(layout);
    auto built = scanner->build();
    if (!built) return tl::unexpected(built.error());
    return scanner;
  }

  PrefixScanner(const Cell& cell, OperatorHost& host, const ScanOptions& options)
      : cell_(cell), host_(host), options_(options) {}

  // Whether the tensors of `size` are prefixes of the largest ones.
  Result<bool> fits(std::int64_t size) {
    problem_ = cell_.problem;
    problem_.axes[host_.table().row_count_axis] = size;
    auto layout = make_layout(host_, problem_);
    if (!layout) return tl::unexpected(layout.error());
    for (const PortLayout& port : layout->ports) {
      const PortLayout& large = largest_.ports[port.index];
      if (!port.present()) continue;
      for (int axis = 0; axis < port.ndim; ++axis) {
        const bool row = port.carries_rows() && axis == 0;
        if (port.stride[axis] != large.stride[axis] || (!row && port.shape[axis] != large.shape[axis])) return false;
      }
      if (port.carries_rows() && port.rows != layout->rows) return false;
    }
    layout_ = *std::move(layout);
    return true;
  }

  Result<void> run(std::int64_t size, const Batch& batch, const Seen& seen) override {
    const auto prefix = fits(size);
    if (!prefix) return tl::unexpected(prefix.error());
    if (!*prefix) return fail(Error::Kind::internal, "scan: the batch is not a prefix");
    std::vector<std::pair<std::pair<std::uint32_t, std::int64_t>, std::vector<std::byte>>> kept;
    for (const PortLayout& port : layout_.ports) {
      if (!port.carries_rows() || port.is_output()) continue;
      for (const Seat& seat : batch) {
        if (seat.row == seat.victim) continue;  // it sits there already
        std::vector<std::byte> old(port.row_bytes());
        read_row(port, tensor(port), seat.row, old.data());
        kept.emplace_back(std::pair(port.index, seat.row), std::move(old));
        write_row(port, tensor(port), seat.row, victims_[port.index][static_cast<std::size_t>(seat.victim)].data());
      }
    }
    auto done = run_filled(batch, seen);
    for (auto at = kept.rbegin(); at != kept.rend(); ++at) {
      const PortLayout& port = layout_.ports[at->first.first];
      write_row(port, tensor(port), at->first.second, at->second.data());
    }
    return done;
  }

 private:
  const Tensor& tensor(const PortLayout& port) const { return tensors_.ranks[0][port.index]; }

  Result<void> build() {
    inputs_ = std::make_unique<InputBuilder>(host_, cell_.recipes, options_.seed, row_seed(options_.seed), true);
    auto loaded = inputs_->load_captured();
    if (!loaded) return loaded;
    Assignment rows;
    for (std::int64_t row = 0; row < largest_.rows; ++row)
      rows.push_back(row < options_.victims ? victim_identity(options_.seed, row)
                                            : filler_identity(options_.seed, options_.victims, row));
    auto tensors = inputs_->build(largest_, rows);
    if (!tensors) return tl::unexpected(tensors.error());
    tensors_ = *std::move(tensors);
    victims_.resize(largest_.ports.size());
    for (const PortLayout& port : largest_.ports) {
      if (!port.carries_rows() || port.is_output()) continue;
      for (std::int64_t victim = 0; victim < options_.victims; ++victim) {
        victims_[port.index].emplace_back(port.row_bytes());
        read_row(port, tensor(port), victim, victims_[port.index].back().data());
      }
    }
    return {};
  }

  // Output rows that are looked at, and the one behind the batch, hold a pattern that differs from call to call.
  Result<void> run_filled(const Batch& batch, const Seen& seen) {
    const auto stale = static_cast<std::byte>(kStale[++calls_ % 2]);
    std::vector<std::byte> row;
    for (const PortLayout* port : layout_.outputs()) {
      row.assign(port->row_bytes(), stale);
      for (const Seat& seat : batch) write_row(*port, tensor(*port), seat.row, row.data());
      write_row(*port, tensor(*port), layout_.rows, row.data());
    }
    RunRequest request;
    request.implementation = cell_.impl;
    request.problem = &problem_;
    request.mode = cell_.impl->mode;
    request.comm_mode = cell_.comm_mode;
    request.threads = hardware_threads();
    request.tensors.emplace_back();
    for (const PortLayout& port : layout_.ports) {
      bp_tensor view = tensor(port).view();
      if (port.carries_rows()) view.shape[0] = port.rows;
      request.tensors[0].push_back(view);
    }
    auto outcome = host_.run(request);
    if (!outcome) return tl::unexpected(outcome.error());
    if (outcome->executed != cell_.impl->id)
      return fail(Error::Kind::operation,
                  fmt::format("{} was requested but {} ran", cell_.impl->id, outcome->executed));
    for (const PortLayout* port : layout_.outputs()) {
      row.resize(port->row_bytes());
      read_row(*port, tensor(*port), layout_.rows, row.data());
      if (!tensor(*port).guards_intact() ||
          std::any_of(row.begin(), row.end(), [&](std::byte b) { return b != stale; }))
        return fail(Error::Kind::operation, fmt::format("{} wrote outside {}", host_.table().name, port->port->name));
      for (const Seat& seat : batch) {
        read_row(*port, tensor(*port), seat.row, row.data());
        seen(port->index, seat, digest_bytes(row.data(), row.size()));
      }
    }
    return {};
  }

  const Cell& cell_;
  OperatorHost& host_;
  const ScanOptions& options_;
  Layout largest_;
  Layout layout_;
  Problem problem_;
  std::unique_ptr<InputBuilder> inputs_;
  RunTensors tensors_;
  std::vector<std::vector<std::vector<std::byte>>> victims_;  // [port][victim] -> row bytes
  std::uint64_t calls_ = 0;
};

// ---- classes ------------------------------------------------------------------------------------------------------

// What one size showed of one port: the digest of every victim.
using Picture = std::vector<std::optional<std::uint64_t>>;

struct PortState {
  ScanPort result;
  std::map<Picture, int> classes;
  Picture now;
  Picture before;
};

// A row need not be in every output (a shared expert's rows): where a size does not show a victim, it is as before;
// where it is shown for the first time, it was so all along.
void fill_unseen(PortState& state) {
  for (std::size_t victim = 0; victim < state.before.size(); ++victim) {
    if (!state.now[victim]) state.now[victim] = state.before[victim];
    if (!state.now[victim] || state.before[victim]) continue;
    decltype(state.classes) filled;
    for (const auto& [picture, bit_class] : state.classes) {
      Picture seen = picture;
      seen[victim] = state.now[victim];
      filled.emplace(std::move(seen), bit_class);
    }
    state.classes = std::move(filled);
    state.before[victim] = state.now[victim];
  }
}

// Adds the picture of `size`; returns the flip, if it is one.
std::optional<ScanFlip> close_size(PortState& state, std::int64_t size, std::int64_t previous) {
  fill_unseen(state);
  const auto found = state.classes.try_emplace(state.now, static_cast<int>(state.classes.size())).first;
  std::optional<ScanFlip> flip;
  auto& intervals = state.result.intervals;
  if (intervals.empty()) {
    intervals.push_back({size, size, found->second});
  } else if (intervals.back().bit_class == found->second) {
    intervals.back().last = size;
  } else {
    intervals.push_back({size, size, found->second});
    std::int64_t moved = 0;
    for (std::size_t victim = 0; victim < state.now.size(); ++victim)
      moved += state.now[victim] != state.before[victim];
    flip = ScanFlip{size, previous, moved};
    state.result.flips.push_back(*flip);
  }
  state.result.classes = static_cast<int>(state.classes.size());
  state.before = state.now;
  return flip;
}

Result<std::vector<std::int64_t>> sizes_of(const ScanOptions& options) {
  std::vector<std::int64_t> sizes = options.sizes;
  if (sizes.empty()) {
    for (std::int64_t size = options.first; size <= options.last; ++size) sizes.push_back(size);
  }
  if (sizes.empty() || sizes.front() < 1 || !std::is_sorted(sizes.begin(), sizes.end()))
    return fail(Error::Kind::usage,
                fmt::format("scan: {}..{} is no range of row counts from 1", options.first, options.last));
  return sizes;
}

// The cell at the size whose rows are the victims, or the nearest accepted one.
Cell witness_cell(const Cell& cell, const ScanOptions& options, const std::vector<std::int64_t>& accepted) {
  Cell at = cell;
  const auto enough = std::lower_bound(accepted.begin(), accepted.end(), options.victims);
  at.problem.axes[cell.op->row_count_axis] = enough != accepted.end() ? *enough : accepted.back();
  return at;
}

// Chooses the inputs and shows for each output whether another order moves it.
Result<std::vector<RecipeSpec>> choose_and_witness(const Cell& cell, OperatorHost& host, const ScanOptions& options,
                                                   std::map<std::uint32_t, PortState>* ports, ScanResult* result) {
  auto chosen = choose_inputs(cell, host, options.seed);
  if (!chosen) return tl::unexpected(chosen.error());
  result->inputs = chosen->inputs;
  CellSession& session = *chosen->session;
  auto orders = session.order_witness();
  if (!orders) return tl::unexpected(orders.error());
  for (const PortLayout* port : session.base().layout.outputs()) {
    ScanPort& shown = (*ports)[port->index].result;
    shown.port = port->port->name;
    shown.witness = orders->at(port->index);
    if (!port->order_exact()) continue;
    auto leaks = session.leak_witness();
    if (!leaks) return tl::unexpected(leaks.error());
    shown.witness = leaks->at(port->index);
  }
  return chosen->recipes;
}

}  // namespace

const ScanPort* ScanResult::blind() const {
  const auto found = std::find_if(ports.begin(), ports.end(), [](const ScanPort& port) { return port.blind(); });
  return found == ports.end() ? nullptr : &*found;
}

Result<ScanResult> scan_rows(const Cell& asked, OperatorHost& host, const ScanOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const bp_operator& table = host.table();
  auto sizes = sizes_of(options);
  if (!sizes) return tl::unexpected(sizes.error());
  if (table.row_count_axis == nullptr || asked.problem.axis(table.row_count_axis) < 0)
    return fail(Error::Kind::usage, fmt::format("scan: {} has no axis that counts rows", table.name));
  if (options.victims < 1) return fail(Error::Kind::usage, "scan: at least one victim is needed");

  ScanResult result;
  result.op = table.name;
  result.implementation = asked.impl->id;
  result.axis = table.row_count_axis;
  for (const auto& axis : asked.axes) {
    if (axis.first != result.axis) result.axes.push_back(axis);
  }
  result.victims = options.victims;
  std::vector<std::int64_t> accepted;
  Problem problem = asked.problem;
  for (const std::int64_t size : *sizes) {
    problem.axes[table.row_count_axis] = size;
    (host.validate(problem) ? accepted : result.refused).push_back(size);
  }
  if (accepted.empty()) {
    problem.axes[table.row_count_axis] = sizes->front();
    return tl::unexpected(host.validate(problem).error());
  }
  result.first = accepted.front();
  result.last = accepted.back();
  result.promised = true;
  for (const std::int64_t size : accepted) {
    problem.axes[table.row_count_axis] = size;
    const auto promises = host.promises(*asked.impl, problem);
    if (!promises) return tl::unexpected(promises.error());
    result.promised = result.promised && (*promises & BP_BATCH_SIZE) != 0;
  }

  std::map<std::uint32_t, PortState> ports;
  // The asked cell may have a size that the operator does not accept.
  Cell cell = witness_cell(asked, options, accepted);
  auto recipes = choose_and_witness(cell, host, options, &ports, &result);
  if (!recipes) return tl::unexpected(recipes.error());
  cell.recipes = *std::move(recipes);

  std::unique_ptr<Scanner> scanner;
  auto prefix = PrefixScanner::make(cell, host, options, accepted.back());
  if (!prefix) return tl::unexpected(prefix.error());
  if (*prefix != nullptr) {
    const auto fits = (*prefix)->fits(accepted.front());
    if (!fits) return tl::unexpected(fits.error());
    if (*fits) scanner = *std::move(prefix);
  }
  if (scanner == nullptr) scanner = std::make_unique<AnyScanner>(cell, host, options);

  std::int64_t previous = 0;
  for (const std::int64_t size : accepted) {
    problem.axes[table.row_count_axis] = size;
    auto layout = make_layout(host, problem);
    if (!layout) return tl::unexpected(layout.error());
    if (layout->rows < 1) continue;
    for (const PortLayout* port : layout->outputs()) {
      PortState& state = ports[port->index];
      state.now.assign(static_cast<std::size_t>(options.victims), std::nullopt);
    }
    const Seen seen = [&](std::uint32_t port, const Seat& seat, std::uint64_t digest) {
      auto& slot = ports[port].now[static_cast<std::size_t>(seat.victim)];
      if (!slot) slot = digest;
      if (*slot == digest) return;
      ++result.places_total;
      if (result.places.size() < kScanPlaces)
        result.places.push_back({ports[port].result.port, size, seat.row, seat.victim});
    };
    for (const Batch& batch : batches_of(layout->rows, options.victims)) {
      auto ran = scanner->run(size, batch, seen);
      if (!ran) return tl::unexpected(ran.error());
      ++result.calls;
    }
    std::optional<ScanFlip> any;
    for (auto& [index, state] : ports) {
      const auto flip = close_size(state, size, previous);
      if (flip && (!any || flip->victims > any->victims)) any = flip;
    }
    if (any) result.flips.push_back(*any);
    previous = size;
    ++result.sizes;
    if (options.progress) options.progress(result.sizes, static_cast<std::int64_t>(accepted.size()));
  }
  for (auto& [index, state] : ports) result.ports.push_back(std::move(state.result));
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace batchproof
