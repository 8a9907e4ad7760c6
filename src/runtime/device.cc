// SPDX-License-Identifier: Apache-2.0
#include "src/runtime/device.h"

namespace batchproof {

#ifndef BATCHPROOF_HAVE_CUDA
Result<Device*> cuda_device(int /*ordinal*/) {
  return fail(Error::Kind::environment, "this build has no CUDA device support; build it where nvcc is installed");
}
#endif

}  // namespace batchproof
