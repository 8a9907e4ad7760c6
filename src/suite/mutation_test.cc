// SPDX-License-Identifier: Apache-2.0
//
// 10,000 damaged copies of good suite files: each is still a suite, or is refused with a place inside the file.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <regex>
#include <string>
#include <vector>

#include "src/suite/expand.h"
#include "src/suite/load.h"
#include "src/suite/test_operators.h"

namespace batchproof {
namespace {

constexpr int kMutants = 10'000;
constexpr std::size_t kMaxEdits = 4;

const char* const kGoodFiles[] = {
    R"json({
  "version": 1,
  "cases": [
    {"name": "mm", "op": "fake_gather", "axes": {"M": [1, 4, 8], "K": [256, 512], "N": [64], "W": [2, 4]},
     "where": "M % 4 == 0 || W == 2", "standard": {"bi": {}}},
    {
      "name": "full", "op": "fake_gather", "impl": "ref", "mode": "invariant",
      "axes": {"dtype": ["bf16", "fp16"], "M": [8], "K": [128], "N": [16], "comm_mode": ["off", "strict"]},
      "attrs": {"strict_limits": false, "gather_index": 0, "epsilon": 1e-6, "comm_kind": "aiv"},
      "inputs": [{"name": "x1", "shape": ["M", "K"], "recipe": {"kind": "uniform", "lo": -5, "hi": 5}},
                 {"name": "bias", "dtype": "fp32", "recipe": "small_integer"}, {"name": "x2", "file": "x2.npy"}],
      "outputs": [{"name": "y", "shape": ["W * M", "N"]}],
      "standard": {"acc": {"cv_fused_double_benchmark": {"max_re_ratio": 5}}, "perf": [0.95, 0.95], "mem": 1.1,
                   "bi": {"row_positions": [0, "mid", "last"], "n_variants": 2, "relations": ["repeat", "poison"],
                          "inputs": "auto", "batch_sizes": [1, 7, 8]}},
      "expect": {"position": "violation", "cell": "pass"}, "limits": {"timeout_s": 2.5}, "allow_vacuous": "because"
    },
    {"name": "refused", "op": "fake_exchange", "axes": {"M": [3], "K": [4], "N": [5], "W": [5]},
     "expect": {"error": "world"}}
  ]
})json",
    R"json([
 {"id": 0, "name": "gather", "aclnn_name": "aclnnFakeGatherV2", "api_type": "function",
  "standard": {"acc": "cv", "perf": [0.95, 0.95], "bi": {"row_positions": [0, "mid", "last"], "n_variants": 2}},
  "inputs": [
   {"name": "x1", "type": "tensor", "required": true, "dtype": "bf16", "shape": [12, 64], "range_values": [-5, 5]},
   {"name": "x2", "type": "tensor", "dtype": "bf16", "shape": [24, 64],
    "range_values": {"name": "nd", "mean": [-5.0, 5.0], "std": [1.0, 25.0]}, "outlier_values": null},
   {"name": "biasOptional", "type": "tensor", "dtype": "fp32", "shape": [24], "range_values": [-0.3, 0.3]},
   {"name": "quantScale", "type": "tensor", "dtype": "fp32", "shape": [1], "range_values": ["-inf", "inf"]},
   [{"name": "axesListOptional", "type": "attrs", "dtype": "int64_t", "shape": null, "range_values": -1},
    {"name": "axesListOptional", "type": "attrs", "dtype": "int64_t", "shape": null, "range_values": -2}],
   {"name": "transposeX2", "type": "attr", "dtype": "bool", "shape": null, "range_values": true},
   {"name": "hasBias", "type": "attr", "dtype": "bool", "shape": null, "range_values": true},
   {"name": "outputDtype", "type": "attr", "dtype": "torch_dtype", "shape": null, "range_values": "bfloat16"}
  ]},
 {"name": "exchange", "aclnn_name": "FakeExchange", "standard": {"acc": {"cv": {"max_re_ratio": 5}}, "mem": 1.1},
  "inputs": [
   {"name": "x", "type": "tensor", "dtype": "fp32", "shape": [16, 20], "range_values": 0},
   {"name": "weight", "type": "tensor", "dtype": "fp32", "shape": [160, 12], "range_values": [3]}]},
 {"name": "missing", "aclnn_name": "MatmulAlltoAll", "inputs": [{"name": "x1", "type": "tensor", "shape": [2, 2]}]}
])json",
};

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {  // splitmix64
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() % n); }

 private:
  std::uint64_t state_;
};

