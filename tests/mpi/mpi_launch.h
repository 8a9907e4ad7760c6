// SPDX-License-Identifier: Apache-2.0
//
// Runs the program under mpirun, and reaches its ranks while it runs.
#ifndef BATCHPROOF_TESTS_MPI_MPI_LAUNCH_H_
#define BATCHPROOF_TESTS_MPI_MPI_LAUNCH_H_

#include <signal.h>

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/program.h"

namespace batchproof {

// Of one rank: mpirun's child, and its child, which computes.
struct RankProcesses {
  pid_t guard = -1, worker = -1;
};

class MpiTest : public ProgramTest {
 protected:
  using json = nlohmann::json;

  // Far beyond what anything here takes, and below the limit that CTest has: a machine may be busy.
  static constexpr std::chrono::seconds kPatience{60};

  static std::vector<std::string> mpirun_words(int ranks) {
    return {"--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "-n", std::to_string(ranks)};
  }
  static std::vector<std::string> with_program(std::vector<std::string> words,
                                               const std::vector<std::string>& arguments) {
    words.emplace_back(BATCHPROOF_PROGRAM);
    words.insert(words.end(), arguments.begin(), arguments.end());
    return words;
  }
  Outcome launch(int ranks, const std::vector<std::string>& arguments) const {
    return spawn(BATCHPROOF_MPIRUN, with_program(mpirun_words(ranks), arguments), {});
  }
  pid_t start_launch(int ranks, const std::vector<std::string>& arguments) const {
    return start(BATCHPROOF_MPIRUN, with_program(mpirun_words(ranks), arguments), {});
  }

  // Looks until it is so.
  static bool eventually(const std::function<bool()>& so) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!so()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return true;
  }

  // A child that nobody has waited for yet.
  static bool has_ended(pid_t child) {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == child;
  }
  static bool alive(pid_t pid) { return kill(pid, 0) == 0 && state_of(pid) != 'Z'; }

  // The processes of a rank that mpirun, as `launcher`, has started; -1 where they are not there yet.
  static RankProcesses rank_of(pid_t launcher, int rank) {
    const std::string name = "OMPI_COMM_WORLD_RANK=" + std::to_string(rank);
    for (const pid_t child : children_of(launcher)) {
      const std::string environment = '\0' + file_text("/proc/" + std::to_string(child) + "/environ");
      if (environment.find('\0' + name + '\0') == std::string::npos) continue;
      const std::vector<pid_t> workers = children_of(child);
      return {child, workers.empty() ? -1 : workers.front()};
    }
    return {};
  }

  static json report_of(const std::string& file) { return json::parse(file_text(file), nullptr, false); }

  static int count(const std::string& text, const std::string& part) {
    int found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
    return found;
  }

 private:
  static char state_of(pid_t pid) {
    const std::string stat = file_text("/proc/" + std::to_string(pid) + "/stat");
    const std::size_t end = stat.rfind(')');
    return end == std::string::npos || end + 2 >= stat.size() ? 'Z' : stat[end + 2];
  }
  static std::vector<pid_t> children_of(pid_t parent) {
    std::vector<pid_t> list;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      const std::string stat = file_text(entry.path() / "stat");
      const std::size_t end = stat.rfind(')');  // the name before it may hold anything
      if (end == std::string::npos) continue;
      std::istringstream rest(stat.substr(end + 1));
      char state = '?';
      pid_t its_parent = -1;
      rest >> state >> its_parent;
      if (its_parent == parent) list.push_back(std::stoi(name));
    }
    return list;
  }
};

}  // namespace batchproof

#endif  // BATCHPROOF_TESTS_MPI_MPI_LAUNCH_H_
