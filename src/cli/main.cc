// SPDX-License-Identifier: Apache-2.0
//
// The program: reads the command line, runs one verb, maps every way out to an exit code.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "src/cli/arguments.h"
#include "src/cli/exit.h"
#include "src/cli/print.h"
#include "src/plugin/worker.h"

namespace batchproof::cli {
namespace {

struct UnbuiltVerb {
  const char* name;
  const char* summary;
};

constexpr std::array<UnbuiltVerb, 7> kUnbuilt = {{
    {"explain", "show an implementation's order of accumulation"},
    {"bench", "time invariant, fast and peer side by side"},
    {"merge", "join the reports of shards"},
    {"compare", "compare the digests of two reports"},
    {"shrink", "find a smaller failing cell"},
    {"certify", "write an invariance certificate"},
    {"verify", "check a certificate"},
}};

// Levenshtein distance.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

int refuse_verb(const std::string& word) {
  for (const UnbuiltVerb& verb : kUnbuilt) {
    if (word == verb.name) {
      return report_shared_error(
          {Error::Kind::usage, fmt::format("{} is not built yet (it will {})", word, verb.summary)});
    }
  }
  std::string nearest = shown_verbs().front();
  for (const std::string& verb : shown_verbs()) {
    if (distance(word, verb) < distance(word, nearest)) nearest = verb;
  }
  for (const UnbuiltVerb& verb : kUnbuilt) {
    if (distance(word, verb.name) < distance(word, nearest)) nearest = verb.name;
  }
  const std::string hint = distance(word, nearest) <= std::max<std::size_t>(2, word.size() / 2)
                               ? fmt::format("; did you mean {}?", nearest)
                               : std::string("; --help lists the verbs");
  return report_shared_error({Error::Kind::usage, fmt::format("there is no verb \"{}\"{}", word, hint)});
}

std::string footer() {
  std::string text = "Not built yet:\n";
  for (const UnbuiltVerb& verb : kUnbuilt) text += fmt::format("  {:<28}{}\n", verb.name, verb.summary);
  text +=
      "\nExit codes: 0 as expected, 1 something failed, 2 usage or bad suite or nothing selected,\n"
      "3 environment, 77 everything skipped. Every flag of check and scan has an environment twin, such as\n"
      "BATCHPROOF_RANKS for --ranks; the flag wins.";
  return text;
}

int run(const std::vector<std::string>& words) {
  if (words.size() > 1 && words[1].rfind('-', 0) != 0 && !is_verb(words[1])) return refuse_verb(words[1]);
  return run_words(words, footer());
}

}  // namespace
}  // namespace batchproof::cli

int main(int argc, char** argv) {
  using namespace batchproof;
  // Hidden, before anything else: this program as the worker of a plug-in.
  if (argc > 1 && std::string_view(argv[1]) == kWorkerVerb) return worker_main(argc - 1, argv + 1);
  try {
    std::vector<std::string> words(argv, argv + argc);
    if (words.empty()) words.emplace_back("batchproof");
    return cli::run(words);
  } catch (const std::exception& exception) {
    // Out of memory and the like: what is left of the run is not to be trusted.
    return cli::report_error({Error::Kind::environment, exception.what()});
  }
}
