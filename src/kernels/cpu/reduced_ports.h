// SPDX-License-Identifier: Apache-2.0
//
// Tables of the operators that sum partial products over ranks: ports, attributes, dtypes, implementations. What one
// rank computes is in reduced_linear.h, the sum in reduced_controls.h.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_REDUCED_PORTS_H_
#define BATCHPROOF_SRC_KERNELS_CPU_REDUCED_PORTS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "batchproof/operator.h"
#include "src/kernels/cpu/linear_ports.h"
#include "src/kernels/cpu/reduced_controls.h"
#include "src/kernels/cpu/reduced_linear.h"

namespace batchproof {

// ---- ports: K divided over ranks ----

constexpr bp_port reduced_x1_port(const char* aliases) {
  bp_port port = sharded(x1_port(BP_SHARDED, aliases), 1);
  port.order_exact_dtypes = 0;  // the slices of an INT8 product are exact, their FP32 sum is not
  return port;
}
constexpr bp_port reduced_x2_port(const char* aliases) { return sharded(x2_port(BP_SHARDED, aliases), 0); }
// Scales in the order tensor, token or channel, block, mx.
constexpr bp_port reduced_x1_scale(std::uint32_t form) {
  return form == 0   ? x1_scale_tensor(BP_PER_RANK)
         : form == 1 ? x1_scale_token({})
         : form == 2 ? x1_scale_block({BP_SHARDED, 1})
                     : x1_scale_mx({BP_SHARDED, 1});
}
constexpr bp_port reduced_x2_scale(std::uint32_t form) {
  return form == 0   ? x2_scale_tensor(BP_PER_RANK)
         : form == 1 ? x2_scale_channel(BP_PER_RANK)
         : form == 2 ? sharded(x2_scale_block(BP_SHARDED), 0)
                     : sharded(x2_scale_mx(BP_SHARDED), 0);
}

// ---- attributes ----

inline constexpr bp_attr_decl kReducedTransposeX2 = {"transpose_x2", BP_ATTR_BOOL, "false",
                                                     "x2 is stored as (N, K) and passed as a transposed view"};
constexpr bp_attr_decl reduced_bias_after_scale(const char* otherwise) {
  return {"bias_after_scale", BP_ATTR_BOOL, otherwise,
          "per-tensor and per-token: scale * sum + bias, not scale * (sum + bias)"};
}
inline constexpr bp_attr_decl kReduceOp = {"reduce_op", BP_ATTR_STRING, "sum", "sum; nothing else is supported"};
inline constexpr bp_attr_decl kCommTurn = {"comm_turn", BP_ATTR_INT, "0",
                                           "0 under strict_limits; does not change the result"};
inline constexpr bp_attr_decl kStreamMode = {"stream_mode", BP_ATTR_INT, "1",
                                             "1 under strict_limits; does not change the result"};
inline constexpr bp_attr_decl kBlockSize = {"block_size", BP_ATTR_INT, "0", "0 under strict_limits"};
inline constexpr bp_attr_decl kGroupSize = {"group_size", BP_ATTR_INT, "0",
                                            "sizes of scale blocks; 0: from the shapes"};
inline constexpr const char* kReducedIgnoredAttrs =
    "group, hcom, rank_size, world_size, comm_mode, is_format_nz, use_int64, is_amax_out, amax_out, is_trans_a, "
    "transpose_x1, y_dtype, quant_scale, use_quant_scale";

// ---- dtypes ----

// The modes of a table whose ports are x1, x2, bias, rows that have the dtype of y, and last the forms of both scales.
template <std::size_t Ports>
struct ReducedModes {
  using Dtypes = std::array<bp_dtype, Ports>;
  static constexpr std::size_t kX1Scale = Ports - 2 * kScaleForms;
  static constexpr std::size_t kX2Scale = Ports - kScaleForms;

