// SPDX-License-Identifier: Apache-2.0
#include "src/report/html.h"

#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "src/report/json.h"
#include "src/report/sample_run.h"

namespace batchproof {
namespace {

std::string render() {
  std::ostringstream out;
  HtmlReporter reporter(out);
  sample::feed(reporter, sample::run());
  return out.str();
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

std::string embedded(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const std::size_t begin = page.find(open) + open.size();
  return page.substr(begin, page.find("</script>", begin) - begin);
}

TEST(Html, Golden) { sample::expect_golden("report.html.golden", render()); }

TEST(Html, NoNameCanEndTheDataElement) {
  const std::string page = render();
  EXPECT_EQ(count(page, "</script>"), 2U);  // data and script, although a reason holds the text too
  EXPECT_EQ(script_safe("</script><!--"), "\\u003c/script>\\u003c!--");
}

TEST(Html, EmbedsTheWholeReport) {
  const std::string data = embedded(render());
  const Result<RunResult> back = parse_report(data, "page");
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->cells.size(), 15U);
  EXPECT_NE(back->cells[5].reason.find("</script><b>]]>\r\nsecond line"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(data)["relation_words"].size(), 15U);
}

TEST(Html, LoadsNothingFromElsewhere) {
  const std::string page = render();
  EXPECT_EQ(page.find("http"), std::string::npos);
  EXPECT_EQ(page.find(" src="), std::string::npos);
  EXPECT_EQ(page.find("<link"), std::string::npos);
  EXPECT_EQ(page.find("url("), std::string::npos);
  EXPECT_EQ(page.find("innerHTML"), std::string::npos);  // names are text, never markup
}

}  // namespace
}  // namespace batchproof
