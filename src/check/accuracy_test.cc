// SPDX-License-Identifier: Apache-2.0
//
// The accuracy standards against numbers computed by hand.
#include "src/check/accuracy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "src/numeric/dtype.h"

namespace batchproof {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<std::byte> stored(bp_dtype dtype, const std::vector<double>& values) {
  std::vector<std::byte> bytes(dtype_bytes(dtype, static_cast<std::int64_t>(values.size())));
  for (std::size_t i = 0; i < values.size(); ++i)
    encode_element(dtype, values[i], bytes.data(), static_cast<std::int64_t>(i));
  return bytes;
}

struct Data {
  bp_dtype dtype = BP_FP32;
  std::vector<double> device;
  std::vector<double> golden;
  std::vector<double> benchmark = {};
  bool order_exact = false;
  bool is_peer = false;
};

PortAccuracy judge(const AccStandard& standard, const Data& data) {
  const std::vector<std::byte> device = stored(data.dtype, data.device);
  const std::vector<std::byte> benchmark = stored(data.dtype, data.benchmark);
  PortSample sample;
  sample.port = "y";
  sample.dtype = data.dtype;
  sample.order_exact = data.order_exact;
  sample.count = sample.count_per_rank = static_cast<std::int64_t>(data.device.size());
  sample.device = device.data();
  sample.benchmark = data.benchmark.empty() ? nullptr : benchmark.data();
  sample.benchmark_is_peer = data.is_peer;
  sample.golden = data.golden.data();
  return judge_port(standard, sample);
}
PortAccuracy judge(const char* standard, const Data& data) { return judge(AccStandard{standard, {}}, data); }

// `count` ones, the first `bad` of which are off by `error`.
Data ones(bp_dtype dtype, int count, int bad, double error) {
  Data data;
  data.dtype = dtype;
  data.golden.assign(static_cast<std::size_t>(count), 1.0);
  data.device = data.golden;
  for (int i = 0; i < bad; ++i) data.device[static_cast<std::size_t>(i)] += error;
  return data;
}

TEST(AccuracyTest, MeasuresAreThoseOfTheDefinition) {
  const std::vector<double> golden = {1.0, -2.0, 4.0, 0.0};
  const auto values = stored(BP_FP32, {1.0, -2.5, 3.0, 0.0});
  const ErrorMeasures measures = error_measures(BP_FP32, values.data(), golden.data(), 4);
  const double second = 0.5 / (2.0 + 1e-7);
  const double third = 1.0 / (4.0 + 1e-7);
  EXPECT_DOUBLE_EQ(measures.mare, third);  // 1e-7 counts for less beside 4
  EXPECT_DOUBLE_EQ(measures.mere, (second + third) / 4.0);
  EXPECT_DOUBLE_EQ(measures.rmse, std::sqrt((0.25 + 1.0) / 4.0));
  // A small golden does not make the relative error infinite: 1e-7 stands below it.
  const auto small = stored(BP_FP32, {0.25});
  const double zero = 0.0;
  EXPECT_DOUBLE_EQ(error_measures(BP_FP32, small.data(), &zero, 1).mare, 0.25 / 1e-7);
}

TEST(AccuracyTest, MeasuresLeaveOutWhatTheGoldenCannotSay) {
  const std::vector<double> golden = {1.0, kNan, kInfinity, 2.0};
  const auto values = stored(BP_FP32, {1.0, 5.0, 5.0, 3.0});
  const ErrorMeasures measures = error_measures(BP_FP32, values.data(), golden.data(), 4);
  EXPECT_DOUBLE_EQ(measures.rmse, std::sqrt(0.5));
  const auto broken = stored(BP_FP32, {kNan, 5.0, 5.0, 3.0});
  EXPECT_EQ(error_measures(BP_FP32, broken.data(), golden.data(), 4).mare, kInfinity);
}

TEST(AccuracyTest, UlpOfIsTheDistanceOfNeighbours) {
  EXPECT_EQ(*ulp_of(BP_FP16, 1.0), 0x1p-10);
  EXPECT_EQ(*ulp_of(BP_FP16, -1.999), 0x1p-10);
  EXPECT_EQ(*ulp_of(BP_FP16, 64.0), 0x1p-4);
  EXPECT_EQ(*ulp_of(BP_FP16, 1e-8), 0x1p-24);
  EXPECT_EQ(*ulp_of(BP_FP16, 0.0), 0x1p-24);
  EXPECT_EQ(*ulp_of(BP_BF16, 1.0), 0x1p-7);
  EXPECT_EQ(*ulp_of(BP_FP32, 0x1p-140), 0x1p-149);
  EXPECT_EQ(*ulp_of(BP_E4M3, 1.0), 0x1p-3);
  EXPECT_EQ(*ulp_of(BP_E4M3, 0x1p-8), 0x1p-9);
  EXPECT_EQ(*ulp_of(BP_E5M2, 4.0), 1.0);
  EXPECT_FALSE(ulp_of(BP_INT8, 1.0).has_value());
}

// ---- default: mixed tolerance -----------------------------------------------------------------------------------

TEST(AccuracyTest, MixedToleranceLetsOneInAHundredOut) {
  // FP16 around 1: tolerance 2^-9 + 2^-9 = 2^-8; last limit 0.1, above 32 ULP = 2^-5.
  EXPECT_EQ(judge("default", ones(BP_FP16, 100, 100, 0x1p-8)).verdict, Verdict::pass);
  const PortAccuracy one = judge("default", ones(BP_FP16, 100, 1, 0x1p-4));
  EXPECT_EQ(one.verdict, Verdict::pass);
  EXPECT_DOUBLE_EQ(*one.share, 0.99);
  const PortAccuracy two = judge("default", ones(BP_FP16, 100, 2, 0x1p-4));
  EXPECT_EQ(two.verdict, Verdict::wrong);
  EXPECT_EQ(two.reason, "98 of 100 elements are within the tolerance, 99 % must be");
  EXPECT_EQ(judge("mixed_tolerance_bm", ones(BP_FP16, 100, 2, 0x1p-4)).verdict, Verdict::wrong);
}

TEST(AccuracyTest, MixedToleranceHasALastLimitForEveryElement) {
  Data data = ones(BP_FP16, 1000, 0, 0.0);
  data.device[7] = 1.125;  // 0.125 > 0.1
  const PortAccuracy far = judge("default", data);
  EXPECT_EQ(far.verdict, Verdict::wrong);
  EXPECT_EQ(far.reason, "1 element is beyond the last limit");
  EXPECT_EQ(far.worst->index, 7);
  EXPECT_EQ(far.worst->value, 1.125);
  // At 64 the last limit is 32 ULP = 2, above 0.1.
  data.golden[7] = 64.0;
  data.device[7] = 65.5;
  EXPECT_EQ(judge("default", data).verdict, Verdict::pass);
  data.device[7] = 66.5;
  EXPECT_EQ(judge("default", data).verdict, Verdict::wrong);
}

TEST(AccuracyTest, MixedToleranceOfEveryDtype) {
  struct Row {
    bp_dtype dtype;
    double inside;  // |error| at golden 1 that the tolerance holds, and one that it does not, exact in the dtype
    double outside;
  };
  for (const Row& row : {Row{BP_FP32, 0x1p-10, 0x1p-9}, Row{BP_BF16, 0x1p-5, 0x1p-4}, Row{BP_FP16, 0x1p-8, 0x1p-7},
                         Row{BP_E4M3, 0.25, 0.375}, Row{BP_E5M2, 0.5, 0.75}}) {
    EXPECT_EQ(judge("default", ones(row.dtype, 10, 10, row.inside)).verdict, Verdict::pass) << dtype_name(row.dtype);
    EXPECT_EQ(judge("default", ones(row.dtype, 10, 10, row.outside)).verdict, Verdict::wrong) << dtype_name(row.dtype);
  }
  EXPECT_EQ(judge("default", ones(BP_FP64, 10, 0, 0.0)).verdict, Verdict::skipped);
  EXPECT_EQ(judge("default", ones(BP_FP64, 10, 0, 0.0)).reason, "the standard default has no rule for fp64");
}

TEST(AccuracyTest, WhatTheGoldenHasAsNanOrInfinityMustCome) {
  const Data same = {
      BP_FP32, {kNan, kInfinity, -kInfinity, 1.0}, {kNan, kInfinity, -1e300, 1.0}};  // -1e300 overflows FP32
  EXPECT_EQ(judge("default", same).verdict, Verdict::pass);
  EXPECT_EQ(judge("single_bm", same).verdict, Verdict::pass);
  for (const Data& other : {Data{BP_FP32, {1.0, 1.0}, {kNan, 1.0}}, Data{BP_FP32, {-kInfinity, 1.0}, {kInfinity, 1.0}},
                            Data{BP_FP32, {kNan, 1.0}, {1.0, 1.0}}, Data{BP_FP32, {kInfinity, 1.0}, {1.0, 1.0}}}) {
    EXPECT_EQ(judge("default", other).verdict, Verdict::wrong) << other.device[0] << " for " << other.golden[0];
    EXPECT_EQ(judge("single_bm", other).verdict, Verdict::wrong) << other.device[0] << " for " << other.golden[0];
    EXPECT_EQ(judge("default", other).worst->index, 0);
  }
}

// ---- single_bm --------------------------------------------------------------------------------------------------

TEST(AccuracyTest, SingleBenchmarkLimitsMeanAndLargestError) {
  // FP16: T = 2^-10. Every element off by 2^-10 is just below T, for 1e-7 stands below the fraction.
  EXPECT_EQ(judge("single_bm", ones(BP_FP16, 64, 64, 0x1p-10)).verdict, Verdict::pass);
  const PortAccuracy mean = judge("single_bm", ones(BP_FP16, 64, 64, 0x1p-9));
  EXPECT_EQ(mean.verdict, Verdict::wrong);
  EXPECT_EQ(mean.reason.find("MERE 0.00195 is not below 0.000977"), 0u) << mean.reason;
  // One element at 16 T: the mean is T / 4, the largest is above 10 T.
  const PortAccuracy largest = judge("single_bm", ones(BP_FP16, 64, 1, 0x1p-6));
  EXPECT_EQ(largest.verdict, Verdict::wrong);
  EXPECT_EQ(largest.reason, "MARE 0.0156 is not below 0.00977");
  EXPECT_EQ(judge("single_bm", ones(BP_FP16, 64, 1, 0x1p-7)).verdict, Verdict::pass);
}

TEST(AccuracyTest, SingleBenchmarkOfEveryDtype) {
  struct Row {
    bp_dtype dtype;
    double threshold;
  };
  for (const Row& row : {Row{BP_FP16, 0x1p-10}, Row{BP_BF16, 0x1p-7}, Row{BP_FP32, 0x1p-13}, Row{BP_E4M3, 0x1p-3},
                         Row{BP_E5M2, 0x1p-2}}) {
    EXPECT_EQ(judge("single_bm", ones(row.dtype, 8, 8, row.threshold)).verdict, Verdict::pass) << row.threshold;
    EXPECT_EQ(judge("single_bm", ones(row.dtype, 8, 8, 2.0 * row.threshold)).verdict, Verdict::wrong) << row.threshold;
  }
}

// ---- cv_fused_double_benchmark ----------------------------------------------------------------------------------

TEST(AccuracyTest, DoubleBenchmarkComparesTheErrorsOfTwo) {
  // Benchmark off by 0.25, device by 0.5, at 2: every ratio is exactly 2.
  const Data data = {BP_FP32, {1.0, 2.5, 4.0}, {1.0, 2.0, 4.0}, {1.0, 2.25, 4.0}};
  const PortAccuracy result = judge("cv_fused_double_benchmark", data);
  EXPECT_EQ(result.verdict, Verdict::pass) << result.reason;
  EXPECT_DOUBLE_EQ(result.ratio->mare, 2.0);
  EXPECT_DOUBLE_EQ(result.ratio->mere, 2.0);
  EXPECT_DOUBLE_EQ(result.ratio->rmse, 2.0);
  EXPECT_DOUBLE_EQ(result.benchmark->rmse, std::sqrt(0.0625 / 3.0));
  EXPECT_EQ(*result.worst->benchmark, 2.25);

  const AccStandard strict = {"cv_fused_double_benchmark", {{"avg_re_ratio", 1.5}}};
  const PortAccuracy refused = judge(strict, data);
  EXPECT_EQ(refused.verdict, Verdict::wrong);
  EXPECT_EQ(refused.reason, "the MERE ratio 2 is not at most 1.5");
  EXPECT_EQ(refused.limit->mare, 10.0);
  EXPECT_EQ(refused.limit->rmse, 2.0);
}

TEST(AccuracyTest, DoubleBenchmarkTakesNoBenchmarkForBetterThanTheFloor) {
  // An exact benchmark counts as 2^-11, 2^-8, 2^-14: the device may be off by twice as much, not by four times.
  for (const auto& [dtype, floor] :
       std::vector<std::pair<bp_dtype, double>>{{BP_FP16, 0x1p-11}, {BP_BF16, 0x1p-8}, {BP_FP32, 0x1p-14}}) {
    Data data = ones(dtype, 4, 4, 2.0 * floor);
    data.benchmark = data.golden;
    EXPECT_EQ(judge("cv_fused_double_benchmark", data).verdict, Verdict::pass) << dtype_name(dtype);
    EXPECT_NEAR(judge("cv_fused_double_benchmark", data).ratio->rmse, 2.0, 1e-12);
    data = ones(dtype, 4, 4, 4.0 * floor);
    data.benchmark = data.golden;
    EXPECT_EQ(judge("cv_fused_double_benchmark", data).verdict, Verdict::wrong) << dtype_name(dtype);
  }
}

TEST(AccuracyTest, DoubleBenchmarkFollowsItsRuleForNan) {
  Data data = {BP_FP32, {1.0, kNan}, {1.0, 2.0}, {1.0, kInfinity}};
  const PortAccuracy excused = judge("cv_fused_double_benchmark", data);
  EXPECT_EQ(excused.verdict, Verdict::pass);
  EXPECT_EQ(excused.reason, "1 element of the benchmark is NaN or infinite: the standard lets that pass");
  data.benchmark[1] = 2.0;
  const PortAccuracy alone = judge("cv_fused_double_benchmark", data);
  EXPECT_EQ(alone.verdict, Verdict::wrong);
  EXPECT_EQ(alone.reason, "1 element is NaN or infinite, none of the benchmark's");
}

TEST(AccuracyTest, DoubleBenchmarkHasNoFloorForFp8) {
  Data data = ones(BP_E4M3, 4, 0, 0.0);
  data.benchmark = data.golden;
  EXPECT_EQ(judge("cv_fused_double_benchmark", data).verdict, Verdict::skipped);
  // A port that moves data needs none.
  data.order_exact = true;
  EXPECT_EQ(judge("cv_fused_double_benchmark", data).verdict, Verdict::pass);
}

// ---- exact outputs ----------------------------------------------------------------------------------------------

TEST(AccuracyTest, IntegersAreExactAndInt8MayBeOneOff) {
  for (const char* standard : {"default", "single_bm", "cv_fused_double_benchmark"}) {
    EXPECT_EQ(judge(standard, Data{BP_INT8, {3.0, -6.0}, {4.0, -5.4}}).verdict, Verdict::pass);
    EXPECT_EQ(judge(standard, Data{BP_INT8, {2.0}, {4.0}}).verdict, Verdict::wrong);
    EXPECT_EQ(judge(standard, Data{BP_INT32, {3.0}, {4.0}}).verdict, Verdict::wrong);
    EXPECT_EQ(judge(standard, Data{BP_INT32, {4.0}, {4.0}}).verdict, Verdict::pass);
  }
  EXPECT_EQ(judge("equal", Data{BP_INT8, {3.0}, {4.0}}).verdict, Verdict::wrong);
}

TEST(AccuracyTest, PortsThatMoveDataMustBeEqual) {
  for (const char* standard : {"default", "single_bm", "cv_fused_double_benchmark"}) {
    Data data = ones(BP_BF16, 4, 0, 0.0);
    data.benchmark = data.golden;
    data.order_exact = true;
    EXPECT_EQ(judge(standard, data).verdict, Verdict::pass) << standard;
    data.device[2] = 1.0078125;  // 1 ULP: every tolerance would let it through
    EXPECT_EQ(judge(standard, data).verdict, Verdict::wrong) << standard;
    EXPECT_EQ(judge(standard, data).worst->index, 2) << standard;
  }
}

TEST(AccuracyTest, EqualRoundsTheGoldenOnce) {
  const double third = 1.0 / 3.0;
  for (const char* standard : {"equal", "md5"}) {
    EXPECT_EQ(judge(standard, Data{BP_FP32, {third, kNan}, {third, kNan}}).verdict, Verdict::pass);
    const PortAccuracy off =
        judge(standard, Data{BP_FP32, {static_cast<double>(std::nextafter(static_cast<float>(third), 1.0F))}, {third}});
    EXPECT_EQ(off.verdict, Verdict::wrong);
    EXPECT_EQ(off.reason, "1 of 1 elements are not equal to the golden, rounded once");
  }
}

TEST(AccuracyTest, EqualTakesTheUnfusedCompositionWhereThereIsOne) {
  // Both are off in the same way: equal. The sign of zero is a byte.
  EXPECT_EQ(judge("equal", Data{BP_FP32, {1.5}, {1.0}, {1.5}, false, true}).verdict, Verdict::pass);
  EXPECT_EQ(judge("equal", Data{BP_FP32, {0.0}, {0.0}, {-0.0}, false, true}).verdict, Verdict::wrong);
  // A mere second implementation is no yardstick for equality.
  EXPECT_EQ(judge("equal", Data{BP_FP32, {1.5}, {1.0}, {1.5}, false, false}).verdict, Verdict::wrong);
}

TEST(AccuracyTest, EmptyOutputsPass) {
  for (const char* standard : {"default", "single_bm", "cv_fused_double_benchmark", "equal"})
    EXPECT_EQ(judge(standard, Data{BP_FP32, {}, {}}).verdict, Verdict::pass);
}

}  // namespace
}  // namespace batchproof
