// SPDX-License-Identifier: Apache-2.0
//
// Tables of the dtypes and the one place that turns elements into doubles and back.
#include "src/numeric/dtype.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "src/numeric/encode.h"

namespace batchproof {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are read and written as little-endian bytes");

constexpr std::uint64_t kNone = ~std::uint64_t{0};

struct DtypeFacts {
  bp_dtype dtype;
  const char* name;
  int bits;
  bool integer;
  bool floating;
  bool quantised;
  std::uint64_t nan;       // kNone: the dtype has none
  std::uint64_t infinity;  // kNone: the dtype has none
  std::uint64_t largest;
  double lowest;
};

constexpr std::array<DtypeFacts, 14> kFacts = {{
    {BP_NONE, "none", 0, false, false, false, kNone, kNone, 0, 0.0},
    {BP_FP64, "fp64", 64, false, true, false, kFp64Nan, 0x7FF0000000000000u, 0x7FEFFFFFFFFFFFFFu,
     std::numeric_limits<double>::lowest()},
    {BP_FP32, "fp32", 32, false, true, false, kFp32Nan, 0x7F800000u, kFp32Max, std::numeric_limits<float>::lowest()},
    {BP_BF16, "bf16", 16, false, true, false, kBf16Nan, 0x7F80u, kBf16Max, -0x1.FEp127},
    {BP_FP16, "fp16", 16, false, true, false, kFp16Nan, 0x7C00u, kFp16Max, -65504.0},
    {BP_E4M3, "e4m3", 8, false, true, true, kE4m3Nan, kNone, kE4m3Max, -448.0},
    {BP_E5M2, "e5m2", 8, false, true, true, kE5m2Nan, kE5m2Infinity, kE5m2Max, -57344.0},
    {BP_E8M0, "e8m0", 8, false, false, false, kE8m0Nan, kNone, kE8m0Max, 0x1p-127},
    {BP_INT8, "int8", 8, true, false, true, kNone, kNone, 0x7F, -128.0},
    {BP_INT32, "int32", 32, true, false, false, kNone, kNone, 0x7FFFFFFFu, -2147483648.0},
    {BP_INT64, "int64", 64, true, false, false, kNone, kNone, 0x7FFFFFFFFFFFFFFFu, -0x1p63},
    {BP_UINT8, "uint8", 8, true, false, false, kNone, kNone, 0xFF, 0.0},
    {BP_INT4, "int4", 4, true, false, true, kNone, kNone, 0x7, -8.0},
    {BP_E2M1, "e2m1", 4, false, true, true, kNone, kNone, kE2m1Max, -6.0},
}};

constexpr bool facts_are_in_order() {
  for (std::size_t i = 0; i < kFacts.size(); ++i) {
    if (kFacts[i].dtype != static_cast<bp_dtype>(i)) return false;
  }
  return true;
}
static_assert(facts_are_in_order());

bool known(bp_dtype dtype) { return dtype >= 0 && dtype < static_cast<bp_dtype>(kFacts.size()); }
const DtypeFacts& facts(bp_dtype dtype) { return kFacts[known(dtype) ? static_cast<std::size_t>(dtype) : 0]; }

struct DtypeAlias {
  std::string_view name;
  bp_dtype dtype;
};

// Lower case. Names of NumPy, PyTorch and of case files.
constexpr DtypeAlias kAliases[] = {
    {"double", BP_FP64},
    {"float64", BP_FP64},
    {"f64", BP_FP64},
    {"float", BP_FP32},
    {"float32", BP_FP32},
    {"f32", BP_FP32},
    {"bfloat16", BP_BF16},
    {"half", BP_FP16},
    {"float16", BP_FP16},
    {"f16", BP_FP16},
    {"fp8_e4m3", BP_E4M3},
    {"fp8_e4m3fn", BP_E4M3},
    {"float8_e4m3", BP_E4M3},
    {"float8_e4m3fn", BP_E4M3},
    {"fp8_e5m2", BP_E5M2},
    {"float8_e5m2", BP_E5M2},
    {"fp8_e8m0", BP_E8M0},
    {"float8_e8m0", BP_E8M0},
    {"float8_e8m0fnu", BP_E8M0},
    {"int8_t", BP_INT8},
    {"int32_t", BP_INT32},
    {"int", BP_INT32},
    {"int64_t", BP_INT64},
    {"long", BP_INT64},
    {"uint8_t", BP_UINT8},
    {"fp4_e2m1", BP_E2M1},
    {"float4_e2m1", BP_E2M1},
    {"float4_e2m1fn_x2", BP_E2M1},
};

double decode_bits(bp_dtype dtype, std::uint64_t bits) {
  switch (dtype) {
    case BP_FP64:
      return std::bit_cast<double>(bits);
    case BP_FP32:
      return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    case BP_BF16:
      return bf16_to_float(static_cast<std::uint16_t>(bits));
    case BP_FP16:
      return fp16_to_float(static_cast<std::uint16_t>(bits));
    case BP_E4M3:
      return e4m3_to_float(static_cast<std::uint8_t>(bits));
    case BP_E5M2:
      return e5m2_to_float(static_cast<std::uint8_t>(bits));
    case BP_E8M0:
      return e8m0_to_float(static_cast<std::uint8_t>(bits));
    case BP_E2M1:
      return e2m1_to_float(static_cast<std::uint8_t>(bits));
    case BP_INT4:
      return static_cast<double>(static_cast<int>(bits & 0xFu) - ((bits & 0x8u) != 0 ? 16 : 0));
    case BP_INT8:
      return static_cast<std::int8_t>(bits);
    case BP_UINT8:
      return static_cast<std::uint8_t>(bits);
    case BP_INT32:
      return static_cast<std::int32_t>(bits);
    case BP_INT64:
      return static_cast<double>(static_cast<std::int64_t>(bits));
    default:
      return 0.0;
  }
}

}  // namespace

