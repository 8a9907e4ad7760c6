// SPDX-License-Identifier: Apache-2.0
//
// For tests: one call of a table of the family, with tensors that are made here and read by name.
#ifndef BATCHPROOF_OPS_MHC_MHC_CASE_H_
#define BATCHPROOF_OPS_MHC_MHC_CASE_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "batchproof/registry.h"
#include "src/check/local_host.h"
#include "src/numeric/bf16.h"

namespace batchproof::mhc {

inline const bp_operator* find_table(const std::string& name) {
  for (const bp_operator* table : registered_operators()) {
    if (name == table->name) return table;
  }
  return nullptr;
}

inline Problem default_problem(const bp_operator& table, std::int64_t m, std::int64_t h) {
  Problem problem;
  problem.axes = {{"M", m}, {"H", h}};
  for (std::uint32_t i = 0; i < table.port_count; ++i) problem.dtypes.push_back(table.dtype_modes[0].dtypes[i]);
  for (std::uint32_t i = 0; i < table.attr_count; ++i) {
    const bp_attr_decl& decl = table.attrs[i];
    if (decl.type == BP_ATTR_INT) {
      problem.attrs[decl.name] = static_cast<std::int64_t>(std::stoll(decl.default_value));
    } else {
      problem.attrs[decl.name] = std::stod(decl.default_value);
    }
  }
  return problem;
}

struct Buffer {
  bp_tensor view{};
  std::vector<std::uint8_t> bytes;

  float fp32(std::int64_t i) const {
    float value;
    std::memcpy(&value, bytes.data() + i * 4, 4);
    return value;
  }
  float bf16(std::int64_t i) const {
    std::uint16_t bits;
    std::memcpy(&bits, bytes.data() + i * 2, 2);
    return bf16_to_float(bits);
  }
  double fp64(std::int64_t i) const {
    double value;
    std::memcpy(&value, bytes.data() + i * 8, 8);
    return value;
  }
  void set(std::int64_t i, float value) {
    if (view.dtype == BP_BF16) {
      const std::uint16_t bits = float_to_bf16(value);
      std::memcpy(bytes.data() + i * 2, &bits, 2);
    } else {
      std::memcpy(bytes.data() + i * 4, &value, 4);
    }
  }
};

class Case {
 public:
  Case(const std::string& op, std::int64_t m, std::int64_t h) : table_(find_table(op)), host_(table_) {
    problem = default_problem(*table_, m, h);
  }

  const bp_operator& table() const { return *table_; }
  std::uint32_t port(const std::string& name) const {
    for (std::uint32_t i = 0; i < table_->port_count; ++i) {
      if (name == table_->ports[i].name) return i;
    }
    ADD_FAILURE() << table_->name << " has no port " << name;
    return 0;
  }
  bool has(const std::string& name) const {
    for (std::uint32_t i = 0; i < table_->port_count; ++i) {
      if (name == table_->ports[i].name) return problem.dtypes[i] != BP_NONE;
    }
    return false;
  }
  void absent(const std::string& name) { problem.dtypes[port(name)] = BP_NONE; }
  Buffer& at(const std::string& name) { return buffers[port(name)]; }

  // Contiguous tensors; inputs with the magnitudes of a checkpoint, rows from `row_seed` + row, so that equal rows of
  // two batches hold equal bytes; outputs hold 0xFF.
  void make(std::uint64_t row_seed = 1, bool fp64_outputs = false) {
    auto shapes = host_.shapes(problem);
    ASSERT_TRUE(shapes.has_value()) << shapes.error().message;
    buffers.assign(table_->port_count, {});
    for (std::uint32_t i = 0; i < table_->port_count; ++i) {
      Buffer& buffer = buffers[i];
      buffer.view = (*shapes)[i];
      buffer.view.dtype = problem.dtypes[i];
      if (problem.dtypes[i] == BP_NONE) continue;
      if (fp64_outputs && table_->ports[i].kind == BP_OUTPUT) buffer.view.dtype = BP_FP64;
      std::int64_t elements = 1;
      for (int axis = buffer.view.ndim - 1; axis >= 0; --axis) {
        buffer.view.stride[axis] = elements;
        elements *= buffer.view.shape[axis];
      }
      const std::size_t size = buffer.view.dtype == BP_FP64 ? 8 : buffer.view.dtype == BP_FP32 ? 4 : 2;
      buffer.bytes.assign(static_cast<std::size_t>(elements) * size, 0xFF);
      buffer.view.data = buffer.bytes.data();
      if (table_->ports[i].kind == BP_OUTPUT) continue;
      fill(i, elements, row_seed);
    }
  }

