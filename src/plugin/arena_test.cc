// SPDX-License-Identifier: Apache-2.0
//
// The shared memory: pieces apart from each other, reuse, and a window in which only the open pieces can be touched.
#include "src/plugin/arena.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>

namespace batchproof {
namespace {

TEST(ArenaTest, PiecesAreApartAndFound) {
  const auto arena = Arena::make();
  ASSERT_TRUE(arena.has_value()) << arena.error().message;
  const auto a = (*arena)->allocate(1);
  const auto b = (*arena)->allocate(100000);
  ASSERT_TRUE(a.has_value() && b.has_value());
  const ArenaPiece* piece = (*arena)->piece_of(b->data + 99999);
  ASSERT_NE(piece, nullptr);
  EXPECT_EQ(piece->offset, (*arena)->offset_of(b->data));
  EXPECT_EQ(piece->bytes, 25u * 4096u);
  EXPECT_EQ(piece->offset % 4096, 0u);
  EXPECT_GE(static_cast<std::uint64_t>(b->data - a->data), 4096 + kArenaGap);
  EXPECT_EQ((*arena)->piece_of(b->data + piece->bytes), nullptr);
  EXPECT_EQ((*arena)->piece_of(b->data - 1), nullptr);
  EXPECT_EQ((*arena)->piece_of(&piece), nullptr);
  std::memset(b->data, 7, b->bytes);
  EXPECT_EQ((*arena)->at(piece->offset)[5], std::byte{7});
}

TEST(ArenaTest, FreedPiecesAreUsedAgain) {
  const auto arena = Arena::make();
  ASSERT_TRUE(arena.has_value());
  std::byte* first = nullptr;
  {
    const auto memory = (*arena)->allocate(50000);
    first = memory->data;
    EXPECT_GT((*arena)->used_bytes(), 0u);
  }
  EXPECT_EQ((*arena)->used_bytes(), 0u);
  EXPECT_EQ((*arena)->piece_of(first), nullptr);
  EXPECT_EQ((*arena)->allocate(50100)->data, first);  // a little larger, the same class
}

TEST(ArenaTest, IdleMemoryIsBounded) {
  const auto arena = Arena::make();
  ASSERT_TRUE(arena.has_value());
  for (int round = 0; round < 3; ++round) {
    std::vector<Memory> pieces;
    for (int i = 0; i < 4; ++i) pieces.push_back(*(*arena)->allocate((100u << 20) + 4096u * 4096u * i));
    for (const Memory& piece : pieces) piece.data[0] = std::byte{1};
  }
  EXPECT_LE((*arena)->idle_bytes(), 256u << 20);
}

TEST(ArenaTest, PiecesOutliveTheArena) {
  Memory memory;
  {
    const auto arena = Arena::make();
    memory = *(*arena)->allocate(4096);
  }
  memory.data[4095] = std::byte{9};
  EXPECT_EQ(memory.data[4095], std::byte{9});
}

TEST(ArenaTest, TooMuchIsAnEnvironmentError) {
  const auto arena = Arena::make();
  ASSERT_TRUE(arena.has_value());
  const auto memory = (*arena)->allocate(std::size_t{1} << 50);
  ASSERT_FALSE(memory.has_value());
  EXPECT_EQ(memory.error().kind, Error::Kind::environment);
}

// The signal that ends a child which does this; 0: it came through.
int signal_of(const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

void poke(std::byte* at) { *const_cast<volatile std::byte*>(at) = std::byte{1}; }
void peek(std::byte* at) { (void)*const_cast<volatile std::byte*>(at); }

TEST(ArenaWindowTest, OnlyOpenPiecesCanBeTouched) {
  const auto arena = Arena::make();
  ASSERT_TRUE(arena.has_value());
  const auto input = (*arena)->allocate(5000);
  const auto output = (*arena)->allocate(5000);
  input->data[4999] = std::byte{5};
  const auto window = ArenaWindow::map((*arena)->fd(), (*arena)->size());
  ASSERT_TRUE(window.has_value());
  const ArenaPiece in = *(*arena)->piece_of(input->data);
  const ArenaPiece out = *(*arena)->piece_of(output->data);
  std::byte* in_data = (*window)->base() + in.offset;
  std::byte* out_data = (*window)->base() + out.offset;
  EXPECT_EQ(signal_of([&] { peek(in_data); }), SIGSEGV);
  ASSERT_TRUE((*window)->open(in, false).has_value());
  ASSERT_TRUE((*window)->open(out, true).has_value());
  EXPECT_EQ(in_data[4999], std::byte{5});
  EXPECT_EQ(signal_of([&] { poke(in_data); }), SIGSEGV);
  EXPECT_EQ(signal_of([&] { poke(out_data + 8191); }), 0);
  EXPECT_EQ(signal_of([&] { poke(out_data + 8192); }), SIGSEGV);
  EXPECT_EQ(signal_of([&] { poke(out_data - 1); }), SIGSEGV);
  out_data[17] = std::byte{3};
  EXPECT_EQ(output->data[17], std::byte{3});
  (*window)->close_all();
  EXPECT_EQ(signal_of([&] { peek(in_data); }), SIGSEGV);
  EXPECT_EQ(signal_of([&] { peek(out_data); }), SIGSEGV);
  EXPECT_FALSE((*window)->open({(*window)->size() - 4096, 8192}, true).has_value());
}

}  // namespace
}  // namespace batchproof
