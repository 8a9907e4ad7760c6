// SPDX-License-Identifier: Apache-2.0
//
// The mHC kernels for AVX2 with FMA.
#include "src/kernels/cpu/lanes_avx2.h"
#include "src/kernels/cpu/mhc_threads_kernel.h"

namespace batchproof {

const MhcKernel kMhcAvx2 = mhc_kernel<Avx2Lanes>();

}  // namespace batchproof
