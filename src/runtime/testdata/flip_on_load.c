/* SPDX-License-Identifier: Apache-2.0
 *
 * Does what a library built with fast-math does: its constructor sets flush-to-zero and denormals-are-zero of the
 * thread that loads it. It exports functions that leave other changes behind. */
#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

enum { kFlushBits = 0x8040, kRoundingBits = 0x6000 };

static void change(unsigned clear, unsigned set) { _mm_setcsr((_mm_getcsr() & ~clear) | set); }

__attribute__((constructor)) static void flip_on_load(void) { change(0, kFlushBits); }

void flip_flush(void) { change(0, kFlushBits); }
void flip_rounding(void) { change(kRoundingBits, kRoundingBits); }
void trap_division(void) { change(0x0200, 0); }

#elif defined(__aarch64__)

static void change(uint64_t set) {
  uint64_t value;
  __asm__ volatile("mrs %0, fpcr" : "=r"(value)::"memory");
  __asm__ volatile("msr fpcr, %0" ::"r"(value | set) : "memory");
}

__attribute__((constructor)) static void flip_on_load(void) { change(UINT64_C(1) << 24); }

void flip_flush(void) { change(UINT64_C(1) << 24); }
void flip_rounding(void) { change(UINT64_C(3) << 22); }
void trap_division(void) { change(UINT64_C(1) << 9); }

#endif
