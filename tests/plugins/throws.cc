// SPDX-License-Identifier: Apache-2.0
//
// C++ exceptions where none may be: out of run, out of validate, out of a thread of its own.
#include <stdexcept>
#include <string>
#include <thread>

#include "batchproof/operator.h"
#include "batchproof/problem.h"

namespace {

constexpr std::uint32_t kFp32Bit = BP_DTYPE_BIT(BP_FP32);
const bp_port kPorts[] = {
    {"x", BP_ROW_INPUT, "M, K", 0, 0, 1, nullptr, nullptr, BP_REPLICATED, 0, kFp32Bit, 0, 0, nullptr, 0, nullptr, 0},
    {"y", BP_OUTPUT, "M, K", 0, 0, 1, nullptr, nullptr, BP_REPLICATED, 0, kFp32Bit, kFp32Bit, 0, nullptr, 0, nullptr,
     0},
};
const bp_axis_decl kAxes[] = {{"M", nullptr}, {"K", nullptr}};
const bp_dtype kFp32[] = {BP_FP32, BP_FP32};
const bp_dtype_mode kModes[] = {{"fp32", kFp32}};
const bp_implementation kImplementations[] = {
    {"good", nullptr, nullptr, BP_MODE_INVARIANT, 0, nullptr, nullptr},
    {"throws", nullptr, "throws out of run", BP_MODE_INVARIANT, 0, nullptr, nullptr},
    {"throws-in-thread", nullptr, "throws out of a thread", BP_MODE_INVARIANT, 0, nullptr, nullptr},
};

bp_status validate(const bp_problem* problem, char*, std::size_t) {
  if (bp_axis_value(problem, "K") == 13) throw 13;
  return BP_OK;
}

bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const std::string id = context->implementation->id;
  if (id == "throws") throw std::runtime_error("no such tile");
  if (id == "throws-in-thread") std::thread([] { throw std::logic_error("lost in a thread"); }).join();
  const auto* x = static_cast<const float*>(tensors[0].data);
  auto* y = static_cast<float*>(tensors[1].data);
  for (std::int64_t i = 0; i < tensors[0].shape[0] * tensors[0].shape[1]; ++i) y[i] = x[i] + x[i];
  bp_executed(context, context->implementation->id);
  return BP_OK;
}

std::uint32_t promises(const bp_implementation*, const bp_problem*, const bp_device*) {
  return BP_REPEAT | BP_NEIGHBOURS | BP_BATCH_SIZE | BP_POSITION;
}

const bp_operator& table() {
  static const bp_operator made = [] {
    bp_operator op{};
    op.abi_version = BP_ABI_VERSION;
    op.struct_size = sizeof(bp_operator);
    op.name = "throws";
    op.rows = "M";
    op.row_count_axis = "M";
    op.flags = BP_OP_THREAD_SAFE;
    op.port_count = 2;
    op.ports = kPorts;
    op.axis_count = 2;
    op.axes = kAxes;
    op.dtype_mode_count = 1;
    op.dtype_modes = kModes;
    op.implementation_count = 3;
    op.implementations = kImplementations;
    op.validate = validate;
    op.run = run;
    op.promises = promises;
    return op;
  }();
  return made;
}

}  // namespace

extern "C" const bp_operator* const* batchproof_operators(std::uint32_t, std::uint32_t* count) {
  static const bp_operator* const tables[] = {&table()};
  *count = 1;
  return tables;
}
