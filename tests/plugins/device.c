/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for a device: its pointers are handles far outside any address space, which only this file can follow.
 * Copies are deferred until synchronise, so that nobody may count on them before. */
#include <stdlib.h>

#include "gather_matmul.h"

#define HANDLE_BASE ((uintptr_t)0xDE00000000000000u)
enum { kBlocks = 512, kPending = 64, kRanks = 16 };

static const bp_implementation kImplementations[] = {
    {"good", NULL, NULL, BP_MODE_INVARIANT, 0, "descending", NULL},
    {"descending", NULL, NULL, BP_MODE_INVARIANT, BP_IMPL_WITNESS, NULL, NULL},
    {"changes-input", NULL, "writes to w", BP_MODE_INVARIANT, 0, NULL, NULL},
    {"behind-output", NULL, "writes 4 bytes behind y", BP_MODE_INVARIANT, 0, NULL, NULL},
    {"behind-workspace", NULL, "writes 1 byte behind the workspace", BP_MODE_INVARIANT, 0, NULL, NULL},
    {"stale", NULL, "adds what the workspace held", BP_MODE_INVARIANT, 0, NULL, NULL},
};

typedef struct {
  unsigned char* memory;
  size_t bytes;
} Block;

typedef struct {
  void* to;
  const void* from;
  size_t bytes;
} Copy;

/* One table per rank: ranks run as threads. */
static Block g_blocks[kRanks][kBlocks];
static Copy g_copies[kRanks][kPending];
static int g_copy_count[kRanks];

static void* handle(int32_t rank, int index) {
  return (void*)(HANDLE_BASE + ((uintptr_t)rank << 32) + ((uintptr_t)index << 8));
}

static Block* block(const void* pointer, int32_t rank) {
  const uintptr_t offset = (uintptr_t)pointer - HANDLE_BASE - ((uintptr_t)rank << 32);
  if ((uintptr_t)pointer < HANDLE_BASE || offset % 256 != 0 || offset / 256 >= kBlocks) return NULL;
  Block* found = &g_blocks[rank][offset / 256];
  return found->memory != NULL ? found : NULL;
}

static void* device_alloc(size_t bytes, int32_t rank) {
  for (int i = 0; i < kBlocks; ++i) {
    if (g_blocks[rank][i].memory != NULL) continue;
    g_blocks[rank][i].memory = (unsigned char*)malloc(bytes > 0 ? bytes : 1);
    g_blocks[rank][i].bytes = bytes;
    return handle(rank, i);
  }
  return NULL;
}

static void device_release(void* pointer, int32_t rank) {
  Block* found = block(pointer, rank);
  if (found == NULL) abort();
  free(found->memory);
  found->memory = NULL;
}

static bp_status device_copy(void* to, const void* from, size_t bytes, int32_t direction, int32_t rank) {
  Block* own = block(direction == 0 ? to : from, rank);
  if (own == NULL || bytes > own->bytes || g_copy_count[rank] == kPending) return BP_INVALID;
  Copy* copy = &g_copies[rank][g_copy_count[rank]++];
  copy->to = direction == 0 ? own->memory : to;
  copy->from = direction == 0 ? from : own->memory;
  copy->bytes = bytes;
  return BP_OK;
}

static bp_status device_synchronise(int32_t rank) {
  for (int i = 0; i < g_copy_count[rank]; ++i)
    memcpy(g_copies[rank][i].to, g_copies[rank][i].from, g_copies[rank][i].bytes);
  g_copy_count[rank] = 0;
  return BP_OK;
}

static int is(const bp_context* context, const char* id) { return strcmp(context->implementation->id, id) == 0; }

static bp_status run(const bp_context* context, const bp_tensor* tensors) {
  Block* memory[4];
  for (int port = 0; port < 4; ++port) {
    memory[port] = block(port < 3 ? tensors[port].data : context->workspace, context->rank);
    if (memory[port] == NULL || (port < 3 && tensors[port].memory != BP_MEMORY_OPAQUE))
      return bp_fail(context->error, context->error_size, BP_INVALID, "tensor %d is not on the device", port);
  }
  const float stale = ((const float*)memory[3]->memory)[0];
  const bp_status status =
      matmul_compute(context, tensors, (const float*)memory[0]->memory, (const float*)memory[1]->memory,
                     (float*)memory[2]->memory, (float*)memory[3]->memory, is(context, "descending"));
  if (status != BP_OK) return status;
  float* y = (float*)memory[2]->memory;
  const int64_t y_end = (tensors[2].shape[0] - 1) * tensors[2].stride[0] + tensors[2].shape[1];
  if (is(context, "changes-input")) ((float*)memory[1]->memory)[2] += 1.0f;
  if (is(context, "behind-output")) y[y_end] = 1.0f;
  if (is(context, "behind-workspace")) memory[3]->memory[context->workspace_bytes] ^= 1u;
  if (is(context, "stale")) y[0] += stale;
  return BP_OK;
}

static const bp_operator kTable = {MATMUL_TABLE("on_device", BP_OP_THREAD_SAFE, kImplementations, run),
                                   .alloc = device_alloc, .release = device_release, .copy = device_copy,
                                   .synchronise = device_synchronise};
static const bp_operator* const kTables[] = {&kTable};

const bp_operator* const* batchproof_operators(uint32_t harness_abi_version, uint32_t* count) {
  (void)harness_abi_version;
  *count = 1;
  return kTables;
}