  static constexpr Dtypes plain(bp_dtype dtype) {
    Dtypes dtypes = {};
    for (std::size_t port = 0; port < kX1Scale; ++port) dtypes[port] = dtype;
    return dtypes;
  }
  static constexpr Dtypes scaled(bp_dtype input, bp_dtype y, Scaling scaling) {
    Dtypes dtypes = plain(y);
    dtypes[0] = dtypes[1] = input;
    dtypes[2] = scaling == Scaling::block ? BP_NONE : BP_FP32;
    dtypes[kX1Scale + form_of(scaling)] = dtypes[kX2Scale + form_of(scaling)] =
        scaling == Scaling::mx ? BP_E8M0 : BP_FP32;
    return dtypes;
  }

  static constexpr Dtypes kFp32 = plain(BP_FP32);
  static constexpr Dtypes kBf16 = plain(BP_BF16);
  static constexpr Dtypes kFp16 = plain(BP_FP16);
  static constexpr Dtypes kMxfp8 = scaled(BP_E4M3, BP_BF16, Scaling::mx);
  static constexpr Dtypes kFp8 = scaled(BP_E4M3, BP_BF16, Scaling::tensor);
  static constexpr Dtypes kFp8Block = scaled(BP_E4M3, BP_BF16, Scaling::block);
  static constexpr Dtypes kInt8 = scaled(BP_INT8, BP_FP16, Scaling::token_channel);
  static constexpr bp_dtype_mode kAll[] = {
      {"fp32", kFp32.data()}, {"bf16", kBf16.data()},          {"fp16", kFp16.data()}, {"mxfp8", kMxfp8.data()},
      {"fp8", kFp8.data()},   {"fp8_block", kFp8Block.data()}, {"int8", kInt8.data()}};
};

// ---- implementations ----

struct ReducedPlan {
  ReduceOrder order = ReduceOrder::tree;
  std::int64_t segment = kGemmSegment;
};
inline constexpr ReducedPlan kTreePlan = {};
inline constexpr ReducedPlan kVendorPlan = {ReduceOrder::vendor};
inline constexpr ReducedPlan kFastPlan = {ReduceOrder::vendor, 0};
inline constexpr ReducedPlan kRotatedPlan = {ReduceOrder::rotated};
inline constexpr ReducedPlan kReversedPlan = {ReduceOrder::reversed};
inline constexpr ReducedPlan kByWorldPlan = {ReduceOrder::by_world};

inline const ReducedPlan& reduced_plan(const bp_implementation* implementation) {
  return *static_cast<const ReducedPlan*>(implementation->data);
}

inline constexpr bp_implementation kReducedTree = {
    "cpu-fp32_tree-tree16-chain256",
    "FP32 partial sums that are nodes of one tree of 16 slices: any number of ranks",
    nullptr,
    BP_MODE_INVARIANT,
    0,
    nullptr,
    &kTreePlan};
inline constexpr bp_implementation kReducedVendorOrder = {
    "cpu-vendor_order-chain256",
    "partial sums rounded to the output dtype, added in rank order in FP32",
    nullptr,
    BP_MODE_INVARIANT,
    0,
    nullptr,
    &kVendorPlan};
inline constexpr bp_implementation kReducedFast = {
    "cpu-fast", "as vendor_order, segment length chosen from M: not batch invariant", nullptr, BP_MODE_FAST, 0, nullptr,
    &kFastPlan};
inline constexpr bp_implementation kReducedReversedRanks = {
    "cpu-ranks-descending",
    "as control-e with the ranks of every row in descending order",
    nullptr,
    BP_MODE_INVARIANT,
    BP_IMPL_WITNESS,
    nullptr,
    &kReversedPlan};
inline constexpr bp_implementation kControlRotatedRanks = {
    "control-e-rotated-ranks",
    "a deliberately variant sum over ranks",
    "the order of ranks rotates with the block of four rows, every addition rounds to the output dtype",
    BP_MODE_INVARIANT,
    0,
    kReducedReversedRanks.id,
    &kRotatedPlan};
inline constexpr bp_implementation kControlOrderByWorld = {
    "control-f-order-by-world",
    "a deliberately variant sum over ranks",
    "two ranks add in the output dtype, more add FP32 partial sums in rank order",
    BP_MODE_INVARIANT,
    0,
    nullptr,
    &kByWorldPlan};

inline constexpr std::int64_t kReducedThresholds[] = {13, 129};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_REDUCED_PORTS_H_
