// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/cpu/rms_norm.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "batchproof/registry.h"
#include "src/check/local_host.h"
#include "src/numeric/bf16.h"
#include "src/numeric/host_device.h"

namespace batchproof {
namespace {

const bp_operator* table() {
  for (const bp_operator* one : registered_operators()) {
    if (std::strcmp(one->name, "rms_norm") == 0) return one;
  }
  return nullptr;
}

std::vector<float> normals(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& value : out) value = bf16_to_float(float_to_bf16(normal(generator)));
  return out;
}
std::vector<std::uint16_t> rounded(const std::vector<float>& values) {
  std::vector<std::uint16_t> out;
  for (const float value : values) out.push_back(float_to_bf16(value));
  return out;
}

// The recipe, one scalar at a time.
float plain_square_sum(const float* x, std::size_t columns) {
  float total = 0.0f;
  for (std::size_t begin = 0; begin < columns; begin += 256) {
    std::array<float, 16> s{};
    for (std::size_t k = begin; k < std::min(begin + 256, columns); ++k)
      s[(k - begin) % 16] = std::fma(x[k], x[k], s[(k - begin) % 16]);
    for (std::size_t half = 8; half > 0; half /= 2) {
      for (std::size_t j = 0; j < half; ++j) s[j] = s[j] + s[j + half];
    }
    total = begin == 0 ? s[0] : total + s[0];
  }
  return total;
}

struct Extents {
  std::int64_t rows, columns;
};

class RmsNormTest : public testing::TestWithParam<Extents> {};

TEST_P(RmsNormTest, EqualsThePlainStatementOnEveryInstructionSet) {
  const auto [rows, columns] = GetParam();
  const auto x = normals(static_cast<std::size_t>(rows * columns), 1);
  const auto w = normals(static_cast<std::size_t>(columns), 2);
  const auto x16 = rounded(x);
  const auto w16 = rounded(w);
  for (const Isa isa : available_isas()) {
    for (const int threads : {1, 3}) {
      std::vector<std::uint16_t> y16(x.size(), 0xFFFF);
      std::vector<float> y32(x.size(), -1.0f);
      RmsNormCall call;
      call.rows = rows;
      call.columns = columns;
      call.x = x16.data();
      call.x_row = columns;
      call.weight = w16.data();
      call.y = y16.data();
      call.y_row = columns;
      call.eps = 1e-3f;
      call.threads = threads;
      call.isa = isa;
      ASSERT_TRUE(rms_norm(call).has_value());
      call.dtype = BP_FP32;
      call.x = x.data();
      call.weight = nullptr;
      call.y = y32.data();
      ASSERT_TRUE(rms_norm(call).has_value());
      for (std::int64_t t = 0; t < rows; ++t) {
        const float* row = x.data() + t * columns;
        const float sum = plain_square_sum(row, static_cast<std::size_t>(columns));
        const float r = 1.0f / std::sqrt(sum / static_cast<float>(columns) + 1e-3f);
        for (std::int64_t h = 0; h < columns; ++h) {
          const auto at = static_cast<std::size_t>(t * columns + h);
          ASSERT_EQ(y16[at], float_to_bf16(row[h] * r * w[static_cast<std::size_t>(h)])) << isa_name(isa) << at;
          ASSERT_EQ(cast_bits<std::uint32_t>(y32[at]), cast_bits<std::uint32_t>(row[h] * r)) << isa_name(isa) << at;
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Extents, RmsNormTest,
                         testing::Values(Extents{1, 1}, Extents{3, 15}, Extents{5, 16}, Extents{2, 255},
                                         Extents{7, 256}, Extents{4, 1000}, Extents{33, 4096}));

// The order that follows the rows: butterflies of 32, warps serially.
TEST(RmsNormTest, BlockOrderIsThatOfTheThreads) {
  const auto x = normals(777, 3);
  std::vector<float> y(x.size());
  RmsNormCall call;
  call.rows = 1;
  call.columns = 777;
  call.dtype = BP_FP32;
  call.x = x.data();
  call.x_row = 777;
  call.y = y.data();
  call.y_row = 777;
  call.order.threads = 64;
  float sum = 0.0f;
  for (std::size_t warp = 0; warp < 64; warp += 32) {
    std::array<float, 32> lane{};
    for (std::size_t i = 0; i < 32; ++i) {
      for (std::size_t k = warp + i; k < x.size(); k += 64) lane[i] = std::fma(x[k], x[k], lane[i]);
    }
    for (std::size_t half = 16; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) lane[i] = lane[i] + lane[i + half];
    }
    sum = sum + lane[0];
  }
  const float r = 1.0f / std::sqrt(sum / 777.0f + 1e-6f);
  for (const Isa isa : available_isas()) {
    call.isa = isa;
    ASSERT_TRUE(rms_norm(call).has_value());
    for (std::size_t h = 0; h < x.size(); ++h)
      ASSERT_EQ(cast_bits<std::uint32_t>(y[h]), cast_bits<std::uint32_t>(x[h] * r)) << isa_name(isa);
  }
}

struct Call {
  explicit Call(std::int64_t rows, std::int64_t columns)
      : host(table()),
        x(rounded(normals(static_cast<std::size_t>(rows * columns), 1))),
        w(rounded(normals(static_cast<std::size_t>(columns), 2))),
        y(x.size(), 0xFFFF) {
    problem.axes = {{"M", rows}, {"H", columns}};
    problem.attrs = {{"eps", 1e-6}};
    problem.dtypes = {BP_BF16, BP_BF16, BP_BF16};
  }
  Result<RunOutcome> run(const std::string& id, bp_mode mode, bool reference = false, void* out = nullptr) {
    auto tensors = *host.shapes(problem);
    const std::int64_t columns = problem.axis("H");
    void* data[] = {x.data(), w.data(), out != nullptr ? out : y.data()};
    for (std::size_t port = 0; port < 3; ++port) {
      tensors[port].data = data[port];
      tensors[port].dtype = problem.dtypes[port];
      tensors[port].stride[0] = port == 1 ? 1 : columns;
      tensors[port].stride[1] = stride;
    }
    if (reference) tensors[2].dtype = BP_FP64;
    RunRequest request;
    request.implementation = find_implementation(*table(), id);
    request.problem = &problem;
    request.mode = mode;
    request.reference = reference;
    request.tensors = {tensors};
    return host.run(request);
  }
  LocalHost host;
  Problem problem;
  std::vector<std::uint16_t> x, w, y;
  std::int64_t stride = 1;
};

TEST(RmsNormTest, IsCloseToTheReference) {
  Call call(9, 4096);
  ASSERT_TRUE(call.run("cpu-fp32-strand16-chain256", BP_MODE_INVARIANT).has_value());
  std::vector<double> exact(call.y.size());
  ASSERT_TRUE(call.run("cpu-fp32-strand16-chain256", BP_MODE_INVARIANT, true, exact.data()).has_value());
  for (std::size_t i = 0; i < exact.size(); ++i)
    ASSERT_NEAR(bf16_to_float(call.y[i]), exact[i], std::fabs(exact[i]) * 0x1.1p-8) << i;
}

TEST(RmsNormTest, EveryImplementationInEveryMode) {
  Call call(4, 512);
  for (std::uint32_t i = 0; i < table()->implementation_count; ++i) {
    const bp_implementation& implementation = table()->implementations[i];
    if (runs_on_cuda(implementation)) {
      // This host has no device; tests/gpu has the rest.
      const auto ran = call.run(implementation.id, implementation.mode);
      ASSERT_FALSE(ran.has_value()) << implementation.id;
      EXPECT_NE(ran.error().message.find("CUDA"), std::string::npos) << ran.error().message;
      continue;
    }
    const bool refused = implementation.mode == BP_MODE_FAST;
    const auto strict = call.run(implementation.id, BP_MODE_INVARIANT);
    EXPECT_EQ(strict.has_value(), !refused) << implementation.id;
    if (!strict) {
      EXPECT_NE(strict.error().message.find(implementation.id), std::string::npos) << strict.error().message;
    }
    const auto free = call.run(implementation.id, BP_MODE_FAST);
    ASSERT_TRUE(free.has_value()) << free.error().message;
    EXPECT_EQ(free->executed, implementation.id);
  }
}

TEST(RmsNormTest, RefusesWhatItCannotDo) {
  Call call(4, 512);
  call.stride = 2;
  auto ran = call.run("cpu-fp32-strand16-chain256", BP_MODE_INVARIANT);
  ASSERT_FALSE(ran.has_value());
  EXPECT_NE(ran.error().message.find("columns must be contiguous"), std::string::npos) << ran.error().message;
  EXPECT_EQ(call.y[0], 0xFFFF);
  call.problem.attrs["eps"] = -1.0;
  EXPECT_FALSE(call.host.validate(call.problem).has_value());
  call.problem.attrs["eps"] = 1e-6;
  call.problem.dtypes[1] = BP_FP32;
  EXPECT_FALSE(call.host.validate(call.problem).has_value());
  call.problem.dtypes[1] = BP_NONE;
  EXPECT_TRUE(call.host.validate(call.problem).has_value());
  call.problem.axes["M"] = 0;
  EXPECT_TRUE(call.host.validate(call.problem).has_value());
}

}  // namespace
}  // namespace batchproof
