// SPDX-License-Identifier: Apache-2.0
//
// wgmma (sm_90a): one warpgroup multiplies 64 rows of A by N rows of B. D is 64 x N in FP32 (INT8: INT32) registers.
//
// Source: PTX ISA 8.x, "Asynchronous warpgroup level matrix instructions". Only what the kernels and the rule proof
// use. Both operands are K-major unless the 16-bit forms are asked for MN-major A.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_WGMMA_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_WGMMA_H_

#include <cstdint>

namespace batchproof::cuda {

enum class MmaType : int { bf16, fp16, tf32, e4m3, e5m2, s8 };

// The text of the register list %0, %1, ... of N / 2 accumulators.
#define BP_REGS_4 "%0, %1, %2, %3"
#define BP_REGS_8 \
  BP_REGS_4       \
  ", "            \
  "%4, %5, %6, %7"
#define BP_REGS_12 \
  BP_REGS_8        \
  ", "             \
  "%8, %9, %10, %11"
#define BP_REGS_16 \
  BP_REGS_12       \
  ", "             \
  "%12, %13, %14, %15"
#define BP_REGS_24 \
  BP_REGS_16       \
  ", "             \
  "%16, %17, %18, %19, %20, %21, %22, %23"
#define BP_REGS_32 \
  BP_REGS_24       \
  ", "             \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define BP_REGS_48 \
  BP_REGS_32       \
  ", "             \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define BP_REGS_56 \
  BP_REGS_48       \
  ", "             \
  "%48, %49, %50, %51, %52, %53, %54, %55"
#define BP_REGS_64 \
  BP_REGS_48       \
  ", "             \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define BP_REGS_72 \
  BP_REGS_64       \
  ", "             \
  "%64, %65, %66, %67, %68, %69, %70, %71"
#define BP_REGS_88                                                                                       \
  BP_REGS_64                                                                                             \
  ", "                                                                                                   \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
  "%84, %85, %86, %87"
#define BP_REGS_96 \
  BP_REGS_88       \
  ", "             \
  "%88, %89, %90, %91, %92, %93, %94, %95"
#define BP_REGS_128                                                                                    \
  BP_REGS_96                                                                                           \
  ", "                                                                                                 \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, " \
  "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

#define BP_D4(c, o) c(d[o]), c(d[o + 1]), c(d[o + 2]), c(d[o + 3])
#define BP_D8(c, o) BP_D4(c, o), BP_D4(c, o + 4)
#define BP_D16(c, o) BP_D8(c, o), BP_D8(c, o + 8)
#define BP_D32(c, o) BP_D16(c, o), BP_D16(c, o + 16)
#define BP_D64(c, o) BP_D32(c, o), BP_D32(c, o + 32)
#define BP_LIST_4(c) BP_D4(c, 0)
#define BP_LIST_8(c) BP_D8(c, 0)
#define BP_LIST_12(c) BP_D8(c, 0), BP_D4(c, 8)
#define BP_LIST_16(c) BP_D16(c, 0)
#define BP_LIST_24(c) BP_D16(c, 0), BP_D8(c, 16)
#define BP_LIST_32(c) BP_D32(c, 0)
#define BP_LIST_48(c) BP_D32(c, 0), BP_D16(c, 32)
#define BP_LIST_56(c) BP_D32(c, 0), BP_D16(c, 32), BP_D8(c, 48)
#define BP_LIST_64(c) BP_D64(c, 0)
#define BP_LIST_72(c) BP_D64(c, 0), BP_D8(c, 64)
#define BP_LIST_88(c) BP_D64(c, 0), BP_D16(c, 64), BP_D8(c, 80)
#define BP_LIST_96(c) BP_D64(c, 0), BP_D32(c, 64)
#define BP_LIST_128(c) BP_D64(c, 0), BP_D64(c, 64)

#define BP_AS_FLOAT(x) "+f"(x)
#define BP_AS_INT(x) "+r"(x)

// One instruction. R: registers of D; then the numbers of the operands that follow them. TAIL: the type's immediates.
#define BP_WGMMA_SS(N, K, R, O0, O1, O2, TYPES, AS, TAIL)                                                         \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #O2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k" #K TYPES \
               " {" BP_REGS_##R "}, %" #O0 ", %" #O1 ", p" TAIL ";\n}\n"                                          \
               : BP_LIST_##R(AS)                                                                                  \
               : "l"(a), "l"(b), "r"(accumulate))
