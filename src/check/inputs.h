// SPDX-License-Identifier: Apache-2.0
//
// Builds the tensors of a run from identities (C3): which logical row sits at which position, and which content it has.
#ifndef BATCHPROOF_SRC_CHECK_INPUTS_H_
#define BATCHPROOF_SRC_CHECK_INPUTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/check/content_cache.h"
#include "src/check/layout.h"
#include "src/check/tensors.h"
#include "src/numeric/npy.h"
#include "src/numeric/recipe.h"

namespace batchproof {

// Who sits at a logical position. Two rows with equal identity have equal bytes in every input that carries rows.
struct RowIdentity {
  std::uint64_t row = 0;
  std::uint64_t seed = 0;
  double magnitude = 1.0;
  std::optional<Poison> poison;
  // Of operators whose rows choose: the expert, counted over all ranks, -1 for none. Nothing: drawn from the row.
  std::optional<std::int64_t> expert = std::nullopt;

  bool operator==(const RowIdentity&) const = default;
};
using Assignment = std::vector<RowIdentity>;  // by logical position

// A permutation of a reduction group: index k of the permuted tensors holds what index source[k] held.
using Permutation = std::map<std::string, std::vector<std::int64_t>>;

// A seeded random permutation of every reduction group; whole blocks move where scales cover blocks.
Permutation random_permutation(const Layout& layout, std::uint64_t seed);

struct RunTensors {
  std::vector<std::vector<Tensor>> ranks;  // [rank][port]
};

class InputBuilder {
 public:
  // `recipes` has one entry per port. `row_seed`: the seed of the base run's rows (captured tensors keep their own
  // rows under it). `equal_weights`: PER_RANK weights are made equal on all ranks. `shared`: of all builders of a run,
  // which it outlives; NULL: one of its own.
  InputBuilder(OperatorHost& host, std::vector<RecipeSpec> recipes, std::uint64_t seed, std::uint64_t row_seed,
               bool equal_weights, ContentCache* shared = nullptr);

  // Reads the captured tensors of `file` recipes; before the first build.
  Result<void> load_captured();

  // Inputs filled, outputs holding placement.fill. `equal_experts`: all experts have the weights of the first.
  Result<RunTensors> build(const Layout& layout, const Assignment& rows, const Permutation* permutation = nullptr,
                           const Placement& placement = {}, bool equal_experts = false);

 private:
  using Row = ContentCache::Bytes;

  FillRequest request_for(const PortLayout& port, std::uint64_t seed, std::uint64_t base_seed) const;
  Result<Tensor> weight(const Layout& layout, const PortLayout& port, int rank, const Permutation* permutation,
                        const Placement& placement);
  // The weights of the first expert for all of them.
  Result<Tensor> equal_weight(const Layout& layout, const PortLayout& port, const Permutation* permutation,
                              const Placement& placement);
  // What the bytes of a port follow from, but for row and seed.
  std::string content_name(const Layout& layout, const PortLayout& port);
  // The weight over all ranks, row-major.
  ContentCache::Content logical_weight(const Layout& layout, const PortLayout& port, std::uint64_t seed);
  Row make_logical_weight(const Layout& layout, const PortLayout& port, std::uint64_t seed);
  // `tensor`: the number of the port's content name.
  ContentCache::Content logical_row(const Layout& layout, const PortLayout& port, std::uint64_t tensor,
                                    const RowIdentity& identity);
  bool cancels(const Layout& layout, const PortLayout& port) const;
  const CancellingPairs* pairs(const Layout& layout, const PortLayout& port);
  // Gives partner blocks equal scales where the inputs cancel: a pair cancels only under one scale.
  void pair_scales(const Layout& layout, const PortLayout& port, Row* content);
  Result<void> fill_rows(const Layout& layout, const Assignment& rows, const Permutation* permutation,
                         RunTensors* tensors);

  OperatorHost& host_;
  std::vector<RecipeSpec> recipes_;
  std::map<std::uint32_t, NpyArray> captured_;  // by port
  std::uint64_t seed_;
  std::uint64_t row_seed_;
  bool equal_weights_;
  std::map<std::string, Tensor> weights_;  // by port, rank, shape, permutation
  std::unique_ptr<ContentCache> own_;
  ContentCache& contents_;
  std::map<std::string, std::unique_ptr<CancellingPairs>> pairs_;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_CHECK_INPUTS_H_
