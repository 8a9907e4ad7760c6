/* SPDX-License-Identifier: Apache-2.0
 *
 * Ends the process when it is asked for its tables. */
#include <stdlib.h>

#include "batchproof/operator.h"

const bp_operator* const* batchproof_operators(uint32_t harness_abi_version, uint32_t* count) {
  (void)harness_abi_version;
  (void)count;
  exit(7);
}