#define BP_WGMMA_RS(N, K, R, O0, O1, O2, O3, O4, O5, TYPES, AS, TAIL)                                             \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #O5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k" #K TYPES \
               " {" BP_REGS_##R "}, {%" #O0 ", %" #O1 ", %" #O2 ", %" #O3 "}, %" #O4 ", p" TAIL ";\n}\n"          \
               : BP_LIST_##R(AS)                                                                                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))

// Wgmma<N>::ss and ::rs for every type. `accumulate` 0: D = A B (the hardware's own start); else D += A B.
// kTransposeA: A is MN-major in shared memory (16-bit types only).
template <int N>
struct Wgmma;

#define BP_DEFINE_WGMMA(N, R, O0, O1, O2, O3, O4, O5)                                                                 \
  template <>                                                                                                         \
  struct Wgmma<N> {                                                                                                   \
    template <MmaType T, bool kTransposeA = false>                                                                    \
    __device__ static void ss(float (&d)[R], std::uint64_t a, std::uint64_t b, std::int32_t accumulate) {             \
      if constexpr (T == MmaType::bf16 && !kTransposeA)                                                               \
        BP_WGMMA_SS(N, 16, R, O0, O1, O2, ".f32.bf16.bf16", BP_AS_FLOAT, ", 1, 1, 0, 0");                             \
      else if constexpr (T == MmaType::bf16)                                                                          \
        BP_WGMMA_SS(N, 16, R, O0, O1, O2, ".f32.bf16.bf16", BP_AS_FLOAT, ", 1, 1, 1, 0");                             \
      else if constexpr (T == MmaType::fp16 && !kTransposeA)                                                          \
        BP_WGMMA_SS(N, 16, R, O0, O1, O2, ".f32.f16.f16", BP_AS_FLOAT, ", 1, 1, 0, 0");                               \
      else if constexpr (T == MmaType::fp16)                                                                          \
        BP_WGMMA_SS(N, 16, R, O0, O1, O2, ".f32.f16.f16", BP_AS_FLOAT, ", 1, 1, 1, 0");                               \
      else if constexpr (T == MmaType::tf32)                                                                          \
        BP_WGMMA_SS(N, 8, R, O0, O1, O2, ".f32.tf32.tf32", BP_AS_FLOAT, ", 1, 1");                                    \
      else if constexpr (T == MmaType::e4m3)                                                                          \
        BP_WGMMA_SS(N, 32, R, O0, O1, O2, ".f32.e4m3.e4m3", BP_AS_FLOAT, ", 1, 1");                                   \
      else                                                                                                            \
        BP_WGMMA_SS(N, 32, R, O0, O1, O2, ".f32.e5m2.e5m2", BP_AS_FLOAT, ", 1, 1");                                   \
    }                                                                                                                 \
    template <MmaType T>                                                                                              \
    __device__ static void ss(std::int32_t (&d)[R], std::uint64_t a, std::uint64_t b, std::int32_t accumulate) {      \
      BP_WGMMA_SS(N, 32, R, O0, O1, O2, ".s32.s8.s8", BP_AS_INT, "");                                                 \
    }                                                                                                                 \
    template <MmaType T>                                                                                              \
    __device__ static void rs(float (&d)[R], const std::uint32_t (&a)[4], std::uint64_t b, std::int32_t accumulate) { \
      if constexpr (T == MmaType::bf16)                                                                               \
        BP_WGMMA_RS(N, 16, R, O0, O1, O2, O3, O4, O5, ".f32.bf16.bf16", BP_AS_FLOAT, ", 1, 1, 0");                    \
      else if constexpr (T == MmaType::fp16)                                                                          \
        BP_WGMMA_RS(N, 16, R, O0, O1, O2, O3, O4, O5, ".f32.f16.f16", BP_AS_FLOAT, ", 1, 1, 0");                      \
      else if constexpr (T == MmaType::tf32)                                                                          \
        BP_WGMMA_RS(N, 8, R, O0, O1, O2, O3, O4, O5, ".f32.tf32.tf32", BP_AS_FLOAT, ", 1, 1");                        \
      else if constexpr (T == MmaType::e4m3)                                                                          \
        BP_WGMMA_RS(N, 32, R, O0, O1, O2, O3, O4, O5, ".f32.e4m3.e4m3", BP_AS_FLOAT, ", 1, 1");                       \
      else                                                                                                            \
        BP_WGMMA_RS(N, 32, R, O0, O1, O2, O3, O4, O5, ".f32.e5m2.e5m2", BP_AS_FLOAT, ", 1, 1");                       \
    }                                                                                                                 \
    template <MmaType T>                                                                                              \
    __device__ static void rs(std::int32_t (&d)[R], const std::uint32_t (&a)[4], std::uint64_t b,                     \
                              std::int32_t accumulate) {                                                              \
      BP_WGMMA_RS(N, 32, R, O0, O1, O2, O3, O4, O5, ".s32.s8.s8", BP_AS_INT, "");                                     \
    }                                                                                                                 \
  }

