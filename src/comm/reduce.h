// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of a reduction over ranks, the same for every backend that reduces on the host: the order of the
// addends is that of the ranks, never that of their arrival.
#ifndef BATCHPROOF_SRC_COMM_REDUCE_H_
#define BATCHPROOF_SRC_COMM_REDUCE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "batchproof/operator.h"

namespace batchproof {

// Why these arguments cannot be reduced, as one sentence fragment; empty where they can. Reducible are FP64, FP32,
// BF16, FP16, INT32 and INT64; BP_REDUCE_TREE needs a power of two up to 1024.
std::string reduce_error(bp_dtype dtype, bp_reduce_order order, int world);

// out[i] = the sum over ranks q of sources[q][i], i < count, in the arguments' dtype and the order of bp_reduce_order:
//   BP_REDUCE_RANK_ORDER  acc = +0; acc = acc + v_q for q ascending
//   BP_REDUCE_TREE        ((v_0 + v_1) + (v_2 + v_3)) + ...
// FP32, BF16 and FP16 add in FP32, FP64 in FP64, each with one rounding to the dtype at the end; a NaN is stored as the
// dtype's canonical one (C4). Integers wrap around. An element's sum does not depend on count or on its index.
// `out` may be one of the sources, else it overlaps none. Never throws. The arguments must have passed reduce_error.
void reduce(bp_dtype dtype, bp_reduce_order order, const std::vector<const void*>& sources, std::size_t count,
            void* out) noexcept;

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_COMM_REDUCE_H_
