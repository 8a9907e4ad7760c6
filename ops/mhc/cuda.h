// SPDX-License-Identifier: Apache-2.0
//
// What the family's tables know of its CUDA implementations. The tables name them in every build; without CUDA none can
// be chosen, because no device is found.
#ifndef BATCHPROOF_OPS_MHC_CUDA_H_
#define BATCHPROOF_OPS_MHC_CUDA_H_

#include <cstddef>
#include <cstdint>

#include "ops/mhc/form.h"
#include "src/kernels/cpu/mhc.h"
#include "src/runtime/error.h"

namespace batchproof::mhc {

std::size_t cuda_workspace_size(Form form, std::int64_t rows, std::int64_t hidden);

// Relations that the recipe promises on the current device; none where the device does not suit it or where a probe
// finds a tensor-core rule broken.
std::uint32_t cuda_promises(Form form, const Recipe& recipe, bp_mode mode, const bp_device* device);

// The constants of a form in device memory.
struct CudaConstants {
  const float* scale = nullptr;
  const float* base = nullptr;
  std::int64_t scale_step = 1, base_step = 1;
};

// `call` with pointers to device memory. Enqueues on the context's stream.
Result<void> run_cuda(Form form, const Recipe& recipe, const bp_context* context, const MhcCall& call,
                      const CudaConstants& constants);

}  // namespace batchproof::mhc

#endif  // BATCHPROOF_OPS_MHC_CUDA_H_
