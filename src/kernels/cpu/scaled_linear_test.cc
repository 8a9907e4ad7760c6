// SPDX-License-Identifier: Apache-2.0
//
// Each scaling against a scalar statement of its arithmetic, byte for byte, on every instruction set; the ends of the
// E8M0 range; what is refused.
#include "src/kernels/cpu/scaled_linear.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/kernels/cpu/elements.h"
#include "src/kernels/cpu/scaled_operand.h"
#include "src/numeric/dtype.h"
#include "src/numeric/e8m0.h"
#include "src/numeric/seed.h"

namespace batchproof {
namespace {

struct Matrix {
  std::vector<std::byte> bytes;
  bp_tensor view{};
};

Matrix make(bp_dtype dtype, std::vector<std::int64_t> shape) {
  Matrix matrix;
  matrix.view.dtype = dtype;
  matrix.view.ndim = static_cast<std::int32_t>(shape.size());
  std::int64_t stride = 1;
  for (int axis = matrix.view.ndim - 1; axis >= 0; --axis) {
    matrix.view.shape[axis] = shape[static_cast<std::size_t>(axis)];
    matrix.view.stride[axis] = stride;
    stride *= matrix.view.shape[axis];
  }
  matrix.bytes.resize(dtype_bytes(dtype, stride));
  matrix.view.data = matrix.bytes.data();
  return matrix;
}

// Random codes of a byte dtype, NaN and infinities left out.
Matrix codes(bp_dtype dtype, std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  Matrix matrix = make(dtype, {rows, columns});
  for (std::size_t e = 0; e < matrix.bytes.size(); ++e) {
    std::uint64_t draw = mix64(seed, e) & 0xFFu;
    if (dtype == BP_E4M3 && (draw & 0x7Fu) == 0x7Fu) draw ^= 1u;
    if (dtype == BP_E5M2 && (draw & 0x7Fu) >= 0x7Cu) draw &= 0xBFu;
    matrix.bytes[e] = static_cast<std::byte>(draw);
  }
  return matrix;
}

Matrix floats(std::vector<std::int64_t> shape, std::uint64_t seed, double low = 0.5, double high = 2.0) {
  Matrix matrix = make(BP_FP32, std::move(shape));
  for (std::size_t e = 0; e < matrix.bytes.size() / 4; ++e) {
    const double unit = static_cast<double>(mix64(seed, e) >> 11) * 0x1p-53;
    reinterpret_cast<float*>(matrix.bytes.data())[e] = static_cast<float>(low + (high - low) * unit);
  }
  return matrix;
}

Matrix exponents(std::vector<std::int64_t> shape, std::uint64_t seed, int low, int high) {
  Matrix matrix = make(BP_E8M0, std::move(shape));
  for (std::size_t e = 0; e < matrix.bytes.size(); ++e)
    matrix.bytes[e] =
        static_cast<std::byte>(low + static_cast<int>(mix64(seed, e) % static_cast<std::uint64_t>(high - low + 1)));
  return matrix;
}

// (rows, columns) seen as (columns, rows): the transposed view.
bp_tensor swapped(const Matrix& matrix) {
  bp_tensor view = matrix.view;
  std::swap(view.shape[0], view.shape[1]);
  std::swap(view.stride[0], view.stride[1]);
  return view;
}

Product chain(std::int64_t segment, std::optional<Isa> isa = std::nullopt, int threads = 1) {
  return [=](const GemmCall& call, const LinearSchedule&) -> Result<void> {
    const Result<Schedule> schedule = make_schedule({segment, 0}, call.k);
    if (!schedule) return tl::unexpected<Error>(schedule.error());
    return gemm(call, *schedule, {threads, isa});
  };
}

double value(const bp_tensor& tensor, std::int64_t i, std::int64_t j) {
  return decode_element(tensor.dtype, tensor.data, i * tensor.stride[0] + j * tensor.stride[1]);
}
float number(const bp_tensor& tensor, std::int64_t at) { return static_cast<const float*>(tensor.data)[at]; }

// FP32 FMA over [begin, end) in segments of 256, merged in order. term(k): the two exact factors.
template <class Left, class Right>
float chain_sum(std::int64_t begin, std::int64_t end, const Left& left, const Right& right) {
  float total = 0.0f;
  for (std::int64_t s = begin; s < end; s += kGemmSegment) {
    float sum = 0.0f;
    for (std::int64_t k = s; k < std::min(end, s + kGemmSegment); ++k) sum = std::fma(left(k), right(k), sum);
    total = s == begin ? sum : total + sum;
  }
  return total;
}

std::string hex(float number) { return fmt::format("{:08x}", cast_bits<std::uint32_t>(number)); }

class EveryIsa : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    const std::vector<Isa> available = available_isas();
    if (std::find(available.begin(), available.end(), GetParam()) == available.end()) GTEST_SKIP();
  }
};
INSTANTIATE_TEST_SUITE_P(Isas, EveryIsa, ::testing::Values(Isa::plain, Isa::avx2, Isa::avx512),
                         [](const auto& isa) { return std::string(isa_name(isa.param)); });

