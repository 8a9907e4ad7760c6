// SPDX-License-Identifier: Apache-2.0
#include "src/runtime/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "src/numeric/digest.h"

namespace batchproof {
namespace {

namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "batchproof_file_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void plain_write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
  }
  std::string plain_read(const std::string& name) const {
    std::ostringstream content;
    content << std::ifstream(path(name), std::ios::binary).rdbuf();
    return content.str();
  }
  std::size_t entries() const {
    std::size_t count = 0;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      static_cast<void>(entry);
      ++count;
    }
    return count;
  }

  std::string folder_;
};

const std::string kBinary = std::string("a\0b\r\n\xff", 6) + std::string(200000, 'x') + "end";

TEST_F(FileTest, ReadsEveryByte) {
  plain_write("binary", kBinary);
  const auto content = read_file(path("binary"));
  ASSERT_TRUE(content) << content.error().message;
  EXPECT_EQ(*content, kBinary);
  plain_write("empty", "");
  EXPECT_EQ(*read_file(path("empty")), "");
}

TEST_F(FileTest, TheLimitIsExact) {
  plain_write("ten", "0123456789");
  EXPECT_EQ(*read_file(path("ten"), 10), "0123456789");
  const auto over = read_file(path("ten"), 9);
  ASSERT_FALSE(over);
  EXPECT_EQ(over.error().kind, Error::Kind::usage);
  EXPECT_EQ(over.error().message, "cannot read " + path("ten") + ": larger than the limit of 9 bytes");
  EXPECT_FALSE(read_file(path("ten"), 0));
  EXPECT_FALSE(read_file("/dev/zero", 1 << 20)) << "an endless device ends at the limit";
}

TEST_F(FileTest, ReadErrorsNamePathAndReason) {
  const auto missing = read_file(path("missing"));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().kind, Error::Kind::usage);
  EXPECT_EQ(missing.error().message, "cannot read " + path("missing") + ": No such file or directory");
  const auto folder = read_file(folder_);
  ASSERT_FALSE(folder);
  EXPECT_EQ(folder.error().message, "cannot read " + folder_ + ": Is a directory");
}

TEST_F(FileTest, ReadsAPipe) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  std::thread writer([this] { std::ofstream(path("pipe"), std::ios::binary) << kBinary; });
  const auto content = read_file(path("pipe"));
  writer.join();
  ASSERT_TRUE(content);
  EXPECT_EQ(*content, kBinary);
}

TEST_F(FileTest, WritesANewFileAndLeavesNothingElse) {
  ASSERT_TRUE(write_file(path("new"), kBinary));
  EXPECT_EQ(plain_read("new"), kBinary);
  EXPECT_EQ(entries(), 1u);
  const mode_t mask = umask(0);
  umask(mask);
  struct stat status{};
  ASSERT_EQ(stat(path("new").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0666 & ~mask);
}

TEST_F(FileTest, ReplacesAsAWholeAndKeepsThePermissions) {
  plain_write("report", "old content that is longer");
  ASSERT_EQ(chmod(path("report").c_str(), 0640), 0);
  std::ifstream old_reader(path("report"));
  ASSERT_TRUE(write_file(path("report"), "new"));
  EXPECT_EQ(plain_read("report"), "new");
  std::string seen;
  std::getline(old_reader, seen);
  EXPECT_EQ(seen, "old content that is longer") << "who had it open keeps the old content";
  struct stat status{};
  ASSERT_EQ(stat(path("report").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FileTest, FollowsALink) {
  ASSERT_TRUE(fs::create_directory(path("real")));
  plain_write("real/report", "old");
  fs::create_symlink("real/report", path("link"));
  ASSERT_TRUE(write_file(path("link"), "new"));
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(plain_read("real/report"), "new");
}

TEST_F(FileTest, WritesAPipeDirectly) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  std::string seen;
  std::thread reader([&] { seen = plain_read("pipe"); });
  ASSERT_TRUE(write_file(path("pipe"), kBinary));
  reader.join();
  EXPECT_EQ(seen, kBinary);
  EXPECT_TRUE(fs::is_fifo(path("pipe"))) << "the pipe was not replaced by a file";
  ASSERT_TRUE(write_file("/dev/null", "x"));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(FileTest, AFailedWriteKeepsTheOldContent) {
  const auto nowhere = write_file(path("missing/report"), "x");
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().kind, Error::Kind::usage);
  EXPECT_EQ(nowhere.error().message, "cannot write " + path("missing/report") + ": No such file or directory");
  EXPECT_FALSE(write_file(folder_, "x"));
  EXPECT_EQ(entries(), 0u);
  const auto full = write_file("/dev/full", "x");
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().kind, Error::Kind::environment);
  EXPECT_EQ(full.error().message, "cannot write /dev/full: No space left on device");
}

TEST_F(FileTest, ConcurrentWritersLeaveOneWholeContent) {
  std::vector<std::thread> writers;
  for (char c = 'a'; c < 'g'; ++c) {
    writers.emplace_back([this, c] {
      for (int i = 0; i < 20; ++i) EXPECT_TRUE(write_file(path("report"), std::string(10000, c)));
    });
  }
  for (std::thread& writer : writers) writer.join();
  const std::string content = plain_read("report");
  ASSERT_EQ(content.size(), 10000u);
  EXPECT_EQ(content, std::string(10000, content[0]));
  EXPECT_EQ(entries(), 1u);
}

// XXH3-64 of the empty input with seed 0, as the algorithm's published test vectors have it.
TEST_F(FileTest, Digests) {
  plain_write("empty", "");
  EXPECT_EQ(*file_digest(path("empty")), "2d06800538d394c2");
  plain_write("binary", kBinary);
  EXPECT_EQ(*file_digest(path("binary")), digest_hex(digest_bytes(kBinary.data(), kBinary.size())));
  std::string changed = kBinary;
  changed[150000] = 'y';
  plain_write("changed", changed);
  EXPECT_NE(*file_digest(path("changed")), *file_digest(path("binary")));
  EXPECT_FALSE(file_digest(path("missing")));
  EXPECT_FALSE(file_digest(folder_));
}

}  // namespace
}  // namespace batchproof
