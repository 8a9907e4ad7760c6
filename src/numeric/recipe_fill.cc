// SPDX-License-Identifier: Apache-2.0
//
// The elements of every recipe. A run is made in chunks: words of Philox, values in FP64, elements of the dtype. Each
// step is a plain loop over one chunk, so that the compiler can vectorise it; the arithmetic is IEEE and the same lane
// by lane, so the bytes do not depend on it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "src/numeric/bf16.h"
#include "src/numeric/dtype.h"
#include "src/numeric/fp16.h"
#include "src/numeric/fp8.h"
#include "src/numeric/normal.h"
#include "src/numeric/npy.h"
#include "src/numeric/philox.h"
#include "src/numeric/recipe.h"
#include "src/numeric/seed.h"
#include "src/numeric/wider.h"

namespace batchproof {
namespace {

constexpr std::int64_t kChunk = 256;

// Independent draws for one element.
constexpr std::uint32_t kValueStream = 0;
constexpr std::uint32_t kExponentStream = 1;
constexpr std::uint32_t kVaryingStream = 2;
constexpr std::uint32_t kStreams = 3;

// Exponents of scales and of wide_exponent: 24 binades.
constexpr int kWideLow = -16;
constexpr int kWideSpan = 24;
// FP16: |normal| < 6.4, so 2048 products of two values below 6.4 * 2^-1 sum to less than 21,000.
constexpr int kWideLowFp16 = -12;
constexpr int kWideSpanFp16 = 12;
constexpr int kScaleLow = -2;
constexpr int kScaleSpan = 4;

// cancelling: N(0, 1) times 2^e. An exponent that is spread makes the low bits of most products fall off an FP32 sum,
// also where the product of two short significands would fit: without it the sums of BF16 are often exact up to K =
// 256, and those of FP8 far beyond.
struct CancellingExponents {
  int low;
  int span;
};
CancellingExponents cancelling_exponents(bp_dtype dtype) {
  switch (dtype) {
    case BP_E4M3:
      return {-8, 15};
    case BP_E5M2:
      return {-14, 21};
    case BP_E2M1:
    case BP_INT4:
      return {1, 1};
    case BP_INT8:
    case BP_UINT8:
    case BP_INT32:
    case BP_INT64:
      return {4, 1};
    default:
      return {-4, 10};
  }
}
constexpr int kCancellingScaleLow = -8;
constexpr int kCancellingScaleSpan = 16;
constexpr double kOutsideReductionDeviation = 0x1p-10;
constexpr double kCheckpointDeviation = 0.02;

// Words of blocks first .. first+7 of a row, in order.
inline void philox_eight_blocks(PhiloxKey key, std::uint64_t row, std::uint64_t first, std::uint32_t stream,
                                std::uint32_t* out) {
  constexpr int kLanes = 8;
  std::uint32_t c[4][kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const PhiloxBlock counter = element_counter(row, first + static_cast<std::uint64_t>(lane), stream);
    for (int i = 0; i < 4; ++i) c[i][lane] = counter.word[i];
  }
  std::uint32_t k0 = key.word[0], k1 = key.word[1];
  for (int round = 0; round < 10; ++round) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c[0][lane];
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c[2][lane];
      c[0][lane] = static_cast<std::uint32_t>(p1 >> 32) ^ c[1][lane] ^ k0;
      c[1][lane] = static_cast<std::uint32_t>(p1);
      c[2][lane] = static_cast<std::uint32_t>(p0 >> 32) ^ c[3][lane] ^ k1;
      c[3][lane] = static_cast<std::uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 4; ++i) out[lane * 4 + i] = c[i][lane];
  }
}

BATCHPROOF_WIDER
void row_words(PhiloxKey key, std::uint64_t row, std::int64_t column, std::int64_t count, std::uint32_t stream,
               std::uint32_t* out) {
  while (count > 0) {
    if (column % 4 == 0 && count >= 32) {
      philox_eight_blocks(key, row, static_cast<std::uint64_t>(column) / 4, stream, out);
      column += 32, count -= 32, out += 32;
      continue;
    }
    const PhiloxBlock block = philox4x32(element_counter(row, static_cast<std::uint64_t>(column) / 4, stream), key);
    for (std::int64_t i = column % 4; i < 4 && count > 0; ++i, ++column, --count) *out++ = block.word[i];
  }
}

bool is_scale(const FillRequest& request) { return request.scale || request.dtype == BP_E8M0; }

