// SPDX-License-Identifier: Apache-2.0
//
// FP8, E8M0 and E2M1 against an independent source, PyPI ml_dtypes: every code decoded, and every FP32 whose low half
// is 0 or 1 encoded, within the finite range (beyond it ml_dtypes does not saturate, ours does). E8M0 from 2^-126 on,
// below which ml_dtypes rounds subnormal FP32 up whatever is nearer, and without ties, which it rounds up and we to
// even codes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "src/numeric/e8m0.h"
#include "src/numeric/fp8.h"
#include "src/numeric/ml_dtypes_tables.h"

namespace batchproof {
namespace {

namespace golden = ml_dtypes_tables;

template <class Decode>
void decodes(const std::uint32_t* expected, int codes, const Decode& decode) {
  for (int code = 0; code < codes; ++code) {
    const float value = decode(static_cast<std::uint8_t>(code));
    const std::uint32_t bits = std::isnan(value) ? 0x7FC00000u : cast_bits<std::uint32_t>(value);
    EXPECT_EQ(bits, expected[code]) << "code " << code;
  }
}

template <class Encode>
void encodes(std::size_t count, std::uint64_t fnv, float smallest, float largest, const Encode& encode,
             bool ties = true) {
  std::size_t seen = 0;
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const std::uint32_t low : {0u, 1u}) {
    for (std::uint32_t high = 0; high < 65536; ++high) {
      const float value = cast_bits<float>(high << 16 | low);
      if (!ties && (high << 16 | low) % 0x800000u == 0x400000u) continue;
      if (std::isnan(value) || std::fabs(value) > largest || !(value >= smallest)) continue;
      hash = (hash ^ encode(value)) * 0x100000001B3u;
      ++seen;
    }
  }
  EXPECT_EQ(seen, count);
  EXPECT_EQ(hash, fnv);
}

TEST(MlDtypes, E4m3) {
  decodes(golden::kE4m3, 256, e4m3_to_float);
  encodes(golden::kE4m3Encoded, golden::kE4m3Fnv, -448.0f, 448.0f, float_to_e4m3);
}

TEST(MlDtypes, E5m2) {
  decodes(golden::kE5m2, 256, e5m2_to_float);
  encodes(golden::kE5m2Encoded, golden::kE5m2Fnv, -57344.0f, 57344.0f, float_to_e5m2);
}

TEST(MlDtypes, E8m0) {
  decodes(golden::kE8m0, 256, e8m0_to_float);
  encodes(golden::kE8m0Encoded, golden::kE8m0Fnv, 0x1p-126f, 0x1p127f, float_to_e8m0, /*ties=*/false);
}

TEST(MlDtypes, E2m1) {
  decodes(golden::kE2m1, 16, e2m1_to_float);
  encodes(golden::kE2m1Encoded, golden::kE2m1Fnv, -6.0f, 6.0f, float_to_e2m1);
}

}  // namespace
}  // namespace batchproof
