/* SPDX-License-Identifier: Apache-2.0
 *
 * Not thread-safe: between the two halves of a call its state lies in a static variable, which another rank of the same
 * process would overwrite. */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <unistd.h>

#include "gather_matmul.h"

static const bp_implementation kImplementations[] = {
    {"good", NULL, NULL, BP_MODE_INVARIANT, 0, "descending", NULL},
    {"descending", NULL, NULL, BP_MODE_INVARIANT, BP_IMPL_WITNESS, NULL, NULL},
    {"rank-1-dies", NULL, "SIGKILL on rank 1", BP_MODE_INVARIANT, 0, NULL, NULL},
    {"rank-1-crashes", NULL, "writes behind y on rank 1", BP_MODE_INVARIANT, 0, NULL, NULL},
    {"rank-1-hangs", NULL, "rank 1 never returns", BP_MODE_INVARIANT, 0, NULL, NULL},
    {"rank-1-fails", NULL, "rank 1 returns an error", BP_MODE_INVARIANT, 0, NULL, NULL},
    {"rank-1-leaves", NULL, "rank 1 calls no collective", BP_MODE_INVARIANT, 0, NULL, NULL},
};

static int32_t g_rank;

static int is(const bp_context* context, const char* id) { return strcmp(context->implementation->id, id) == 0; }

static bp_status run(const bp_context* context, const bp_tensor* tensors) {
  g_rank = context->rank;
  if (context->rank == 1) {
    if (is(context, "rank-1-dies")) kill(getpid(), SIGKILL);
    if (is(context, "rank-1-crashes")) ((volatile char*)tensors[2].data)[1 << 17] = 1;
    if (is(context, "rank-1-fails"))
      return bp_fail(context->error, context->error_size, BP_INTERNAL, "rank 1 has no plan");
    while (is(context, "rank-1-hangs")) pause();
    if (is(context, "rank-1-leaves")) return BP_OK;
  }
  const bp_status status = context->comm->barrier(context->comm, context->stream);
  if (status != BP_OK) return status;
  if (g_rank != context->rank)
    return bp_fail(context->error, context->error_size, BP_INTERNAL, "rank %d overwrote the state of rank %d", g_rank,
                   context->rank);
  return matmul_run(context, tensors);
}

static const bp_operator kTable = {MATMUL_TABLE("ranks", 0, kImplementations, run)};
static const bp_operator* const kTables[] = {&kTable};

const bp_operator* const* batchproof_operators(uint32_t harness_abi_version, uint32_t* count) {
  (void)harness_abi_version;
  *count = 1;
  return kTables;
}
