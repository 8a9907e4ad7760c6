// SPDX-License-Identifier: Apache-2.0
//
// Tensors of a call by the name of their port, checked.
#ifndef BATCHPROOF_OPS_MHC_TENSORS_H_
#define BATCHPROOF_OPS_MHC_TENSORS_H_

#include <cstdint>
#include <cstring>

#include "batchproof/operator.h"
#include "batchproof/problem.h"

namespace batchproof::mhc {

class Tensors {
 public:
  Tensors(const bp_operator& table, const bp_tensor* tensors) : table_(table), tensors_(tensors) {}

  // The tensor of the port, or nullptr where the operator has no such port or it is absent.
  const bp_tensor* find(const char* name) const {
    for (std::uint32_t i = 0; i < table_.port_count; ++i) {
      if (std::strcmp(table_.ports[i].name, name) == 0) return tensors_[i].dtype == BP_NONE ? nullptr : &tensors_[i];
    }
    return nullptr;
  }

  // Memory where there are elements, all of the kind `memory`, and columns that are contiguous in every BF16 tensor and
  // in fn.
  bp_status check(bp_memory memory, char* error, std::size_t size) const {
    for (std::uint32_t i = 0; i < table_.port_count; ++i) {
      const bp_tensor& t = tensors_[i];
      if (t.dtype == BP_NONE) continue;
      const char* name = table_.ports[i].name;
      std::int64_t elements = 1;
      for (std::int32_t axis = 0; axis < t.ndim; ++axis) elements *= t.shape[axis];
      if (elements == 0) continue;
      if (t.data == nullptr) return bp_fail(error, size, BP_INVALID, "%s has no memory", name);
      if (t.memory != memory)
        return bp_fail(error, size, BP_INVALID, "%s is not in %s memory", name,
                       memory == BP_MEMORY_HOST ? "host" : "CUDA");
      const std::int32_t last = t.ndim - 1;
      const bool wide = t.dtype == BP_BF16 || t.dtype == BP_FP64 || std::strncmp(name, "fn", 2) == 0;
      if (wide && t.shape[last] > 1 && t.stride[last] != 1) {
        return bp_fail(error, size, BP_INVALID, "%s: columns must be contiguous, their stride is %lld", name,
                       static_cast<long long>(t.stride[last]));
      }
    }
    return BP_OK;
  }

 private:
  const bp_operator& table_;
  const bp_tensor* tensors_;
};

template <class T>
T* data_of(const bp_tensor* tensor) {
  return tensor == nullptr ? nullptr : static_cast<T*>(tensor->data);
}

}  // namespace batchproof::mhc

#endif  // BATCHPROOF_OPS_MHC_TENSORS_H_
