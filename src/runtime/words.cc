// SPDX-License-Identifier: Apache-2.0
#include "src/runtime/words.h"

#include <array>

namespace batchproof {
namespace {

struct VerdictWord {
  Verdict verdict;
  const char* name;
  int severity;
};

constexpr std::array<VerdictWord, 8> kVerdicts = {{
    {Verdict::skipped, "skipped", 0},
    {Verdict::pass, "pass", 1},
    {Verdict::vacuous, "vacuous", 2},
    {Verdict::slow, "slow", 3},
    {Verdict::heavy, "heavy", 4},
    {Verdict::violation, "violation", 5},
    {Verdict::wrong, "wrong", 6},
    {Verdict::error, "error", 7},
}};

const VerdictWord& word(Verdict verdict) {
  for (const VerdictWord& entry : kVerdicts) {
    if (entry.verdict == verdict) return entry;
  }
  return kVerdicts.back();
}

}  // namespace

const char* verdict_name(Verdict verdict) { return word(verdict).name; }
int verdict_severity(Verdict verdict) { return word(verdict).severity; }

std::optional<Verdict> verdict_from_name(std::string_view name) {
  for (const VerdictWord& entry : kVerdicts) {
    if (name == entry.name) return entry.verdict;
  }
  return std::nullopt;
}

const std::vector<RelationWord>& relations() {
  static const std::vector<RelationWord> words = {
      {BP_NEIGHBOURS, "neighbours", "the other rows' content and scales"},
      {BP_REPEAT, "repeat", "nothing: the same call again"},
      {BP_POSITION, "position", "the row's index and its owner rank"},
      {BP_CROSS_RANK, "cross_rank", "which rank computes the same logical slot"},
      {BP_BATCH_SIZE, "batch_size", "the number of rows"},
      {BP_WORLD_SIZE, "world_size", "the number of ranks for the same logical problem"},
      {BP_COMM_MODE, "comm_mode", "communication determinism: off, on, strict"},
      {BP_POISON, "poison", "neighbours, workspace and stale output become NaN, Inf and extreme codes"},
      {BP_ROUTING, "routing", "which experts the other tokens choose"},
      {BP_ALIGNMENT, "alignment", "base offset and leading dimension"},
      {BP_THREADS, "threads", "the number of CPU threads"},
      {BP_PROCESSORS, "processors", "the limit on streaming multiprocessors"},
      {BP_HISTORY, "history", "what ran before: another shape, another mode, a recycled workspace"},
      {BP_STREAM, "stream", "a second busy stream"},
      {BP_GRAPH, "graph", "eager, captured and replayed execution"},
  };
  return words;
}

const char* relation_name(std::uint32_t bit) {
  for (const RelationWord& entry : relations()) {
    if (entry.bit == bit) return entry.name;
  }
  return "unknown";
}

std::optional<std::uint32_t> relation_from_name(std::string_view name) {
  for (const RelationWord& entry : relations()) {
    if (name == entry.name) return entry.bit;
  }
  return std::nullopt;
}

std::string relation_list(std::uint32_t mask) {
  std::string list;
  for (const RelationWord& entry : relations()) {
    if ((mask & entry.bit) == 0) continue;
    if (!list.empty()) list += ", ";
    list += entry.name;
  }
  return list;
}

std::optional<bp_comm_mode> comm_mode_from_name(std::string_view name) {
  if (name == "off") return BP_COMM_OFF;
  if (name == "on") return BP_COMM_ON;
  if (name == "strict") return BP_COMM_STRICT;
  return std::nullopt;
}

const char* comm_mode_name(bp_comm_mode mode) {
  return mode == BP_COMM_OFF ? "off" : mode == BP_COMM_ON ? "on" : "strict";
}

const char* mode_name(bp_mode mode) { return mode == BP_MODE_INVARIANT ? "invariant" : "fast"; }

std::vector<std::string> split_list(const char* text) {
  std::vector<std::string> parts;
  if (text == nullptr) return parts;
  std::string part;
  const auto finish = [&] {
    const std::size_t begin = part.find_first_not_of(" \t");
    if (begin != std::string::npos) parts.push_back(part.substr(begin, part.find_last_not_of(" \t") - begin + 1));
    part.clear();
  };
  for (const char* c = text; *c != '\0'; ++c) {
    if (*c == ',') {
      finish();
    } else {
      part += *c;
    }
  }
  finish();
  return parts;
}

}  // namespace batchproof
