// SPDX-License-Identifier: Apache-2.0
//
// The `standard` object: acc, perf, mem as in the field, and bi. Strict in both dialects: a misspelt key here would be
// a check that silently does not run.
#include <fmt/format.h>

#include <algorithm>

#include "src/suite/read.h"

namespace batchproof {
namespace {

constexpr std::int64_t kMaxVariants = 1024;

const Words kAccuracyStandards = {"default", "mixed_tolerance_bm", "single_bm", "cv_fused_double_benchmark", "equal",
                                  "md5"};
// The double benchmark's; no other standard has any.
const Words kRatios = {"max_re_ratio", "avg_re_ratio", "root_mean_squared_ratio"};
constexpr std::size_t kSlip = 2;  // edits

// A custom name is somebody's own comparer, which this program cannot have; a slip of a known one is an error.
void check_acc_name(Reader& reader, const JsonPosition& position, const std::string& name, bool custom) {
  if (is_accuracy_standard(name)) return;
  const bool slip = std::any_of(kAccuracyStandards.begin(), kAccuracyStandards.end(),
                                [&](const std::string& known) { return edit_distance(name, known) <= kSlip; });
  if (custom && !slip) return;
  reader.fail(position,
              fmt::format("unknown acc standard {}{}", quote(name), suggest(name, kAccuracyStandards, "standards")));
}

void check_threshold(Reader& reader, const JsonMember& threshold, const std::string& standard) {
  if (!is_accuracy_standard(standard)) return;
  if (standard != "cv_fused_double_benchmark") {
    reader.fail(threshold.position, fmt::format("acc {} has no thresholds", quote(standard)));
  } else if (std::find(kRatios.begin(), kRatios.end(), threshold.key) == kRatios.end()) {
    reader.fail(threshold.position, fmt::format("unknown threshold {}{}", quote(threshold.key),
                                                suggest(threshold.key, kRatios, "thresholds")));
  } else {
    reader.positive(threshold.value, "threshold " + quote(threshold.key));
  }
}

AccStandard read_acc(Reader& reader, const JsonValue& value, bool custom) {
  AccStandard acc;
  if (value.is_string()) {
    acc.name = reader.string(value, "acc");
    if (reader.ok()) check_acc_name(reader, value.position, acc.name, custom);
    return acc;
  }
  if (!value.is_object() || value.members().size() != 1) {
    reader.fail_type(value, "acc", "a name or an object with one name and its thresholds");
    return acc;
  }
  const JsonMember& member = value.members().front();
  if (member.key.empty()) reader.fail(member.position, "the name of an acc standard must not be empty");
  acc.name = member.key;
  if (reader.ok()) check_acc_name(reader, member.position, acc.name, custom);
  for (const JsonMember& threshold : reader.object_of_any_keys(member.value, "acc " + quote(member.key))) {
    acc.thresholds[threshold.key] = reader.number(threshold.value, "threshold " + quote(threshold.key));
    if (reader.ok()) check_threshold(reader, threshold, acc.name);
  }
  return acc;
}

std::optional<std::array<double, 2>> read_perf(Reader& reader, const JsonValue& value) {
  if (value.is_string() && value.string() == "not_key") return std::nullopt;
  if (!value.is_array() || value.items().size() != 2) {
    reader.fail_type(value, "perf", "\"not_key\" or a pair [mean over cases, each case]");
    return std::nullopt;
  }
  return std::array<double, 2>{reader.positive(value.items()[0], "perf[0]"),
                               reader.positive(value.items()[1], "perf[1]")};
}

std::vector<RowPosition> read_row_positions(Reader& reader, const JsonValue& value) {
  std::vector<RowPosition> positions;
  for (const JsonValue& item : reader.list(value, "row_positions")) {
    const std::optional<std::int64_t> index = exact_integer(item);
    if (index && *index >= 0 && *index <= kMaxSuiteInteger) {
      positions.push_back({RowPosition::Kind::index, *index});
    } else if (item.is_string() && item.string() == "mid") {
      positions.push_back({RowPosition::Kind::mid, 0});
    } else if (item.is_string() && item.string() == "last") {
      positions.push_back({RowPosition::Kind::last, 0});
    } else {
      reader.fail_type(item, "a row position", "an index from 0, \"mid\" or \"last\"");
    }
  }
  return positions;
}

std::uint32_t read_relations(Reader& reader, const JsonValue& value) {
  std::uint32_t mask = 0;
  for (const JsonValue& item : reader.list(value, "relations")) {
    const std::string name = reader.string(item, "a relation");
    const std::optional<std::uint32_t> bit = relation_from_name(name);
    if (!bit) {
      Words known;
      for (const RelationWord& word : relations()) known.emplace_back(word.name);
      reader.fail(item.position, fmt::format("unknown relation {}{}", quote(name), suggest(name, known, "relations")));
    } else if ((mask & *bit) != 0) {
      reader.fail(item.position, fmt::format("relation \"{}\" is listed twice", name));
    } else {
      mask |= *bit;
    }
  }
  return mask;
}

std::vector<std::int64_t> read_batch_sizes(Reader& reader, const JsonValue& value) {
  std::vector<std::int64_t> sizes;
  for (const JsonValue& item : reader.list(value, "batch_sizes")) {
    const std::int64_t size = reader.integer(item, "a batch size", 1);
    if (std::find(sizes.begin(), sizes.end(), size) != sizes.end()) {
      reader.fail(item.position, fmt::format("batch size {} is listed twice", size));
    }
    sizes.push_back(size);
  }
  return sizes;
}

BiStandard read_bi(Reader& reader, const JsonValue& value) {
  BiStandard bi;
  bi.relations = kDefaultRelations;
  bi.row_positions = {{RowPosition::Kind::index, 0}, {RowPosition::Kind::mid, 0}, {RowPosition::Kind::last, 0}};
  const Words keys = {"row_positions", "n_variants", "relations", "inputs", "batch_sizes", "repeats"};
  for (const JsonMember& member : reader.object(value, "standard.bi", keys)) {
    if (member.key == "row_positions") {
      bi.row_positions = read_row_positions(reader, member.value);
    } else if (member.key == "n_variants") {
      bi.n_variants =
          static_cast<int>(reader.integer(member.value, "n_variants (it counts variant A)", 2, kMaxVariants));
    } else if (member.key == "repeats") {
      bi.repeats = static_cast<int>(reader.integer(member.value, "repeats", 1, 1000));
    } else if (member.key == "relations") {
      bi.relations = read_relations(reader, member.value);
    } else if (member.key == "batch_sizes") {
      bi.batch_sizes = read_batch_sizes(reader, member.value);
    } else if (member.key == "inputs") {
      const std::string word = member.value.is_string() ? member.value.string() : "";
      if (word == "auto") {
        bi.inputs = BiInputs::automatic;
      } else if (word == "shared") {
        bi.inputs = BiInputs::shared;
      } else if (word == "own") {
        bi.inputs = BiInputs::own;
      } else {
        reader.fail_type(member.value, "bi.inputs", "\"auto\", \"shared\" or \"own\"");
      }
    }
  }
  return bi;
}

}  // namespace

bool is_accuracy_standard(const std::string& name) {
  return std::find(kAccuracyStandards.begin(), kAccuracyStandards.end(), name) != kAccuracyStandards.end();
}

Standard read_standard(Reader& reader, const JsonValue& value, bool custom_acc) {
  Standard standard;
  for (const JsonMember& member : reader.object(value, "standard", {"acc", "perf", "mem", "bi"})) {
    if (member.key == "acc") {
      standard.acc = read_acc(reader, member.value, custom_acc);
    } else if (member.key == "perf") {
      standard.perf = read_perf(reader, member.value);
    } else if (member.key == "mem") {
      standard.mem = reader.positive(member.value, "mem");
    } else if (member.key == "bi") {
      standard.bi = read_bi(reader, member.value);
    }
  }
  return standard;
}

}  // namespace batchproof