constexpr std::int64_t kM = 5, kK = 700, kN = 37;

TEST_P(EveryIsa, TensorScalesTheSumWithItsBiasByTheMaskedProduct) {
  const Matrix x = codes(BP_E4M3, kM, kK, 1), w = codes(BP_E5M2, kK, kN, 2);
  const Matrix x_scale = floats({1}, 3), w_scale = floats({1}, 4), bias = floats({kN}, 5, -3, 3);
  for (const bool after : {false, true}) {
    Matrix y = make(BP_FP32, {kM, kN});
    ScaledLinear linear{Scaling::tensor, &x.view, &w.view, &bias.view, &x_scale.view, &w_scale.view, &y.view, 0, after};
    ASSERT_TRUE(scaled_linear(linear, {}, 1, chain(256, GetParam())));
    const float d =
        cast_bits<float>(cast_bits<std::uint32_t>(number(x_scale.view, 0) * number(w_scale.view, 0)) >> 13 << 13);
    for (std::int64_t i = 0; i < kM; ++i) {
      for (std::int64_t j = 0; j < kN; ++j) {
        const float sum = chain_sum(
            0, kK, [&](std::int64_t k) { return static_cast<float>(value(x.view, i, k)); },
            [&](std::int64_t k) { return static_cast<float>(value(w.view, k, j)); });
        const float b = number(bias.view, j);
        const float scaled = sum * d;
        const float expected = after ? scaled + b : (sum + b) * d;
        ASSERT_EQ(hex(number(y.view, i * kN + j)), hex(expected)) << i << ", " << j << ", after " << after;
      }
    }
  }
}

TEST_P(EveryIsa, TokenChannelIsExactAndMultipliesByTheColumnFirst) {
  // Beyond 2^24 an FP32 sum would round: 5000 products of up to 2^14.
  const std::int64_t k = 5000;
  const Matrix x = codes(BP_INT8, kM, k, 6), w = codes(BP_INT8, kN, k, 7);
  const bp_tensor transposed = swapped(w);
  const Matrix x_scale = floats({kM, 1}, 8), w_scale = floats({1, kN}, 9);
  Matrix y = make(BP_FP32, {kM, kN});
  Matrix bias = make(BP_INT32, {kN});
  for (std::int64_t j = 0; j < kN; ++j)
    reinterpret_cast<std::int32_t*>(bias.bytes.data())[j] = static_cast<std::int32_t>(100003 * (j - 11));
  ScaledLinear linear{Scaling::token_channel, &x.view, &transposed, &bias.view, &x_scale.view, &w_scale.view, &y.view};
  ASSERT_TRUE(scaled_linear(linear, {}, 1, chain(256, GetParam())));
  for (std::int64_t i = 0; i < kM; ++i) {
    for (std::int64_t j = 0; j < kN; ++j) {
      std::int64_t sum = 100003 * (j - 11);
      for (std::int64_t kk = 0; kk < k; ++kk)
        sum += static_cast<std::int64_t>(value(x.view, i, kk)) * static_cast<std::int64_t>(value(transposed, kk, j));
      const float by_column = static_cast<float>(sum) * number(w_scale.view, j);
      ASSERT_EQ(hex(number(y.view, i * kN + j)), hex(by_column * number(x_scale.view, i)));
    }
  }
  linear.x_scale = nullptr;  // per channel only
  linear.bias = nullptr;
  ASSERT_TRUE(scaled_linear(linear, {}, 1, chain(256, GetParam())));
  std::int64_t sum = 0;
  for (std::int64_t kk = 0; kk < k; ++kk)
    sum += static_cast<std::int64_t>(value(x.view, 2, kk)) * static_cast<std::int64_t>(value(transposed, kk, 3));
  EXPECT_EQ(hex(number(y.view, 2 * kN + 3)), hex(static_cast<float>(sum) * number(w_scale.view, 3)));
}

