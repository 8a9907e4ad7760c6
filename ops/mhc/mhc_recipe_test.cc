// SPDX-License-Identifier: Apache-2.0
//
// The FP32 recipe stated plainly, one scalar at a time, and compared byte for byte with every implementation that has
// one; and the distance of the default to the FP64 reference.
#include <algorithm>
#include <array>
#include <cstdlib>

#include "ops/mhc/mhc_case.h"
#include "src/numeric/host_device.h"

namespace batchproof::mhc {
namespace {

// ---- the plain recipe ---------------------------------------------------------------------------------------------

float to_tf32(float value) {
  const auto bits = cast_bits<std::uint32_t>(value);
  return cast_bits<float>((bits + 0x1000u) & ~0x1FFFu);  // ties away from zero; no NaN here
}

float plain_exp(float x) {
  const float clamped = std::min(std::max(x, -110.0f), 100.0f);
  const float n = std::fma(clamped, 0x1.715476p+0f, 0x1.8p+23f) - 0x1.8p+23f;
  const float r = std::fma(n, -0x1.7f7d1cp-20f, std::fma(n, -0x1.62e4p-1f, clamped));
  float p = 1.0f / 5040.0f;
  for (const float c : {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f})
    p = std::fma(p, r, c);
  const float half = std::fma(n, 0.5f, 0x1.8p+23f) - 0x1.8p+23f;
  return p * std::ldexp(1.0f, static_cast<int>(half)) * std::ldexp(1.0f, static_cast<int>(n - half));
}
float plain_sigmoid(float x) { return 1.0f / (1.0f + plain_exp(0.0f - x)); }
float plain_rsqrt(float x) { return 1.0f / std::sqrt(x); }

// Squares of values[begin, end) in 16 strands.
float strands(const std::vector<float>& values, std::size_t begin, std::size_t end) {
  std::array<float, 16> s{};
  for (std::size_t k = begin; k < end; ++k) s[(k - begin) % 16] = std::fma(values[k], values[k], s[(k - begin) % 16]);
  for (std::size_t half = 8; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) s[j] = s[j] + s[j + half];
  }
  return s[0];
}

struct Row {
  std::array<float, 24> mixes{};
  float squares = 0;
  std::array<float, 4> pre{}, post{};
  std::array<std::array<float, 4>, 4> comb{};
  std::vector<float> streams;  // as they are stored
  std::vector<float> layer_input;
};

struct Parameters {
  float rms_eps = 1e-6f, pre_eps = 1e-6f, sinkhorn_eps = 1e-6f, norm_eps = 1e-6f, post_mult = 2.0f;
  int repeat = 20;
};

// Segment sums, merged serially.
void product(Row& row, const std::vector<float>& values, const std::vector<float>& fn,
             const std::vector<std::size_t>& bounds) {
  const std::size_t columns = values.size();
  for (std::size_t s = 0; s + 1 < bounds.size(); ++s) {
    for (std::size_t c = 0; c < 24; ++c) {
      float acc = 0.0f;
      for (std::size_t k = bounds[s]; k < bounds[s + 1]; ++k) acc = std::fma(values[k], fn[c * columns + k], acc);
      row.mixes[c] = s == 0 ? acc : row.mixes[c] + acc;
    }
    const float q = strands(values, bounds[s], bounds[s + 1]);
    row.squares = s == 0 ? q : row.squares + q;
  }
}

void coefficients(Row& row, std::size_t columns, const std::vector<float>& scale, const std::vector<float>& base,
                  const Parameters& p) {
  const float r = plain_rsqrt(row.squares / static_cast<float>(columns) + p.rms_eps);
  std::array<float, 24> logit;
  for (std::size_t c = 0; c < 24; ++c) logit[c] = std::fma(row.mixes[c] * r, scale[c < 4 ? 0 : c < 8 ? 1 : 2], base[c]);
  for (std::size_t i = 0; i < 4; ++i) {
    row.pre[i] = plain_sigmoid(logit[i]) + p.pre_eps;
    row.post[i] = plain_sigmoid(logit[4 + i]) * p.post_mult;
    float top = logit[8 + 4 * i];
    for (std::size_t j = 1; j < 4; ++j) top = std::max(top, logit[8 + 4 * i + j]);
    float sum = 0.0f;
    for (std::size_t j = 0; j < 4; ++j) row.comb[i][j] = plain_exp(logit[8 + 4 * i + j] - top);
    sum = ((row.comb[i][0] + row.comb[i][1]) + row.comb[i][2]) + row.comb[i][3];
    for (std::size_t j = 0; j < 4; ++j) row.comb[i][j] = row.comb[i][j] / sum + p.sinkhorn_eps;
  }
  const auto columns_pass = [&] {
    for (std::size_t j = 0; j < 4; ++j) {
      const float sum = (((row.comb[0][j] + row.comb[1][j]) + row.comb[2][j]) + row.comb[3][j]) + p.sinkhorn_eps;
      for (auto& line : row.comb) line[j] = line[j] / sum;
    }
  };
  columns_pass();
  for (int pass = 1; pass < p.repeat; ++pass) {
    for (auto& line : row.comb) {
      const float sum = (((line[0] + line[1]) + line[2]) + line[3]) + p.sinkhorn_eps;
      for (float& value : line) value = value / sum;
    }
    columns_pass();
  }
}

// `streams` as stored; `weight` empty: no norm.
void collapse(Row& row, const std::array<float, 4>& pre, const std::vector<float>& weight, float eps) {
  const std::size_t hidden = row.streams.size() / 4;
  std::vector<float> u(hidden);
  for (std::size_t h = 0; h < hidden; ++h) {
    for (std::size_t i = 0; i < 4; ++i) u[h] = std::fma(pre[i], row.streams[i * hidden + h], u[h]);
  }
  row.layer_input.resize(hidden);
  const auto rounded = [](float value) { return bf16_to_float(float_to_bf16(value)); };
  float z = 0.0f;
  for (std::size_t begin = 0; begin < hidden; begin += 256) {
    const float segment = strands(u, begin, std::min(begin + 256, hidden));
    z = begin == 0 ? segment : z + segment;
  }
  const float g = plain_rsqrt(z / static_cast<float>(hidden) + eps);
  for (std::size_t h = 0; h < hidden; ++h)
    row.layer_input[h] = weight.empty() ? rounded(u[h]) : rounded(rounded(u[h]) * g * weight[h]);
}

// R' unrounded, comb contracted on its first index.
std::vector<float> post(const std::vector<float>& x, const std::vector<float>& streams, const std::vector<float>& mix,
                        const std::vector<float>& comb) {
  const std::size_t hidden = x.size();
  std::vector<float> out(4 * hidden);
  for (std::size_t j = 0; j < 4; ++j) {
    for (std::size_t h = 0; h < hidden; ++h) {
      float o = mix[j] * x[h];
      for (std::size_t i = 0; i < 4; ++i) o = std::fma(comb[4 * i + j], streams[i * hidden + h], o);
      out[j * hidden + h] = o;
    }
  }
  return out;
}

std::vector<std::size_t> segments_of(std::size_t columns, std::size_t length) {
  std::vector<std::size_t> bounds;
  for (std::size_t begin = 0; begin < columns; begin += length) bounds.push_back(begin);
  bounds.push_back(columns);
  return bounds;
}

// ---- comparison ---------------------------------------------------------------------------------------------------

std::vector<float> values(Buffer& buffer, std::int64_t begin, std::int64_t count) {
  std::vector<float> out;
  for (std::int64_t i = begin; i < begin + count; ++i)
    out.push_back(buffer.view.dtype == BP_BF16 ? buffer.bf16(i) : buffer.fp32(i));
  return out;
}

template <class Range>
void expect_row(Case& call, const std::string& port, std::int64_t row, const Range& expected) {
  Buffer& buffer = call.at(port);
  const auto count = static_cast<std::int64_t>(std::size(expected));
  for (std::int64_t i = 0; i < count; ++i) {
    const float actual = buffer.view.dtype == BP_BF16 ? buffer.bf16(row * count + i) : buffer.fp32(row * count + i);
    ASSERT_EQ(cast_bits<std::uint32_t>(actual), cast_bits<std::uint32_t>(expected[static_cast<std::size_t>(i)]))
        << port << " row " << row << " element " << i << ": " << actual << " and "
        << expected[static_cast<std::size_t>(i)];
  }
}

struct Recipe {
  const char* op;
  const char* implementation;
  bool tf32;
  bool unrounded;
  std::size_t segment;  // 0: 32 splits, 16 for the broadcast form
};

class RecipeTest : public testing::TestWithParam<std::tuple<Recipe, std::int64_t, bool>> {};

TEST_P(RecipeTest, EqualsThePlainStatement) {
  const auto& [recipe, hidden, norm] = GetParam();
  const std::string op = recipe.op;
  const bool broadcast = op.find("broadcast") != std::string::npos;
  const bool fused = op.find("fused") != std::string::npos;
  const bool delayed = op.find("delayed") != std::string::npos;
  const std::int64_t rows = 5;
  Case call(op, rows, hidden);
  if (!norm) call.absent("norm_weight");
  Parameters p;
  // Four different eps, so that none can stand in for another.
  p.rms_eps = 1e-3f, p.pre_eps = 1e-2f, p.sinkhorn_eps = 1e-4f, p.norm_eps = 1e-1f, p.post_mult = 1.5f, p.repeat = 3;
  call.problem.attrs["rms_eps"] = 1e-3;
  call.problem.attrs["hc_pre_eps"] = 1e-2;
  call.problem.attrs["hc_sinkhorn_eps"] = 1e-4;
  call.problem.attrs["norm_eps"] = 1e-1;
  call.problem.attrs["post_mult"] = 1.5;
  call.problem.attrs["sinkhorn_repeat"] = std::int64_t{3};
  call.make();
  const auto ran = call.run(recipe.implementation);
  ASSERT_TRUE(ran.has_value()) << ran.error().message;
  EXPECT_EQ(ran->executed, recipe.implementation);

  const std::int64_t columns = broadcast ? hidden : 4 * hidden;
  std::vector<float> fn = values(call.at(broadcast ? "fn_broadcast" : "fn"), 0, 24 * columns);
  if (recipe.tf32) std::transform(fn.begin(), fn.end(), fn.begin(), to_tf32);
  const auto scale = values(call.at("hc_scale"), 0, 3);
  const auto base = values(call.at("hc_base"), 0, 24);
  const auto weight = norm ? values(call.at("norm_weight"), 0, hidden) : std::vector<float>{};
  const std::size_t segment =
      recipe.segment != 0 ? recipe.segment : static_cast<std::size_t>(columns / (broadcast ? 16 : 32));
  for (std::int64_t t = 0; t < rows; ++t) {
    Row row;
    std::vector<float> seen;  // what the product sees
    if (broadcast) {
      seen = values(call.at("x"), t * hidden, hidden);
      for (int i = 0; i < 4; ++i) row.streams.insert(row.streams.end(), seen.begin(), seen.end());
    } else {
      row.streams = values(call.at("residual"), t * 4 * hidden, 4 * hidden);
      seen = row.streams;
    }
    if (fused) {
      seen = post(values(call.at("x"), t * hidden, hidden), row.streams, values(call.at("post_mix"), t * 4, 4),
                  values(call.at("comb_mix"), t * 16, 16));
      std::transform(seen.begin(), seen.end(), row.streams.begin(),
                     [](float value) { return bf16_to_float(float_to_bf16(value)); });
      if (!recipe.unrounded) seen = row.streams;
      expect_row(call, "residual_out", t, row.streams);
    }
    if (broadcast) expect_row(call, "residual_out", t, row.streams);
    product(row, seen, fn, segments_of(seen.size(), segment));
    expect_row(call, "mixes", t, row.mixes);
    expect_row(call, "square_sum", t, std::array<float, 1>{row.squares});
    coefficients(row, seen.size(), scale, base, p);
    expect_row(call, fused ? "post_mix_out" : "post_mix", t, row.post);
    std::array<float, 16> comb;
    for (std::size_t c = 0; c < 16; ++c) comb[c] = row.comb[c / 4][c % 4];
    expect_row(call, fused ? "comb_mix_out" : "comb_mix", t, comb);
    std::array<float, 4> pre = row.pre;
    if (delayed) {
      expect_row(call, "pre_mix_out", t, row.pre);
      const auto carried = values(call.at("pre_mix"), t * 4, 4);
      std::copy(carried.begin(), carried.end(), pre.begin());
    }
    collapse(row, pre, weight, p.norm_eps);
    expect_row(call, "layer_input", t, row.layer_input);
  }
}

constexpr Recipe kRecipes[] = {
    {"mhc_pre", "cpu-tf32fn-chain256", true, false, 256},
    {"mhc_pre", "cpu-fp32fma-chain256", false, false, 256},
    {"mhc_pre", "cpu-tf32fn-split32", true, false, 0},
    {"mhc_fused_post_pre", "cpu-bf16res-tf32fn-chain256", true, false, 256},
    {"mhc_fused_post_pre", "cpu-fp32res-fp32fma-chain256", false, true, 256},
    {"mhc_fused_post_pre", "cpu-bf16res-tf32fn-split32", true, false, 0},
    {"mhc_pre_delayed", "cpu-tf32fn-chain256", true, false, 256},
    {"mhc_fused_post_pre_delayed", "cpu-fp32res-fp32fma-chain256", false, true, 256},
};
std::string name_of(const testing::TestParamInfo<RecipeTest::ParamType>& info) {
  const auto& [recipe, hidden, norm] = info.param;
  std::string name =
      std::string(recipe.op) + "_" + recipe.implementation + "_" + std::to_string(hidden) + (norm ? "_norm" : "");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
// 1024: whole segments; 512 with 32 splits: one K block each.
INSTANTIATE_TEST_SUITE_P(Forms, RecipeTest,
                         testing::Combine(testing::ValuesIn(kRecipes), testing::Values(512, 1024), testing::Bool()),
                         name_of);
// Short last segments and segments that cross from one stream into the next.
constexpr Recipe kChains[] = {kRecipes[0], kRecipes[1], kRecipes[3], kRecipes[4]};
INSTANTIATE_TEST_SUITE_P(OddExtents, RecipeTest,
                         testing::Combine(testing::ValuesIn(kChains), testing::Values(16, 80, 656), testing::Bool()),
                         name_of);
constexpr Recipe kBroadcast[] = {
    {"mhc_pre_broadcast", "cpu-tf32fn-chain256", true, false, 256},
    {"mhc_pre_broadcast", "cpu-fp32fma-chain256", false, false, 256},
    {"mhc_pre_broadcast", "cpu-tf32fn-split16", true, false, 0},
    {"mhc_pre_broadcast_delayed", "cpu-tf32fn-chain256", true, false, 256},
};
INSTANTIATE_TEST_SUITE_P(Broadcast, RecipeTest,
                         testing::Combine(testing::ValuesIn(kBroadcast), testing::Values(1024), testing::Values(true)),
                         name_of);

// ---- the orders of fast mode and of the pinned fallback product ---------------------------------------------------

using Sums = std::array<float, 25>;  // 24 mixes, the square sum

float term(const std::vector<float>& seen, const std::vector<float>& fn, std::size_t c, std::size_t k, float sum) {
  return std::fma(c < 24 ? fn[c * seen.size() + k] : seen[k], seen[k], sum);
}

// A GPU block: thread i takes step + i of every step; lane 0 of a butterfly over each warp; warps serially from 0.
Sums block_sums(const std::vector<float>& seen, const std::vector<float>& fn, const std::vector<std::size_t>& steps,
                std::size_t threads) {
  Sums sums{};
  for (std::size_t c = 0; c < sums.size(); ++c) {
    std::vector<float> lane(threads);
    for (std::size_t i = 0; i < threads; ++i) {
      for (const std::size_t step : steps) lane[i] = term(seen, fn, c, step + i, lane[i]);
    }
    for (std::size_t warp = 0; warp < threads; warp += 32) {
      for (std::size_t half = 16; half > 0; half /= 2) {
        for (std::size_t i = 0; i < half; ++i) lane[warp + i] = lane[warp + i] + lane[warp + i + half];
      }
      sums[c] = sums[c] + lane[warp];
    }
  }
  return sums;
}

struct FastCase {
  const char* name;
  const char* op;
  const char* implementation;
  std::int64_t rows, hidden, processors;
  std::size_t splits, threads;  // threads 0: splits of whole K blocks, the first ones longer by one
};

class FastOrderTest : public testing::TestWithParam<FastCase> {};

TEST_P(FastOrderTest, EqualsThePlainStatement) {
  const FastCase& fast = GetParam();
  const bool fused = std::string(fast.op) == "mhc_fused_post_pre";
  const bool small = fused && fast.threads != 0;
  Case call(fast.op, fast.rows, fast.hidden);
  call.problem.attrs["processors"] = fast.processors;
  call.make();
  const auto ran = call.run(fast.implementation, find_implementation(call.table(), fast.implementation)->mode);
  ASSERT_TRUE(ran.has_value()) << ran.error().message;
  const std::int64_t hidden = fast.hidden;
  std::vector<float> fn = values(call.at("fn"), 0, 24 * 4 * hidden);
  if (fast.threads == 0) std::transform(fn.begin(), fn.end(), fn.begin(), to_tf32);
  const auto h = static_cast<std::size_t>(hidden);
  for (const std::int64_t t : {std::int64_t{0}, fast.rows / 2, fast.rows - 1}) {
    std::vector<float> seen = values(call.at("residual"), t * 4 * hidden, 4 * hidden);
    if (fused)
      seen = post(values(call.at("x"), t * hidden, hidden), seen, values(call.at("post_mix"), t * 4, 4),
                  values(call.at("comb_mix"), t * 16, 16));
    if (fused && !small)
      std::transform(seen.begin(), seen.end(), seen.begin(),
                     [](float value) { return bf16_to_float(float_to_bf16(value)); });
    Sums total{};
    for (std::size_t s = 0; s < fast.splits; ++s) {
      Sums part{};
      if (fast.threads != 0) {
        // The small kernel splits every stream; the fallback product walks the flattened columns.
        std::vector<std::size_t> steps;
        const std::size_t length = small ? h / fast.splits : 4 * h;
        for (std::size_t at = 0; at < length; at += fast.threads) {
          for (std::size_t stream = 0; stream < (small ? 4u : 1u); ++stream)
            steps.push_back(stream * h + s * length + at);
        }
        part = block_sums(seen, fn, steps, fast.threads);
      } else {
        const std::size_t blocks = 4 * h / 64, each = blocks / fast.splits, longer = blocks % fast.splits;
        const std::size_t begin = 64 * (s * each + std::min(s, longer));
        const std::size_t end = begin + 64 * (each + (s < longer ? 1 : 0));
        for (std::size_t c = 0; c < 24; ++c) {
          for (std::size_t k = begin; k < end; ++k) part[c] = term(seen, fn, c, k, part[c]);
        }
        part[24] = strands(seen, begin, end);
      }
      for (std::size_t c = 0; c < 25; ++c) total[c] = total[c] + part[c];
    }
    std::array<float, 24> mixes{};
    std::copy_n(total.begin(), 24, mixes.begin());
    expect_row(call, "mixes", t, mixes);
    expect_row(call, "square_sum", t, std::array<float, 1>{total[24]});
  }
}
INSTANTIATE_TEST_SUITE_P(
    Dispatch, FastOrderTest,
    testing::Values(FastCase{"pinned_fallback", "mhc_pre", "cpu-fp32fma-threads512", 7, 512, 132, 1, 512},
                    FastCase{"fallback_few_rows", "mhc_pre", "cpu-fast-fallback", 5, 512, 132, 1, 1024},
                    FastCase{"fallback_127_rows", "mhc_pre", "cpu-fast-fallback", 127, 256, 132, 1, 1024},
                    FastCase{"fallback_128_rows", "mhc_pre", "cpu-fast-fallback", 128, 256, 132, 1, 512},
                    FastCase{"fallback_pairs", "mhc_pre", "cpu-fast-fallback", 1025, 256, 132, 1, 512},
                    FastCase{"small_kernel_8_splits", "mhc_fused_post_pre", "cpu-fast-occupancy", 7, 2048, 132, 8, 256},
                    FastCase{"small_kernel_4_splits", "mhc_fused_post_pre", "cpu-fast-occupancy", 16, 2048, 132, 4,
                             256},
                    FastCase{"fused_above_16", "mhc_fused_post_pre", "cpu-fast-occupancy", 17, 512, 132, 8, 0},
                    FastCase{"uneven_splits", "mhc_pre", "cpu-fast-occupancy", 130, 1024, 21, 7, 0},
                    FastCase{"one_split", "mhc_pre", "cpu-fast-occupancy", 130, 256, 2, 1, 0}),
    [](const testing::TestParamInfo<FastCase>& fast) { return std::string(fast.param.name); });

TEST(PostTest, EqualsThePlainStatement) {
  Case call("mhc_post", 7, 272);
  call.make();
  ASSERT_TRUE(call.run("cpu-fp32fma-streams").has_value());
  for (std::int64_t t = 0; t < 7; ++t) {
    auto out = post(values(call.at("x"), t * 272, 272), values(call.at("residual"), t * 4 * 272, 4 * 272),
                    values(call.at("post_mix"), t * 4, 4), values(call.at("comb_mix"), t * 16, 16));
    for (float& value : out) value = bf16_to_float(float_to_bf16(value));
    expect_row(call, "residual_out", t, out);
  }
}

TEST(HeadTest, EqualsThePlainStatement) {
  const std::int64_t hidden = 336;
  Case call("hc_head", 6, hidden);
  call.make();
  ASSERT_TRUE(call.run("cpu-fp32fma-strand16-chain256").has_value());
  const auto fn = values(call.at("fn"), 0, 4 * 4 * hidden);
  for (std::int64_t t = 0; t < 6; ++t) {
    Row row;
    row.streams = values(call.at("residual"), t * 4 * hidden, 4 * hidden);
    const std::size_t columns = row.streams.size();
    std::array<float, 4> mixes{}, pre{};
    float squares = 0.0f;
    for (std::size_t begin = 0; begin < columns; begin += 256) {
      const std::size_t end = std::min(begin + 256, columns);
      for (std::size_t c = 0; c < 4; ++c) {
        std::array<float, 16> s{};
        for (std::size_t k = begin; k < end; ++k)
          s[(k - begin) % 16] = std::fma(fn[c * columns + k], row.streams[k], s[(k - begin) % 16]);
        for (std::size_t half = 8; half > 0; half /= 2) {
          for (std::size_t j = 0; j < half; ++j) s[j] = s[j] + s[j + half];
        }
        mixes[c] = begin == 0 ? s[0] : mixes[c] + s[0];
      }
      const float q = strands(row.streams, begin, end);
      squares = begin == 0 ? q : squares + q;
    }
    expect_row(call, "mixes", t, mixes);
    expect_row(call, "square_sum", t, std::array<float, 1>{squares});
    const float r = plain_rsqrt(squares / static_cast<float>(columns) + 1e-6f);
    for (std::size_t c = 0; c < 4; ++c)
      pre[c] = plain_sigmoid(std::fma(mixes[c] * r, call.at("hc_scale").fp32(0), call.at("hc_base").fp32(c))) + 1e-6f;
    collapse(row, pre, {}, 0.0f);
    expect_row(call, "y", t, row.layer_input);
  }
}

}  // namespace
}  // namespace batchproof::mhc
