// SPDX-License-Identifier: Apache-2.0
//
// What the unit tests of the grouped operators share: a batch whose rows choose experts, and where each row must be
// found, derived here without the operator's own routing.
#ifndef BATCHPROOF_TESTS_GROUPED_TEST_H_
#define BATCHPROOF_TESTS_GROUPED_TEST_H_

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/operator_test.h"

namespace batchproof {

// Experts of the logical rows; -1: none. Expert 1 of rank 0 gets nothing, rows of one rank are not in expert order.
inline std::vector<std::int64_t> chosen_experts(int world, std::int64_t rows, std::int64_t experts) {
  std::vector<std::int64_t> chosen;
  for (std::int64_t i = 0; i < world * rows; ++i) {
    const std::int64_t expert = (7 * i + i / 3) % (world * experts);
    chosen.push_back(i == 1 ? -1 : expert == 1 ? 0 : expert);
  }
  return chosen;
}

inline std::string as_list(const std::vector<std::int64_t>& values) {
  return fmt::format("{}", fmt::join(values, ","));
}

// Logical rows in the order in which rank `rank` holds them: by expert, then by row; those without an expert last.
inline std::vector<std::int64_t> rows_of_rank(const std::vector<std::int64_t>& chosen, int rank, std::int64_t rows) {
  std::vector<std::int64_t> list;
  for (std::int64_t t = 0; t < rows; ++t) list.push_back(rank * rows + t);
  std::stable_sort(list.begin(), list.end(), [&](std::int64_t a, std::int64_t b) {
    const auto order = [&](std::int64_t i) {
      const std::int64_t expert = chosen[static_cast<std::size_t>(i)];
      return expert < 0 ? INT64_MAX : expert;
    };
    return order(a) < order(b);
  });
  return list;
}

// Logical rows that meet an expert of rank `owner`: by expert, then by row, which is by rank.
inline std::vector<std::int64_t> rows_of_owner(const std::vector<std::int64_t>& chosen, int owner,
                                               std::int64_t experts) {
  std::vector<std::int64_t> list;
  for (std::int64_t expert = owner * experts; expert < (owner + 1) * experts; ++expert) {
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i] == expert) list.push_back(static_cast<std::int64_t>(i));
    }
  }
  return list;
}

inline std::int64_t most_rows_of_an_owner(const std::vector<std::int64_t>& chosen, int world, std::int64_t experts) {
  std::size_t most = 0;
  for (int owner = 0; owner < world; ++owner) most = std::max(most, rows_of_owner(chosen, owner, experts).size());
  return static_cast<std::int64_t>(most);
}

// Row i, expert e: exact in FP32.
inline std::vector<float> routed_rows(const std::vector<std::int64_t>& rows, std::int64_t count, std::int64_t columns) {
  std::vector<float> out(static_cast<std::size_t>(count * columns), 0.0f);
  for (std::size_t p = 0; p < rows.size(); ++p) {
    for (std::int64_t k = 0; k < columns; ++k)
      out[p * static_cast<std::size_t>(columns) + static_cast<std::size_t>(k)] = entry(0, rows[p], k);
  }
  return out;
}

inline float routed_product(std::int64_t row, std::int64_t expert, std::int64_t columns, std::int64_t j) {
  float sum = 0.0f;
  for (std::int64_t k = 0; k < columns; ++k) sum += entry(0, row, k) * entry(10 + expert, k, j);
  return sum;
}

