// SPDX-License-Identifier: Apache-2.0
#include "src/runtime/buffer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

// Requests for impossible sizes are what one test is about.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace batchproof {
namespace {

unsigned char* bytes_of(Buffer& buffer) { return static_cast<unsigned char*>(buffer.data()); }

Buffer make(std::size_t bytes, const BufferOptions& options = {}) {
  Result<Buffer> buffer = Buffer::make(bytes, options);
  if (!buffer) {
    ADD_FAILURE() << buffer.error().message;
    return {};
  }
  return std::move(*buffer);
}

std::vector<BufferOptions> all_options() {
  std::vector<BufferOptions> all;
  for (const std::size_t alignment : {std::size_t{2}, std::size_t{64}, std::size_t{1024}}) {
    for (const std::size_t guard : {std::size_t{0}, std::size_t{1}, std::size_t{256}}) {
      for (const GuardPages pages : {GuardPages::none, GuardPages::before, GuardPages::after}) {
        for (const bool shared : {false, true}) all.push_back({alignment, guard, pages, shared});
      }
    }
  }
  return all;
}

std::string name(const BufferOptions& o, std::size_t bytes) {
  return "alignment " + std::to_string(o.alignment) + " guard " + std::to_string(o.guard_bytes) + " pages " +
         std::to_string(static_cast<int>(o.guard_pages)) + " shared " + std::to_string(o.shared) + " bytes " +
         std::to_string(bytes);
}

TEST(BufferTest, EveryLayoutIsAlignedZeroAndWritable) {
  for (const BufferOptions& options : all_options()) {
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, std::size_t{100}, std::size_t{4096}, std::size_t{10000}}) {
      Buffer buffer = make(bytes, options);
      ASSERT_NE(buffer.data(), nullptr) << name(options, bytes);
      EXPECT_EQ(buffer.size(), bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % options.alignment, 0u) << name(options, bytes);
      for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(bytes_of(buffer)[i], 0) << name(options, bytes);
      for (const int byte : {0x00, 0xff, 0x5b}) {
        buffer.fill(static_cast<unsigned char>(byte));
        for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(bytes_of(buffer)[i], byte);
        ASSERT_TRUE(buffer.guards_intact()) << name(options, bytes);
      }
      EXPECT_EQ(buffer.fd() >= 0, options.shared);
    }
  }
}

TEST(BufferTest, EveryGuardByteIsWatched) {
  for (BufferOptions options : all_options()) {
    if (options.guard_bytes != 256) continue;
    Buffer buffer = make(100, options);
    for (const std::int64_t offset : {-256, -255, -100, -2, -1, 100, 101, 200, 354, 355}) {
      unsigned char* at = bytes_of(buffer) + offset;
      const unsigned char old = *at;
      *at = static_cast<unsigned char>(old ^ 0x10);
      const std::optional<GuardHit> hit = buffer.guard_hit();
      ASSERT_TRUE(hit) << offset << " " << name(options, 100);
      EXPECT_FALSE(buffer.guards_intact());
      EXPECT_EQ(hit->side, offset < 0 ? GuardHit::Side::before : GuardHit::Side::after);
      EXPECT_EQ(hit->offset, offset < 0 ? offset : offset - 100);
      *at = old;
      ASSERT_TRUE(buffer.guards_intact());
    }
  }
}

TEST(BufferTest, TheNearestHitIsNamed) {
  Buffer buffer = make(100, {.guard_bytes = 64});
  std::memset(bytes_of(buffer) + 103, 0, 20);
  std::memset(bytes_of(buffer) - 10, 0, 8);
  EXPECT_EQ(buffer.guard_hit()->text(), "4 bytes after its end");
  buffer.reset_guards();
  ASSERT_TRUE(buffer.guards_intact());
  std::memset(bytes_of(buffer) - 10, 0, 8);
  EXPECT_EQ(buffer.guard_hit()->text(), "3 bytes before its begin");
  buffer.reset_guards();
  bytes_of(buffer)[100] ^= 1;
  EXPECT_EQ(buffer.guard_hit()->text(), "1 byte after its end");
}

