// SPDX-License-Identifier: Apache-2.0
#include "src/report/junit.h"

#include <map>
#include <pugixml.hpp>
#include <set>
#include <sstream>

#include "src/report/sample_run.h"

namespace batchproof {
namespace {

std::string render() {
  std::ostringstream out;
  JunitReporter reporter(out);
  sample::feed(reporter, sample::run());
  return out.str();
}

// What Jenkins' JUnit schema allows: attributes (with * required) and children in their order (+ repeatable).
struct Rule {
  std::set<std::string> required, optional;
  std::vector<std::string> children;
};

const std::map<std::string, Rule>& rules() {
  static const std::map<std::string, Rule> table = {
      {"testsuites", {{}, {"name", "time", "tests", "failures", "disabled", "errors"}, {"testsuite"}}},
      {"testsuite",
       {{"name", "tests"},
        {"failures", "errors", "time", "disabled", "skipped", "timestamp", "hostname", "id", "package"},
        {"properties", "testcase", "system-out", "system-err"}}},
      {"properties", {{}, {}, {"property"}}},
      {"property", {{"name", "value"}, {}, {}}},
      {"testcase",
       {{"name"},
        {"assertions", "time", "classname", "status"},
        {"skipped", "error", "failure", "system-out", "system-err"}}},
      {"skipped", {{}, {}, {}}},
      {"error", {{}, {"type", "message"}, {}}},
      {"failure", {{}, {"type", "message"}, {}}},
      {"system-out", {{}, {}, {}}},
      {"system-err", {{}, {}, {}}}};
  return table;
}

void expect_valid(pugi::xml_node node) {
  const auto found = rules().find(node.name());
  ASSERT_NE(found, rules().end()) << node.name();
  const Rule& rule = found->second;
  for (const std::string& name : rule.required) EXPECT_TRUE(node.attribute(name.c_str())) << node.path() << " " << name;
  for (const pugi::xml_attribute attribute : node.attributes()) {
    EXPECT_TRUE(rule.required.count(attribute.name()) + rule.optional.count(attribute.name()))
        << node.path() << " " << attribute.name();
  }
  std::size_t place = 0;
  for (const pugi::xml_node child : node.children()) {
    if (child.type() != pugi::node_element) continue;
    const auto at =
        std::find(rule.children.begin() + static_cast<std::ptrdiff_t>(place), rule.children.end(), child.name());
    ASSERT_NE(at, rule.children.end()) << node.path() << ": " << child.name() << " is not allowed here";
    place = static_cast<std::size_t>(at - rule.children.begin());
    expect_valid(child);
  }
}

TEST(Junit, Golden) { sample::expect_golden("junit.xml.golden", render()); }

TEST(Junit, FollowsTheJenkinsSchema) {
  pugi::xml_document document;
  const std::string text = render();
  ASSERT_TRUE(document.load_buffer(text.data(), text.size()));
  expect_valid(document.document_element());
}

TEST(Junit, CountsAreThoseOfTheCases) {
  pugi::xml_document document;
  const std::string text = render();
  ASSERT_TRUE(document.load_buffer(text.data(), text.size()));
  const pugi::xml_node root = document.document_element();
  EXPECT_EQ(root.attribute("tests").as_int(), 16);
  EXPECT_EQ(root.attribute("failures").as_int(), 6);
  EXPECT_EQ(root.attribute("errors").as_int(), 1);
  int suites = 0;
  for (const pugi::xml_node suite : root.children("testsuite")) {
    ++suites;
    int tests = 0, failures = 0, errors = 0, skipped = 0;
    for (const pugi::xml_node test : suite.children("testcase")) {
      ++tests;
      failures += !test.child("failure").empty();
      errors += !test.child("error").empty();
      skipped += !test.child("skipped").empty();
    }
    EXPECT_EQ(suite.attribute("tests").as_int(), tests);
    EXPECT_EQ(suite.attribute("failures").as_int(), failures);
    EXPECT_EQ(suite.attribute("errors").as_int(), errors);
    EXPECT_EQ(suite.attribute("skipped").as_int(), skipped);
  }
  EXPECT_EQ(suites, 2);
}

TEST(Junit, NamesComeBackAndNothingIsForbiddenInXml) {
  const std::string text = render();
  for (const char c : text) {
    EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n') << static_cast<int>(c);
  }
  EXPECT_EQ(text.find("&#"), std::string::npos);  // a reference to a control character is as forbidden as the character
  pugi::xml_document document;
  ASSERT_TRUE(document.load_buffer(text.data(), text.size()));
  const pugi::xml_node test = document.select_node("//testcase[error]").node();
  EXPECT_NE(std::string(test.attribute("name").value()).find("nasty <name> & \"q\", 100% #1\\n\\x01\\xff|`*"),
            std::string::npos);
  EXPECT_NE(std::string(test.child_value("error")).find("</script><b>]]>\\r\\nsecond line"), std::string::npos);
}

TEST(Junit, PropertiesPointIntoTheCaseFile) {
  pugi::xml_document document;
  const std::string text = render();
  ASSERT_TRUE(document.load_buffer(text.data(), text.size()));
  const std::string out = document.select_node("//testcase[1]").node().child_value("system-out");
  EXPECT_NE(out.find("[[PROPERTY|file=ops/all_gather_matmul/ci.json]]"), std::string::npos);
  EXPECT_NE(out.find("[[PROPERTY|line=10]]"), std::string::npos);
  EXPECT_NE(out.find("[[PROPERTY|axis.K=512]]"), std::string::npos);
  EXPECT_NE(out.find("witness leak 63/63]]"), std::string::npos);
  EXPECT_STREQ(document.select_node("//property[@name='seed']").node().attribute("value").value(), "1");
}

}  // namespace
}  // namespace batchproof
