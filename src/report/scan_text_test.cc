// SPDX-License-Identifier: Apache-2.0
#include "src/report/scan_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/report/scan_json.h"

namespace batchproof {
namespace {

TEST(ScanTextTest, ClassesFlipsAndPlaces) {
  ScanResult result;
  result.op = "mhc_pre";
  result.implementation = "cpu-fast-occupancy";
  result.axis = std::string("M");
  result.first = 1;
  result.last = 40;
  result.victims = 32;
  result.sizes = 39;
  result.calls = 121;
  result.refused = {7};
  result.seconds = 1.25;
  result.axes = {{"H", "4096"}, {"dtype", "bf16"}};
  result.inputs = "accuracy inputs";
  const Witness witness{Witness::Kind::order, 9, 32, "order of other", "y"};
  result.ports = {{"post_mix", 1, {{1, 40, 0}}, {}, witness},
                  {"y", 2, {{1, 8, 0}, {9, 9, 1}, {10, 40, 0}}, {{9, 8, 32}, {10, 9, 31}}, witness}};
  result.flips = {{9, 8, 32}, {10, 9, 31}};
  result.places = {{"y", 33, 32, 0}};
  result.places_total = 2;
  EXPECT_EQ(format_scan(result),
            "mhc_pre/cpu-fast-occupancy  H = 4096  dtype = bf16  M = 1..40\n"
            "39 sizes, 32 victims, 121 calls, 1.2 s; inputs: accuracy inputs\n"
            "post_mix  order 9/32  1 class     A 1..40\n"
            "y         order 9/32  2 classes   A 1..8  B 9  A 10..40\n"
            "flips of y: 9 (32/32) 10 (31/32)\n"
            "flips: 9 10\n"
            "not accepted by the operator: 1 size, the first is 7\n"
            "position matters: 2 copies differ\n"
            "  y at M = 33: row 32 holds the same input as row 0\n"
            "not judged: cpu-fast-occupancy does not promise batch_size\n");
  EXPECT_FALSE(result.failed());
  result.promised = true;
  EXPECT_TRUE(result.failed());
  EXPECT_EQ(scan_verdict(result), "violation: cpu-fast-occupancy promises batch_size, and bytes change with M");
  const auto json = nlohmann::json::parse(scan_json(result, RunContext{}));
  EXPECT_EQ(json["verdict"], "violation");
  EXPECT_EQ(json["failed"], true);
  EXPECT_EQ(json["ports"][1]["intervals"][1], (nlohmann::json{{"first", 9}, {"last", 9}, {"class", 1}}));
  EXPECT_EQ(json["flips"][0], (nlohmann::json{{"at", 9}, {"after", 8}, {"victims", 32}}));
  EXPECT_EQ(json["refused"], nlohmann::json{7});
}

TEST(ScanTextTest, OneClassSaysThatNothingFlips) {
  ScanResult result;
  result.op = std::string("rms_norm");
  result.implementation = std::string("one");
  result.axis = std::string("M");
  result.first = result.last = 3;
  result.victims = result.sizes = result.calls = 1;
  result.inputs = "accuracy inputs";
  result.promised = true;
  result.ports = {{"y", 1, {{3, 3, 0}}, {}, {Witness::Kind::order, 1, 1, "order of other", "y"}}};
  const std::string head =
      "rms_norm/one  M = 3\n1 size, 1 victim, 1 call, 0.0 s; inputs: accuracy inputs\n"
      "y  order 1/1  1 class     A 3\nflips: none\n";
  EXPECT_EQ(format_scan(result), head + "pass: one class, as promised\n");
  EXPECT_FALSE(result.failed());
}

// One class where nothing could have flipped is no pass.
TEST(ScanTextTest, ABlindOutputIsVacuous) {
  ScanResult result;
  result.promised = true;
  result.ports = {{"y", 1, {{3, 3, 0}}, {}, {Witness::Kind::order, 0, 1, "order of other", "y"}}};
  EXPECT_TRUE(result.failed());
  EXPECT_EQ(scan_verdict(result),
            "vacuous: another order (order of other) moves no victim of y, so one class of it means nothing");
}

TEST(ScanTextTest, ClassNames) {
  EXPECT_EQ(scan_class_name(0), "A");
  EXPECT_EQ(scan_class_name(25), "Z");
  EXPECT_EQ(scan_class_name(26), "A1");
}

}  // namespace
}  // namespace batchproof
