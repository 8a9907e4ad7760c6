// SPDX-License-Identifier: Apache-2.0
//
// The GEMM against a plain statement of its schedule, byte for byte, on every instruction set that this machine has.
#include "src/kernels/cpu/gemm.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "src/numeric/bf16.h"
#include "src/numeric/fp16.h"

namespace batchproof {
namespace {

std::size_t width(bp_dtype dtype) { return dtype == BP_FP32 ? 4 : 2; }

float read(const void* data, std::int64_t at, bp_dtype dtype) {
  if (dtype == BP_FP32) return static_cast<const float*>(data)[at];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[at];
  return dtype == BP_BF16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

void write(void* data, std::int64_t at, bp_dtype dtype, float value) {
  if (dtype == BP_FP32) {
    static_cast<float*>(data)[at] = std::isnan(value) ? std::bit_cast<float>(kFp32Nan) : value;
  } else {
    static_cast<std::uint16_t*>(data)[at] = dtype == BP_BF16 ? float_to_bf16(value) : float_to_fp16(value);
  }
}

Schedule chain(std::int64_t k, std::int64_t length) { return *Schedule::make(k, ChainPolicy{length}); }
Schedule tree(std::int64_t k, std::int64_t slices, std::int64_t length) {
  return *Schedule::make(k, TreePolicy{slices, 1, length});
}

// A problem with its memory. Padding between rows and behind the end holds a pattern that must survive.
struct Case {
  std::int64_t m, n, k;
  bp_dtype in = BP_FP32;
  bp_dtype out = BP_FP32;
  bp_dtype bias = BP_NONE;
  bool transposed = false;
  std::int64_t pad = 0;
  std::vector<std::uint8_t> a = {}, b = {}, bias_data = {}, c = {};
  std::int64_t lda = 0, ldb = 0, ldc = 0;

  static constexpr std::uint8_t kPattern = 0xA5;

  void make(unsigned seed) {
    lda = k + pad;
    ldb = (transposed ? k : n) + pad;
    ldc = n + pad;
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    a.assign(static_cast<std::size_t>(m * lda + 8) * 4, 0xFF);
    b.assign(static_cast<std::size_t>((transposed ? n : k) * ldb + 8) * 4, 0xFF);
    bias_data.assign(static_cast<std::size_t>(n) * 4, 0xFF);
    c.assign(static_cast<std::size_t>(m * ldc + 8) * 4, kPattern);
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t x = 0; x < k; ++x) write(a.data(), i * lda + x, in, normal(generator));
    }
    for (std::int64_t x = 0; x < k; ++x) {
      for (std::int64_t j = 0; j < n; ++j) write(b.data(), b_at(x, j), in, normal(generator));
    }
    for (std::int64_t j = 0; j < n && bias != BP_NONE; ++j) write(bias_data.data(), j, bias, normal(generator));
  }
  std::int64_t b_at(std::int64_t x, std::int64_t j) const { return transposed ? j * ldb + x : x * ldb + j; }

  GemmCall call() {
    GemmCall call;
    call.m = m;
    call.n = n;
    call.k = k;
    call.a = {a.data(), in, lda, 1};
    call.b = {b.data(), in, transposed ? 1 : ldb, transposed ? ldb : 1};
    if (bias != BP_NONE) call.bias = {bias_data.data(), bias, 1};
    call.c = {c.data(), out, ldc};
    return call;
  }

  // The schedule in plain words.
  float expected(const Schedule& schedule, std::int64_t i, std::int64_t j) const {
    std::vector<float> sums;
    for (const Segment& segment : schedule.segments()) {
      float acc = 0.0f;
      for (std::int64_t x = segment.begin; x < segment.end; ++x) {
        acc = std::fma(read(a.data(), i * lda + x, in), read(b.data(), b_at(x, j), in), acc);
      }
      sums.push_back(acc);
    }
    float sum = sums.empty() ? 0.0f : merge_segment_sums(schedule, sums);
    if (bias != BP_NONE) sum = sum + read(bias_data.data(), j, bias);
    return sum;
  }

