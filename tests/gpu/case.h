// SPDX-License-Identifier: Apache-2.0
//
// What the device programs share: a matrix product with its memory, and the count of bytes that moved.
#ifndef BATCHPROOF_TESTS_GPU_CASE_H_
#define BATCHPROOF_TESTS_GPU_CASE_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "src/kernels/cuda/fill.h"
#include "src/kernels/cuda/gemm.h"
#include "src/runtime/cuda_buffer.h"

namespace batchproof::cuda::gpu {

// A device program ends at the first error: nothing after it would mean anything.
[[noreturn]] inline void stop(const Error& error) {
  std::fprintf(stderr, "error: %s\n", error.message.c_str());
  std::exit(error.kind == Error::Kind::environment ? 3 : 1);
}
template <class T>
T must(Result<T> result) {
  if (!result) stop(result.error());
  return std::move(*result);
}
inline void must(Result<void> result) {
  if (!result) stop(result.error());
}
inline void must(const char* what, cudaError_t status) { must(cuda_check(what, status)); }

inline int bytes_of(bp_dtype dtype) { return dtype == BP_FP32 ? 4 : 2; }

struct Matrix {
  DeviceBuffer memory;
  std::int64_t rows = 0, columns = 0, stride = 0;  // elements
  bp_dtype dtype = BP_BF16;
  std::uint8_t* at(std::int64_t row) const {
    return static_cast<std::uint8_t*>(memory.get()) + row * stride * bytes_of(dtype);
  }
};

inline Matrix matrix(std::int64_t rows, std::int64_t columns, bp_dtype dtype, std::int64_t stride = 0) {
  Matrix m;
  m.rows = rows;
  m.columns = columns;
  m.stride = stride > 0 ? stride : columns;
  m.dtype = dtype;
  m.memory = must(DeviceBuffer::make(static_cast<std::size_t>(rows * m.stride * bytes_of(dtype))));
  return m;
}

inline void fill(const Matrix& m, RecipeKind kind, const char* name, std::uint64_t seed = 1) {
  must(cuda_fill({kind, m.dtype, seed, name_hash(name), 0, m.rows, m.columns, m.memory.get(), m.stride, 1}, nullptr));
}

class Counter {
 public:
  Counter() : memory_(must(DeviceBuffer::make(8))) { clear(); }
  void clear() {
    must("clearing a counter", cudaMemset(memory_.get(), 0, 8));
    must("waiting", cudaStreamSynchronize(nullptr));  // what counts is on streams that do not wait for this one
  }
  std::uint64_t* get() const { return static_cast<std::uint64_t*>(memory_.get()); }
  std::uint64_t value() const {
    std::uint64_t host = 0;
    must(memory_.download(&host, 8));
    return host;
  }

 private:
  DeviceBuffer memory_;
};

// Parts of a run print one line each; any failure makes the program's status 1.
struct Score {
  int failed = 0, passed = 0;
  void line(bool ok, const std::string& text) {
    std::printf("%s %s\n", ok ? "pass" : "FAIL", text.c_str());
    std::fflush(stdout);
    ++(ok ? passed : failed);
  }
};

}  // namespace batchproof::cuda::gpu

#endif  // BATCHPROOF_TESTS_GPU_CASE_H_
