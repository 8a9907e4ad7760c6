// SPDX-License-Identifier: Apache-2.0
//
// The RMSNorm kernel for AVX-512 (F, VL, BW, DQ).
#include "src/kernels/cpu/lanes_avx512.h"
#include "src/kernels/cpu/rms_norm_kernel.h"

namespace batchproof {

const RmsNormKernel kRmsNormAvx512 = rms_norm_region<Avx512Lanes>;

}  // namespace batchproof
