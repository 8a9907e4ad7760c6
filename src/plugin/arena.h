// SPDX-License-Identifier: Apache-2.0
//
// The memory that the program shares with a plug-in's worker: a sparse anonymous file, mapped by both. The program sees
// all of it; the worker opens only the pieces of the call at hand.
#ifndef BATCHPROOF_SRC_PLUGIN_ARENA_H_
#define BATCHPROOF_SRC_PLUGIN_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "src/check/host.h"
#include "src/runtime/error.h"

namespace batchproof {

// At least this much unmapped space lies between two pieces and at both ends.
constexpr std::size_t kArenaGap = std::size_t{1} << 16;

// Page-aligned offsets and sizes in the arena: the pages that hold what was asked for.
struct ArenaPiece {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// The program's side. Pieces may outlive the Arena object: each keeps the mapping. Not thread-safe.
class Arena {
 public:
  // Error::Kind::environment where the system gives no such memory.
  static Result<std::unique_ptr<Arena>> make();

  int fd() const;
  std::uint64_t size() const;
  // Page-aligned memory, whole pages; content unspecified. Freed with the last copy of the Memory's owner.
  Result<Memory> allocate(std::size_t bytes);
  // The piece that holds an address; nothing where no piece does.
  const ArenaPiece* piece_of(const void* address) const;
  std::byte* at(std::uint64_t offset) const;
  std::uint64_t offset_of(const void* address) const;
  // Bytes of pieces that are in use, and of freed pieces that still hold pages.
  std::uint64_t used_bytes() const;
  std::uint64_t idle_bytes() const;

  struct State;

 private:
  explicit Arena(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

// The worker's side: nothing can be touched but what is open.
class ArenaWindow {
 public:
  static Result<std::unique_ptr<ArenaWindow>> map(int fd, std::uint64_t size);
  ~ArenaWindow();
  ArenaWindow(const ArenaWindow&) = delete;
  ArenaWindow& operator=(const ArenaWindow&) = delete;

  std::byte* base() const { return base_; }
  std::uint64_t size() const { return size_; }
  // Makes a piece readable, or readable and writable. Fails where it is outside.
  Result<void> open(const ArenaPiece& piece, bool writable);
  // Everything that is open becomes untouchable again.
  void close_all();

 private:
  ArenaWindow(std::byte* base, std::uint64_t size) : base_(base), size_(size) {}
  std::byte* base_;
  std::uint64_t size_;
  std::uint64_t low_ = UINT64_MAX;  // what was opened lies in [low_, high_)
  std::uint64_t high_ = 0;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_PLUGIN_ARENA_H_
