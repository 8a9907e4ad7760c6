// SPDX-License-Identifier: Apache-2.0
//
// Parent and child of the fresh process. Ids and results travel as lines of JSON, since an id may hold any character.
#include "src/cli/fresh.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "src/cli/exit.h"
#include "src/cli/print.h"
#include "src/cli/select.h"
#include "src/cli/verbs.h"

namespace batchproof::cli {
namespace {

// A pipe whose ends do not survive into other children.
struct Pipe {
  int read_end = -1, write_end = -1;
  ~Pipe() {
    close_read();
    close_write();
  }
  bool open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    read_end = ends[0];
    write_end = ends[1];
    return true;
  }
  void close_read() {
    if (read_end >= 0) close(read_end);
    read_end = -1;
  }
  void close_write() {
    if (write_end >= 0) close(write_end);
    write_end = -1;
  }
};

tl::unexpected<Error> failed(const std::string& what) {
  return fail(Error::Kind::environment, "repeat in a fresh process: " + what);
}

std::string line_of(const nlohmann::json& json) {
  return json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
}

std::vector<std::string> child_words(const std::vector<std::string>& suites, const SelectionFlags& flags,
                                     double timeout) {
  std::vector<std::string> words = {"batchproof", "digest"};
  for (const std::string& word : override_words(flags)) words.push_back(word);
  const auto add = [&](const char* flag, const std::string& value) {
    if (value.empty()) return;
    words.push_back(flag);
    words.push_back(value);
  };
  add("--ranks", flags.ranks);
  add("--seed", flags.seed);
  add("--timeout", fmt::format("{}", timeout));
  words.push_back("--");
  words.insert(words.end(), suites.begin(), suites.end());
  return words;
}

Result<pid_t> start(const std::vector<std::string>& words, const Pipe& in, const Pipe& out) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.read_end, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.write_end, STDOUT_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = -1;
  const int error = posix_spawn(&child, "/proc/self/exe", &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return failed(fmt::format("cannot start it: {}", std::strerror(error)));
  return child;
}

// Takes whole lines off the front of `text`.
Result<void> take_lines(std::string* text, CellDigests* digests) {
  for (std::size_t end = text->find('\n'); end != std::string::npos; end = text->find('\n')) {
    try {
      const nlohmann::json line = nlohmann::json::parse(text->substr(0, end));
      for (const auto& [id, ports] : line.items()) {
        if (ports.is_string()) {
          digests->insert_or_assign(id, fail(Error::Kind::operation, ports.get<std::string>()));
          continue;
        }
        std::vector<PortDigest> list;
        for (const nlohmann::json& port : ports) {
          list.push_back({port.at("port").get<std::string>(), port.at("digest").get<std::string>()});
        }
        digests->insert_or_assign(id, std::move(list));
      }
    } catch (const nlohmann::json::exception& exception) {
      return failed(fmt::format("it printed something else than results: {}", exception.what()));
    }
    text->erase(0, end + 1);
  }
  return {};
}

// Feeds `input` and collects results until the child closes its output. The child may answer before it has read all.
Result<void> talk(Pipe& in, Pipe& out, const std::string& input, double timeout, CellDigests* digests) {
  std::size_t sent = 0;
  std::string text;
  fcntl(in.write_end, F_SETFL, O_NONBLOCK);
  while (true) {
    pollfd polls[2] = {{out.read_end, POLLIN, 0}, {in.write_end, POLLOUT, 0}};
    const int ready = poll(polls, in.write_end >= 0 ? 2 : 1, static_cast<int>(timeout * 1000.0));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return failed(std::strerror(errno));
    if (ready == 0) return failed(fmt::format("no result within {} s (--timeout)", timeout));
    if (in.write_end >= 0 && (polls[1].revents & (POLLOUT | POLLERR | POLLHUP)) != 0) {
      const ssize_t count = write(in.write_end, input.data() + sent, input.size() - sent);
      if (count > 0) sent += static_cast<std::size_t>(count);
      // A child that died has closed its end; its exit status tells the cause.
      if (sent == input.size() || (count < 0 && errno != EAGAIN && errno != EINTR)) in.close_write();
    }
    if ((polls[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
      char buffer[65536];
      const ssize_t count = read(out.read_end, buffer, sizeof buffer);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return {};
      text.append(buffer, static_cast<std::size_t>(count));
      if (auto taken = take_lines(&text, digests); !taken) return taken;
    }
  }
}

Result<void> wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return failed(std::strerror(errno));
  }
  if (WIFSIGNALED(status)) return failed(fmt::format("it died of signal {}", WTERMSIG(status)));
  if (WEXITSTATUS(status) != 0) return failed(fmt::format("it ended with exit code {}", WEXITSTATUS(status)));
  return {};
}

}  // namespace

