// SPDX-License-Identifier: Apache-2.0
//
// Messages between the program and a worker: a small CBOR document and raw bytes, over a stream socket. Both ends are
// the same program, so raw bytes may hold structs.
#ifndef BATCHPROOF_SRC_PLUGIN_CHANNEL_H_
#define BATCHPROOF_SRC_PLUGIN_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "src/runtime/problem.h"

namespace batchproof {

struct Message {
  nlohmann::json body = nlohmann::json::object();
  std::vector<std::byte> blob;
};

// Writes the whole message; false where the other end is gone.
bool send_message(int fd, const Message& message);

// Collects bytes until a message is whole.
class Inbox {
 public:
  enum class Status { message, incomplete, closed, damaged };
  // The next message, from what came before or else from what is there now; blocks only where the socket does.
  Status read(int fd, Message* message);

 private:
  Status take(Message* message);

  std::vector<std::byte> bytes_;
};

// Waits for the next message; false where the other end is gone or sent something else.
bool receive_message(int fd, Inbox* inbox, Message* message);

nlohmann::json problem_to_json(const Problem& problem);
// Throws nlohmann::json::exception where the message holds no problem.
Problem problem_from_json(const nlohmann::json& json);

// Text of a plug-in as a report may hold it: printable UTF-8 on one line, at most `limit` bytes.
std::string clean_text(std::string text, std::size_t limit = 1024);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_PLUGIN_CHANNEL_H_