// Partner blocks have equal scales under every recipe; elements are paired only by cancelling.
bool uses_pairs(const FillRequest& request) {
  return request.pairs != nullptr && (is_scale(request) || request.spec.kind == RecipeKind::cancelling);
}

std::int64_t canonical_index(const FillRequest& request, std::int64_t index) {
  if (is_scale(request)) return request.pairs->canonical_block(index);
  return index < request.pairs->length() ? request.pairs->canonical(index) : index;
}

// The words of one row identity, at columns as the request counts them.
class RowWords {
 public:
  RowWords(const FillRequest& request, std::uint64_t row)
      : request_(request), key_(element_key(request.seed, request.name)), row_(row) {
    paired_columns_ = uses_pairs(request) && !request.negate_along_row;
  }

  void read(std::int64_t column, std::int64_t count, std::uint32_t stream, std::uint32_t* out) {
    if (!paired_columns_) return row_words(key_, row_, column, count, stream, out);
    const std::vector<std::uint32_t>& held = cache(stream);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t identity = canonical_index(request_, column + i);
      out[i] = identity < static_cast<std::int64_t>(held.size())
                   ? held[identity]
                   : element_word(key_, row_, static_cast<std::uint64_t>(identity), stream);
    }
  }

 private:
  // Partners lie far apart. For a long run it is cheaper to make the whole row once than a block for each element.
  const std::vector<std::uint32_t>& cache(std::uint32_t stream) {
    std::vector<std::uint32_t>& held = cache_[stream];
    const std::int64_t block = is_scale(request_) ? request_.pairs->block() : 1;
    const std::int64_t length = request_.pairs->length() / block;
    if (!held.empty() || request_.count < length / 4) return held;
    held.resize(static_cast<std::size_t>(length));
    row_words(key_, row_, 0, length, stream, held.data());
    return held;
  }

  const FillRequest& request_;
  PhiloxKey key_;
  std::uint64_t row_;
  bool paired_columns_;
  std::vector<std::uint32_t> cache_[kStreams];
};

// A parameter of a recipe, made harmless: NaN becomes 0, and sums and products with it stay numbers.
double finite_parameter(double value) { return std::isnan(value) ? 0.0 : std::clamp(value, -1e300, 1e300); }

BATCHPROOF_WIDER
void normal_values(const std::uint32_t* words, std::int64_t count, double mean, double deviation, double* values) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = normal_centre(words[i]);
  // The tails, about 15 %, close together.
  std::int32_t places[kChunk];
  std::uint32_t tails[kChunk];
  double of_tails[kChunk];
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    places[found] = static_cast<std::int32_t>(i);
    tails[found] = words[i];
    found += in_normal_tail(words[i]) ? 1 : 0;
  }
  for (std::int64_t t = 0; t < found; ++t) of_tails[t] = normal_tail(tails[t]);
  for (std::int64_t t = 0; t < found; ++t) values[places[t]] = of_tails[t];
  if (mean == 0.0 && deviation == 1.0) return;
  for (std::int64_t i = 0; i < count; ++i) values[i] = mean + deviation * values[i];
}

// 2^e, e uniform in [low, low + span).
BATCHPROOF_WIDER
void multiply_by_powers(const std::uint32_t* words, std::int64_t count, int low, std::uint32_t span, double* values) {
  for (std::int64_t i = 0; i < count; ++i) values[i] *= power_of_two(low + static_cast<int>(below(words[i], span)));
}

// Values of the columns [column, column + count), before magnitude. Not for file.
class Values {
 public:
  explicit Values(const FillRequest& request)
      : request_(request), row_(identity_row(request)), words_(request, row_), varying_(request, row_ / kWideSpan) {
    lo_ = finite_parameter(request.spec.lo);
    hi_ = finite_parameter(request.spec.hi);
  }

  static std::uint64_t identity_row(const FillRequest& request) {
    if (!uses_pairs(request) || !request.negate_along_row) return request.row;
    return static_cast<std::uint64_t>(canonical_index(request, static_cast<std::int64_t>(request.row)));
  }