const std::vector<bp_dtype>& all_dtypes() {
  static const std::vector<bp_dtype> list = [] {
    std::vector<bp_dtype> dtypes;
    for (std::size_t i = 1; i < kFacts.size(); ++i) dtypes.push_back(kFacts[i].dtype);
    return dtypes;
  }();
  return list;
}

int dtype_bits(bp_dtype dtype) { return facts(dtype).bits; }

std::size_t dtype_bytes(bp_dtype dtype, std::int64_t count) {
  if (count <= 0) return 0;
  return dtype_bits(dtype) == 4 ? static_cast<std::size_t>(count / 2 + count % 2)
                                : static_cast<std::size_t>(count) * static_cast<std::size_t>(dtype_bits(dtype) / 8);
}

const char* dtype_name(bp_dtype dtype) { return known(dtype) ? facts(dtype).name : "unknown"; }

std::optional<bp_dtype> dtype_from_name(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  for (bp_dtype dtype : all_dtypes()) {
    if (lower == dtype_name(dtype)) return dtype;
  }
  for (const DtypeAlias& alias : kAliases) {
    if (lower == alias.name) return alias.dtype;
  }
  return std::nullopt;
}

bool is_integer(bp_dtype dtype) { return facts(dtype).integer; }
bool is_floating(bp_dtype dtype) { return facts(dtype).floating; }
bool is_quantised(bp_dtype dtype) { return facts(dtype).quantised; }

std::optional<std::uint64_t> canonical_nan_bits(bp_dtype dtype) {
  const std::uint64_t nan = facts(dtype).nan;
  return nan == kNone ? std::nullopt : std::optional<std::uint64_t>(nan);
}

std::optional<std::uint64_t> infinity_bits(bp_dtype dtype) {
  const std::uint64_t infinity = facts(dtype).infinity;
  return infinity == kNone ? std::nullopt : std::optional<std::uint64_t>(infinity);
}

std::uint64_t largest_bits(bp_dtype dtype) { return facts(dtype).largest; }
double largest_value(bp_dtype dtype) { return decode_bits(dtype, facts(dtype).largest); }
double lowest_value(bp_dtype dtype) { return facts(dtype).lowest; }

std::uint64_t load_bits(bp_dtype dtype, const void* data, std::int64_t index) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  switch (dtype_bits(dtype)) {
    case 4:
      return bytes[index / 2] >> (index % 2 * 4) & 0xFu;
    case 8:
      return bytes[index];
    case 16: {
      std::uint16_t bits;
      std::memcpy(&bits, bytes + index * 2, 2);
      return bits;
    }
    case 32: {
      std::uint32_t bits;
      std::memcpy(&bits, bytes + index * 4, 4);
      return bits;
    }
    case 64: {
      std::uint64_t bits;
      std::memcpy(&bits, bytes + index * 8, 8);
      return bits;
    }
    default:
      return 0;
  }
}

void store_bits(bp_dtype dtype, std::uint64_t bits, void* data, std::int64_t index) {
  auto* bytes = static_cast<unsigned char*>(data);
  const int width = dtype_bits(dtype);
  if (width == 4) {
    const unsigned shift = static_cast<unsigned>(index % 2 * 4);
    bytes[index / 2] =
        static_cast<unsigned char>((bytes[index / 2] & ~(0xFu << shift)) | static_cast<unsigned>(bits & 0xFu) << shift);
  } else if (width > 0) {
    std::memcpy(bytes + index * (width / 8), &bits, static_cast<std::size_t>(width) / 8);
  }
}

double decode_element(bp_dtype dtype, const void* data, std::int64_t index) {
  return decode_bits(dtype, load_bits(dtype, data, index));
}

void encode_element(bp_dtype dtype, double value, void* data, std::int64_t index) {
  store_bits(dtype, encode_bits(dtype, value), data, index);
}

}  // namespace batchproof
