// SPDX-License-Identifier: Apache-2.0
//
// BATCHPROOF_WIDER: the function is compiled for wider vectors as well, and the processor chooses when the program
// starts. For plain loops of IEEE arithmetic, lane by lane, whose bytes do not depend on the choice (C10). Sanitizers
// begin too late for it, so their builds have the plain code: the same tests run on both.
#ifndef BATCHPROOF_SRC_NUMERIC_WIDER_H_
#define BATCHPROOF_SRC_NUMERIC_WIDER_H_

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(BATCHPROOF_SANITIZED)
#define BATCHPROOF_WIDER __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define BATCHPROOF_WIDER
#endif

#endif  // BATCHPROOF_SRC_NUMERIC_WIDER_H_
