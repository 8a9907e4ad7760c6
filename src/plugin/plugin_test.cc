// SPDX-License-Identifier: Apache-2.0
//
// Opening a plug-in: what is refused and how, what is noticed, and how its operators are found.
#include "src/plugin/plugin.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "batchproof/registry.h"
#include "src/plugin/test_support.h"

namespace batchproof {
namespace {

std::string refusal_of(const std::string& path, Error::Kind kind = Error::Kind::usage) {
  const auto opened = open_plugin(path, test_options());
  if (opened) {
    ADD_FAILURE() << path << " was opened";
    return {};
  }
  EXPECT_EQ(opened.error().kind, kind) << opened.error().message;
  EXPECT_EQ(opened.error().message.find('\n'), std::string::npos);
  return opened.error().message;
}

TEST(OpenPluginTest, BadFilesAreRefusedByName) {
  const struct {
    const char* stem;
    const char* message;
  } cases[] = {
      {"no_symbol", "exports no batchproof_operators"},
      {"too_new", "abi_version is 2, newer than 1, which this program knows"},
      {"too_old", "abi_version is 0, too old"},
      {"too_small", "too small: a table of version 1 has"},
      {"bad_port", "operator bad_port: port w: row_axis 5 is outside; shape \"K, N\" has axes 0 to 1"},
      {"crash_on_load", "crashed with SIGABRT in load; its last line on stderr: licence server not found"},
      {"exit_on_load", "exited with status 7 in load"},
  };
  for (const auto& each : cases) {
    const std::string message = refusal_of(plugin_path(each.stem));
    EXPECT_NE(message.find(each.message), std::string::npos) << each.stem << ": " << message;
    EXPECT_NE(message.find(std::string(each.stem) + ".so: "), std::string::npos) << message;
  }
}

TEST(OpenPluginTest, MissingAndForeignFilesAreRefused) {
  EXPECT_NE(refusal_of("/nonexistent/op.so").find("/nonexistent/op.so"), std::string::npos);
  const std::string text = testing::TempDir() + "not_a_library.so";
  std::ofstream(text) << "just text\n";
  EXPECT_NE(refusal_of(text).find("cannot be loaded"), std::string::npos);
  std::remove(text.c_str());
}

TEST(OpenPluginTest, AMissingWorkerProgramIsTheEnvironmentsFault) {
  PluginOptions options = test_options();
  options.worker_program = "/nonexistent/batchproof";
  const auto opened = open_plugin(plugin_path("ranks"), options);
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().kind, Error::Kind::environment);
  EXPECT_NE(opened.error().message.find("/nonexistent/batchproof"), std::string::npos);
}

TEST(OpenPluginTest, TheProgramDoesNotLoadTheLibrary) {
  const OpenedPlugin opened("fast_math");
  ASSERT_NE(opened.plugin, nullptr);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) EXPECT_EQ(line.find("fast_math.so"), std::string::npos);
}

TEST(OpenPluginTest, WhatLoadingChangesIsNotedAndDoesNotReachACall) {
  const OpenedPlugin opened("fast_math");
  ASSERT_NE(opened.plugin, nullptr);
  const auto& notes = opened.plugin->load_notes();
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_EQ(notes[0], "sets flush-to-zero when loaded");
  EXPECT_EQ(notes[1], "installs handlers for SIGUSR2 when loaded");
  const CellResult result = opened.run(opened.cell("good", 2));
  EXPECT_EQ(result.verdict, Verdict::pass) << result.reason;
  EXPECT_TRUE(OpenedPlugin("faults").plugin->load_notes().empty());
}

TEST(OpenPluginTest, OperatorsAreRegisteredAsLongAsThePluginIsOpen) {
  const auto is_registered = [] {
    for (const bp_operator* table : registered_operators()) {
      if (std::strcmp(table->name, "ranks") == 0) return true;
    }
    return false;
  };
  PluginOptions options = test_options();
  options.register_operators = true;
  ASSERT_FALSE(is_registered());
  {
    const auto opened = open_plugin(plugin_path("ranks"), options);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    EXPECT_TRUE(is_registered());
    EXPECT_EQ((*opened)->host(&*registered_operators().front())->table().name, registered_operators().front()->name);
    const auto again = open_plugin(plugin_path("ranks"), options);
    ASSERT_FALSE(again.has_value());
    EXPECT_NE(again.error().message.find("operator ranks: the name is taken"), std::string::npos);
  }
  EXPECT_FALSE(is_registered());
}

TEST(OpenPluginTest, BuildIdIsThatOfTheFile) {
  const OpenedPlugin one("ranks");
  const OpenedPlugin two("faults");
  EXPECT_EQ(one.plugin->build_id().size(), 16u);
  EXPECT_NE(one.plugin->build_id(), two.plugin->build_id());
  EXPECT_EQ(one.plugin->host(two.table), nullptr);
}

TEST(OpenPluginTest, AFileThatChangesWhileItIsInUseIsNoticed) {
  const std::string path = testing::TempDir() + "changing.so";
  const auto install = [&](const std::string& stem) {
    std::remove(path.c_str());  // a new file: the loaded one stays as it is
    std::ifstream from(plugin_path(stem), std::ios::binary);
    std::ofstream(path, std::ios::binary) << from.rdbuf();
  };
  install("faults");
  const auto opened = open_plugin(path, test_options());
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  OperatorHost* host = (*opened)->host((*opened)->tables()[0]);
  Problem problem;
  problem.axes = {{"M", 2}, {"K", 8}, {"N", 4}};
  problem.attrs = {{"fault_in", std::string("validate")}};
  problem.dtypes = {BP_FP32, BP_FP32, BP_FP32};
  EXPECT_FALSE(host->validate(problem).has_value());
  install("ranks");
  problem.attrs = {{"fault_in", std::string()}};
  const auto after = host->validate(problem);
  ASSERT_FALSE(after.has_value());
  EXPECT_NE(after.error().message.find("the file changed while it was in use"), std::string::npos)
      << after.error().message;
  std::remove(path.c_str());
}

}  // namespace
}  // namespace batchproof
