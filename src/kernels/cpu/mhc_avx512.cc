// SPDX-License-Identifier: Apache-2.0
//
// The mHC kernels for AVX-512 (F, VL, BW, DQ).
#include "src/kernels/cpu/lanes_avx512.h"
#include "src/kernels/cpu/mhc_threads_kernel.h"

namespace batchproof {

const MhcKernel kMhcAvx512 = mhc_kernel<Avx512Lanes>();

}  // namespace batchproof
