// SPDX-License-Identifier: Apache-2.0
//
// The mHC kernels in plain C++: the bytes of the vector kernels on any processor.
#include "src/kernels/cpu/lanes_plain.h"
#include "src/kernels/cpu/mhc_threads_kernel.h"

namespace batchproof {

const MhcKernel kMhcPlain = mhc_kernel<PlainLanes>();

}  // namespace batchproof