  // The same tensors with other rows.
  void make_rows(std::uint64_t row_seed) {
    for (std::uint32_t i = 0; i < table_->port_count; ++i) {
      if (table_->ports[i].kind != BP_ROW_INPUT || buffers[i].view.dtype == BP_NONE) continue;
      const std::size_t size = buffers[i].view.dtype == BP_FP32 ? 4 : 2;
      fill(i, static_cast<std::int64_t>(buffers[i].bytes.size() / size), row_seed);
    }
  }

  Result<RunOutcome> run(const std::string& implementation, bp_mode mode = BP_MODE_INVARIANT, int threads = 2,
                         bool reference = false) {
    RunRequest request;
    request.implementation = find_implementation(*table_, implementation);
    if (request.implementation == nullptr) return fail(Error::Kind::usage, "no implementation " + implementation);
    request.problem = &problem;
    request.mode = mode;
    request.threads = threads;
    request.reference = reference;
    request.workspace_fill = std::uint8_t{0xFF};
    request.tensors.emplace_back();
    for (const Buffer& buffer : buffers) request.tensors[0].push_back(buffer.view);
    return host_.run(request);
  }

  // Bytes of every output, by name.
  std::map<std::string, std::vector<std::uint8_t>> outputs() const {
    std::map<std::string, std::vector<std::uint8_t>> out;
    for (std::uint32_t i = 0; i < table_->port_count; ++i) {
      if (table_->ports[i].kind == BP_OUTPUT && buffers[i].view.dtype != BP_NONE)
        out[table_->ports[i].name] = buffers[i].bytes;
    }
    return out;
  }
  // Bytes of row `row` of every output.
  std::map<std::string, std::vector<std::uint8_t>> row(std::int64_t row) const {
    std::map<std::string, std::vector<std::uint8_t>> out;
    for (const auto& [name, bytes] : outputs()) {
      const auto size = static_cast<std::int64_t>(bytes.size()) / problem.axis("M");
      out[name].assign(bytes.begin() + row * size, bytes.begin() + (row + 1) * size);
    }
    return out;
  }

  Problem problem;
  std::vector<Buffer> buffers;

 private:
  void fill(std::uint32_t index, std::int64_t elements, std::uint64_t row_seed) {
    Buffer& buffer = buffers[index];
    const std::string name = table_->ports[index].name;
    const bool rows = table_->ports[index].kind == BP_ROW_INPUT;
    const std::int64_t count = rows && buffer.view.shape[0] > 0 ? elements / buffer.view.shape[0] : elements;
    std::normal_distribution<float> normal;
    for (std::int64_t begin = 0; begin < elements; begin += count) {
      std::mt19937_64 generator(index * 1000003u + (rows ? row_seed + static_cast<std::uint64_t>(begin / count) : 0u));
      normal.reset();
      for (std::int64_t i = begin; i < begin + count; ++i) {
        float value = normal(generator);
        if (name == "fn" || name == "fn_broadcast") value *= 1.0f / 64.0f;
        if (name == "hc_scale") value = i == 0 ? 2.0f : i == 1 ? 0.02f : 0.25f;
        if (name == "hc_base") value *= 0.1f;
        if (name == "norm_weight") value = 1.0f + 0.1f * value;
        buffer.set(i, value);
      }
    }
  }

  const bp_operator* table_;
  LocalHost host_;
};

}  // namespace batchproof::mhc

#endif  // BATCHPROOF_OPS_MHC_MHC_CASE_H_
