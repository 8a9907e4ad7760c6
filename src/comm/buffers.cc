// SPDX-License-Identifier: Apache-2.0
#include "src/comm/buffers.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>

namespace batchproof {
namespace {

// As numbers: a NULL base with nothing to move may not be added to.
bool overlap(std::uintptr_t a, std::size_t a_bytes, std::uintptr_t b, std::size_t b_bytes) {
  return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

std::string buffer_error(const void* send, std::size_t send_bytes, const void* recv, std::size_t recv_bytes,
                         bool in_place) {
  if (send == nullptr && send_bytes > 0) return "send is NULL";
  if (recv == nullptr && recv_bytes > 0) return "recv is NULL";
  if (!in_place &&
      overlap(reinterpret_cast<std::uintptr_t>(send), send_bytes, reinterpret_cast<std::uintptr_t>(recv), recv_bytes))
    return "send and recv overlap";
  return {};
}

std::string all_to_all_v_error(int world, const void* send, const std::size_t* send_bytes,
                               const std::size_t* send_offsets, const void* recv, const std::size_t* recv_bytes,
                               const std::size_t* recv_offsets) {
  if (send_bytes == nullptr || send_offsets == nullptr || recv_bytes == nullptr || recv_offsets == nullptr)
    return "an array of sizes or offsets is NULL";
  for (int q = 0; q < world; ++q) {
    if (send == nullptr && send_bytes[q] > 0) return "send is NULL";
    if (recv == nullptr && recv_bytes[q] > 0) return "recv is NULL";
  }
  const auto send_base = reinterpret_cast<std::uintptr_t>(send);
  const auto recv_base = reinterpret_cast<std::uintptr_t>(recv);
  for (int p = 0; p < world; ++p) {
    const std::uintptr_t block = recv_base + recv_offsets[p];
    for (int q = 0; q < world; ++q) {
      if (overlap(send_base + send_offsets[q], send_bytes[q], block, recv_bytes[p])) return "send and recv overlap";
      if (p < q && overlap(block, recv_bytes[p], recv_base + recv_offsets[q], recv_bytes[q]))
        return fmt::format("the blocks from ranks {} and {} overlap in recv", p, q);
    }
  }
  return {};
}

}  // namespace batchproof
