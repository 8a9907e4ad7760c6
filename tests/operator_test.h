// SPDX-License-Identifier: Apache-2.0
//
// Calls of one operator's table on every rank, for its unit test, which defines kTestedOperator.
#ifndef BATCHPROOF_TESTS_OPERATOR_TEST_H_
#define BATCHPROOF_TESTS_OPERATOR_TEST_H_

#include <cstdlib>
#include <string>
#include <vector>

#include "batchproof/operator.h"
#include "batchproof/registry.h"
#include "src/comm/thread_world.h"
#include "src/runtime/problem.h"

namespace batchproof {

// The operator under test; each test program defines its name.
extern const char* const kTestedOperator;

inline const bp_operator& table() {
  for (const bp_operator* op : registered_operators()) {
    if (std::string(op->name) == kTestedOperator) return *op;
  }
  std::abort();
}

inline std::uint32_t port(const std::string& name) {
  for (std::uint32_t i = 0; i < table().port_count; ++i) {
    if (name == table().ports[i].name) return i;
  }
  std::abort();
}

inline std::vector<bp_dtype> mode_dtypes(const std::string& name) {
  for (std::uint32_t m = 0; m < table().dtype_mode_count; ++m) {
    if (name == table().dtype_modes[m].name)
      return {table().dtype_modes[m].dtypes, table().dtype_modes[m].dtypes + table().port_count};
  }
  std::abort();
}

inline Problem problem(const std::string& mode, int world, std::int64_t m, std::int64_t k, std::int64_t n) {
  Problem out;
  out.world = world;
  out.axes = {{"M", m}, {"K", k}, {"N", n}};
  for (std::uint32_t i = 0; i < table().attr_count; ++i) {
    const bp_attr_decl& attr = table().attrs[i];
    const std::string text = attr.default_value;
    AttrValue& value = out.attrs[attr.name];
    value = text == "true";
    if (attr.type == BP_ATTR_INT) value = static_cast<std::int64_t>(std::stoll(text));
    if (attr.type == BP_ATTR_FLOAT) value = std::stod(text);
    if (attr.type == BP_ATTR_STRING) value = text;
  }
  out.dtypes = mode_dtypes(mode);
  return out;
}

inline std::string validate(const Problem& described) {
  char error[256] = "";
  const Problem::View view(described);
  return table().validate(view.get(), error, sizeof(error)) == BP_OK ? "accepted" : error;
}

template <class T>
bp_tensor matrix(std::vector<T>& data, bp_dtype dtype, std::int64_t rows, std::int64_t columns) {
  bp_tensor tensor = {};
  tensor.data = data.data();
  tensor.dtype = dtype;
  tensor.ndim = 2;
  tensor.shape[0] = rows;
  tensor.shape[1] = columns;
  tensor.stride[0] = columns;
  tensor.stride[1] = 1;
  return tensor;
}

inline const bp_implementation& implementation(const std::string& id) {
  for (std::uint32_t i = 0; i < table().implementation_count; ++i) {
    if (id == table().implementations[i].id) return table().implementations[i];
  }
  std::abort();
}

// Calls `run` or `reference` of every rank; `tensors` is indexed by rank.
inline Result<void> call(const Problem& described, bool reference, std::vector<std::vector<bp_tensor>>& tensors,
                         const bp_implementation* chosen = &table().implementations[0]) {
  const Problem::View view(described);
  RankTeam team(described.world);
  return team.run([&](int rank, const bp_comm& comm) -> Result<void> {
    std::vector<char> workspace(table().workspace_size(chosen, view.get(), rank) + 64);
    char error[256] = "";
    bp_context context = {};
    context.struct_size = sizeof(context);
    context.rank = rank;
    context.world = described.world;
    context.threads = 1;
    context.problem = view.get();
    context.implementation = chosen;
    context.comm = &comm;
    context.workspace = workspace.data() + (64 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 64) % 64;
    context.workspace_bytes = workspace.size() - 64;
    context.error = error;
    context.error_size = sizeof(error);
    const bp_tensor* own = tensors[static_cast<std::size_t>(rank)].data();
    const bp_status status = reference ? table().reference(&context, own) : table().run(&context, own);
    if (status != BP_OK) return fail(Error::Kind::operation, error);
    return {};
  });
}

// Small integers, so that sums are exact; `name` tells tensors apart.
inline float entry(std::int64_t name, std::int64_t i, std::int64_t j) {
  return static_cast<float>((name + 3 * i + 5 * j) % 7 - 3);
}

inline std::vector<float> entries(std::int64_t name, std::int64_t rows, std::int64_t columns) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) out.push_back(entry(name, i, j));
  }
  return out;
}

// What one rank writes, as run or as reference.
struct Output {
  std::vector<float> values;
  std::vector<double> golden;
  bp_tensor view(bool reference, std::int64_t rows, std::int64_t columns) {
    values.resize(static_cast<std::size_t>(rows * columns));
    golden.resize(values.size());
    return reference ? matrix(golden, BP_FP64, rows, columns) : matrix(values, BP_FP32, rows, columns);
  }
  double at(bool reference, std::int64_t index) const {
    const auto i = static_cast<std::size_t>(index);
    return reference ? golden[i] : static_cast<double>(values[i]);
  }
};

}  // namespace batchproof

#endif  // BATCHPROOF_TESTS_OPERATOR_TEST_H_
