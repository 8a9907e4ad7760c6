// SPDX-License-Identifier: Apache-2.0
//
// Two layouts. Heap: guard | data | gap and guard. Mapped (guard pages or shared): an inaccessible page, whole pages
// with the data at their begin or end, an inaccessible page.
#include "src/runtime/buffer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

namespace batchproof {
namespace {

// Depends on the distance, so that a copy of neighbouring guard bytes is seen, and is no usual fill value.
unsigned char pattern(std::int64_t offset) { return static_cast<unsigned char>(0x5b ^ (offset * 0x3d)); }

bool round_up(std::size_t value, std::size_t unit, std::size_t* rounded) {
  if (__builtin_add_overflow(value, unit - 1, rounded)) return false;
  *rounded &= ~(unit - 1);
  return true;
}

std::size_t page_size() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

tl::unexpected<Error> out_of_memory(std::size_t bytes, int code) {
  return fail(Error::Kind::environment, fmt::format("cannot get {} bytes of memory: {}", bytes, std::strerror(code)));
}

// A new memory file of this size that nobody can resize, so that a mapping of it cannot lose its pages.
int make_memory_file(std::size_t bytes) {
  const int fd = memfd_create("batchproof", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -1;
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const int code = errno;
    close(fd);
    errno = code;
    return -1;
  }
  return fd;
}

}  // namespace

std::string GuardHit::text() const {
  const std::int64_t distance = side == Side::before ? -offset : offset + 1;
  return fmt::format("{} byte{} {}", distance, distance == 1 ? "" : "s",
                     side == Side::before ? "before its begin" : "after its end");
}

Buffer::~Buffer() { release(); }

Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  release();
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  guard_begin_ = std::exchange(other.guard_begin_, nullptr);
  guard_end_ = std::exchange(other.guard_end_, nullptr);
  base_ = std::exchange(other.base_, nullptr);
  mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
  alignment_ = std::exchange(other.alignment_, 0);
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

void Buffer::release() noexcept {
  if (fd_ >= 0) close(fd_);
  if (base_ == nullptr) return;
  if (mapped_bytes_ > 0) {
    munmap(base_, mapped_bytes_);
  } else {
    ::operator delete(base_, std::align_val_t(alignment_));
  }
}

Result<Buffer> Buffer::make(std::size_t bytes, const BufferOptions& options) { return allocate(bytes, options, -1); }

Result<Buffer> Buffer::attach(int fd, std::size_t bytes, const BufferOptions& options) {
  if (fd < 0 || !options.shared) return fail(Error::Kind::internal, "only a shared buffer can be attached");
  return allocate(bytes, options, fd);
}

Result<Buffer> Buffer::allocate(std::size_t bytes, const BufferOptions& options, int shared_fd) {
  if (options.alignment == 0 || (options.alignment & (options.alignment - 1)) != 0) {
    return fail(Error::Kind::internal, fmt::format("alignment {} is not a power of two", options.alignment));
  }
  const std::size_t page = page_size();
  const bool mapped = options.guard_pages != GuardPages::none || options.shared;
  if (mapped && options.alignment > page) {
    return fail(Error::Kind::internal, fmt::format("alignment {} is above the page size {}", options.alignment, page));
  }
  std::size_t front = 0;  // guard before the data, keeps the alignment
  std::size_t body = 0;   // data and rounding gap
  std::size_t total = 0;
  if (!round_up(options.guard_bytes, options.alignment, &front) || !round_up(bytes, options.alignment, &body) ||
      __builtin_add_overflow(front, body, &total) || __builtin_add_overflow(total, front, &total)) {
    return out_of_memory(bytes, ENOMEM);
  }

  Buffer buffer;
  buffer.size_ = bytes;
  buffer.alignment_ = options.alignment;
  if (!mapped) {
    void* memory = ::operator new(total > 0 ? total : 1, std::align_val_t(options.alignment), std::nothrow);
    if (memory == nullptr) return out_of_memory(bytes, ENOMEM);
    buffer.base_ = memory;
    buffer.guard_begin_ = static_cast<unsigned char*>(memory);
    buffer.data_ = buffer.guard_begin_ + front;
    buffer.guard_end_ = options.guard_bytes > 0 ? buffer.guard_begin_ + total : buffer.data_ + bytes;
    std::memset(buffer.data_, 0, bytes);
    buffer.reset_guards();
    return buffer;
  }

  std::size_t inner = 0;  // accessible pages
  std::size_t outer = 0;  // with the two inaccessible ones
  if (!round_up(total > 0 ? total : 1, page, &inner) || __builtin_add_overflow(inner, 2 * page, &outer)) {
    return out_of_memory(bytes, ENOMEM);
  }
  void* base = mmap(nullptr, outer, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return out_of_memory(bytes, errno);
  buffer.base_ = base;
  buffer.mapped_bytes_ = outer;
  unsigned char* const accessible = static_cast<unsigned char*>(base) + page;
  int flags = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS;
  if (options.shared) {
    flags = MAP_FIXED | MAP_SHARED;
    buffer.fd_ = shared_fd >= 0 ? fcntl(shared_fd, F_DUPFD_CLOEXEC, 0) : make_memory_file(inner);
    if (buffer.fd_ < 0) return out_of_memory(bytes, errno);
    struct stat status{};
    if (fstat(buffer.fd_, &status) != 0 || status.st_size != static_cast<off_t>(inner)) {
      return fail(Error::Kind::internal, fmt::format("shared memory of {} bytes where {} were expected",
                                                     static_cast<std::int64_t>(status.st_size), inner));
    }
  }
  if (mmap(accessible, inner, PROT_READ | PROT_WRITE, flags, buffer.fd_, 0) == MAP_FAILED) {
    return out_of_memory(bytes, errno);
  }
  buffer.guard_begin_ = accessible;
  buffer.guard_end_ = accessible + inner;
  buffer.data_ =
      options.guard_pages == GuardPages::after ? buffer.guard_end_ - front - body : buffer.guard_begin_ + front;
  if (shared_fd < 0) buffer.reset_guards();
  return buffer;
}

void Buffer::fill(unsigned char byte) {
  if (size_ > 0) std::memset(data_, byte, size_);
}

std::optional<GuardHit> Buffer::guard_hit() const {
  for (const unsigned char* at = data_ + size_; at < guard_end_; ++at) {
    const std::int64_t offset = at - (data_ + size_);
    if (*at != pattern(offset)) return GuardHit{GuardHit::Side::after, offset};
  }
  for (const unsigned char* at = data_; at > guard_begin_; --at) {
    const std::int64_t offset = at - 1 - data_;
    if (at[-1] != pattern(offset)) return GuardHit{GuardHit::Side::before, offset};
  }
  return std::nullopt;
}

void Buffer::reset_guards() {
  for (unsigned char* at = data_ + size_; at < guard_end_; ++at) *at = pattern(at - (data_ + size_));
  for (unsigned char* at = guard_begin_; at < data_; ++at) *at = pattern(at - data_);
}

}  // namespace batchproof
