// SPDX-License-Identifier: Apache-2.0
//
// Fork-join over a fixed partition: which worker runs a part may change, what a part is may not depend on it.
#ifndef BATCHPROOF_SRC_RUNTIME_THREAD_POOL_H_
#define BATCHPROOF_SRC_RUNTIME_THREAD_POOL_H_

#include <cstdint>
#include <functional>

namespace batchproof {

// Runs body(part) for part = 0 .. parts-1 on at most `threads` threads, the caller included, and waits for all.
// Parts are claimed in ascending order. Safe to call from several threads at once and from inside a body (nested calls
// run on the calling thread). Bodies must not throw. Worker threads have the default FP environment.
void parallel_for(int threads, std::int64_t parts, const std::function<void(std::int64_t part)>& body);

// Processors that this process may use.
int hardware_threads();

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_RUNTIME_THREAD_POOL_H_
