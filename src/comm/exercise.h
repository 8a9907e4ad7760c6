// SPDX-License-Identifier: Apache-2.0
//
// For tests of communicators: every collective once over, as one piece of bytes per rank, so that one communicator can
// be held against another.
#ifndef BATCHPROOF_SRC_COMM_EXERCISE_H_
#define BATCHPROOF_SRC_COMM_EXERCISE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "batchproof/operator.h"
#include "src/numeric/dtype.h"

namespace batchproof {

inline std::vector<std::byte> random_content(std::size_t bytes, int rank, std::uint32_t seed) {
  std::mt19937 generator(seed * 977u + static_cast<std::uint32_t>(rank));
  std::vector<std::byte> data(bytes);
  for (std::byte& byte : data) byte = static_cast<std::byte>(generator());
  return data;
}

// Numbers whose sum over the ranks shows the order of summation in every floating-point dtype, although a sum is
// rounded to it only once: large ones that cancel between ranks, and between them small ones that they swallow.
inline std::vector<std::byte> random_numbers(bp_dtype dtype, std::size_t count, int rank, std::uint32_t seed) {
  std::mt19937 shared(seed * 131u);
  std::mt19937 own(seed * 131u + static_cast<std::uint32_t>(rank) + 1u);
  std::normal_distribution<double> normal(0.0, 1.0);
  std::vector<std::byte> data(dtype_bytes(dtype, static_cast<std::int64_t>(count)));
  for (std::size_t i = 0; i < count; ++i) {
    const double large = std::clamp(normal(shared) * 0x1p13, -0x1p15, 0x1p15);
    const double small = normal(own) * 0x1p-12;
    double value = rank % 2 == 1 ? small : rank % 4 == 0 ? large : -large;
    if (is_integer(dtype)) value = normal(own) * 1e5;
    encode_element(dtype, value, data.data(), static_cast<std::int64_t>(i));
  }
  return data;
}

// Runs everything on one rank and appends all received bytes; a status that is not BP_OK appends a mark.
class CollectiveExercise {
 public:
  explicit CollectiveExercise(const bp_comm& comm) : comm_(&comm), world_(static_cast<std::size_t>(comm.world)) {}

  std::vector<std::byte> run() {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, std::size_t{10007}}) {
      gather(bytes);
      exchange(bytes);
    }
    exchange_uneven();
    for (const bp_dtype dtype : {BP_FP64, BP_FP32, BP_BF16, BP_FP16, BP_INT32, BP_INT64}) {
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1023}, std::size_t{5003}}) {
        sums(dtype, count, BP_REDUCE_RANK_ORDER);
        if ((comm_->world & (comm_->world - 1)) == 0) sums(dtype, count, BP_REDUCE_TREE);
      }
    }
    keep(comm_->barrier(comm_, nullptr), nullptr, 0);
    return result_;
  }

 private:
  void keep(bp_status status, const void* data, std::size_t bytes) {
    result_.push_back(static_cast<std::byte>(status));
    const auto* begin = static_cast<const std::byte*>(data);
    if (bytes > 0) result_.insert(result_.end(), begin, begin + bytes);
  }

  void gather(std::size_t bytes) {
    const auto send = random_content(bytes, comm_->rank, 1);
    std::vector<std::byte> recv(bytes * world_ + 1);
    keep(comm_->all_gather(comm_, send.data(), recv.data(), bytes, nullptr), recv.data(), bytes * world_);
    std::vector<std::byte> place(bytes * world_ + 1);
    std::byte* own = place.data() + bytes * static_cast<std::size_t>(comm_->rank);
    if (bytes > 0) std::memcpy(own, send.data(), bytes);
    keep(comm_->all_gather(comm_, own, place.data(), bytes, nullptr), place.data(), bytes * world_);
  }

  void exchange(std::size_t bytes) {
    const auto send = random_content(bytes * world_ + 1, comm_->rank, 2);
    std::vector<std::byte> recv(bytes * world_ + 1);
    keep(comm_->all_to_all(comm_, send.data(), recv.data(), bytes, nullptr), recv.data(), bytes * world_);
  }

  // Rank p sends 611 * (p + 2 q) bytes to rank q, in reverse order in memory.
  void exchange_uneven() {
    const auto size = [](std::size_t p, std::size_t q) { return 611 * (p + 2 * q); };
    const auto own = static_cast<std::size_t>(comm_->rank);
    std::vector<std::size_t> send_bytes(world_), send_offsets(world_), recv_bytes(world_), recv_offsets(world_);
    std::size_t sent = 0, received = 0;
    for (std::size_t i = 0; i < world_; ++i) {
      const std::size_t q = world_ - 1 - i;
      send_bytes[q] = size(own, q);
      send_offsets[q] = sent;
      sent += send_bytes[q];
      recv_bytes[q] = size(q, own);
      recv_offsets[q] = received;
      received += recv_bytes[q];
    }
    const auto send = random_content(sent + 1, comm_->rank, 3);
    std::vector<std::byte> recv(received + 1);
    keep(comm_->all_to_all_v(comm_, send.data(), send_bytes.data(), send_offsets.data(), recv.data(), recv_bytes.data(),
                             recv_offsets.data(), nullptr),
         recv.data(), received);
  }

  void sums(bp_dtype dtype, std::size_t count, bp_reduce_order order) {
    const std::size_t bytes = dtype_bytes(dtype, static_cast<std::int64_t>(count));
    auto send = random_numbers(dtype, count * world_ + 1, comm_->rank, 4);
    std::vector<std::byte> recv(bytes + 1);
    keep(comm_->reduce_scatter(comm_, send.data(), recv.data(), count, dtype, order, nullptr), recv.data(), bytes);
    keep(comm_->all_reduce(comm_, send.data(), recv.data(), count, dtype, order, nullptr), recv.data(), bytes);
    auto place = send;
    keep(comm_->all_reduce(comm_, place.data(), place.data(), count, dtype, order, nullptr), place.data(), bytes);
    std::byte* own = send.data() + bytes * static_cast<std::size_t>(comm_->rank);
    keep(comm_->reduce_scatter(comm_, send.data(), own, count, dtype, order, nullptr), own, bytes);
  }

  const bp_comm* comm_;
  std::size_t world_;
  std::vector<std::byte> result_;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_COMM_EXERCISE_H_
