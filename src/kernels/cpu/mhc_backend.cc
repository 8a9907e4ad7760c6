// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/cpu/mhc_backend.h"

#include <mutex>
#include <utility>

namespace batchproof {
namespace {

struct Slot {
  std::mutex mutex;
  std::shared_ptr<const MhcBackend> backend;
  std::uint64_t generation = 0;
};

Slot& slot() {
  static Slot one;
  return one;
}

}  // namespace

void set_mhc_backend(std::shared_ptr<const MhcBackend> backend) {
  Slot& at = slot();
  const std::lock_guard lock(at.mutex);
  at.backend = std::move(backend);
  ++at.generation;
}

std::shared_ptr<const MhcBackend> mhc_backend() {
  Slot& at = slot();
  const std::lock_guard lock(at.mutex);
  return at.backend;
}

std::uint64_t mhc_backend_generation() {
  Slot& at = slot();
  const std::lock_guard lock(at.mutex);
  return at.generation;
}

}  // namespace batchproof
