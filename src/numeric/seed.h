// SPDX-License-Identifier: Apache-2.0
//
// Derived seeds: independent streams from one user seed.
#ifndef BATCHPROOF_SRC_NUMERIC_SEED_H_
#define BATCHPROOF_SRC_NUMERIC_SEED_H_

#include <cstdint>

#include "src/numeric/host_device.h"

namespace batchproof {

// A bijective mix of (seed, stream) for fixed seed: the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
BATCHPROOF_HD constexpr std::uint64_t mix64(std::uint64_t seed, std::uint64_t stream) {
  std::uint64_t z = seed + 0x9E3779B97F4A7C15u * (stream + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_NUMERIC_SEED_H_
