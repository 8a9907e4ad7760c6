// SPDX-License-Identifier: Apache-2.0
//
// What the driver (gemm.cc) hands to a kernel of one instruction set: plain data only. The kernels' files are compiled
// with flags of their own, so nothing here may drag in a shared inline function that the linker could pick from them.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_GEMM_REGION_H_
#define BATCHPROOF_SRC_KERNELS_CPU_GEMM_REGION_H_

#include <cstdint>

namespace batchproof {

enum class GemmType : int { fp32, bf16, fp16 };

// One rectangle of C, computed by one thread. Strides in elements.
struct GemmRegion {
  std::int64_t m, n;
  GemmType ab_type;
  const void* a;
  std::int64_t a_row, a_column;
  const void* b;
  std::int64_t b_row, b_column;
  const float* bias;  // n entries, or null
  void* c;
  GemmType c_type;
  std::int64_t c_row;

  const std::int64_t* bounds;  // segment s is [bounds[s], bounds[s + 1])
  std::int64_t segments;
  const std::int64_t* slice_begin;  // slice i owns segments [slice_begin[i], slice_begin[i + 1])
  std::int64_t slices;              // a power of two; 1: chain

  bool skinny;           // read B in place; needs b_column == 1
  std::int64_t block_m;  // rows of a packed A block, a multiple of the kernel's row tile
  std::int64_t block_n;  // columns of a packed B block, a multiple of the kernel's column tile
  std::int64_t panel_n;  // the same where all rows are one A block
  std::int64_t pass_m;   // rows walked per packed B block, a multiple of block_m

  float* pack_a;  // block_m * longest segment + slack; skinny: m * longest segment
  float* pack_b;  // block_n * longest segment; skinny: m * block_n
  float* sums;    // levels * min(pass_m, m) * min(block_n, n) where sums do not fit into C, else null
};

// Slack behind pack_a and pack_b that a kernel may touch, in floats.
constexpr std::int64_t kGemmSlack = 64;

struct GemmKernel {
  void (*run)(const GemmRegion& region);
  int row_tile;
  int column_tile;
};

extern const GemmKernel kGemmPlain;
#if defined(__x86_64__)
extern const GemmKernel kGemmAvx2;
extern const GemmKernel kGemmAvx512;
#endif

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_GEMM_REGION_H_
