// SPDX-License-Identifier: Apache-2.0
//
// Operator tables for the tests of this folder: they describe, nothing runs. Include once per test program.
//   fake_gather    gathers rows over ranks; optional bias, scales, gather_out; x2 may be transposed
//   fake_exchange  W in the shapes of inputs and outputs; accepts 8 and 16 ranks only
//   fake_local     one rank, no dtype modes
//   fake_parts     an optional pair of tensors with axes of its own, one of them in a compound extent only
#ifndef BATCHPROOF_SRC_SUITE_TEST_OPERATORS_H_
#define BATCHPROOF_SRC_SUITE_TEST_OPERATORS_H_

#include "batchproof/problem.h"
#include "batchproof/registry.h"

namespace batchproof::test_operators {

inline constexpr std::uint32_t kHalf = BP_DTYPE_BIT(BP_BF16) | BP_DTYPE_BIT(BP_FP16);
inline constexpr std::uint32_t kFloats = kHalf | BP_DTYPE_BIT(BP_FP32);
inline constexpr std::uint32_t kData = kFloats | BP_DTYPE_BIT(BP_E4M3);
inline constexpr std::uint32_t kFp32 = BP_DTYPE_BIT(BP_FP32);
inline constexpr std::uint32_t kTransposed = 0b11;
inline constexpr std::uint32_t kOptional = BP_PORT_OPTIONAL;

// ---- fake_gather ----

inline const bp_port kGatherPorts[] = {
    {"x1", BP_ROW_INPUT, "M, K", 0, 0b10, 1, "K", nullptr, BP_PER_RANK, 0, kData, 0, 0, nullptr, 0, nullptr, 0},
    {"x2", BP_WEIGHT, "K, N", -1, 0b01, 1, "K", nullptr, BP_PER_RANK, 0, kData, 0, 0, "transpose_x2", kTransposed,
     "weight", 0},
    {"bias", BP_WEIGHT, "N", -1, 0, 1, nullptr, nullptr, BP_PER_RANK, 0, kFloats, 0, kOptional, nullptr, 0, nullptr, 0},
    {"x1_scale", BP_SCALE, "M, 1", 0, 0, 1, nullptr, "x1", BP_PER_RANK, 0, kFp32, 0, kOptional, nullptr, 0, nullptr, 0},
    {"x2_scale", BP_SCALE, "1, N", -1, 0, 1, nullptr, "x2", BP_PER_RANK, 0, kFp32, 0, kOptional, nullptr, 0,
     "weightScale", 0},
    {"y", BP_OUTPUT, "W * M, N", 0, 0, 1, nullptr, nullptr, BP_PER_RANK, 0, kFloats, 0, 0, nullptr, 0, nullptr, 0},
    {"gather_out", BP_OUTPUT, "W * M, K", 0, 0, 1, nullptr, nullptr, BP_PER_RANK, 0, kData, kData, kOptional, nullptr,
     0, nullptr, 0},
};
inline constexpr std::uint32_t kGatherPortCount = 7;

inline const bp_axis_decl kGatherAxes[] = {{"M", "rows per rank"}, {"K", "reduction length"}, {"N", "columns"}};

inline const bp_attr_decl kGatherAttrs[] = {
    {"transpose_x2", BP_ATTR_BOOL, "false", ""}, {"strict_limits", BP_ATTR_BOOL, "true", ""},
    {"gather_index", BP_ATTR_INT, "0", ""},      {"epsilon", BP_ATTR_FLOAT, "1e-6", ""},
    {"comm_kind", BP_ATTR_STRING, "aiv", ""},    {"axes_list", BP_ATTR_STRING, "", ""},
};

inline const bp_dtype kGatherBf16[] = {BP_BF16, BP_BF16, BP_BF16, BP_NONE, BP_NONE, BP_BF16, BP_BF16};
inline const bp_dtype kGatherFp16[] = {BP_FP16, BP_FP16, BP_FP16, BP_NONE, BP_NONE, BP_FP16, BP_FP16};
inline const bp_dtype kGatherBf16Fp32[] = {BP_BF16, BP_BF16, BP_FP32, BP_NONE, BP_NONE, BP_FP32, BP_BF16};
inline const bp_dtype kGatherFp8[] = {BP_E4M3, BP_E4M3, BP_FP32, BP_FP32, BP_FP32, BP_BF16, BP_E4M3};
inline const bp_dtype_mode kGatherModes[] = {
    {"bf16", kGatherBf16}, {"fp16", kGatherFp16}, {"bf16_fp32", kGatherBf16Fp32}, {"fp8", kGatherFp8}};

inline const bp_implementation kGatherImpls[] = {
    {"witness", "another order", nullptr, BP_MODE_INVARIANT, BP_IMPL_WITNESS, nullptr, nullptr},
    {"control-b", "other order behind the gather", "order of chunks", BP_MODE_FAST, 0, nullptr, nullptr},
    {"ref", "one order", nullptr, BP_MODE_INVARIANT, 0, "witness", nullptr},
    {"ref-wide", "one order, wide", nullptr, BP_MODE_INVARIANT, 0, "witness", nullptr},
    {"quick", "any order", nullptr, BP_MODE_FAST, 0, nullptr, nullptr},
};

inline bp_status gather_validate(const bp_problem* problem, char* error, size_t size) {
  if (problem->world != 1 && problem->world != 2 && problem->world != 4 && problem->world != 8) {
    return bp_fail(error, size, BP_INVALID, "world %d is none of 1, 2, 4, 8", static_cast<int>(problem->world));
  }
  if (bp_axis_value(problem, "K") == 0) return bp_fail(error, size, BP_INVALID, "K must be at least 1");
  const bp_dtype bias = problem->dtypes[2];
  if (bias != BP_NONE && bias != problem->dtypes[0] && bias != BP_FP32) {
    return bp_fail(error, size, BP_INVALID, "bias must have the dtype of x1 or fp32");
  }
  return BP_OK;
}

inline const bp_operator kGather = [] {
  bp_operator op{};
  op.abi_version = BP_ABI_VERSION;
  op.struct_size = sizeof(bp_operator);
  op.name = "fake_gather";
  op.summary = "rows gathered over ranks";
  op.rows = "W * M";
  op.row_count_axis = "M";
  op.aliases = "FakeGather, aclnnFakeGatherV2";
  op.ignored_attrs = "group, commTurn, useInt64";
  op.port_count = kGatherPortCount;
  op.ports = kGatherPorts;
  op.axis_count = 3;
  op.axes = kGatherAxes;
  op.attr_count = 6;
  op.attrs = kGatherAttrs;
  op.dtype_mode_count = 4;
  op.dtype_modes = kGatherModes;
  op.implementation_count = 5;
  op.implementations = kGatherImpls;
  op.validate = gather_validate;
  return op;
}();
BATCHPROOF_REGISTER(kGather);

// ---- fake_exchange ----

inline const bp_port kExchangePorts[] = {
    {"x", BP_ROW_INPUT, "M, K", 0, 0b10, 1, "K", nullptr, BP_PER_RANK, 0, kFloats, 0, 0, nullptr, 0, nullptr, 0},
    {"weight", BP_WEIGHT, "W * K, N", -1, 0b01, 1, "K", nullptr, BP_PER_RANK, 0, kFloats, 0, 0, "transpose_weight",
     kTransposed, nullptr, 0},
    {"bias", BP_WEIGHT, "N", -1, 0, 1, nullptr, nullptr, BP_PER_RANK, 0, kFloats, 0, kOptional, nullptr, 0, nullptr, 0},
    {"y", BP_OUTPUT, "M / W, N", 0, 0, 1, nullptr, nullptr, BP_PER_RANK, 0, kFloats, 0, 0, nullptr, 0, nullptr, 0},
};
inline const bp_attr_decl kExchangeAttrs[] = {{"transpose_weight", BP_ATTR_BOOL, "false", ""}};
inline const bp_dtype kExchangeFp32[] = {BP_FP32, BP_FP32, BP_FP32, BP_FP32};
inline const bp_dtype kExchangeBf16[] = {BP_BF16, BP_BF16, BP_FP32, BP_BF16};
inline const bp_dtype_mode kExchangeModes[] = {{"fp32", kExchangeFp32}, {"bf16", kExchangeBf16}};
inline const bp_implementation kExchangeImpls[] = {
    {"plain", "one order", nullptr, BP_MODE_INVARIANT, 0, nullptr, nullptr}};

inline bp_status exchange_validate(const bp_problem* problem, char* error, size_t size) {
  if (problem->world == 8 || problem->world == 16) return BP_OK;
  return bp_fail(error, size, BP_INVALID, "world %d is none of 8, 16", static_cast<int>(problem->world));
}

inline const bp_operator kExchange = [] {
  bp_operator op = kGather;
  op.name = "fake_exchange";
  op.rows = "M";
  op.aliases = "FakeExchange";
  op.ignored_attrs = nullptr;
  op.port_count = 4;
  op.ports = kExchangePorts;
  op.attr_count = 1;
  op.attrs = kExchangeAttrs;
  op.dtype_mode_count = 2;
  op.dtype_modes = kExchangeModes;
  op.implementation_count = 1;
  op.implementations = kExchangeImpls;
  op.validate = exchange_validate;
  return op;
}();
BATCHPROOF_REGISTER(kExchange);

// ---- fake_local ----

inline const bp_port kLocalPorts[] = {
    {"x", BP_ROW_INPUT, "M, K", 0, 0b10, 1, "K", nullptr, BP_REPLICATED, 0, kFloats, 0, 0, nullptr, 0, nullptr, 0},
    {"y", BP_OUTPUT, "M", 0, 0, 1, nullptr, nullptr, BP_REPLICATED, 0, kFloats, 0, 0, nullptr, 0, nullptr, 0},
};
inline const bp_axis_decl kLocalAxes[] = {{"M", "rows"}, {"K", "reduction length"}};

inline const bp_operator kLocal = [] {
  bp_operator op = kGather;
  op.name = "fake_local";
  op.rows = "M";
  op.aliases = nullptr;
  op.ignored_attrs = nullptr;
  op.port_count = 2;
  op.ports = kLocalPorts;
  op.axis_count = 2;
  op.axes = kLocalAxes;
  op.attr_count = 0;
  op.attrs = nullptr;
  op.dtype_mode_count = 0;
  op.dtype_modes = nullptr;
  op.implementation_count = 1;
  op.implementations = kExchangeImpls;
  op.validate = nullptr;
  return op;
}();
BATCHPROOF_REGISTER(kLocal);

// ---- fake_parts ----

inline const bp_port kPartsPorts[] = {
    {"x", BP_ROW_INPUT, "M, K", 0, 0b10, 1, "K", nullptr, BP_REPLICATED, 0, kFloats, 0, 0, nullptr, 0, nullptr, 0},
    {"tail", BP_ROW_INPUT, "M / PART, L", 0, 0b10, 1, "L", nullptr, BP_REPLICATED, 0, kFloats, 0, kOptional, nullptr, 0,
     nullptr, 0},
    {"y", BP_OUTPUT, "M", 0, 0, 1, nullptr, nullptr, BP_REPLICATED, 0, kFloats, 0, 0, nullptr, 0, nullptr, 0},
    {"tail_y", BP_OUTPUT, "M / PART", 0, 0, 1, nullptr, nullptr, BP_REPLICATED, 0, kFloats, 0, kOptional, nullptr, 0,
     nullptr, 0},
};
inline const bp_axis_decl kPartsAxes[] = {
    {"M", "rows"}, {"K", "reduction length"}, {"PART", "rows of a part"}, {"L", "columns of tail"}};
inline const bp_attr_decl kPartsAttrs[] = {{"counts", BP_ATTR_STRING, "", ""}};
inline const bp_dtype kPartsFp32[] = {BP_FP32, BP_FP32, BP_FP32, BP_FP32};
inline const bp_dtype_mode kPartsModes[] = {{"fp32", kPartsFp32}};

inline const bp_operator kParts = [] {
  bp_operator op = kLocal;
  op.name = "fake_parts";
  op.aliases = "FakeParts";
  op.port_count = 4;
  op.ports = kPartsPorts;
  op.axis_count = 4;
  op.axes = kPartsAxes;
  op.attr_count = 1;
  op.attrs = kPartsAttrs;
  op.dtype_mode_count = 1;
  op.dtype_modes = kPartsModes;
  return op;
}();
BATCHPROOF_REGISTER(kParts);

}  // namespace batchproof::test_operators

#endif  // BATCHPROOF_SRC_SUITE_TEST_OPERATORS_H_
