// SPDX-License-Identifier: Apache-2.0
//
// Byte counts against a plain loop, positions, hex, ULP distances, and digests.
#include "src/numeric/compare.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "src/numeric/digest.h"
#include "src/numeric/dtype.h"

namespace batchproof {
namespace {

TEST(Compare, CountsBytesAsAPlainLoopDoes) {
  std::mt19937 random(6);
  for (int round = 0; round < 3000; ++round) {
    const std::size_t size = random() % 70;
    std::vector<unsigned char> a(size), b;
    for (unsigned char& byte : a) byte = static_cast<unsigned char>(random());
    b = a;
    for (std::size_t flips = random() % 9; flips > 0 && size > 0; --flips) {
      b[random() % size] ^= static_cast<unsigned char>(1u << random() % 8);
    }
    std::uint64_t expected = 0;
    std::size_t first = size;
    for (std::size_t i = size; i-- > 0;) {
      if (a[i] != b[i]) ++expected, first = i;
    }
    ASSERT_EQ(count_differing_bytes(a.data(), b.data(), size), expected);
    ASSERT_EQ(first_differing_byte(a.data(), b.data(), size), first);
  }
}

TEST(Compare, CountsEveryByteOfAWord) {
  for (unsigned bit = 0; bit < 8; ++bit) {
    std::vector<unsigned char> a(16, 0), b(16, static_cast<unsigned char>(1u << bit));
    EXPECT_EQ(count_differing_bytes(a.data(), b.data(), 16), 16u) << bit;
  }
  EXPECT_EQ(count_differing_bytes(nullptr, nullptr, 0), 0u);
}

TEST(Compare, HexIsMostSignificantByteFirst) {
  const float one_tenth = 1.1f;
  EXPECT_EQ(element_hex(BP_FP32, &one_tenth, 0), "0x3f8ccccd");
  const std::uint16_t halves[] = {0x0001, 0xBF80};
  EXPECT_EQ(element_hex(BP_BF16, halves, 0), "0x0001");
  EXPECT_EQ(element_hex(BP_BF16, halves, 1), "0xbf80");
  const double zero = -0.0;
  EXPECT_EQ(element_hex(BP_FP64, &zero, 0), "0x8000000000000000");
  const std::uint8_t bytes[] = {0x7E, 0x0A};
  EXPECT_EQ(element_hex(BP_E4M3, bytes, 0), "0x7e");
  EXPECT_EQ(element_hex(BP_INT4, bytes, 2), "0x0a");
  EXPECT_EQ(element_hex(BP_INT4, bytes, 3), "0x0a");
}

TEST(Compare, UlpDistanceCountsStepsOfTheDtype) {
  EXPECT_EQ(ulp_distance(BP_FP32, 0x3F800000, 0x3F800000), 0u);
  EXPECT_EQ(ulp_distance(BP_FP32, 0x3F800000, 0x3F800003), 3u);
  EXPECT_EQ(ulp_distance(BP_FP32, 0x3F7FFFFF, 0x3F800000), 1u) << "across a binade";
  EXPECT_EQ(ulp_distance(BP_FP32, 0x80000000, 0x00000000), 1u) << "the two zeros";
  EXPECT_EQ(ulp_distance(BP_FP32, 0x80000001, 0x00000001), 3u);
  EXPECT_EQ(ulp_distance(BP_FP32, 0x7F7FFFFF, 0x7F800000), 1u) << "infinity follows the largest";
  EXPECT_EQ(ulp_distance(BP_BF16, 0xBF80, 0xBF81), 1u);
  EXPECT_EQ(ulp_distance(BP_BF16, 0xBF80, 0x3F80), 2u * 0x3F80 + 1);
  EXPECT_EQ(ulp_distance(BP_FP16, 0x3C00, 0x3C10), 16u);
  EXPECT_EQ(ulp_distance(BP_E4M3, 0x38, 0x3A), 2u);
  EXPECT_EQ(ulp_distance(BP_E5M2, 0x7B, 0x7C), 1u);
  EXPECT_EQ(ulp_distance(BP_FP64, 0xFFF0000000000000u, 0x7FF0000000000000u), 2u * 0x7FF0000000000000u + 1);
}

TEST(Compare, UlpDistanceIsTheNumberOfNextafterSteps) {
  float at = -0x1p-148f;
  for (std::uint64_t steps = 0; steps < 6; ++steps) {
    // nextafter passes only one of the two zeros; the distance counts both.
    const std::uint64_t zeros = at > 0.0f ? 1 : 0;
    EXPECT_EQ(ulp_distance(BP_FP32, std::bit_cast<std::uint32_t>(-0x1p-148f), std::bit_cast<std::uint32_t>(at)),
              steps + zeros)
        << at;
    at = std::nextafter(at, 1.0f);
  }
}

TEST(Compare, NoUlpForNansAndForDtypesWithoutThem) {
  EXPECT_FALSE(ulp_distance(BP_FP32, 0x7FC00000, 0x3F800000).has_value());
  EXPECT_FALSE(ulp_distance(BP_FP32, 0x3F800000, 0xFF800001).has_value());
  EXPECT_FALSE(ulp_distance(BP_FP32, 0x7FC00000, 0x7FC00000).has_value());
  EXPECT_FALSE(ulp_distance(BP_BF16, 0x7FC0, 0x0000).has_value());
  EXPECT_FALSE(ulp_distance(BP_FP16, 0x7E00, 0x0000).has_value());
  EXPECT_FALSE(ulp_distance(BP_E4M3, 0x7F, 0x7E).has_value());
  EXPECT_FALSE(ulp_distance(BP_E5M2, 0x7D, 0x7C).has_value());
  EXPECT_FALSE(ulp_distance(BP_FP64, 0x7FF8000000000000u, 0).has_value());
  for (bp_dtype dtype : {BP_INT8, BP_INT32, BP_INT64, BP_UINT8, BP_INT4, BP_E2M1, BP_E8M0, BP_NONE}) {
    EXPECT_FALSE(ulp_distance(dtype, 1, 2).has_value()) << dtype_name(dtype);
  }
}

TEST(Compare, EqualRows) {
  const std::vector<float> row = {1.0f, NAN, -0.0f, INFINITY};
  const RowDifference d = compare_rows(BP_FP32, row.data(), row.data(), 4);
  EXPECT_TRUE(d.equal());
  EXPECT_EQ(d.first_byte, -1);
  EXPECT_EQ(d.first_element, -1);
  EXPECT_TRUE(d.hex_a.empty());
  EXPECT_FALSE(d.ulp.has_value());
  EXPECT_EQ(d.max_ulp, 0u);
}

TEST(Compare, ReportsTheFirstElementAndTheWorst) {
  std::vector<float> a(100, 1.0f), b(100, 1.0f);
  b[37] = std::bit_cast<float>(0x3F800100u);  // second byte of the element
  b[61] = std::bit_cast<float>(0x3F810001u);  // bytes 0 and 2
  const RowDifference d = compare_rows(BP_FP32, a.data(), b.data(), 100);
  EXPECT_EQ(d.bytes_differing, 3u);
  EXPECT_EQ(d.first_element, 37);
  EXPECT_EQ(d.first_byte, 37 * 4 + 1);
  EXPECT_EQ(d.hex_a, "0x3f800000");
  EXPECT_EQ(d.hex_b, "0x3f800100");
  EXPECT_EQ(d.value_a, 1.0);
  EXPECT_EQ(d.value_b, 1.0 + 256 * 0x1p-23);
  EXPECT_EQ(d.ulp, 256u);
  EXPECT_EQ(d.max_ulp, 65537u);
}

TEST(Compare, ZerosDiffer) {
  const float plus = 0.0f, minus = -0.0f;
  const RowDifference d = compare_rows(BP_FP32, &plus, &minus, 1);
  EXPECT_EQ(d.bytes_differing, 1u);
  EXPECT_EQ(d.ulp, 1u);
}

TEST(Compare, ANanHasNoDistanceButDiffers) {
  const std::uint16_t a[] = {0x7FC0, 0x3F80}, b[] = {0x3F80, 0x3F84};
  const RowDifference d = compare_rows(BP_BF16, a, b, 2);
  EXPECT_EQ(d.bytes_differing, 3u);
  EXPECT_EQ(d.first_byte, 0);
  EXPECT_FALSE(d.ulp.has_value());
  EXPECT_EQ(d.max_ulp, 4u) << "the other element still counts";
  const std::uint16_t c[] = {0x7FC1};
  EXPECT_EQ(compare_rows(BP_BF16, a, c, 1).bytes_differing, 1u) << "two NaNs with different bytes differ";
}

TEST(Compare, PackedRowsByByte) {
  const unsigned char a[] = {0x12, 0x34, 0x56}, b[] = {0x12, 0x94, 0x57};
  const RowDifference d = compare_rows(BP_INT4, a, b, 6);
  EXPECT_EQ(d.bytes_differing, 2u);
  EXPECT_EQ(d.first_byte, 1);
  EXPECT_EQ(d.first_element, 3) << "only the high nibble differs";
  EXPECT_EQ(d.hex_a, "0x34");
  EXPECT_EQ(d.hex_b, "0x94");
  EXPECT_EQ(d.value_a, 3.0);
  EXPECT_EQ(d.value_b, -7.0);
  EXPECT_FALSE(d.ulp.has_value());
}

// XXH3-64 of nothing, a published constant.
TEST(Digest, OfNothing) {
  EXPECT_EQ(Digest().hex(), "2d06800538d394c2");
  EXPECT_EQ(digest_bytes(nullptr, 0), 0x2D06800538D394C2u);
}

TEST(Digest, DoesNotDependOnHowBytesArrive) {
  std::vector<unsigned char> bytes(5000);
  std::mt19937 random(7);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  const std::uint64_t whole = digest_bytes(bytes.data(), bytes.size());
  for (std::size_t piece : {1u, 7u, 64u, 1000u, 5000u}) {
    Digest digest;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      digest.update(bytes.data() + at, std::min(piece, bytes.size() - at));
    }
    EXPECT_EQ(digest.value(), whole) << piece;
    EXPECT_EQ(digest.hex(), digest_hex(whole));
  }
  bytes[4321] ^= 1;
  EXPECT_NE(digest_bytes(bytes.data(), bytes.size()), whole);
}

TEST(Digest, HexHasSixteenDigits) {
  EXPECT_EQ(digest_hex(0), "0000000000000000");
  EXPECT_EQ(digest_hex(0xABCu), "0000000000000abc");
}

}  // namespace
}  // namespace batchproof
