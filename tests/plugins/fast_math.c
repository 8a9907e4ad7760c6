/* SPDX-License-Identifier: Apache-2.0
 *
 * Changes the process when it is loaded, as a library built with -ffast-math does: flush-to-zero in the floating-point
 * unit, and a signal handler. Its run fails unless the environment is the default one. */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>

#include "gather_matmul.h"

static const bp_implementation kImplementations[] = {
    {"good", NULL, NULL, BP_MODE_INVARIANT, 0, "descending", NULL},
    {"descending", NULL, NULL, BP_MODE_INVARIANT, BP_IMPL_WITNESS, NULL, NULL},
};

static void on_signal(int signal) { (void)signal; }

__attribute__((constructor)) static void when_loaded(void) {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8000u);
#elif defined(__aarch64__)
  uint64_t control;
  __asm__ volatile("mrs %0, fpcr" : "=r"(control));
  __asm__ volatile("msr fpcr, %0" ::"r"(control | 0x01000000u));
#endif
  signal(SIGUSR2, on_signal);
}

static bp_status run(const bp_context* context, const bp_tensor* tensors) {
  volatile float smallest = 1.17549435e-38f;
  volatile float half = 0.5f;
  if (smallest * half == 0.0f)
    return bp_fail(context->error, context->error_size, BP_INTERNAL, "subnormal results are flushed to zero");
  return matmul_run(context, tensors);
}

static const bp_operator kTable = {MATMUL_TABLE("fast_math", BP_OP_THREAD_SAFE, kImplementations, run)};
static const bp_operator* const kTables[] = {&kTable};

const bp_operator* const* batchproof_operators(uint32_t harness_abi_version, uint32_t* count) {
  (void)harness_abi_version;
  *count = 1;
  return kTables;
}
