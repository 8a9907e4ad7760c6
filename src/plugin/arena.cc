// SPDX-License-Identifier: Apache-2.0
#include "src/plugin/arena.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/numeric/divide.h"

namespace batchproof {
namespace {

constexpr std::uint64_t kLargest = std::uint64_t{1} << 38;  // 256 GiB of addresses, not of memory
constexpr std::uint64_t kSmallest = std::uint64_t{1} << 32;
// Freed pieces keep their pages for the next run up to this much; beyond it they are given back to the system.
constexpr std::uint64_t kIdleLimit = std::uint64_t{256} << 20;

std::uint64_t page_size() {
  static const auto size = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return size;
}

// Sizes in steps of an eighth of their power of two: freed pieces fit the next run although its sizes differ a little.
std::uint64_t rounded(std::uint64_t bytes) {
  std::uint64_t step = page_size();
  while (step * 16 < bytes) step *= 2;
  return std::max(page_size(), align_up(bytes, step));
}

std::string reason() { return std::strerror(errno); }

}  // namespace

struct Arena::State {
  ~State() {
    if (base != nullptr) munmap(base, size);
    if (fd >= 0) close(fd);
  }
  void release(std::uint64_t offset);

  int fd = -1;
  std::byte* base = nullptr;
  std::uint64_t size = 0;
  std::uint64_t next = kArenaGap;
  struct Used {
    ArenaPiece piece;
    std::uint64_t size;  // that another piece may take over
  };
  std::map<std::uint64_t, Used> used;  // by offset
  struct Idle {
    std::uint64_t offset;
    bool has_pages;
  };
  std::map<std::uint64_t, std::vector<Idle>> idle;  // by size
  std::uint64_t used_bytes = 0;
  std::uint64_t idle_bytes = 0;  // with pages
};

void Arena::State::release(std::uint64_t offset) {
  const auto found = used.find(offset);
  if (found == used.end()) return;
  const std::uint64_t bytes = found->second.size;
  used.erase(found);
  used_bytes -= bytes;
  bool has_pages = true;
  if (idle_bytes + bytes > kIdleLimit)
    has_pages = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                          static_cast<off_t>(bytes)) != 0;
  if (has_pages) idle_bytes += bytes;
  idle[bytes].push_back({offset, has_pages});
}

Result<std::unique_ptr<Arena>> Arena::make() {
  auto state = std::make_shared<State>();
  state->fd = memfd_create("batchproof-arena", MFD_CLOEXEC);
  if (state->fd < 0) return fail(Error::Kind::environment, fmt::format("no shared memory for a plug-in: {}", reason()));
  rlimit limit{};
  std::uint64_t size = kLargest;
  // A larger file than the limit would end the process by SIGXFSZ.
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    size = std::min<std::uint64_t>(size, limit.rlim_cur / page_size() * page_size());
  for (; size >= kSmallest; size /= 2) {
    if (ftruncate(state->fd, static_cast<off_t>(size)) != 0) continue;
    void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, state->fd, 0);
    if (base == MAP_FAILED) continue;
    state->base = static_cast<std::byte*>(base);
    state->size = size;
    madvise(base, size, MADV_DONTDUMP);
    return std::unique_ptr<Arena>(new Arena(std::move(state)));
  }
  return fail(Error::Kind::environment, fmt::format("no address space for a plug-in's tensors: {}", reason()));
}

int Arena::fd() const { return state_->fd; }
std::uint64_t Arena::size() const { return state_->size; }
std::byte* Arena::at(std::uint64_t offset) const { return state_->base + offset; }
std::uint64_t Arena::used_bytes() const { return state_->used_bytes; }
std::uint64_t Arena::idle_bytes() const { return state_->idle_bytes; }

std::uint64_t Arena::offset_of(const void* address) const {
  return static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - state_->base);
}

Result<Memory> Arena::allocate(std::size_t bytes) {
  State& state = *state_;
  if (bytes > state.size)
    return fail(Error::Kind::environment,
                fmt::format("out of memory: {} bytes of shared memory were asked for", bytes));
  const std::uint64_t size = rounded(std::max<std::size_t>(bytes, 1));
  std::uint64_t offset = 0;
  if (const auto found = state.idle.find(size); found != state.idle.end() && !found->second.empty()) {
    const State::Idle last = found->second.back();
    found->second.pop_back();
    offset = last.offset;
    if (last.has_pages) state.idle_bytes -= size;
  } else {
    if (state.size - state.next < size + kArenaGap)
      return fail(Error::Kind::environment,
                  fmt::format("out of address space: {} bytes of shared memory were asked for", bytes));
    offset = state.next;
    state.next += size + kArenaGap;
  }
  const std::uint64_t pages = (std::max<std::uint64_t>(bytes, 1) + page_size() - 1) / page_size() * page_size();
  state.used[offset] = {{offset, pages}, size};
  state.used_bytes += size;
  std::byte* data = state.base + offset;
  return Memory{data, bytes,
                std::shared_ptr<void>(data, [shared = state_, offset](void*) { shared->release(offset); })};
}

const ArenaPiece* Arena::piece_of(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  if (byte < state_->base || byte >= state_->base + state_->size) return nullptr;
  const std::uint64_t offset = offset_of(address);
  auto after = state_->used.upper_bound(offset);
  if (after == state_->used.begin()) return nullptr;
  const ArenaPiece& piece = std::prev(after)->second.piece;
  return offset < piece.offset + piece.bytes ? &piece : nullptr;
}

Result<std::unique_ptr<ArenaWindow>> ArenaWindow::map(int fd, std::uint64_t size) {
  void* base = mmap(nullptr, size, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED)
    return fail(Error::Kind::environment, fmt::format("the worker cannot map its tensors: {}", reason()));
  madvise(base, size, MADV_DONTDUMP);
  return std::unique_ptr<ArenaWindow>(new ArenaWindow(static_cast<std::byte*>(base), size));
}

ArenaWindow::~ArenaWindow() { munmap(base_, size_); }

Result<void> ArenaWindow::open(const ArenaPiece& piece, bool writable) {
  if (piece.offset >= size_ || piece.bytes > size_ - piece.offset)
    return fail(Error::Kind::internal, "a piece outside the arena was asked for");
  if (mprotect(base_ + piece.offset, piece.bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ) != 0)
    return fail(Error::Kind::environment, fmt::format("the worker cannot open its tensors: {}", reason()));
  low_ = std::min(low_, piece.offset);
  high_ = std::max(high_, piece.offset + piece.bytes);
  return {};
}

void ArenaWindow::close_all() {
  if (low_ >= high_) return;
  mprotect(base_ + low_, high_ - low_, PROT_NONE);
  low_ = UINT64_MAX;
  high_ = 0;
}

}  // namespace batchproof
