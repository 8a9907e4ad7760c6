// SPDX-License-Identifier: Apache-2.0
#include "src/plugin/channel.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace batchproof {
namespace {

constexpr std::uint32_t kMagic = 0x62703161;
constexpr std::uint64_t kLargestMessage = std::uint64_t{1} << 28;

struct Header {
  std::uint32_t magic = kMagic;
  std::uint32_t body_bytes = 0;
  std::uint64_t blob_bytes = 0;
};

}  // namespace

bool send_message(int fd, const Message& message) {
  const std::vector<std::uint8_t> body = nlohmann::json::to_cbor(message.body);
  Header header;
  header.body_bytes = static_cast<std::uint32_t>(body.size());
  header.blob_bytes = message.blob.size();
  std::vector<std::byte> bytes(sizeof(header) + body.size() + message.blob.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), body.data(), body.size());
  if (!message.blob.empty())
    std::memcpy(bytes.data() + sizeof(header) + body.size(), message.blob.data(), message.blob.size());
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t sent = send(fd, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    done += static_cast<std::size_t>(sent);
  }
  return true;
}

Inbox::Status Inbox::read(int fd, Message* message) {
  // What came with the message before may be whole already.
  if (const Status status = take(message); status != Status::incomplete) return status;
  std::byte chunk[1 << 14];
  ssize_t got = 0;
  do {
    got = recv(fd, chunk, sizeof(chunk), 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Status::incomplete;
  if (got <= 0) return Status::closed;
  bytes_.insert(bytes_.end(), chunk, chunk + got);
  return take(message);
}

Inbox::Status Inbox::take(Message* message) {
  Header header;
  if (bytes_.size() < sizeof(header)) return Status::incomplete;
  std::memcpy(&header, bytes_.data(), sizeof(header));
  if (header.magic != kMagic || header.body_bytes > kLargestMessage || header.blob_bytes > kLargestMessage)
    return Status::damaged;
  const std::size_t body_end = sizeof(header) + header.body_bytes;
  if (bytes_.size() < body_end + header.blob_bytes) return Status::incomplete;
  const auto* body = reinterpret_cast<const std::uint8_t*>(bytes_.data());
  message->body = nlohmann::json::from_cbor(body + sizeof(header), body + body_end, true, false);
  if (!message->body.is_object()) return Status::damaged;
  const auto blob = bytes_.begin() + static_cast<std::ptrdiff_t>(body_end);
  message->blob.assign(blob, blob + static_cast<std::ptrdiff_t>(header.blob_bytes));
  bytes_.erase(bytes_.begin(), blob + static_cast<std::ptrdiff_t>(header.blob_bytes));
  return Status::message;
}

bool receive_message(int fd, Inbox* inbox, Message* message) {
  for (;;) {
    const Inbox::Status status = inbox->read(fd, message);
    if (status == Inbox::Status::message) return true;
    if (status != Inbox::Status::incomplete) return false;
  }
}

nlohmann::json problem_to_json(const Problem& problem) {
  nlohmann::json attrs = nlohmann::json::object();
  // A whole floating-point number must come back as one: the alternative is kept beside the value.
  for (const auto& [name, value] : problem.attrs)
    attrs[name] = {value.index(), std::visit([](const auto& each) { return nlohmann::json(each); }, value)};
  return {{"world", problem.world}, {"axes", problem.axes}, {"attrs", attrs}, {"dtypes", problem.dtypes}};
}

Problem problem_from_json(const nlohmann::json& json) {
  Problem problem;
  problem.world = json.at("world").get<int>();
  problem.axes = json.at("axes").get<std::map<std::string, std::int64_t>>();
  problem.dtypes = json.at("dtypes").get<std::vector<bp_dtype>>();
  for (const auto& [name, entry] : json.at("attrs").items()) {
    const nlohmann::json& value = entry.at(1);
    switch (entry.at(0).get<int>()) {
      case 0:
        problem.attrs[name] = value.get<bool>();
        break;
      case 1:
        problem.attrs[name] = value.get<std::int64_t>();
        break;
      case 2:
        problem.attrs[name] = value.get<double>();
        break;
      default:
        problem.attrs[name] = value.get<std::string>();
    }
  }
  return problem;
}

std::string clean_text(std::string text, std::size_t limit) {
  if (text.size() > limit) text.resize(limit);
  std::string clean;
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::size_t length = byte < 0x80                    ? 1
                               : byte >= 0xC2 && byte <= 0xDF ? 2
                               : byte >= 0xE1 && byte <= 0xEC ? 3  // leaves out overlong forms and surrogates
                               : byte >= 0xEE && byte <= 0xEF ? 3
                               : byte >= 0xF1 && byte <= 0xF3 ? 4
                                                              : 0;
    bool good = length > 0 && i + length <= text.size();
    for (std::size_t k = 1; good && k < length; ++k) good = (static_cast<unsigned char>(text[i + k]) & 0xC0) == 0x80;
    if (!good) {
      clean += '?';
      ++i;
      continue;
    }
    if (length == 1 && (byte < 0x20 || byte == 0x7F)) {
      clean += ' ';
    } else {
      clean.append(text, i, length);
    }
    i += length;
  }
  return clean;
}

}  // namespace batchproof
