// SPDX-License-Identifier: Apache-2.0
//
// The RMSNorm kernel in plain C++; the bytes of the vector kernels on any processor.
#include "src/kernels/cpu/lanes_plain.h"
#include "src/kernels/cpu/rms_norm_kernel.h"

namespace batchproof {

const RmsNormKernel kRmsNormPlain = rms_norm_region<PlainLanes>;

}  // namespace batchproof