// A copy that runs over by a few elements often writes a constant: no constant may pass as the pattern.
TEST(BufferTest, NoConstantAndNoShiftPassesAsThePattern) {
  Buffer buffer = make(64, {.guard_bytes = 64});
  for (int byte = 0; byte < 256; ++byte) {
    std::memset(bytes_of(buffer) + 64, byte, 4);
    EXPECT_FALSE(buffer.guards_intact()) << byte;
    buffer.reset_guards();
  }
  for (std::size_t shift = 1; shift < 32; ++shift) {
    std::memmove(bytes_of(buffer) + 64, bytes_of(buffer) + 64 + shift, 32);
    EXPECT_FALSE(buffer.guards_intact()) << shift;
    buffer.reset_guards();
  }
}

TEST(BufferTest, MovingKeepsTheMemoryAndEmptiesTheSource) {
  for (const bool shared : {false, true}) {
    Buffer first = make(100, {.guard_bytes = 64, .shared = shared});
    first.fill(7);
    void* const data = first.data();
    Buffer second = std::move(first);
    EXPECT_EQ(second.data(), data);
    // What is left behind is what is tested. NOLINTBEGIN(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
    EXPECT_EQ(first.data(), nullptr);
    EXPECT_EQ(first.size(), 0u);
    EXPECT_TRUE(first.guards_intact());
    // NOLINTEND(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
    Buffer third = make(50);
    third = std::move(second);
    EXPECT_EQ(third.data(), data);
    EXPECT_EQ(bytes_of(third)[99], 7);
    EXPECT_EQ(third.fd() >= 0, shared);
    Buffer& alias = third;
    third = std::move(alias);
    EXPECT_EQ(third.data(), data);
  }
}

TEST(BufferTest, BadRequestsAreErrors) {
  const std::size_t huge = std::numeric_limits<std::size_t>::max();
  for (BufferOptions options : all_options()) {
    for (const std::size_t bytes : {huge, huge - 4096, huge / 2}) {
      const Result<Buffer> buffer = Buffer::make(bytes, options);
      ASSERT_FALSE(buffer) << name(options, bytes);
      EXPECT_EQ(buffer.error().kind, Error::Kind::environment);
    }
    options.guard_bytes = huge - 10;
    EXPECT_FALSE(Buffer::make(100, options));
  }
  EXPECT_FALSE(Buffer::make(10, {.alignment = 0}));
  EXPECT_FALSE(Buffer::make(10, {.alignment = 48}));
  EXPECT_FALSE(Buffer::make(10, {.alignment = std::size_t{1} << 20, .guard_pages = GuardPages::after}));
}

TEST(BufferTest, AnotherProcessSeesSharedMemory) {
  for (const GuardPages pages : {GuardPages::none, GuardPages::before, GuardPages::after}) {
    const BufferOptions options = {.alignment = 8, .guard_bytes = 32, .guard_pages = pages, .shared = true};
    Buffer mine = make(5000, options);
    mine.fill(1);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Result<Buffer> theirs = Buffer::attach(mine.fd(), 5000, options);
      if (!theirs || theirs->data() == mine.data() || !theirs->guards_intact()) _exit(1);
      if (bytes_of(*theirs)[0] != 1 || bytes_of(*theirs)[4999] != 1) _exit(2);
      theirs->fill(9);
      bytes_of(*theirs)[5000] ^= 0xff;  // and an overrun by one
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_EQ(WEXITSTATUS(status), 0);
    EXPECT_EQ(bytes_of(mine)[0], 9);
    EXPECT_EQ(bytes_of(mine)[4999], 9);
    ASSERT_TRUE(mine.guard_hit());
    EXPECT_EQ(mine.guard_hit()->text(), "1 byte after its end");
  }
}