TEST_P(EveryIsa, BlockPromotesEvery128InOrder) {
  const std::int64_t m = 130, n = 140;
  const Matrix x = codes(BP_E4M3, m, kK, 10), w = codes(BP_E4M3, kK, n, 11);
  const Matrix x_scale = floats({2, 6}, 12), w_scale = floats({6, 2}, 13);
  Matrix y = make(BP_BF16, {m, n});
  const ScaledLinear linear{Scaling::block, &x.view, &w.view, nullptr, &x_scale.view, &w_scale.view, &y.view};
  ASSERT_TRUE(scaled_linear(linear, {}, 1, chain(256, GetParam())));
  for (const std::int64_t i : {std::int64_t{0}, std::int64_t{127}, std::int64_t{128}, m - 1}) {
    for (std::int64_t j = 0; j < n; ++j) {
      float acc = 0.0f;
      for (std::int64_t c = 0; c < 6; ++c) {
        float p = 0.0f;
        for (std::int64_t k = c * 128; k < std::min(kK, c * 128 + 128); ++k)
          p = std::fma(static_cast<float>(value(x.view, i, k)), static_cast<float>(value(w.view, k, j)), p);
        const float scale = number(x_scale.view, i / 128 * 6 + c) * number(w_scale.view, c * 2 + j / 128);
        const float scaled = p * scale;
        acc = acc + scaled;
      }
      const auto stored = reinterpret_cast<const std::uint16_t*>(y.bytes.data())[i * n + j];
      ASSERT_EQ(stored, float_to_bf16(acc)) << i << ", " << j;
    }
  }
}

// The statement of mx: products scaled by the combined exponent.
float mx_expected(const ScaledLinear& linear, std::int64_t i, std::int64_t j) {
  float total = 0.0f;
  const std::int64_t length = linear.x->shape[1];
  for (std::int64_t s = 0; s < length; s += kGemmSegment) {
    float sum = 0.0f;
    for (std::int64_t k = s; k < std::min(length, s + kGemmSegment); ++k) {
      const std::uint8_t a = mx_row_code(*linear.x_scale, i, k / 32), b = mx_column_code(*linear.w_scale, k / 32, j);
      const double scale = a == 255 || b == 255 ? std::nan("") : std::ldexp(1.0, a + b - 254);
      sum = sum + static_cast<float>(value(*linear.x, i, k) * value(*linear.w, k, j) * scale);
    }
    total = s == 0 ? sum : total + sum;
  }
  return linear.bias == nullptr ? total : total + number(*linear.bias, j);
}

TEST_P(EveryIsa, MxScalesEveryProduct) {
  for (const bool transposed : {false, true}) {
    const Matrix x = codes(BP_E5M2, kM, kK, 14);
    const Matrix w = transposed ? codes(BP_E4M3, kN, kK, 15) : codes(BP_E4M3, kK, kN, 15);
    const bp_tensor w_view = transposed ? swapped(w) : w.view;
    const Matrix x_scale = exponents({kM, 11, 2}, 16, 110, 140);
    const Matrix w_scale = transposed ? exponents({kN, 11, 2}, 17, 110, 140) : exponents({11, kN, 2}, 17, 110, 140);
    const bp_tensor w_scale_view = transposed ? swapped(w_scale) : w_scale.view;
    const Matrix bias = floats({kN}, 18, -1, 1);
    Matrix y = make(BP_FP32, {kM, kN});
    const ScaledLinear linear{Scaling::mx, &x.view, &w_view, &bias.view, &x_scale.view, &w_scale_view, &y.view};
    ASSERT_TRUE(scaled_linear(linear, {}, 2, chain(256, GetParam())));
    for (std::int64_t i = 0; i < kM; ++i) {
      for (std::int64_t j = 0; j < kN; ++j)
        ASSERT_EQ(hex(number(y.view, i * kN + j)), hex(mx_expected(linear, i, j))) << i << ", " << j;
    }
  }
}