  std::string difference(const Schedule& schedule, std::int64_t step_i = 1, std::int64_t step_j = 1) const {
    for (std::int64_t i = 0; i < m; i += step_i) {
      for (std::int64_t j = 0; j < n; j += step_j) {
        std::uint8_t want[4];
        write(want, 0, out, expected(schedule, i, j));
        const std::uint8_t* got = c.data() + static_cast<std::size_t>(i * ldc + j) * width(out);
        if (std::memcmp(want, got, width(out)) != 0) {
          return "C[" + std::to_string(i) + "," + std::to_string(j) + "] = " + std::to_string(read(got, 0, out)) +
                 ", the schedule gives " + std::to_string(read(want, 0, out));
        }
      }
      for (std::size_t at = static_cast<std::size_t>(i * ldc + n) * width(out);
           at < static_cast<std::size_t>((i + 1) * ldc) * width(out); ++at) {
        if (c[at] != kPattern) return "padding of row " + std::to_string(i) + " was written";
      }
    }
    for (std::size_t at = static_cast<std::size_t>(m * ldc) * width(out); at < c.size(); ++at) {
      if (c[at] != kPattern) return "memory behind C was written";
    }
    return "";
  }
};

void run(Case& problem, const Schedule& schedule, Isa isa, int threads) {
  const Result<void> done = gemm(problem.call(), schedule, {threads, isa});
  ASSERT_TRUE(done) << done.error().message;
}

class GemmOnIsa : public testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(Isas, GemmOnIsa, testing::ValuesIn(available_isas()),
                         [](const auto& isa) { return isa_name(isa.param); });

TEST_P(GemmOnIsa, EveryShapeAroundTheTilesFollowsTheSchedule) {
  const std::int64_t ms[] = {1, 2, 3, 4, 5, 6, 7, 13, 14, 15, 16, 17, 29};
  const std::int64_t ns[] = {1, 7, 8, 15, 16, 17, 31, 32, 33, 65};
  const std::int64_t ks[] = {0, 1, 2, 7, 8, 9, 31, 32, 33, 100};
  unsigned seed = 1;
  for (const std::int64_t m : ms) {
    for (const std::int64_t n : ns) {
      for (const std::int64_t k : ks) {
        for (const bool transposed : {false, true}) {
          if ((m + n + k + transposed) % 3 != 0) continue;  // a third of the grid, every value of every axis
          Case problem{.m = m, .n = n, .k = k, .transposed = transposed, .pad = (m + k) % 2 == 0 ? 3 : 0};
          problem.make(++seed);
          const Schedule schedule = chain(k, 32);
          run(problem, schedule, GetParam(), 1);
          ASSERT_EQ(problem.difference(schedule), "") << m << "x" << n << "x" << k << " transposed " << transposed;
        }
      }
    }
  }
}

TEST_P(GemmOnIsa, EveryDtypeBiasAndOutputFollowsTheSchedule) {
  struct Types {
    bp_dtype in, out, bias;
  };
  const Types all[] = {{BP_FP32, BP_FP32, BP_FP32}, {BP_FP32, BP_BF16, BP_NONE}, {BP_FP32, BP_FP16, BP_BF16},
                       {BP_BF16, BP_BF16, BP_NONE}, {BP_BF16, BP_BF16, BP_BF16}, {BP_BF16, BP_FP32, BP_FP32},
                       {BP_FP16, BP_FP16, BP_NONE}, {BP_FP16, BP_FP16, BP_FP16}, {BP_FP16, BP_FP32, BP_FP16}};
  unsigned seed = 100;
  for (const Types& types : all) {
    for (const std::int64_t m : {1, 5, 19, 40}) {
      for (const bool transposed : {false, true}) {
        Case problem{.m = m,
                     .n = 37,
                     .k = 77,
                     .in = types.in,
                     .out = types.out,
                     .bias = types.bias,
                     .transposed = transposed,
                     .pad = 5};
        problem.make(++seed);
        for (const Schedule& schedule : {chain(77, 32), chain(77, 256)}) {
          run(problem, schedule, GetParam(), 1);
          ASSERT_EQ(problem.difference(schedule), "")
              << "in " << types.in << " out " << types.out << " bias " << types.bias << " m " << m;
        }
      }
    }
  }
}

TEST_P(GemmOnIsa, TreesFollowTheSchedule) {
  unsigned seed = 200;
  for (const std::int64_t m : {1, 9, 33}) {
    for (const bp_dtype dtype : {BP_FP32, BP_BF16}) {
      Case problem{.m = m, .n = 35, .k = 96, .in = dtype, .out = dtype, .bias = BP_FP32, .transposed = m == 9};
      problem.make(++seed);
      for (const Schedule& schedule :
           {tree(96, 1, 16), tree(96, 2, 16), tree(96, 4, 7), tree(96, 8, 256), tree(96, 16, 4)}) {
        run(problem, schedule, GetParam(), 2);
        ASSERT_EQ(problem.difference(schedule), "") << schedule.name() << " m " << m;
      }
    }
  }
  Case empty{.m = 3, .n = 5, .k = 0, .bias = BP_FP32};
  empty.make(1);
  run(empty, tree(0, 16, 4), GetParam(), 1);
  EXPECT_EQ(empty.difference(tree(0, 16, 4)), "");
}

TEST_P(GemmOnIsa, RowsOfABatchEqualTheRowAlone) {
  for (const bp_dtype dtype : {BP_FP32, BP_BF16}) {
    for (const bool transposed : {false, true}) {
      Case batch{.m = 20, .n = 41, .k = 70, .in = dtype, .out = BP_FP32, .transposed = transposed};
      batch.make(7);
      const Schedule schedule = chain(70, 32);
      for (std::int64_t m = 1; m <= 20; ++m) {
        Case part = batch;
        part.m = m;
        run(part, schedule, GetParam(), 1);
        for (std::int64_t i = 0; i < m; ++i) {
          Case alone = batch;
          alone.m = 1;
          alone.a.erase(alone.a.begin(), alone.a.begin() + i * alone.lda * static_cast<std::int64_t>(width(dtype)));
          run(alone, schedule, GetParam(), 1);
          ASSERT_EQ(std::memcmp(part.c.data() + i * part.ldc * 4, alone.c.data(), 41 * 4), 0)
              << "row " << i << " of " << m;
        }
      }
    }
  }
}

TEST_P(GemmOnIsa, ThreadsMoveNoByte) {
  for (const std::int64_t m : {1, 3, 16, 17, 90}) {
    Case problem{.m = m, .n = 200, .k = 64, .out = BP_FP32, .transposed = m == 90};
    problem.make(9);
    const Schedule schedule = chain(64, 24);
    for (const int threads : {1, 2, 3, 5, 8}) {
      std::fill(problem.c.begin(), problem.c.end(), Case::kPattern);
      run(problem, schedule, GetParam(), threads);
      ASSERT_EQ(problem.difference(schedule), "") << threads << " threads, m " << m;
    }
  }
}

TEST_P(GemmOnIsa, SpecialValuesAreThoseOfTheSchedule) {
  const float specials[] = {std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            -0.0f,
                            1e-40f,
                            -1e-42f,
                            3e38f,
                            1e-30f};
  for (const std::int64_t m : {8, 40}) {
    for (const bp_dtype out : {BP_FP32, BP_BF16, BP_FP16}) {
      Case problem{.m = m, .n = 40, .k = 40, .out = out};
      problem.make(11);
      for (std::int64_t i = 0; i < m; ++i) {
        if (i % 2 == 1) write(problem.a.data(), i * 40 + i, BP_FP32, specials[i / 2 % 8]);
        if (i % 8 == 4) {
          for (int x = 0; x < 40; ++x) write(problem.a.data(), i * 40 + x, BP_FP32, x % 2 == 0 ? -1e-44f : 1e-40f);
        }
      }
      for (int x = 0; x < 8; ++x) write(problem.b.data(), x * 40 + 2 * x, BP_FP32, specials[x]);
      const Schedule schedule = chain(40, 16);
      run(problem, schedule, GetParam(), 1);
      ASSERT_EQ(problem.difference(schedule), "") << "m " << m << " out " << out;
    }
  }
}

TEST_P(GemmOnIsa, NaNOfOneRowReachesNoOtherAndNoLaterCall) {
  for (const std::int64_t m : {5, 31}) {
    for (const bool transposed : {false, true}) {
      Case clean{.m = m, .n = 33, .k = 50, .transposed = transposed};
      clean.make(13);
      const Schedule schedule = chain(50, 20);
      run(clean, schedule, GetParam(), 1);
      Case dirty = clean;
      for (std::int64_t i = 0; i < m; i += 2) {
        for (int x = 0; x < 50; ++x) write(dirty.a.data(), i * 50 + x, BP_FP32, std::nanf(""));
      }
      run(dirty, schedule, GetParam(), 1);
      for (std::int64_t i = 1; i < m; i += 2) {
        ASSERT_EQ(std::memcmp(clean.c.data() + i * 33 * 4, dirty.c.data() + i * 33 * 4, 33 * 4), 0) << "row " << i;
      }
      // The packed blocks of the thread now hold NaN.
      run(clean, schedule, GetParam(), 1);
      ASSERT_EQ(clean.difference(schedule), "");
    }
  }
}

TEST(Gemm, BlockedShapesFollowTheScheduleOnTheWidestIsa) {
  if (best_isa() == Isa::plain) GTEST_SKIP() << "too slow without vector instructions";
  struct Shape {
    std::int64_t m, n, k;
    bool transposed;
    bp_dtype out;
  };
  // More rows than a pass, more columns than a block, several segments, each with an odd rest.
  const Shape shapes[] = {{1100, 130, 300, false, BP_FP32}, {300, 2200, 530, false, BP_BF16},
                          {1021, 70, 520, true, BP_FP16},   {250, 700, 530, true, BP_BF16},
                          {3, 9000, 300, false, BP_FP32},   {16, 700, 1100, false, BP_BF16}};
  for (const Shape& shape : shapes) {
    Case problem{.m = shape.m,
                 .n = shape.n,
                 .k = shape.k,
                 .out = shape.out,
                 .bias = BP_FP32,
                 .transposed = shape.transposed,
                 .pad = 1};
    problem.make(17);
    for (const Schedule& schedule : {chain(shape.k, kGemmSegment), chain(shape.k, 10000)}) {
      for (const int threads : {1, 3}) {
        run(problem, schedule, best_isa(), threads);
        ASSERT_EQ(problem.difference(schedule, 7, 13), "") << shape.m << "x" << shape.n << "x" << shape.k;
      }
    }
  }
}

TEST(Gemm, InstructionSetsGiveTheSameBytes) {
  const std::vector<Isa> isas = available_isas();
  for (const bp_dtype dtype : {BP_FP32, BP_BF16, BP_FP16}) {
    for (const std::int64_t m : {3, 50}) {
      Case problem{.m = m, .n = 100, .k = 300, .in = dtype, .out = dtype, .bias = dtype};
      problem.make(19);
      std::vector<std::uint8_t> first;
      for (const Isa isa : isas) {
        run(problem, chain(300, 128), isa, 2);
        if (first.empty()) first = problem.c;
        EXPECT_EQ(problem.c, first) << isa_name(isa);
      }
    }
  }
}

TEST(Gemm, ASchedulesOrderIsVisible) {
  // Otherwise the tests above could not tell one order from another.
  Case problem{.m = 4, .n = 64, .k = 200};
  problem.make(23);
  run(problem, chain(200, 64), Isa::plain, 1);
  EXPECT_NE(problem.difference(chain(200, 32)), "");
  EXPECT_NE(problem.difference(chain(200, 200)), "");
}

TEST(Gemm, EmptyExtentsWriteNothing) {
  for (const auto& [m, n] : {std::pair<int, int>{0, 8}, {8, 0}}) {
    Case problem{.m = m, .n = n, .k = 16, .pad = 2};
    problem.make(29);
    run(problem, chain(16, 8), best_isa(), 3);
    EXPECT_EQ(problem.difference(chain(16, 8)), "");
  }
}

TEST(Gemm, BadCallsAreRefusedInWords) {
  Case problem{.m = 2, .n = 2, .k = 2};
  problem.make(31);
  const Schedule schedule = chain(2, 2);
  const auto message = [&](const GemmCall& call, const Schedule& order, GemmOptions options = {}) {
    const Result<void> done = gemm(call, order, options);
    return done ? std::string("accepted") : done.error().message;
  };
  GemmCall call = problem.call();
  EXPECT_EQ(message(call, chain(3, 2)), "gemm: k = 2, but the schedule is for a reduction of length 3");
  call.m = -1;
  EXPECT_EQ(message(call, schedule), "gemm: extents m = -1, n = 2, k = 2 must not be negative");
  call = problem.call();
  call.b.dtype = BP_BF16;
  EXPECT_EQ(message(call, schedule), "gemm: a and b must both be FP32, BF16 or FP16");
  call = problem.call();
  call.c.dtype = BP_INT8;
  EXPECT_EQ(message(call, schedule), "gemm: c must be FP32, BF16 or FP16");
  call = problem.call();
  call.bias.dtype = BP_FP64;
  EXPECT_EQ(message(call, schedule), "gemm: bias must be FP32, BF16 or FP16");
  if (best_isa() != Isa::avx512) {
    EXPECT_EQ(message(problem.call(), schedule, {1, Isa::avx512}), "this processor has no avx512");
  }
  EXPECT_EQ(problem.c[0], Case::kPattern);
}

}  // namespace
}  // namespace batchproof
