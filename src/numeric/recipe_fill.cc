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
#include "src/numeric/normal.h"
#include "src/numeric/npy.h"
#include "src/numeric/philox.h"
#include "src/numeric/recipe.h"
#include "src/numeric/recipe_plan.h"
#include "src/numeric/seed.h"
#include "src/numeric/wider.h"

namespace batchproof {
namespace {

constexpr std::int64_t kChunk = 256;

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

BATCHPROOF_WIDER
void normal_values(const std::uint32_t* words, std::int64_t count, const RecipePlan& plan, double* values) {
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
  if (plan.a == 0.0 && plan.b == 1.0) return;
  for (std::int64_t i = 0; i < count; ++i) values[i] = shifted_normal(plan, values[i]);
}

BATCHPROOF_WIDER
void multiply_by_spread(const RecipePlan& plan, const std::uint32_t* words, std::int64_t count, double* values) {
  for (std::int64_t i = 0; i < count; ++i) values[i] *= spread_factor(plan, words[i]);
}

BATCHPROOF_WIDER
void keep_within(const RecipePlan& plan, std::int64_t count, double* values) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = within(plan, values[i]);
}

// The identity of the row that a request's words belong to.
std::uint64_t identity_row(const FillRequest& request) {
  if (!uses_pairs(request) || !request.negate_along_row) return request.row;
  return static_cast<std::uint64_t>(canonical_index(request, static_cast<std::int64_t>(request.row)));
}

// Values of the columns [column, column + count), step by step as in element_value. Not for file.
class Values {
 public:
  explicit Values(const FillRequest& request)
      : request_(request),
        plan_(recipe_plan(request)),
        row_(identity_row(request)),
        words_(request, row_),
        varying_(request, row_ / kWideSpan) {}

  void make(std::int64_t column, std::int64_t count, double* values) {
    if (plan_.draw == RecipePlan::Draw::constant) {
      std::fill_n(values, count, plan_.a);
    } else {
      words_.read(column, count, kValueStream, buffer_);
      if (plan_.draw == RecipePlan::Draw::normal) {
        normal_values(buffer_, count, plan_, values);
      } else {
        for (std::int64_t i = 0; i < count; ++i) values[i] = drawn(plan_, buffer_[i]);
      }
    }
    if (plan_.absolute) {
      for (std::int64_t i = 0; i < count; ++i) values[i] = std::fabs(values[i]);
    }
    if (plan_.spread) {
      words_.read(column, count, kExponentStream, buffer_);
      multiply_by_spread(plan_, buffer_, count, values);
    }
    if (plan_.varying) {
      const auto place = static_cast<std::uint32_t>(row_ % kWideSpan);
      varying_.read(column, count, kVaryingStream, buffer_);
      for (std::int64_t i = 0; i < count; ++i) values[i] *= varying_factor(place, buffer_[i]);
    }
    if (plan_.significand) {
      words_.read(column, count, kValueStream, buffer_);
      for (std::int64_t i = 0; i < count; ++i) values[i] *= significand_factor(buffer_[i]);
    }
    if (request_.pairs != nullptr && uses_pairs(request_) && !is_scale(request_)) negate(column, count, values);
    keep_within(plan_, count, values);
  }

 private:
  // cancelling: the upper member of a pair of weights is negated.
  void negate(std::int64_t column, std::int64_t count, double* values) {
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

  const FillRequest& request_;
  const RecipePlan plan_;
  std::uint64_t row_;
  RowWords words_;
  RowWords varying_;
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

void fill_captured(const FillRequest& request, void* out) {
  const NpyArray& array = *request.captured;
  const auto rows = static_cast<std::uint64_t>(array.rows());
  const std::uint64_t identity = identity_row(request);
  std::uint64_t row = identity % rows;
  // The name stays out of the hash: the codes and the scales of a row come from the same captured row.
  if (request.seed != request.base_seed && rows >= 2) {
    row = (row + 1 + mix64(request.seed, identity) % (rows - 1)) % rows;
  }
  const bool codes = array.stores(request.dtype);
  const double magnitude = recipe_plan(request).magnitude;
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
    encode_run(request.dtype, values, count, done, out);
  }
}

}  // namespace batchproof