// A row's bytes may not follow from what another row forces: the slow form of its neighbours.
TEST(Mx, EndsOfTheScaleRangeAreRightAndLeaveOtherRowsAlone) {
  const Matrix x = codes(BP_E4M3, 6, kK, 19), w = codes(BP_E4M3, kK, kN, 20);
  Matrix x_scale = exponents({6, 11, 2}, 21, 120, 134);
  const Matrix w_scale = exponents({11, kN, 2}, 22, 120, 134);
  Matrix before = make(BP_FP32, {6, kN}), after = make(BP_FP32, {6, kN});
  ScaledLinear linear{Scaling::mx, &x.view, &w.view, nullptr, &x_scale.view, &w_scale.view, &before.view};
  ASSERT_TRUE(scaled_linear(linear, {}, 1, chain(256)));
  // Rows 1 to 5: both ends, all NaN, one NaN block, and a mixture that no single FP32 operand can hold.
  for (int e = 0; e < 22; ++e) {
    x_scale.bytes[22 + static_cast<std::size_t>(e)] = std::byte{0};
    x_scale.bytes[44 + static_cast<std::size_t>(e)] = std::byte{254};
    x_scale.bytes[66 + static_cast<std::size_t>(e)] = std::byte{255};
    if (e == 3) x_scale.bytes[88 + static_cast<std::size_t>(e)] = std::byte{255};
    x_scale.bytes[110 + static_cast<std::size_t>(e)] = e % 2 == 0 ? std::byte{0} : std::byte{230};
  }
  linear.y = &after.view;
  ASSERT_TRUE(scaled_linear(linear, {}, 1, chain(256)));
  EXPECT_EQ(std::memcmp(before.bytes.data(), after.bytes.data(), kN * 4), 0);
  for (std::int64_t i = 0; i < 6; ++i) {
    for (std::int64_t j = 0; j < kN; ++j) {
      const float expected = mx_expected(linear, i, j);
      const float stored = number(after.view, i * kN + j);
      if (std::isnan(expected)) {
        ASSERT_EQ(hex(stored), "7fc00000") << i << ", " << j;
      } else {
        ASSERT_EQ(hex(stored), hex(expected)) << i << ", " << j;
      }
    }
  }
}

// Opposite ends cancel: 2^127 times 2^-127 is 1, though neither operand times a code fits FP32.
TEST(Mx, ExponentsAreCombinedBeforeScaling) {
  const Matrix x = codes(BP_E5M2, 3, 64, 23), w = codes(BP_E5M2, 64, kN, 24);
  const Matrix high = exponents({3, 1, 2}, 25, 254, 254), low = exponents({1, kN, 2}, 26, 0, 0);
  const Matrix one_x = exponents({3, 1, 2}, 27, 127, 127), one_w = exponents({1, kN, 2}, 28, 127, 127);
  Matrix ends = make(BP_FP32, {3, kN}), ones = make(BP_FP32, {3, kN});
  ASSERT_TRUE(
      scaled_linear({Scaling::mx, &x.view, &w.view, nullptr, &high.view, &low.view, &ends.view}, {}, 1, chain(256)));
  ASSERT_TRUE(
      scaled_linear({Scaling::mx, &x.view, &w.view, nullptr, &one_x.view, &one_w.view, &ones.view}, {}, 1, chain(256)));
  EXPECT_EQ(ends.bytes, ones.bytes);
}

TEST(MaskedScale, KeepsNanAndClearsThirteenBits) {
  EXPECT_TRUE(std::isnan(masked_scale(cast_bits<float>(0x7F800001u), 1.0f)));
  EXPECT_TRUE(std::isnan(masked_scale(std::numeric_limits<float>::infinity(), 0.0f)));
  EXPECT_EQ(masked_scale(cast_bits<float>(0x3F801FFFu), 1.0f), 1.0f);
  EXPECT_EQ(hex(masked_scale(cast_bits<float>(0x3F803FFFu), 1.0f)), "3f802000");
}

