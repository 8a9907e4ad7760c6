// SPDX-License-Identifier: Apache-2.0
//
// Runs the program as a user does: arguments, environment, exit code, both outputs; and folders for its files.
#ifndef BATCHPROOF_TESTS_PROGRAM_H_
#define BATCHPROOF_TESTS_PROGRAM_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

extern char** environ;

namespace batchproof {

inline std::string file_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// A folder of its own for each test; gone afterwards.
class ProgramTest : public ::testing::Test {
 protected:
  struct Outcome {
    int code = -1;  // 128 + signal where it was killed
    std::string out, err;
  };

  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "batchproof-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }

  using Environment = std::map<std::string, std::string>;

  // No BATCHPROOF_ or GITHUB_ variable of the test's own environment gets through.
  Outcome run(const std::vector<std::string>& arguments, const Environment& environment = {}) const {
    return spawn(BATCHPROOF_PROGRAM, arguments, environment);
  }

  Outcome shell(const std::string& line) const { return spawn("/bin/bash", {"-c", line}, {}); }

  Outcome spawn(const std::string& program, const std::vector<std::string>& arguments,
                const Environment& environment) const {
    return wait_for(start(program, arguments, environment));
  }

  // Its process, or -1; one at a time, for the outputs have fixed places.
  pid_t start(const std::string& program, const std::vector<std::string>& arguments,
              const Environment& environment) const {
    std::vector<std::string> words = {program};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<std::string> variables;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      if (text.rfind("BATCHPROOF_", 0) != 0 && text.rfind("GITHUB_", 0) != 0) variables.push_back(text);
    }
    for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, path(kOut).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, path(kErr).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pid_t child = -1;
    const int error =
        posix_spawn(&child, program.c_str(), &actions, nullptr, pointers(words).data(), pointers(variables).data());
    posix_spawn_file_actions_destroy(&actions);
    EXPECT_EQ(error, 0) << program;
    return error == 0 ? child : -1;
  }

  Outcome wait_for(pid_t child) const {
    if (child < 0) return {};
    int status = 0;
    waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), file_text(path(kOut)),
            file_text(path(kErr))};
  }

  static std::vector<std::string> lines(const std::string& text) {
    std::vector<std::string> list;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) list.push_back(line);
    return list;
  }
  static std::string last_line(const std::string& text) {
    const std::vector<std::string> list = lines(text);
    return list.empty() ? "" : list.back();
  }
  static bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

 private:
  static constexpr const char* kOut = ".stdout";
  static constexpr const char* kErr = ".stderr";

  static std::vector<char*> pointers(const std::vector<std::string>& words) {
    std::vector<char*> list;
    for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
    list.push_back(nullptr);
    return list;
  }

  std::filesystem::path folder_;
};

}  // namespace batchproof

#endif  // BATCHPROOF_TESTS_PROGRAM_H_
