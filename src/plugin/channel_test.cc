// SPDX-License-Identifier: Apache-2.0
#include "src/plugin/channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

namespace batchproof {
namespace {

class ChannelTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends_), 0); }
  void TearDown() override {
    close_end(0);
    close_end(1);
  }
  void close_end(int which) {
    if (ends_[which] >= 0) close(ends_[which]);
    ends_[which] = -1;
  }
  int ends_[2] = {-1, -1};
};

TEST_F(ChannelTest, CarriesDocumentsAndBytes) {
  Message sent;
  sent.body = {{"kind", "run"}, {"number", 1234567890123}, {"text", "\x80 raw"}};
  sent.blob.resize(3000000);  // more than a socket holds
  for (std::size_t i = 0; i < sent.blob.size(); ++i) sent.blob[i] = static_cast<std::byte>(i * 7);
  std::thread sender([&] {
    EXPECT_TRUE(send_message(ends_[0], sent));
    EXPECT_TRUE(send_message(ends_[0], Message{}));
  });
  Inbox inbox;
  Message got;
  ASSERT_TRUE(receive_message(ends_[1], &inbox, &got));
  EXPECT_EQ(got.body, sent.body);
  EXPECT_EQ(got.blob, sent.blob);
  ASSERT_TRUE(receive_message(ends_[1], &inbox, &got));
  EXPECT_TRUE(got.blob.empty());
  sender.join();
}

TEST_F(ChannelTest, TwoMessagesThatComeAtOnceAreTwo) {
  Message first;
  first.body["number"] = 1;
  Message second;
  second.body["number"] = 2;
  ASSERT_TRUE(send_message(ends_[0], first));
  ASSERT_TRUE(send_message(ends_[0], second));
  Inbox inbox;
  Message got;
  ASSERT_EQ(inbox.read(ends_[1], &got), Inbox::Status::message);
  EXPECT_EQ(got.body["number"], 1);
  ASSERT_EQ(inbox.read(ends_[1], &got), Inbox::Status::message);  // nothing more is in the socket
  EXPECT_EQ(got.body["number"], 2);
}

TEST_F(ChannelTest, TellsClosedFromDamaged) {
  Inbox inbox;
  Message got;
  ASSERT_EQ(write(ends_[0], "garbage in place of a header", 28), 28);
  EXPECT_EQ(inbox.read(ends_[1], &got), Inbox::Status::damaged);
  Inbox other;
  close_end(0);
  EXPECT_EQ(other.read(ends_[1], &got), Inbox::Status::closed);
  EXPECT_FALSE(send_message(ends_[1], Message{}));
}

TEST_F(ChannelTest, AHeaderAloneIsIncomplete) {
  Message message;
  message.blob.resize(64);
  ASSERT_TRUE(send_message(ends_[0], message));
  std::byte bytes[256];
  const ssize_t size = recv(ends_[1], bytes, sizeof(bytes), 0);
  ASSERT_GT(size, 40);
  Inbox inbox;
  Message got;
  ASSERT_EQ(write(ends_[0], bytes, 40), 40);
  EXPECT_EQ(inbox.read(ends_[1], &got), Inbox::Status::incomplete);
  ASSERT_EQ(write(ends_[0], bytes + 40, static_cast<std::size_t>(size) - 40), size - 40);
  EXPECT_EQ(inbox.read(ends_[1], &got), Inbox::Status::message);
  EXPECT_EQ(got.blob.size(), 64u);
}

TEST(WireProblemTest, EveryKindOfAttributeComesBackAsItWas) {
  Problem problem;
  problem.world = 4;
  problem.axes = {{"M", 3}, {"K", std::int64_t{1} << 40}};
  problem.attrs = {
      {"flag", true}, {"count", std::int64_t{-5}}, {"whole", 2.0}, {"third", 1.0 / 3.0}, {"word", std::string("aiv")}};
  problem.dtypes = {BP_BF16, BP_NONE, BP_FP32};
  const auto json = nlohmann::json::from_cbor(nlohmann::json::to_cbor(problem_to_json(problem)));
  const Problem back = problem_from_json(json);
  EXPECT_EQ(back.world, 4);
  EXPECT_EQ(back.axes, problem.axes);
  EXPECT_EQ(back.attrs, problem.attrs);
  EXPECT_EQ(back.dtypes, problem.dtypes);
}

TEST(CleanTextTest, IsPrintableUtf8OnOneLine) {
  EXPECT_EQ(clean_text("plain"), "plain");
  EXPECT_EQ(clean_text("two\nlines\tand \x7F"), "two lines and  ");
  EXPECT_EQ(clean_text("\xC3\xA4 good, \x80 bad, \xC3"), "\xC3\xA4 good, ? bad, ?");
  EXPECT_EQ(clean_text("\xED\xA0\x80"), "???");
  EXPECT_EQ(clean_text("abcdef", 3), "abc");
  EXPECT_EQ(clean_text("ab\xC3\xA4", 3), "ab?");
}

}  // namespace
}  // namespace batchproof
