// SPDX-License-Identifier: Apache-2.0
//
// Host memory for tensors and workspace, with traps for an operator that writes or reads outside of it.
#ifndef BATCHPROOF_SRC_RUNTIME_BUFFER_H_
#define BATCHPROOF_SRC_RUNTIME_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "src/runtime/error.h"

namespace batchproof {

// Inaccessible pages around the data: an access beyond them faults at once, reads included.
enum class GuardPages {
  none,
  before,  // the data begin where the first accessible page begins
  after    // the data end where the last accessible page ends, up to rounding by the alignment
};

struct BufferOptions {
  // Address of the data, a power of two. With GuardPages::after an alignment of the element size lets the data end
  // exactly at the page; a larger one leaves a gap, which guard bytes fill.
  std::size_t alignment = 64;
  // Bytes on each side, at least, that hold a pattern and are checked by guards_intact. Rounding gaps and, with pages,
  // the rest of the first and last page are filled and checked too.
  std::size_t guard_bytes = 0;
  GuardPages guard_pages = GuardPages::none;
  // Memory that another process can map by fd(); it cannot shrink or grow.
  bool shared = false;
};

struct GuardHit {
  enum class Side { before, after } side;
  // First byte that changed, from the data: before: -1 is the byte just in front; after: 0 is the byte just behind.
  // The changed byte that lies nearest to the data.
  std::int64_t offset;
  // "5 bytes after its end" or "1 byte before its begin": what lies where, counted from 1.
  std::string text() const;
};

// A move-only block of memory. A new buffer is zero. Freed by the destructor.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // `bytes` may be zero; data() is an address even so. Out of memory is an error of kind environment.
  static Result<Buffer> make(std::size_t bytes, const BufferOptions& options = {});
  // Maps what another process made as shared with the same bytes and options. Takes over nothing: `fd` stays the
  // caller's. An fd of another size is an error.
  static Result<Buffer> attach(int fd, std::size_t bytes, const BufferOptions& options);

  void* data() { return data_; }
  const void* data() const { return data_; }
  std::size_t size() const { return size_; }
  // Descriptor of shared memory, owned by the buffer, closed on exec; -1 where not shared.
  int fd() const { return fd_; }

  // Writes `byte` over the data, not over the guards.
  void fill(unsigned char byte);
  // Whether all guard bytes hold their pattern; true where there are none.
  bool guards_intact() const { return !guard_hit(); }
  // The nearest changed guard byte, the side behind the data first.
  std::optional<GuardHit> guard_hit() const;
  // Writes the pattern again, after a hit has been reported.
  void reset_guards();

 private:
  static Result<Buffer> allocate(std::size_t bytes, const BufferOptions& options, int shared_fd);
  void release() noexcept;

  unsigned char* data_ = nullptr;
  std::size_t size_ = 0;
  // [guard_begin_, guard_end_): the checked area, the data inside it.
  unsigned char* guard_begin_ = nullptr;
  unsigned char* guard_end_ = nullptr;
  // What to give back: a mapping of mapped_bytes_, or, where that is zero, heap memory of this alignment.
  void* base_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::size_t alignment_ = 0;
  int fd_ = -1;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_RUNTIME_BUFFER_H_
