// SPDX-License-Identifier: Apache-2.0
//
// Puts the page together. The data goes in as JSON and the script builds the page with text nodes, so that no name from
// a case file is ever read as markup.
#include "src/report/html.h"

#include <nlohmann/json.hpp>

#include "src/report/json.h"
#include "src/runtime/words.h"

namespace batchproof {

std::string script_safe(std::string_view json) {
  std::string safe;
  safe.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

void HtmlReporter::end(const RunResult& result) {
  nlohmann::ordered_json json = to_json(result);
  // The order of the columns and what each relation changes, for the legend.
  nlohmann::ordered_json& words = json["relation_words"] = nlohmann::ordered_json::array();
  for (const RelationWord& word : relations()) words.push_back({{"name", word.name}, {"changes", word.changes}});
  const std::string text = json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  out_ << "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
       << "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
       << "<title>batchproof report</title>\n<style>\n"
       << html_style() << "</style>\n</head>\n"
       << html_head() << "<script type=\"application/json\" id=\"data\">" << script_safe(text)
       << "</script>\n<script>\n"
       << html_script() << "</script>\n</body>\n</html>\n"
       << std::flush;
}

}  // namespace batchproof