TEST(Reference, AgreesWithEveryScalingWithinRounding) {
  const Matrix x = codes(BP_E4M3, kM, kK, 30), w = codes(BP_E4M3, kK, kN, 31);
  const Matrix bias = floats({kN}, 32);
  struct Form {
    Scaling scaling;
    Matrix x_scale, w_scale;
    bool bias;
  };
  Form forms[] = {{Scaling::tensor, floats({1}, 33), floats({1}, 34), true},
                  {Scaling::block, floats({1, 6}, 35), floats({6, 1}, 36), false},
                  {Scaling::mx, exponents({kM, 11, 2}, 37, 120, 130), exponents({11, kN, 2}, 38, 120, 130), true}};
  for (const Form& form : forms) {
    Matrix y = make(BP_FP32, {kM, kN}), golden = make(BP_FP64, {kM, kN});
    ScaledLinear linear{form.scaling,       &x.view, &w.view, form.bias ? &bias.view : nullptr, &form.x_scale.view,
                        &form.w_scale.view, &y.view};
    ASSERT_TRUE(scaled_linear(linear, {}, 1, chain(256)));
    linear.y = &golden.view;
    ASSERT_TRUE(scaled_linear_reference(linear));
    double largest = 0.0;
    for (std::int64_t e = 0; e < kM * kN; ++e)
      largest = std::max(largest, std::fabs(reinterpret_cast<double*>(golden.bytes.data())[e]));
    for (std::int64_t e = 0; e < kM * kN; ++e)
      EXPECT_NEAR(number(y.view, e), reinterpret_cast<double*>(golden.bytes.data())[e], 1e-5 * largest);
  }
}

TEST(Dtypes, ErrorsNamePortAndMode) {
  const auto error = [](Scaling scaling, bp_dtype x, bp_dtype w, bp_dtype bias, bp_dtype y, bp_dtype xs, bp_dtype ws) {
    return scaled_dtype_error(scaling, {{x, w, bias, y}, xs, ws});
  };
  EXPECT_EQ(error(Scaling::mx, BP_E4M3, BP_E5M2, BP_FP32, BP_BF16, BP_E8M0, BP_E8M0), "");
  EXPECT_EQ(error(Scaling::token_channel, BP_INT8, BP_INT8, BP_INT32, BP_FP16, BP_NONE, BP_FP32), "");
  EXPECT_EQ(error(Scaling::mx, BP_INT8, BP_E5M2, BP_NONE, BP_BF16, BP_E8M0, BP_E8M0),
            "x1 has the dtype int8; MX scaling takes e4m3 and e5m2");
  EXPECT_EQ(error(Scaling::mx, BP_E4M3, BP_E4M3, BP_NONE, BP_BF16, BP_FP32, BP_E8M0),
            "x1_scale has the dtype fp32; MX scaling takes e8m0");
  EXPECT_EQ(error(Scaling::block, BP_E4M3, BP_E4M3, BP_FP32, BP_BF16, BP_FP32, BP_FP32),
            "per-block scaling takes no bias; leave bias out");
  EXPECT_EQ(error(Scaling::tensor, BP_E4M3, BP_E4M3, BP_NONE, BP_E4M3, BP_FP32, BP_FP32),
            "y has the dtype e4m3; per-tensor scaling takes fp32, bf16 and fp16");
}

TEST(Shapes, AWrongScaleWritesNothing) {
  const Matrix x = codes(BP_E4M3, kM, kK, 40), w = codes(BP_E4M3, kK, kN, 41);
  const Matrix x_scale = exponents({kM, 10, 2}, 42, 120, 130), w_scale = exponents({11, kN, 2}, 43, 120, 130);
  Matrix y = make(BP_FP32, {kM, kN});
  std::memset(y.bytes.data(), 0x5A, y.bytes.size());
  const Result<void> done =
      scaled_linear({Scaling::mx, &x.view, &w.view, nullptr, &x_scale.view, &w_scale.view, &y.view}, {}, 1, chain(256));
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().message, "x1_scale must be e8m0 of the shape (5, 11, 2)");
  EXPECT_EQ(std::count(y.bytes.begin(), y.bytes.end(), std::byte{0x5A}), static_cast<std::ptrdiff_t>(y.bytes.size()));
}

}  // namespace
}  // namespace batchproof
