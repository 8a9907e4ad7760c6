// SPDX-License-Identifier: Apache-2.0
//
// What every communicator asks of the buffers of a collective, so that all refuse the same calls in the same words.
#ifndef BATCHPROOF_SRC_COMM_BUFFERS_H_
#define BATCHPROOF_SRC_COMM_BUFFERS_H_

#include <cstddef>
#include <string>

namespace batchproof {

inline const std::byte* at(const void* base, std::size_t offset) {
  return static_cast<const std::byte*>(base) + offset;
}
inline std::byte* at(void* base, std::size_t offset) { return static_cast<std::byte*>(base) + offset; }

// Of nothing there may be no pointer, and a copy onto itself may not be done.
void copy_bytes(void* to, const void* from, std::size_t bytes);

// Empty, or what is wrong: a buffer is missing, or the two overlap elsewhere than where `in_place` allows it.
std::string buffer_error(const void* send, std::size_t send_bytes, const void* recv, std::size_t recv_bytes,
                         bool in_place);

// The same for all_to_all_v, whose arrays have `world` entries: blocks of recv may not overlap each other either.
std::string all_to_all_v_error(int world, const void* send, const std::size_t* send_bytes,
                               const std::size_t* send_offsets, const void* recv, const std::size_t* recv_bytes,
                               const std::size_t* recv_offsets);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_COMM_BUFFERS_H_