// The weights of the experts of `owner`, (E, k, n).
inline std::vector<float> expert_weights(int owner, std::int64_t experts, std::int64_t k, std::int64_t n) {
  std::vector<float> out;
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::vector<float> one = entries(10 + owner * experts + e, k, n);
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

inline bp_tensor expert_tensor(std::vector<float>& data, std::int64_t experts, std::int64_t k, std::int64_t n) {
  bp_tensor tensor = matrix(data, BP_FP32, experts, k);
  tensor.ndim = 3;
  tensor.shape[2] = n;
  tensor.stride[0] = k * n;
  tensor.stride[1] = n;
  tensor.stride[2] = 1;
  return tensor;
}

// As problem(), without or with the shared expert.
inline Problem grouped_problem(const std::string& mode, int world, std::int64_t m, std::int64_t k, std::int64_t n,
                               std::int64_t experts, bool shared) {
  Problem out = problem(mode, world, m, k, n);
  out.axes["E"] = experts;
  if (shared) {
    out.axes["TOPK"] = 2;
    out.axes["K2"] = k;
    out.axes["N2"] = n;
  }
  for (const char* name : {"mm_x", "mm_weight", "mm_y", "mm_x_scale", "mm_weight_scale"}) {
    if (!shared) out.dtypes[port(name)] = BP_NONE;
  }
  return out;
}

using Change = void (*)(Problem&);

// Constraints that both operators have.
inline std::vector<std::pair<Change, std::string>> common_constraints() {
  return {
      {[](Problem& p) { p.axes["M"] = 7; },
       "M = 7 must be a multiple of TOPK = 2: a row of mm_x has so many routed rows"},
      {[](Problem& p) { p.axes["E"] = 0; }, "E = 0 is out of range; it must be 1 to 2147483647"},
      {[](Problem& p) { p.axes.erase("K2"); }, "K2 = -1 is out of range; it must be 1 to 2147483647"},
      {[](Problem& p) { p.dtypes[port("mm_weight")] = BP_NONE; },
       "mm_x, mm_weight and mm_y go together; mm_weight is missing"},
      {[](Problem& p) { p.dtypes[port("gmm_x")] = BP_E4M3; },
       "gmm_x has the dtype e4m3; it must be fp32, bf16 or fp16 without scales"},
      {[](Problem& p) { p.dtypes[port("gmm_weight")] = BP_FP16; },
       "gmm_weight has the dtype fp16; it must be that of gmm_x, bf16"},
      {[](Problem& p) { p.dtypes[port("mm_y")] = BP_FP16; }, "mm_y has the dtype fp16; it must be bf16 or fp32"},
      {[](Problem& p) { p.attrs["capacity"] = std::int64_t{-1}; },
       "capacity = -1 is out of range; it must be at least 0"},
      {[](Problem& p) { p.attrs["routing"] = std::string("0,1"); },
       "routing lists the experts of 2 rows; W * M = 64 need one each"},
      {[](Problem& p) { p.world = 4; }, "W = 4 is outside the strict limits; it must be 8, 16, 32, 64 or 128"},
      {[](Problem& p) { p.axes["K"] = 65536; }, "K = 65536 is outside the strict limits; it must be 1 to 65535"},
      {[](Problem& p) { p.axes["N"] = 65536; }, "N = 65536 is outside the strict limits; it must be 1 to 65535"},
      {[](Problem& p) { p.axes["K2"] = 12289; }, "K2 = 12289 is outside the strict limits; it must be 1 to 12288"},
      {[](Problem& p) { p.axes["N2"] = 65536; }, "N2 = 65536 is outside the strict limits; it must be 1 to 65535"},
      {[](Problem& p) { p.axes["TOPK"] = 1; }, "TOPK = 1 is outside the strict limits; it must be 2 to 8"},
      {[](Problem& p) { p.axes["M"] = 0; }, "M = 0 is outside the strict limits; it must be 1 to 52428799"},
      {[](Problem& p) {
         p.world = 16;
         p.axes["E"] = 25;
       },
       "W * E = 400 is outside the strict limits; it must be 1 to 384"},
      {[](Problem& p) { p.dtypes[port("mm_y")] = BP_FP32; },
       "mm_y has the dtype fp32; under strict_limits it must be that of gmm_x, bf16"},
      {[](Problem& p) { p.attrs["capacity"] = std::int64_t{3}; },
       "rank 6 routes 0 of its 8 rows; under strict_limits it routes all"},
  };
}

}  // namespace batchproof

#endif  // BATCHPROOF_TESTS_GROUPED_TEST_H_
