// SPDX-License-Identifier: Apache-2.0
//
// The RMSNorm kernel for AVX2 with FMA.
#include "src/kernels/cpu/lanes_avx2.h"
#include "src/kernels/cpu/rms_norm_kernel.h"

namespace batchproof {

const RmsNormKernel kRmsNormAvx2 = rms_norm_region<Avx2Lanes>;

}  // namespace batchproof
