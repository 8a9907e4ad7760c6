// SPDX-License-Identifier: Apache-2.0
//
// XXH3-64 digests of bytes that arrive in pieces: row digests in reports, build ids.
#ifndef BATCHPROOF_SRC_NUMERIC_DIGEST_H_
#define BATCHPROOF_SRC_NUMERIC_DIGEST_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace batchproof {

// How the bytes were cut into pieces does not enter. Digest() of nothing is XXH3-64 of no bytes.
class Digest {
 public:
  Digest();
  ~Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;

  void update(const void* data, std::size_t size);
  std::uint64_t value() const;  // of everything so far
  std::string hex() const;      // 16 lower-case hex digits of value()

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::uint64_t digest_bytes(const void* data, std::size_t size);
std::string digest_hex(std::uint64_t digest);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_NUMERIC_DIGEST_H_
