/* SPDX-License-Identifier: Apache-2.0
 *
 * A table that ends before the last function. */
#include "gather_matmul.h"

static const bp_implementation kImplementations[] = {{"good", NULL, NULL, BP_MODE_INVARIANT, 0, NULL, NULL}};
static const bp_operator kTable = {MATMUL_TABLE("too_small", 0, kImplementations, matmul_run)};
static bp_operator bad;
static bp_port ports[3];
static const bp_operator* const kTables[] = {&bad};

const bp_operator* const* batchproof_operators(uint32_t harness_abi_version, uint32_t* count) {
  (void)harness_abi_version;
  memcpy(ports, kPorts, sizeof(ports));
  bad = kTable;
  bad.ports = ports;
  bad.struct_size = sizeof(bp_operator) - 8;
  *count = 1;
  return kTables;
}
