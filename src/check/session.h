// SPDX-License-Identifier: Apache-2.0
//
// CellSession: one cell under one choice of inputs. Relations ask it for runs and compare rows; it holds the base run
// and the witnesses.
#ifndef BATCHPROOF_SRC_CHECK_SESSION_H_
#define BATCHPROOF_SRC_CHECK_SESSION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/check/host.h"
#include "src/check/inputs.h"
#include "src/check/layout.h"
#include "src/check/result.h"
#include "src/suite/suite.h"

namespace batchproof {

// What a run changes against the base run. Defaults: nothing.
struct Variant {
  Problem problem;
  Assignment rows;
  const Permutation* permutation = nullptr;
  const bp_implementation* implementation = nullptr;
  bp_mode mode = BP_MODE_INVARIANT;
  bp_comm_mode comm_mode = BP_COMM_OFF;
  int threads = 1;
  int stream = 0;  // these three: as in RunRequest
  bool captured = false;
  int processors = 0;
  std::optional<std::uint8_t> workspace_fill = std::uint8_t{0};
  Placement placement;
  bool equal_experts = false;  // every expert has the same weights
};

// The outputs of a run by logical row.
class Run {
 public:
  Layout layout;
  Assignment rows;
  RunTensors tensors;
  std::string executed;

  // One copy of a logical row of an output port. A row that is cut over ranks is put together (rank -1).
  struct Image {
    int rank = 0;
    std::int64_t index = 0;
    const std::byte* data = nullptr;  // row bytes; inside the run's tensors, or in storage
    std::size_t bytes = 0;
    std::int64_t elements = 0;
    std::vector<std::byte> storage;
  };
  std::vector<Image> images(OperatorHost& host, const PortLayout& port, std::int64_t position) const;
};

// What comparing rows found; relations add to it.
struct Comparison {
  std::uint64_t bytes_compared = 0;
  std::uint64_t bytes_differing = 0;
  std::int64_t rows_differing = 0;
  std::uint64_t max_ulp = 0;
  std::optional<Mismatch> first;
};

class CellSession {
 public:
  // `recipes`: one per port. The host outlives the session, and so do the contents (NULL: its own).
  CellSession(const Cell& cell, OperatorHost& host, std::vector<RecipeSpec> recipes, std::uint64_t seed,
              ContentCache* contents = nullptr);

  const Cell& cell() const { return cell_; }
  OperatorHost& host() const { return host_; }
  std::uint64_t seed() const { return seed_; }
  int base_threads(int world) const;

  // Makes the base run (variant A). Everything else needs it.
  Result<void> start();
  const Run& base() const { return *base_; }
  std::int64_t rows() const { return base_->layout.rows; }
  // A variant equal to the base run.
  Variant same() const;
  // Identity of row `row` under the base seed. A row of the base run keeps the expert that it has there.
  RowIdentity identity(std::uint64_t row) const;
  // The base assignment for `rows` positions: position p holds row p; rows beyond the base run are new ones.
  Assignment assignment(std::int64_t rows) const;
  // Seed of variant v (0 = A).
  std::uint64_t variant_seed(int variant) const;

  // `problem`, whose number of rows or ranks may be another than the cell's, with the experts of the base run: it is
  // valid where a run of it is. The problem itself where rows choose none.
  Problem routed(Problem problem) const;
  // The problem that a run of the variant gives the operator: where rows choose experts, with the list of them.
  Result<Problem> problem_of(const Variant& variant);
  Result<Run> run(const Variant& variant);
  int runs() const { return runs_; }  // operator calls so far

  // Compares one logical row of two runs in every output port. `what` names the variant in a mismatch.
  void compare_row(const Run& a, std::int64_t position_a, const Run& b, std::int64_t position_b, std::uint64_t row,
                   const std::string& what, Comparison* comparison) const;
  // All copies of a row inside one run.
  void compare_copies(const Run& run, std::int64_t position, std::uint64_t row, const std::string& what,
                      Comparison* comparison) const;
  // How many rows of `port` differ between base position p and `other` position p, over all common positions but
  // `except` (-1: none). A row that the port does not hold in both runs does not count.
  struct Moved {
    std::int64_t rows = 0;
    std::int64_t total = 0;
    bool operator<(const Witness& witness) const { return rows < witness.rows_moved; }
  };
  Moved rows_moved(const Run& other, const PortLayout& port, std::int64_t except) const;

  // Order witness per output port (C5), made once. Index: port.
  Result<std::map<std::uint32_t, Witness>> order_witness();
  // Leak witness per output port: all rows re-seeded, made once.
  Result<std::map<std::uint32_t, Witness>> leak_witness();

  // Goes on with another cell of the same problem, implementation and inputs: its targets, its expectations.
  void continue_with(const Cell& cell) { cell_ = cell; }

  // Row positions of the case as indices, duplicates merged. Fails where one is out of range.
  Result<std::vector<std::int64_t>> targets() const;

 private:
  Cell cell_;
  OperatorHost& host_;
  std::uint64_t seed_;
  InputBuilder inputs_;
  std::unique_ptr<Run> base_;
  std::int64_t experts_ = 0;                // over all ranks; 0: rows choose none
  std::vector<std::int64_t> base_experts_;  // by row
  int runs_ = 0;
  std::optional<std::map<std::uint32_t, Witness>> order_witness_;
  std::optional<std::map<std::uint32_t, Witness>> leak_witness_;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_CHECK_SESSION_H_
