// SPDX-License-Identifier: Apache-2.0
//
// Philox 4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011: a keyed bijection on 128 bits, so that any element is reached without its predecessors.
//
// How an element of a tensor gets its 32-bit word (C3):
//   key      = mix64(seed, 0) xor hash of the tensor's name; word 0 is the low half
//   counter  = (low32(block), high32(block) | stream << 29, low32(row), high32(row)), block = column / 4
//   word     = output[column mod 4]
// `row` is the row's identity, `column` the global column, `stream` (0..7) tells independent draws for one element
// apart. Columns are below 2^63, so block has 61 bits and the stream's bits are free.
#ifndef BATCHPROOF_SRC_NUMERIC_PHILOX_H_
#define BATCHPROOF_SRC_NUMERIC_PHILOX_H_

#include <cstdint>

#include "src/numeric/host_device.h"
#include "src/numeric/seed.h"

namespace batchproof {

struct PhiloxBlock {
  std::uint32_t word[4];
};

struct PhiloxKey {
  std::uint32_t word[2];
};

// Ten rounds.
BATCHPROOF_HD inline PhiloxBlock philox4x32(PhiloxBlock counter, PhiloxKey key) {
  std::uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
  std::uint32_t k0 = key.word[0], k1 = key.word[1];
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0;
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

BATCHPROOF_HD inline PhiloxKey element_key(std::uint64_t seed, std::uint64_t name) {
  const std::uint64_t key = mix64(seed, 0) ^ name;
  return {{static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)}};
}

BATCHPROOF_HD inline PhiloxBlock element_counter(std::uint64_t row, std::uint64_t block, std::uint32_t stream) {
  return {{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32) | stream << 29,
           static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(row >> 32)}};
}

// The word of one element.
BATCHPROOF_HD inline std::uint32_t element_word(PhiloxKey key, std::uint64_t row, std::uint64_t column,
                                                std::uint32_t stream) {
  return philox4x32(element_counter(row, column / 4, stream), key).word[column % 4];
}

// Maps a word to 0..count-1, nearly uniformly (bias below count / 2^32).
BATCHPROOF_HD inline std::uint32_t below(std::uint32_t word, std::uint32_t count) {
  return static_cast<std::uint32_t>(std::uint64_t{word} * count >> 32);
}

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_NUMERIC_PHILOX_H_