  void make(std::int64_t column, std::int64_t count, double* values) {
    if (is_scale(request_)) {
      make_scales(column, count, values);
      return;
    }
    switch (request_.spec.kind) {
      case RecipeKind::normal:
        return normal(column, count, lo_, hi_, values);
      case RecipeKind::checkpoint:
        return normal(column, count, 0.0, kCheckpointDeviation, values);
      case RecipeKind::cancelling:
        return cancelling(column, count, values);
      case RecipeKind::wide_exponent:
        return wide(column, count, values);
      case RecipeKind::small_integer:
        words_.read(column, count, kValueStream, buffer_);
        for (std::int64_t i = 0; i < count; ++i) values[i] = static_cast<int>(below(buffer_[i], 9)) - 4;
        return;
      default:
        return common(column, count, values);
    }
  }

 private:
  // Kinds that mean the same for a scale.
  void common(std::int64_t column, std::int64_t count, double* values) {
    switch (request_.spec.kind) {
      case RecipeKind::uniform:
        return uniform(column, count, values);
      case RecipeKind::constant:
        std::fill_n(values, count, request_.spec.lo);
        return;
      case RecipeKind::varying:
        return varying(column, count, values);
      default:
        std::fill_n(values, count, 1.0);
        return;
    }
  }

  void make_scales(std::int64_t column, std::int64_t count, double* values) {
    const bool plain = lo_ == 0.0 && hi_ == 1.0;
    switch (request_.spec.kind) {
      case RecipeKind::normal:
        if (plain) return powers(column, count, kScaleLow, kScaleSpan, values);
        normal(column, count, lo_, hi_, values);
        for (std::int64_t i = 0; i < count; ++i) values[i] = std::fabs(values[i]);
        return;
      case RecipeKind::checkpoint:
        return powers(column, count, kScaleLow, kScaleSpan, values);
      case RecipeKind::cancelling:
        return powers(column, count, kCancellingScaleLow, kCancellingScaleSpan, values);
      case RecipeKind::wide_exponent:
        varying(column, count, values);
        return significands(column, count, values);
      default:
        return common(column, count, values);
    }
  }

  void normal(std::int64_t column, std::int64_t count, double mean, double deviation, double* values) {
    words_.read(column, count, kValueStream, buffer_);
    normal_values(buffer_, count, mean, deviation, values);
  }

  void uniform(std::int64_t column, std::int64_t count, double* values) {
    words_.read(column, count, kValueStream, buffer_);
    if (is_integer(request_.dtype)) {
      const double low = lowest_value(request_.dtype), end = largest_value(request_.dtype) + 1.0;
      const double first = std::ceil(std::clamp(lo_, low, end - 1.0));
      const double numbers = std::max(1.0, std::ceil(std::clamp(hi_, low, end)) - first);
      for (std::int64_t i = 0; i < count; ++i) values[i] = first + std::floor(numbers * (buffer_[i] * 0x1p-32));
      return;
    }
    const double largest = request_.dtype == BP_FP64 ? 1e300 : largest_value(request_.dtype);
    const double lo = std::clamp(lo_, -largest, largest);
    const double width = std::clamp(hi_, -largest, largest) - lo;
    for (std::int64_t i = 0; i < count; ++i) values[i] = lo + width * (buffer_[i] * 0x1p-32);
  }

  void wide(std::int64_t column, std::int64_t count, double* values) {
    switch (request_.dtype) {
      case BP_E4M3:  // 127 finite magnitudes
        return codes(column, count, 127, values);
      case BP_E5M2:  // 124
        return codes(column, count, 124, values);
      case BP_E2M1:
        words_.read(column, count, kValueStream, buffer_);
        for (std::int64_t i = 0; i < count; ++i) {
          values[i] = e2m1_to_float(static_cast<std::uint8_t>(below(buffer_[i], 16)));
        }
        return;
      case BP_INT4:
      case BP_INT8:
      case BP_UINT8: {
        const std::uint32_t span = request_.dtype == BP_INT4 ? 16 : 256;
        const double low = lowest_value(request_.dtype);
        words_.read(column, count, kValueStream, buffer_);
        for (std::int64_t i = 0; i < count; ++i) values[i] = low + below(buffer_[i], span);
        return;
      }
      default:
        break;
    }
    normal(column, count, 0.0, 1.0, values);
    const bool fp16 = request_.dtype == BP_FP16;
    const int low = fp16 ? kWideLowFp16 : is_integer(request_.dtype) ? 0 : kWideLow;
    spread(column, count, low, fp16 ? kWideSpanFp16 : kWideSpan, values);
  }

  // Multiplies by 2^e, e uniform in [low, low + span).
  void spread(std::int64_t column, std::int64_t count, int low, int span, double* values) {
    words_.read(column, count, kExponentStream, buffer_);
    multiply_by_powers(buffer_, count, low, static_cast<std::uint32_t>(span), values);
  }