Result<CellDigests> digest_in_fresh_process(const std::vector<Cell>& cells, const std::vector<std::string>& suites,
                                            const SelectionFlags& flags, double timeout) {
  Pipe in;
  Pipe out;
  if (!in.open() || !out.open()) return failed(fmt::format("no pipe: {}", std::strerror(errno)));
  std::string input;
  for (const Cell& cell : cells) input += line_of(cell.id);
  // Writing to a child that has died must be an error, not this program's end.
  struct sigaction ignore = {};
  struct sigaction before = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &before);
  CellDigests digests;
  // A plug-in that hangs uses up its own limit there, and says nothing meanwhile. A cell may have a larger limit.
  double limit = timeout;
  for (const Cell& cell : cells) limit = std::max(limit, cell.timeout_s.value_or(0.0));
  const double silence = flags.plugins.empty() ? limit : 2.0 * limit + 5.0;
  const auto run = [&]() -> Result<void> {
    const Result<pid_t> child = start(child_words(suites, flags, timeout), in, out);
    if (!child) return tl::unexpected(child.error());
    in.close_read();
    out.close_write();
    Result<void> talked = talk(in, out, input, silence, &digests);
    if (!talked) kill(*child, SIGKILL);
    Result<void> ended = wait_for(*child);
    return talked ? ended : talked;
  };
  const Result<void> done = run();
  sigaction(SIGPIPE, &before, nullptr);
  if (!done) return tl::unexpected(done.error());
  return digests;
}

std::string digests_to_text(const CellDigests& digests) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [id, ports] : digests) {
    if (!ports) {
      json[id] = ports.error().message;
      continue;
    }
    nlohmann::json& list = json[id] = nlohmann::json::array();
    for (const PortDigest& port : *ports) list.push_back({{"port", port.port}, {"digest", port.digest}});
  }
  return line_of(json);
}

CellDigests digests_from_text(const std::string& text) {
  CellDigests digests;
  std::string lines = text;
  static_cast<void>(take_lines(&lines, &digests));
  return digests;
}

int run_digest(const SelectionFlags& flags, double timeout) {
  const Result<Selection> selection = select_cells(flags);
  if (!selection) return report_error(selection.error());
  std::set<std::string> wanted;
  for (std::string line; std::getline(std::cin, line);) {
    const nlohmann::json id = nlohmann::json::parse(line, nullptr, false);
    if (!id.is_string()) return report_error({Error::Kind::usage, "digest: stdin holds cell ids as JSON strings"});
    wanted.insert(id.get<std::string>());
  }
  RunOptions options;
  options.seed = selection->options.seed;
  options.host = plugin_hosts(*selection);
  options.device = selection->options.device;
  options.timeout_s = timeout;
  std::vector<Cell> cells;
  for (const Cell& cell : selection->cells) {
    if (wanted.count(cell.id) != 0) cells.push_back(cell);
  }
  // One by one, so that the parent sees that work goes on.
  digest_cells(cells, options, [](const CellDigests& one) { std::cout << digests_to_text(one) << std::flush; });
  return std::cout.good() ? kExitOk : kExitEnvironment;
}

}  // namespace batchproof::cli
