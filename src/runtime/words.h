// SPDX-License-Identifier: Apache-2.0
//
// The words that suites, reports and the command line share: verdicts, relations, dtypes, modes, and their names.
#ifndef BATCHPROOF_SRC_RUNTIME_WORDS_H_
#define BATCHPROOF_SRC_RUNTIME_WORDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "batchproof/operator.h"

namespace batchproof {

// violation: a row's bytes moved. wrong, slow, heavy: a standard of accuracy, performance or memory is not met.
enum class Verdict { pass, violation, vacuous, skipped, error, wrong, slow, heavy };

const char* verdict_name(Verdict verdict);
std::optional<Verdict> verdict_from_name(std::string_view name);
int verdict_severity(Verdict verdict);  // skipped < pass < vacuous < slow < heavy < violation < wrong < error

struct RelationWord {
  std::uint32_t bit;
  const char* name;
  const char* changes;  // what changes while the row's bytes may not, one phrase
};

// Every relation in the order in which reports print them.
const std::vector<RelationWord>& relations();
const char* relation_name(std::uint32_t bit);
std::optional<std::uint32_t> relation_from_name(std::string_view name);
std::string relation_list(std::uint32_t mask);  // "neighbours, repeat"

// The relations of `"bi": {}`.
constexpr std::uint32_t kDefaultRelations = BP_NEIGHBOURS | BP_REPEAT | BP_POSITION | BP_CROSS_RANK | BP_BATCH_SIZE;

std::optional<bp_comm_mode> comm_mode_from_name(std::string_view name);  // off, on, strict
const char* comm_mode_name(bp_comm_mode mode);
const char* mode_name(bp_mode mode);  // invariant, fast

// Splits "a, b,c" at commas and trims blanks. NULL and "" give nothing.
std::vector<std::string> split_list(const char* text);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_RUNTIME_WORDS_H_