  // FP8 codes, uniform over both signs of `magnitudes` finite codes.
  void codes(std::int64_t column, std::int64_t count, std::uint32_t magnitudes, double* values) {
    words_.read(column, count, kValueStream, buffer_);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t draw = below(buffer_[i], 2 * magnitudes);
      const auto code = static_cast<std::uint8_t>(draw < magnitudes ? draw : draw - magnitudes + 0x80u);
      values[i] = request_.dtype == BP_E4M3 ? e4m3_to_float(code) : e5m2_to_float(code);
    }
  }

  void cancelling(std::int64_t column, std::int64_t count, double* values) {
    if (request_.pairs == nullptr && !request_.reduction_input) {
      return normal(column, count, 0.0, kOutsideReductionDeviation, values);
    }
    normal(column, count, 0.0, 1.0, values);
    const CancellingExponents exponents = cancelling_exponents(request_.dtype);
    spread(column, count, exponents.low, exponents.span, values);
    if (request_.pairs == nullptr) return;
    if (request_.negate_along_row) {
      const double sign = weight_sign(static_cast<std::int64_t>(request_.row));
      for (std::int64_t i = 0; i < count; ++i) values[i] = sign == 0.0 ? 0.0 : values[i] * sign;
    } else if (request_.negate_along_column) {
      for (std::int64_t i = 0; i < count; ++i) {
        const double sign = weight_sign(column + i);
        values[i] = sign == 0.0 ? 0.0 : values[i] * sign;
      }
    }
  }

  // 1, -1 for the upper member of a pair, 0 where nothing would cancel the weight.
  double weight_sign(std::int64_t k) const {
    const CancellingPairs& pairs = *request_.pairs;
    if (k >= pairs.length() || pairs.unpaired(k)) return 0.0;
    return pairs.negated(k) ? -1.0 : 1.0;
  }

  // 2^e, e uniform in [low, low + span), times a significand where the dtype has one.
  void powers(std::int64_t column, std::int64_t count, int low, int span, double* values) {
    std::fill_n(values, count, 1.0);
    spread(column, count, low, span, values);
    significands(column, count, values);
  }

  void significands(std::int64_t column, std::int64_t count, double* values) {
    if (request_.dtype == BP_E8M0) return;
    words_.read(column, count, kValueStream, buffer_);
    for (std::int64_t i = 0; i < count; ++i) values[i] *= 1.0 + buffer_[i] * 0x1p-32;
  }

  // Per run of 24 rows and column a random affine map of the row's place in the run onto the 24 exponents: any two rows
  // of a run differ in every column; columns are independent.
  void varying(std::int64_t column, std::int64_t count, double* values) {
    static constexpr std::uint32_t kUnits[8] = {1, 5, 7, 11, 13, 17, 19, 23};  // coprime to 24
    const auto place = static_cast<std::uint32_t>(row_ % kWideSpan);
    varying_.read(column, count, kVaryingStream, buffer_);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t slope = kUnits[buffer_[i] & 7u];
      const std::uint32_t offset = below(buffer_[i], kWideSpan);
      values[i] = power_of_two(kWideLow + static_cast<int>((slope * place + offset) % kWideSpan));
    }
  }

  const FillRequest& request_;
  std::uint64_t row_;
  RowWords words_;
  RowWords varying_;
  double lo_ = 0.0;
  double hi_ = 1.0;
  std::uint32_t buffer_[kChunk];
};

