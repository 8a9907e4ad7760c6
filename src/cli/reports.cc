// SPDX-License-Identifier: Apache-2.0
//
// Makes and feeds the reports of a run.
#include "src/cli/reports.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "src/cli/resume.h"
#include "src/report/github.h"
#include "src/report/html.h"
#include "src/report/json.h"
#include "src/report/junit.h"
#include "src/report/tap.h"
#include "src/runtime/file.h"

namespace batchproof::cli {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

Result<void> check_writable(const std::string& flag, const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    return fail(Error::Kind::usage, fmt::format("{} {}: this is a folder, a file is needed", flag, path));
  }
  const fs::path parent = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  if (!fs::is_directory(parent, error)) {
    return fail(Error::Kind::usage, fmt::format("{} {}: the folder {} does not exist", flag, path, parent.string()));
  }
  const bool there = fs::exists(path, error);
  if (access(there ? path.c_str() : parent.c_str(), W_OK) != 0) {
    return fail(Error::Kind::usage, fmt::format("{} {}: no permission to write there", flag, path));
  }
  return {};
}

bool colour_wanted(int descriptor) {
  return isatty(descriptor) != 0 && environment("NO_COLOR").empty() && environment("TERM") != "dumb";
}

void Reports::add_github() {
  if (environment("GITHUB_ACTIONS").empty()) return;
  std::size_t limit = kSummaryLimit;
  const std::string path = environment("GITHUB_STEP_SUMMARY");
  if (!path.empty()) {
    // Earlier commands of the step may have written there; the limit is for all together.
    std::error_code error;
    const std::uintmax_t size = fs::file_size(path, error);
    if (!error) limit -= std::min<std::size_t>(limit, static_cast<std::size_t>(size));
    step_summary_ = std::make_unique<std::ofstream>(path, std::ios::binary | std::ios::app);
    if (!*step_summary_) {
      errors_.push_back({Error::Kind::environment, fmt::format("GITHUB_STEP_SUMMARY {} cannot be written", path)});
      step_summary_.reset();
    }
  }
  live_.push_back(
      std::make_unique<GithubReporter>(std::cout, step_summary_.get(), environment("GITHUB_WORKSPACE"), limit));
}

Result<std::unique_ptr<Reports>> Reports::make(const ReportFlags& flags, const ConsoleOptions& console) {
  std::unique_ptr<Reports> reports(new Reports);
  const auto add = [&](const char* flag, const std::string& path, auto make_reporter) -> Result<void> {
    if (path.empty()) return {};
    if (auto writable = check_writable(flag, path); !writable) return writable;
    for (const File& other : reports->files_) {
      if (other.path == path) {
        return fail(Error::Kind::usage, fmt::format("{} {}: another report goes to the same file", flag, path));
      }
    }
    File file{path, std::make_unique<std::ostringstream>(), nullptr};
    file.reporter = make_reporter(*file.text);
    reports->files_.push_back(std::move(file));
    return {};
  };
  const Result<void> results[] = {
      add("--json", flags.json, [](std::ostream& out) { return std::make_unique<JsonReporter>(out); }),
      add("--junit", flags.junit, [](std::ostream& out) { return std::make_unique<JunitReporter>(out); }),
      add("--html", flags.html, [](std::ostream& out) { return std::make_unique<HtmlReporter>(out); }),
      add("--tap", flags.tap, [](std::ostream& out) { return std::make_unique<TapReporter>(out); })};
  for (const Result<void>& result : results) {
    if (!result) return tl::unexpected(result.error());
  }
  // Only beside a regular file: /dev/stdout has no journal.
  std::error_code error;
  if (!flags.json.empty() && (!fs::exists(flags.json, error) || fs::is_regular_file(flags.json, error))) {
    reports->journal_path_ = journal_path(flags.json);
  }
  reports->add_github();
  reports->live_.push_back(std::make_unique<ConsoleReporter>(std::cout, std::cerr, console));
  return reports;
}

std::unique_ptr<Reports> Reports::silent() { return std::unique_ptr<Reports>(new Reports); }

void Reports::begin(const RunContext& context) {
  if (!journal_path_.empty()) {
    journal_.open(journal_path_, std::ios::binary | std::ios::trunc);
    if (journal_) {
      journal_reporter_ = std::make_unique<JsonJournal>(journal_);
      journal_reporter_->begin(context);
    } else {
      errors_.push_back({Error::Kind::environment, fmt::format("the journal {} cannot be written", journal_path_)});
    }
  }
  for (const File& file : files_) file.reporter->begin(context);
  for (const auto& reporter : live_) reporter->begin(context);
}

void Reports::cell(const CellResult& result) {
  if (journal_reporter_) journal_reporter_->cell(result);
  for (const File& file : files_) file.reporter->cell(result);
  for (const auto& reporter : live_) reporter->cell(result);
}

void Reports::end(const RunResult& result) {
  bool complete = true;
  for (const File& file : files_) {
    file.reporter->end(result);
    if (auto written = write_file(file.path, file.text->str()); !written) {
      errors_.push_back(written.error());
      complete = false;
    }
  }
  if (journal_.is_open()) {
    journal_.close();
    std::error_code error;
    if (complete) fs::remove(journal_path_, error);  // else it holds what the report could not
  }
  for (const auto& reporter : live_) reporter->end(result);
}

}  // namespace batchproof::cli
