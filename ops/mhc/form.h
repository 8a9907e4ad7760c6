// SPDX-License-Identifier: Apache-2.0
//
// The entry points of the mHC family and what their tables share: ports, attributes, recipes.
#ifndef BATCHPROOF_OPS_MHC_FORM_H_
#define BATCHPROOF_OPS_MHC_FORM_H_

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "batchproof/operator.h"
#include "src/runtime/operator_table.h"

namespace batchproof::mhc {

enum class Form { pre, pre_broadcast, post, fused, head, pre_delayed, broadcast_delayed, fused_delayed };

constexpr bool has_post(Form form) { return form == Form::post || form == Form::fused || form == Form::fused_delayed; }
constexpr bool is_broadcast(Form form) { return form == Form::pre_broadcast || form == Form::broadcast_delayed; }
constexpr bool is_delayed(Form form) {
  return form == Form::pre_delayed || form == Form::broadcast_delayed || form == Form::fused_delayed;
}
constexpr bool is_fused(Form form) { return form == Form::fused || form == Form::fused_delayed; }

// What an implementation is; bp_implementation::data points to one.
struct Recipe {
  enum class Plan { chain, descending, pin, threads512, occupancy, fallback, external } plan = Plan::chain;
  bool tf32 = true;
  bool unrounded = false;  // fused forms: recipe B
  // Controls: what is wrong. A control promises what the others do; that is its lie.
  enum class Defect {
    none,
    occupancy,         // the default dispatch
    small_kernel,      // its small kernel alone
    fallback,          // its fallback product
    tail_dropped,      // the small kernel's floor division
    odd_rows,          // from 1024 rows on an odd row holds the sum of two rows
    fp16_squares,      // squares in FP16 above 16 rows
    arrival_squares,   // segments of the square sum merge in the order of their arrival
    stale_memo,        // a memo of plans whose key lacks the mode
    one_eps,           // hc_pre_eps also inside the root
    comb_transposed,   // comb contracted on its second index
    order_by_rows,     // the witness's order above 16 rows
    odd_rows_order,    // CUDA: the witness's order in odd rows
    processors_order,  // CUDA: the witness's order where fewer than 100 processors may be used
    calls_order,       // CUDA: the witness's order in every second call
    nan_leak           // CUDA: zero times an element of the next row is added to the layer input
  } defect = Defect::none;
  // On a CUDA device, with an order of operations of its own (src/kernels/cuda/mhc_steps.cuh).
  enum class Cuda {
    none,
    sm90,      // one launch with clusters where they fit
    portable,  // two launches, on compute capability 9.x
    sm80       // the same on 8.x
  } cuda = Cuda::none;
};

// ---- ports --------------------------------------------------------------------------------------------------------

constexpr std::uint32_t kBf16 = BP_DTYPE_BIT(BP_BF16);
constexpr std::uint32_t kFp32 = BP_DTYPE_BIT(BP_FP32);

constexpr bp_port port(const char* name, bp_port_kind kind, const char* shape, std::int32_t row_axis,
                       std::uint32_t dtypes, std::uint32_t flags = 0) {
  return {name,
          kind,
          shape,
          row_axis,
          0,
          1,
          nullptr,
          nullptr,
          BP_REPLICATED,
          0,
          dtypes,
          0,
          row_axis >= 0 ? flags | BP_PORT_PADDED : flags,
          nullptr,
          0,
          "",
          0};
}
constexpr bp_port row_input(const char* name, const char* shape, std::uint32_t dtypes, std::uint32_t flags = 0) {
  return port(name, BP_ROW_INPUT, shape, 0, dtypes, flags);
}
constexpr bp_port weight(const char* name, const char* shape, std::uint32_t dtypes, std::uint32_t flags = 0) {
  return port(name, BP_WEIGHT, shape, -1, dtypes, flags);
}
constexpr bp_port output(const char* name, const char* shape, std::uint32_t dtypes, std::uint32_t flags = 0) {
  return port(name, BP_OUTPUT, shape, 0, dtypes, flags);
}
// An output of several axes per row. Its padding is left to mhc_invariance_test.cc: the checker reads rows of such an
// output as one piece.
constexpr bp_port dense_output(const char* name, const char* shape, std::uint32_t dtypes) {
  bp_port one = output(name, shape, dtypes);
  one.flags &= ~static_cast<std::uint32_t>(BP_PORT_PADDED);
  return one;
}
// The same port with the flattened axes of `mask` along the reduction K.
constexpr bp_port along_k(bp_port one, std::uint32_t mask) {
  one.reduction_axes = mask;
  one.reduction_group = "K";
  return one;
}
// A copy, or made of nothing that was summed over K: no order of summation can move its bytes.
constexpr bp_port order_exact(bp_port one) {
  one.order_exact_dtypes = one.dtypes;
  return one;
}
constexpr std::uint32_t kOptional = BP_PORT_OPTIONAL;

constexpr bp_axis_decl kAxes[] = {{"M", "tokens"},
                                  {"H", "hidden size, a multiple of 16; of 64 where the streams are broadcast"}};

// Attributes of every form that makes coefficients; the head and post take fewer.
constexpr bp_attr_decl kAttrs[] = {
    {"sinkhorn_repeat", BP_ATTR_INT, "20", "column passes of the Sinkhorn iteration, at least 1"},
    {"rms_eps", BP_ATTR_FLOAT, "1e-6", "added to the mean square inside the root"},
    {"hc_pre_eps", BP_ATTR_FLOAT, "1e-6", "added to the pre coefficients"},
    {"hc_sinkhorn_eps", BP_ATTR_FLOAT, "1e-6", "added in the Sinkhorn iteration"},
    {"norm_eps", BP_ATTR_FLOAT, "1e-6", "of the fused RMSNorm"},
    {"post_mult", BP_ATTR_FLOAT, "2", "multiplies the post coefficients"},
    {"processors", BP_ATTR_INT, "132", "streaming multiprocessors that fast mode's dispatch assumes"},
};
constexpr bp_attr_decl kHeadAttrs[] = {
    {"rms_eps", BP_ATTR_FLOAT, "1e-6", "added to the mean square inside the root"},
    {"hc_pre_eps", BP_ATTR_FLOAT, "1e-6", "added to the coefficients"},
};

// Row counts at which the default dispatch changes something at any processor count that has been published.
constexpr std::int64_t kThresholds[] = {8, 17, 65, 129, 193, 257};

// ---- entry points -------------------------------------------------------------------------------------------------

template <Form form>
const bp_operator& table();  // defined beside each table

bp_status validate(Form form, const bp_operator& table, const bp_problem* problem, char* error, std::size_t size);
std::size_t workspace_size(Form form, const bp_implementation* implementation, const bp_problem* problem);
bp_status run(Form form, const bp_operator& table, const bp_context* context, const bp_tensor* tensors);
bp_status reference(Form form, const bp_operator& table, const bp_context* context, const bp_tensor* tensors);
std::uint32_t promises(Form form, const bp_implementation* implementation, const bp_problem* problem,
                       const bp_device* device);

// A table of this form over its ports and implementations. The arrays must outlive it.
template <Form form, std::size_t ports, std::size_t implementations, std::size_t attrs>
bp_operator make_table(const char* name, const char* summary, const bp_port (&port_array)[ports],
                       const bp_implementation (&implementation_array)[implementations],
                       const bp_attr_decl (&attr_array)[attrs], const bp_dtype_mode (&dtype_modes)[1]) {
  OperatorFunctions functions;
  functions.validate = [](const bp_problem* problem, char* error, std::size_t size) {
    return mhc::validate(form, table<form>(), problem, error, size);
  };
  functions.workspace_size = [](const bp_implementation* implementation, const bp_problem* problem, std::int32_t) {
    return mhc::workspace_size(form, implementation, problem);
  };
  functions.run = [](const bp_context* context, const bp_tensor* tensors) {
    return mhc::run(form, table<form>(), context, tensors);
  };
  functions.reference = [](const bp_context* context, const bp_tensor* tensors) {
    return mhc::reference(form, table<form>(), context, tensors);
  };
  functions.promises = [](const bp_implementation* implementation, const bp_problem* problem, const bp_device* device) {
    return mhc::promises(form, implementation, problem, device);
  };
  return operator_table({.name = name, .summary = summary}, BP_OP_THREAD_SAFE | BP_OP_GRAPH_SAFE, port_array, kAxes,
                        attr_array, dtype_modes, implementation_array, kThresholds, functions);
}

}  // namespace batchproof::mhc

#endif  // BATCHPROOF_OPS_MHC_FORM_H_
