// SPDX-License-Identifier: Apache-2.0
#include "src/report/tap.h"

#include <sstream>

#include "src/report/sample_run.h"

namespace batchproof {
namespace {

std::string render() {
  std::ostringstream out;
  TapReporter reporter(out);
  sample::feed(reporter, sample::run());
  return out.str();
}

TEST(Tap, Golden) { sample::expect_golden("tap.golden", render()); }

TEST(Tap, VersionPlanAndNumbersAgree) {
  std::istringstream text(render());
  std::string line;
  ASSERT_TRUE(std::getline(text, line));
  EXPECT_EQ(line, "TAP version 14");
  int points = 0, failed = 0, skipped = 0, open = 0;
  std::string plan;
  while (std::getline(text, line)) {
    if (line == "  ---") ++open;
    if (line == "  ...") --open;
    if (line.rfind("ok ", 0) == 0 || line.rfind("not ok ", 0) == 0) {
      ++points;
      EXPECT_EQ(open, 0) << line;
      failed += line.rfind("not ok ", 0) == 0;
      skipped += line.find(" # SKIP ") != std::string::npos;
      EXPECT_NE(line.find("ok " + std::to_string(points) + " - "), std::string::npos) << line;
    } else if (line.rfind("1..", 0) == 0) {
      plan = line;
    } else {
      EXPECT_TRUE(line.rfind("  ", 0) == 0 || line.rfind("# ", 0) == 0) << line;
    }
  }
  EXPECT_EQ(points, 16);
  EXPECT_EQ(failed, 7);
  EXPECT_EQ(skipped, 2);
  EXPECT_EQ(plan, "1..16");
}

TEST(Tap, AHashInANameStartsNoDirective) {
  EXPECT_NE(render().find("100% \\#1\\\\n\\\\x01\\\\xff|`*"), std::string::npos);
}

}  // namespace
}  // namespace batchproof