// Elements [offset, offset + count) of out. Values are within the finite range of the dtype, or meant as they are.
BATCHPROOF_WIDER
void encode_run(bp_dtype dtype, const double* values, std::int64_t count, std::int64_t offset, void* out) {
  auto* bytes = static_cast<unsigned char*>(out) + dtype_bytes(dtype, offset);
  switch (dtype) {
    case BP_FP32: {
      float elements[kChunk];
      for (std::int64_t i = 0; i < count; ++i) elements[i] = static_cast<float>(values[i]);
      std::memcpy(bytes, elements, static_cast<std::size_t>(count) * sizeof(float));
      return;
    }
    case BP_BF16: {
      std::uint16_t elements[kChunk];
      for (std::int64_t i = 0; i < count; ++i) elements[i] = float_to_bf16(static_cast<float>(values[i]));
      std::memcpy(bytes, elements, static_cast<std::size_t>(count) * sizeof(std::uint16_t));
      return;
    }
    case BP_FP16: {
      std::uint16_t elements[kChunk];
      for (std::int64_t i = 0; i < count; ++i) elements[i] = float_to_fp16(static_cast<float>(values[i]));
      std::memcpy(bytes, elements, static_cast<std::size_t>(count) * sizeof(std::uint16_t));
      return;
    }
    case BP_E4M3:
      for (std::int64_t i = 0; i < count; ++i) bytes[i] = float_to_e4m3(static_cast<float>(values[i]));
      return;
    case BP_E5M2:
      for (std::int64_t i = 0; i < count; ++i) bytes[i] = float_to_e5m2(static_cast<float>(values[i]));
      return;
    case BP_E2M1:
      for (std::int64_t i = 0; i < count; ++i) {
        encode_element(dtype, static_cast<double>(static_cast<float>(values[i])), out, offset + i);
      }
      return;
    default:
      for (std::int64_t i = 0; i < count; ++i) encode_element(dtype, values[i], out, offset + i);
  }
}

BATCHPROOF_WIDER
void multiply_and_clamp(double magnitude, double low, double high, std::int64_t count, double* values) {
  for (std::int64_t i = 0; i < count; ++i) {
    const double value = values[i] * magnitude;
    const double capped = value < high ? value : high;
    values[i] = capped > low ? capped : low;
  }
}

void scale_and_clamp(const FillRequest& request, std::int64_t count, double* values) {
  const double magnitude = is_scale(request) ? 1.0 : finite_parameter(request.magnitude);
  const double high = largest_value(request.dtype);
  double low = lowest_value(request.dtype);
  // -128 has no partner in INT8.
  if (request.spec.kind == RecipeKind::cancelling) low = std::max(low, -high);
  if (request.spec.kind == RecipeKind::constant) {
    for (std::int64_t i = 0; i < count; ++i) {
      values[i] *= magnitude;
      if (std::isfinite(values[i])) values[i] = std::clamp(values[i], low, high);
    }
    return;
  }
  multiply_and_clamp(magnitude, low, high, count, values);
}

void fill_captured(const FillRequest& request, void* out) {
  const NpyArray& array = *request.captured;
  const auto rows = static_cast<std::uint64_t>(array.rows());
  const std::uint64_t identity = Values::identity_row(request);
  std::uint64_t row = identity % rows;
  // The name stays out of the hash: the codes and the scales of a row come from the same captured row.
  if (request.seed != request.base_seed && rows >= 2) {
    row = (row + 1 + mix64(request.seed, identity) % (rows - 1)) % rows;
  }
  const bool codes = array.stores(request.dtype);
  const double magnitude = is_scale(request) ? 1.0 : finite_parameter(request.magnitude);
  const std::uint64_t mask = dtype_bits(request.dtype) == 4 ? 0xFu : ~std::uint64_t{0};
  for (std::int64_t i = 0; i < request.count; ++i) {
    std::int64_t column = request.column + i;
    if (uses_pairs(request) && !request.negate_along_row) column = canonical_index(request, column);
    const std::int64_t at = static_cast<std::int64_t>(row) * array.columns() + column % array.columns();
    double value;
    if (codes) {
      const std::uint64_t bits = array.bits(at) & mask;
      value = decode_element(request.dtype, &bits, 0);
      if (magnitude == 1.0 && !std::isnan(value)) {
        store_bits(request.dtype, bits, out, i);
        continue;
      }
    } else {
      value = array.value(at);
    }
    if (std::isfinite(value)) {
      value = std::clamp(value * magnitude, lowest_value(request.dtype), largest_value(request.dtype));
    }
    encode_element(request.dtype, value, out, i);
  }
}

}  // namespace

void fill(const FillRequest& request, void* out) {
  if (request.count <= 0 || dtype_bits(request.dtype) == 0) return;
  if (request.spec.kind == RecipeKind::file) {
    if (request.captured == nullptr) return fill_poison(Poison::nan, request.dtype, request.count, out);
    return fill_captured(request, out);
  }
  Values source(request);
  double values[kChunk];
  for (std::int64_t done = 0; done < request.count; done += kChunk) {
    const std::int64_t count = std::min(kChunk, request.count - done);
    source.make(request.column + done, count, values);
    scale_and_clamp(request, count, values);
    encode_run(request.dtype, values, count, done, out);
  }
}

}  // namespace batchproof