BP_DEFINE_WGMMA(8, 4, 4, 5, 6, 7, 8, 9);
BP_DEFINE_WGMMA(16, 8, 8, 9, 10, 11, 12, 13);
BP_DEFINE_WGMMA(24, 12, 12, 13, 14, 15, 16, 17);
BP_DEFINE_WGMMA(32, 16, 16, 17, 18, 19, 20, 21);
BP_DEFINE_WGMMA(48, 24, 24, 25, 26, 27, 28, 29);
BP_DEFINE_WGMMA(64, 32, 32, 33, 34, 35, 36, 37);
BP_DEFINE_WGMMA(96, 48, 48, 49, 50, 51, 52, 53);
BP_DEFINE_WGMMA(112, 56, 56, 57, 58, 59, 60, 61);
BP_DEFINE_WGMMA(128, 64, 64, 65, 66, 67, 68, 69);
BP_DEFINE_WGMMA(144, 72, 72, 73, 74, 75, 76, 77);
BP_DEFINE_WGMMA(176, 88, 88, 89, 90, 91, 92, 93);
BP_DEFINE_WGMMA(192, 96, 96, 97, 98, 99, 100, 101);
BP_DEFINE_WGMMA(256, 128, 128, 129, 130, 131, 132, 133);

#undef BP_REGS_4
#undef BP_LIST_4
#undef BP_REGS_8
#undef BP_LIST_8
#undef BP_REGS_12
#undef BP_LIST_12
#undef BP_REGS_16
#undef BP_LIST_16
#undef BP_REGS_24
#undef BP_LIST_24
#undef BP_REGS_32
#undef BP_LIST_32
#undef BP_REGS_48
#undef BP_LIST_48
#undef BP_REGS_56
#undef BP_LIST_56
#undef BP_REGS_72
#undef BP_LIST_72
#undef BP_REGS_64
#undef BP_LIST_64
#undef BP_REGS_88
#undef BP_LIST_88
#undef BP_REGS_96
#undef BP_LIST_96
#undef BP_REGS_128
#undef BP_LIST_128
#undef BP_D4
#undef BP_D8
#undef BP_D16
#undef BP_D32
#undef BP_D64
#undef BP_AS_FLOAT
#undef BP_AS_INT
#undef BP_WGMMA_SS
#undef BP_WGMMA_RS
#undef BP_DEFINE_WGMMA

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_WGMMA_H_
