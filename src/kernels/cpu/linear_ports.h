// SPDX-License-Identifier: Apache-2.0
//
// Ports of a matrix product for the tables of operators that contain one: x1, x2, bias, and their scales in the four
// forms of request A. Which form a problem has follows from its dtype mode.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_LINEAR_PORTS_H_
#define BATCHPROOF_SRC_KERNELS_CPU_LINEAR_PORTS_H_

#include <cstdint>

#include "batchproof/operator.h"
#include "src/kernels/cpu/scaled_linear.h"

namespace batchproof {

constexpr std::uint32_t kLinearFloats = BP_DTYPE_BIT(BP_FP32) | BP_DTYPE_BIT(BP_BF16) | BP_DTYPE_BIT(BP_FP16);
constexpr std::uint32_t kLinearInputs =
    kLinearFloats | BP_DTYPE_BIT(BP_E4M3) | BP_DTYPE_BIT(BP_E5M2) | BP_DTYPE_BIT(BP_INT8);

// A tensor with columns; INT8 rows sum exactly.
constexpr bp_port row_port(const char* name, bp_port_kind kind, const char* shape, bp_distribution distribution,
                           std::uint32_t dtypes, const char* aliases) {
  bp_port port = {};
  port.name = name;
  port.kind = kind;
  port.shape = shape;
  port.row_axis = 0;
  port.reduction_block = 1;
  port.distribution = distribution;
  port.dtypes = dtypes;
  port.flags = BP_PORT_PADDED;
  port.aliases = aliases;
  return port;
}

// The port with an axis divided over ranks.
constexpr bp_port sharded(bp_port port, std::int32_t axis) {
  port.distribution = BP_SHARDED;
  port.sharded_axis = axis;
  return port;
}

// x1 (M, K).
constexpr bp_port x1_port(bp_distribution distribution, const char* aliases) {
  bp_port port = row_port("x1", BP_ROW_INPUT, "M, K", distribution, kLinearInputs, aliases);
  port.reduction_axes = 1u << 1;
  port.reduction_group = "K";
  port.order_exact_dtypes = BP_DTYPE_BIT(BP_INT8);
  return port;
}

// x2 (K, N), or its transposed view.
constexpr bp_port x2_port(bp_distribution distribution, const char* aliases) {
  bp_port port = row_port("x2", BP_WEIGHT, "K, N", distribution, kLinearInputs, aliases);
  port.row_axis = -1;
  port.reduction_axes = 1u << 0;
  port.reduction_group = "K";
  port.transposed_by = "transpose_x2";
  port.transposed_axes = 1u << 0 | 1u << 1;
  return port;
}

// bias (N), optional.
constexpr bp_port bias_port(bp_distribution distribution, const char* aliases) {
  bp_port port = row_port("bias", BP_WEIGHT, "N", distribution, kLinearFloats | BP_DTYPE_BIT(BP_INT32), aliases);
  port.row_axis = -1;
  port.flags = BP_PORT_OPTIONAL;
  return port;
}

// Where the scales of x1 lie: as x1 does.
struct ScalePlacement {
  bp_distribution distribution = BP_REPLICATED;
  std::int32_t sharded_axis = 0;
};

constexpr bp_port scale_port(const char* name, const char* of, const char* shape, std::uint32_t dtype,
                             const char* aliases) {
  bp_port port = {};
  port.name = name;
  port.kind = BP_SCALE;
  port.shape = shape;
  port.row_axis = -1;
  port.reduction_block = 1;
  port.scale_of = of;
  port.distribution = BP_REPLICATED;
  port.dtypes = BP_DTYPE_BIT(dtype);
  port.flags = BP_PORT_OPTIONAL;
  port.aliases = aliases;
  return port;
}

// ---- x1_scale ----

// One scale for all of this rank's rows.
constexpr bp_port x1_scale_tensor(bp_distribution distribution) {
  bp_port port = scale_port("x1_scale", "x1", "1", BP_FP32, "x1Scale, x1_scale_optional, x1ScaleOptional");
  port.distribution = distribution;
  return port;
}

// One scale per row.
constexpr bp_port x1_scale_token(ScalePlacement place) {
  bp_port port = x1_scale_tensor(place.distribution);
  port.shape = "M, 1";
  port.row_axis = 0;
  port.sharded_axis = place.sharded_axis;
  return port;
}

// One scale per 128 rows and 128 indices of K.
constexpr bp_port x1_scale_block(ScalePlacement place) {
  bp_port port = x1_scale_token(place);
  port.shape = "ceil_div(M, 128), ceil_div(K, 128)";
  port.row_block = kScaleBlock;
  port.reduction_axes = 1u << 1;
  port.reduction_block = kScaleBlock;
  port.reduction_group = "K";
  return port;
}

// One E8M0 scale per row and 32 indices of K, in pairs.
constexpr bp_port x1_scale_mx(ScalePlacement place) {
  bp_port port = x1_scale_token(place);
  port.shape = "M, ceil_div(K, 64), 2";
  port.reduction_axes = 1u << 1 | 1u << 2;
  port.reduction_block = kMxBlock;
  port.reduction_group = "K";
  port.dtypes = BP_DTYPE_BIT(BP_E8M0);
  return port;
}

// ---- x2_scale ----

constexpr bp_port x2_scale_tensor(bp_distribution distribution) {
  bp_port port = scale_port("x2_scale", "x2", "1", BP_FP32, "x2Scale, x2_scale_optional, x2ScaleOptional");
  port.distribution = distribution;
  return port;
}

constexpr bp_port x2_scale_channel(bp_distribution distribution) {
  bp_port port = x2_scale_tensor(distribution);
  port.shape = "1, N";
  return port;
}

constexpr bp_port x2_scale_block(bp_distribution distribution) {
  bp_port port = x2_scale_tensor(distribution);
  port.shape = "ceil_div(K, 128), ceil_div(N, 128)";
  port.reduction_axes = 1u << 0;
  port.reduction_block = kScaleBlock;
  port.reduction_group = "K";
  port.transposed_by = "transpose_x2";
  port.transposed_axes = 1u << 0 | 1u << 1;
  return port;
}

// Pairs of 32-blocks stay innermost in both orientations of x2: (ceil(K / 64), N, 2) and (N, ceil(K / 64), 2).
constexpr bp_port x2_scale_mx(bp_distribution distribution) {
  bp_port port = x2_scale_block(distribution);
  port.shape = "ceil_div(K, 64), N, 2";
  port.reduction_axes = 1u << 0 | 1u << 2;
  port.reduction_block = kMxBlock;
  port.dtypes = BP_DTYPE_BIT(BP_E8M0);
  return port;
}

// ---- from a problem to its scaling ----

// The first port of each scale in a table; the forms follow in the order tensor, token or channel, block, mx.
struct ScalePorts {
  std::uint32_t x1_scale = 0;
  std::uint32_t x2_scale = 0;
};
constexpr std::uint32_t kScaleForms = 4;

// The form of the scales that are present; none where there is none.
inline Scaling scaling_of(const bp_dtype* dtypes, const ScalePorts& ports) {
  constexpr Scaling kForms[kScaleForms] = {Scaling::tensor, Scaling::token_channel, Scaling::block, Scaling::mx};
  for (std::uint32_t form = 0; form < kScaleForms; ++form) {
    if (dtypes[ports.x1_scale + form] != BP_NONE || dtypes[ports.x2_scale + form] != BP_NONE) return kForms[form];
  }
  return Scaling::none;
}

// Index of a scaling's form among the ports; 0 for none.
constexpr std::uint32_t form_of(Scaling scaling) {
  return scaling == Scaling::none ? 0
                                  : static_cast<std::uint32_t>(scaling) - static_cast<std::uint32_t>(Scaling::tensor);
}

// The tensor of a scale, null where it is absent.
inline const bp_tensor* scale_tensor(const bp_tensor* tensors, std::uint32_t first, Scaling scaling) {
  const bp_tensor& tensor = tensors[first + form_of(scaling)];
  return scaling == Scaling::none || tensor.dtype == BP_NONE ? nullptr : &tensor;
}

inline bp_dtype scale_dtype(const bp_dtype* dtypes, std::uint32_t first, Scaling scaling) {
  return scaling == Scaling::none ? BP_NONE : dtypes[first + form_of(scaling)];
}

// What an operator that brings rows to one product promises; controls claim it as well: that is their lie.
inline std::uint32_t gathered_promises(const bp_implementation* implementation, const bp_device* device) {
  if (device->memory != BP_MEMORY_HOST) return 0;
  constexpr std::uint32_t kAlways = BP_REPEAT | BP_NEIGHBOURS | BP_COMM_MODE | BP_POISON | BP_ALIGNMENT | BP_THREADS;
  if (implementation->mode == BP_MODE_FAST) return kAlways;
  return kAlways | BP_BATCH_SIZE | BP_POSITION | BP_CROSS_RANK | BP_WORLD_SIZE | BP_HISTORY;
}

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_LINEAR_PORTS_H_
