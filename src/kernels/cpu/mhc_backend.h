// SPDX-License-Identifier: Apache-2.0
//
// A product that this library does not compute itself: somebody else's TF32 kernel with splits. Invariant mode uses one
// only where it says that it is invariant (C8).
#ifndef BATCHPROOF_SRC_KERNELS_CPU_MHC_BACKEND_H_
#define BATCHPROOF_SRC_KERNELS_CPU_MHC_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "src/runtime/error.h"

namespace batchproof {

struct MhcProductShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t splits = 1;
};

struct MhcBackend {
  std::string name;
  // Whether a row's bytes depend on nothing but the row at these columns and splits. Empty: the backend cannot say, so
  // it is not. `rows` is not known here: an answer that depends on it is none.
  std::function<bool(std::int64_t columns, std::int64_t splits)> invariant;
  // residual BF16 [rows, columns] and fn FP32 [24, columns], both contiguous; sums FP32 [splits, rows, 24], squares
  // FP32 [splits, rows].
  std::function<Result<void>(const MhcProductShape& shape, const std::uint16_t* residual, const float* fn, float* sums,
                             float* squares)>
      product;
};

// Replaces the process's backend; nullptr removes it. Calls that run keep the one they began with.
void set_mhc_backend(std::shared_ptr<const MhcBackend> backend);
std::shared_ptr<const MhcBackend> mhc_backend();
// Grows whenever the backend is replaced: what was asked of the old one is no answer any more.
std::uint64_t mhc_backend_generation();

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_MHC_BACKEND_H_