// Rough JSON tokens: strings, words, single characters.
std::vector<std::string> tokens_of(const std::string& text) {
  std::vector<std::string> tokens;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i + 1;
    if (text[i] == '"') {
      while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
      ++end;
    } else if (std::isalnum(static_cast<unsigned char>(text[i])) != 0 || text[i] == '-') {
      while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '.')) ++end;
    }
    tokens.push_back(text.substr(i, end - i));
    i = end;
  }
  return tokens;
}

void edit(std::string& text, Random& random) {
  static const char* const kWords[] = {"null",
                                       "true",
                                       "1e999",
                                       "-1",
                                       "9223372036854775808",
                                       "1e300",
                                       "\"\"",
                                       "{}",
                                       "[]",
                                       "[[[[",
                                       "\"\\ud8\"",
                                       "NaN",
                                       "\"M\"",
                                       "0.5",
                                       "\0",
                                       "\xEF\xBB\xBF",
                                       "\xC3",
                                       "99999999999999999999999",
                                       "\"none\"",
                                       "\"fp8\""};
  if (text.empty()) return;
  const std::size_t at = random.below(text.size());
  switch (random.below(9)) {
    case 0:
      text[at] = static_cast<char>(text[at] ^ (1 << random.below(8)));
      break;
    case 1:
      text[at] = static_cast<char>(random.next());
      break;
    case 2:
      text.erase(at, 1 + random.below(20));
      break;
    case 3:
      text.insert(at, 1 + random.below(3), static_cast<char>(random.next()));
      break;
    case 4:
      if (random.below(4) == 0) text.resize(at);
      break;
    default: {
      std::vector<std::string> tokens = tokens_of(text);
      std::string& a = tokens[random.below(tokens.size())];
      std::string& b = tokens[random.below(tokens.size())];
      switch (random.below(4)) {
        case 0:
          std::swap(a, b);
          break;
        case 1:
          a = b;
          break;
        case 2:
          a += a;
          break;
        default:
          a = kWords[random.below(std::size(kWords))];
          break;
      }
      text.clear();
      for (const std::string& token : tokens) text += token;
      break;
    }
  }
}

// Line and column of a message lie inside the text or just behind it.
void expect_place(const std::string& text, const std::string& message) {
  static const std::regex form(R"(^dir/m\.json:(\d+):(\d+): .+)");
  std::smatch match;
  const std::string first_line = message.substr(0, message.find('\n'));
  ASSERT_TRUE(std::regex_match(first_line, match, form)) << message;
  std::size_t line = std::stoul(match[1]);
  const std::size_t column = std::stoul(match[2]);
  ASSERT_GE(line, 1u);
  ASSERT_GE(column, 1u);
  std::size_t begin = 0;
  while (--line > 0) {
    begin = text.find('\n', begin);
    ASSERT_NE(begin, std::string::npos) << message;
    ++begin;
  }
  const std::size_t length = std::min(text.find('\n', begin), text.size()) - begin;
  ASSERT_LE(column, length + 1) << message;
}

TEST(Mutation, TheOriginalsAreGood) {
  for (const char* text : kGoodFiles) {
    const Result<Suite> suite = load_suite_text(text, "dir/m.json");
    ASSERT_TRUE(suite.has_value()) << suite.error().message;
    const Result<std::vector<Cell>> cells = expand(*suite, {});
    ASSERT_TRUE(cells.has_value()) << cells.error().message;
    EXPECT_GE(cells->size(), 3u);
  }
}

TEST(Mutation, DamagedFilesAreSuitesOrErrorsWithAPlace) {
  Random random(20240601);
  int loaded = 0;
  int expanded = 0;
  for (int i = 0; i < kMutants; ++i) {
    std::string text = kGoodFiles[random.below(std::size(kGoodFiles))];
    for (std::size_t edits = 1 + random.below(kMaxEdits); edits > 0; --edits) edit(text, random);
    const Result<Suite> suite = load_suite_text(text, "dir/m.json");
    if (!suite) {
      expect_place(text, suite.error().message);
    } else {
      ++loaded;
      const Result<std::vector<Cell>> cells = expand(*suite, {});
      if (cells) {
        ++expanded;
      } else {
        expect_place(text, cells.error().message);
      }
    }
    if (testing::Test::HasFatalFailure()) {
      ADD_FAILURE() << "mutant " << i << ":\n" << text;
      return;
    }
  }
  // The damage is neither always fatal nor always harmless, so both sides were tried.
  EXPECT_GT(loaded, kMutants / 50);
  EXPECT_GT(kMutants - loaded, kMutants / 4);
  EXPECT_GT(expanded, 0);
  EXPECT_LT(expanded, loaded);
}

}  // namespace
}  // namespace batchproof
