// SPDX-License-Identifier: Apache-2.0
//
// What the controls break.
#ifndef BATCHPROOF_OPS_MHC_CONTROLS_H_
#define BATCHPROOF_OPS_MHC_CONTROLS_H_

#include "ops/mhc/form.h"
#include "src/kernels/cpu/mhc.h"

namespace batchproof::mhc {

// Changes a complete call as the recipe's defect says; defects of the path are in path_of already.
void apply_defect(const Recipe& recipe, MhcCall* call);

}  // namespace batchproof::mhc

#endif  // BATCHPROOF_OPS_MHC_CONTROLS_H_