TEST(BufferTest, SharedMemoryCannotBeResizedAndASizeMismatchIsAnError) {
  const BufferOptions options = {.shared = true};
  Buffer buffer = make(5000, options);
  EXPECT_NE(ftruncate(buffer.fd(), 0), 0) << "a smaller file would fault in this process";
  EXPECT_NE(ftruncate(buffer.fd(), 1 << 20), 0);
  EXPECT_NE(fcntl(buffer.fd(), F_GETFD) & FD_CLOEXEC, 0);
  const Result<Buffer> other = Buffer::attach(buffer.fd(), 50000, options);
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message.find("were expected"), std::string::npos);
  EXPECT_FALSE(Buffer::attach(-1, 5000, options));
  EXPECT_FALSE(Buffer::attach(buffer.fd(), 5000, {}));
  const Result<Buffer> same = Buffer::attach(buffer.fd(), 5000, options);
  ASSERT_TRUE(same);
  EXPECT_NE(same->fd(), buffer.fd()) << "each owns its own descriptor";
}

class GuardPageTest : public testing::Test {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

// Runs under the default action for SIGSEGV, so that a sanitizer's handler does not change how the child dies.
void touch(volatile unsigned char* at, bool write) {
  std::signal(SIGSEGV, SIG_DFL);
  std::signal(SIGBUS, SIG_DFL);
  if (write) {
    *at = 1;
  } else {
    static_cast<void>(*at);
  }
  _exit(0);
}

TEST_F(GuardPageTest, TheFirstByteBehindTheEndFaults) {
  for (const bool shared : {false, true}) {
    Buffer buffer = make(4098, {.alignment = 2, .guard_pages = GuardPages::after, .shared = shared});
    EXPECT_EXIT(touch(bytes_of(buffer) + 4098, true), testing::KilledBySignal(SIGSEGV), "");
    EXPECT_EXIT(touch(bytes_of(buffer) + 4098, false), testing::KilledBySignal(SIGSEGV), "");
    EXPECT_EXIT(touch(bytes_of(buffer) + 4097, true), testing::ExitedWithCode(0), "");
    EXPECT_EXIT(touch(bytes_of(buffer), false), testing::ExitedWithCode(0), "");
  }
}

TEST_F(GuardPageTest, TheByteBeforeTheBeginFaults) {
  for (const bool shared : {false, true}) {
    Buffer buffer = make(10, {.guard_pages = GuardPages::before, .shared = shared});
    EXPECT_EXIT(touch(bytes_of(buffer) - 1, true), testing::KilledBySignal(SIGSEGV), "");
    EXPECT_EXIT(touch(bytes_of(buffer) - 1, false), testing::KilledBySignal(SIGSEGV), "");
    EXPECT_EXIT(touch(bytes_of(buffer), true), testing::ExitedWithCode(0), "");
    // Both sides have a page: a far overrun faults too, a near one is in the watched rest of the page.
    EXPECT_EXIT(touch(bytes_of(buffer) + 4096, true), testing::KilledBySignal(SIGSEGV), "");
    bytes_of(buffer)[10] ^= 1;
    EXPECT_EQ(buffer.guard_hit()->text(), "1 byte after its end");
  }
}

TEST_F(GuardPageTest, TheGapThatTheAlignmentLeavesIsWatched) {
  Buffer buffer = make(100, {.alignment = 64, .guard_pages = GuardPages::after});
  EXPECT_TRUE(buffer.guards_intact());
  EXPECT_EXIT(touch(bytes_of(buffer) + 128, true), testing::KilledBySignal(SIGSEGV), "");
  bytes_of(buffer)[127] ^= 1;
  ASSERT_TRUE(buffer.guard_hit());
  EXPECT_EQ(buffer.guard_hit()->offset, 27);
  buffer.reset_guards();
  bytes_of(buffer)[-1] ^= 1;
  EXPECT_EQ(buffer.guard_hit()->side, GuardHit::Side::before);
}

}  // namespace
}  // namespace batchproof
