// SPDX-License-Identifier: Apache-2.0
//
// The mHC operators on the CPU: one driver for post, pre, the fused and the delayed forms and the head. A row's bytes
// are a function of the row, the weights, the parameters and the MhcPath; instruction set, threads, strides and the
// number of rows change time only. mhc_kernel.h states the order of operations.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_MHC_H_
#define BATCHPROOF_SRC_KERNELS_CPU_MHC_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "src/kernels/cpu/mhc_plan.h"
#include "src/kernels/cpu/mhc_region.h"
#include "src/runtime/cpu.h"
#include "src/runtime/error.h"

namespace batchproof {

// FP32 [rows, n] or [rows, n, n] with any strides.
struct MhcMatrix {
  float* data = nullptr;
  std::int64_t row = 0;
  std::int64_t first = 0;   // stride of the axis behind the rows
  std::int64_t second = 0;  // comb only
};

// BF16 [rows, hidden]; columns are contiguous.
struct MhcRows {
  std::uint16_t* data = nullptr;
  std::int64_t row = 0;
};

// Rows [begin, end) between the product and the coefficients; controls change what they find.
struct MhcSums {
  std::int64_t begin = 0, end = 0;
  MhcStreams residual;       // of row `begin`, as the product saw it
  float* sums = nullptr;     // [end - begin, 24]
  float* squares = nullptr;  // [end - begin]
};

struct MhcCall {
  std::int64_t rows = 0;
  std::int64_t hidden = 0;
  bool broadcast = false;  // the four streams are one: residual.stream is 0 and the product runs over hidden columns

  // With post.x.data: residual_out = post(x, residual, post_mix, comb_mix), and the rest runs on residual_out.
  MhcStreams residual = {};
  struct Post {
    const std::uint16_t* x = nullptr;
    std::int64_t x_row = 0;
    MhcMatrix post;  // read only
    MhcMatrix comb;  // read only; first: the index that is summed over
    bool reversed = false;
  } post;
  // Post and broadcast forms; data null otherwise.
  std::uint16_t* residual_out = nullptr;
  std::int64_t residual_out_row = 0, residual_out_stream = 0;
  bool post_only = false;

  const float* fn = nullptr;
  std::int64_t fn_row = 0;
  float scale[3] = {};
  float base[kMhcMixes] = {};
  float rms_eps = 0, pre_eps = 0, sinkhorn_eps = 0, norm_eps = 0, post_mult = 0;
  int sinkhorn_repeat = 1;
  const std::uint16_t* norm_weight = nullptr;

  // Delayed form: the collapse uses `carried` (data null: stream 0), and pre_out gets the new coefficients.
  bool delayed = false;
  MhcMatrix carried;
  MhcMatrix pre_out;
  MhcMatrix post_out, comb_out;
  MhcRows out;
  MhcRows mean_out;      // data null: not wanted
  MhcMatrix mixes_out;   // merged sums before the RMS scale; data null: not wanted
  MhcMatrix square_out;  // merged square sum; data null: not wanted

  // hc_head: four mixes, no post, no comb.
  bool head = false;
  std::int64_t head_segment = kMhcSegment;
  bool head_descending = false;

  MhcPath path;
  std::function<void(const MhcSums&)> change_sums;  // controls only
  int threads = 1;
  std::optional<Isa> isa;  // nothing: selected_isa()
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

// Bytes that run_mhc needs, whatever the threads. `columns`: of the product.
std::size_t mhc_workspace(std::int64_t rows, std::int64_t columns, const MhcPath& path);

// Computes; rows = 0 does nothing. Fails with nothing written where hidden is no multiple of 16, the path does not fit
// the columns, the workspace is too small or the instruction set is missing.
Result<void> run_mhc(const MhcCall& call);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_MHC_H_
