// SPDX-License-Identifier: Apache-2.0
//
// Declares the command line. The only file that includes CLI11, which takes long to compile.
#include "src/cli/arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>

#include "src/cli/context.h"
#include "src/cli/exit.h"
#include "src/cli/print.h"
#include "src/cli/verbs.h"

namespace batchproof::cli {
namespace {

// A verb of the program whose flags may have environment twins.
class Verb {
 public:
  Verb(CLI::App& program, const char* name, const char* summary, bool twins)
      : app_(program.add_subcommand(name, summary)), twins_(twins) {}

  CLI::App& app() { return *app_; }
  bool chosen() const { return app_->parsed(); }

  void value(const char* flag, std::string& target, const char* help, const char* type) {
    twin(app_->add_option(std::string("--") + flag, target, help)->type_name(type), flag);
  }
  // May be repeated; semicolons separate several values in the environment, since a value may hold commas.
  void values(const char* flag, std::vector<std::string>& target, const char* help, const char* type) {
    twin(app_->add_option(std::string("--") + flag, target, help)
             ->type_name(type)
             ->allow_extra_args(false)
             ->delimiter(';'),
         flag);
  }
  void toggle(const char* flag, bool& target, const char* help) {
    twin(app_->add_flag(std::string("--") + flag, target, help), flag);
  }

 private:
  void twin(CLI::Option* option, const char* flag) {
    if (twins_) option->envname(environment_name(flag));
  }

  CLI::App* app_;
  bool twins_;
};

// Flags that check and scan share.
void add_run(Verb& verb, SelectionFlags& flags) {
  verb.value("device", flags.device, "cpu (default), cuda or cuda:N", "NAME");
  verb.value("comm", flags.comm,
             "Communicator: threads (default), mpi (default under mpirun), virtual (default on a CUDA device) or nccl",
             "NAME");
  verb.value("ranks", flags.ranks, "World sizes for cases that state none, such as 2,4,8", "LIST");
  verb.values("plugin", flags.plugins, "Shared library with operators; may be repeated", "FILE");
  verb.value("mode", flags.mode, "invariant or fast, in place of the cases' mode", "NAME");
  verb.value("impl", flags.impl, "Implementation id, in place of the cases' implementation", "ID");
  verb.value("seed", flags.seed, "Seed of the inputs (default 1)", "NUMBER");
}

void add_selection(Verb& verb, SelectionFlags& flags) {
  verb.app()
      .add_option("suites", flags.suites, "Suite files; none: every operator's ci.json and controls.json")
      ->type_name("SUITE");
  add_run(verb, flags);
  verb.values("set", flags.set, "Attribute in place of the cases' value; may be repeated", "NAME=VALUE");
  verb.value("filter", flags.filter, "Only cells whose id this regular expression finds", "REGEX");
  verb.value("shard", flags.shard, "Only part i of n of the cells, i from 1 to n", "i/n");
  verb.value("relations", flags.relations, "These relations in place of the cases' own", "LIST");
}

void add_check(Verb& verb, CheckFlags& flags) {
  add_selection(verb, flags.selection);
  verb.value("json", flags.reports.json, "Write the JSON report", "FILE");
  verb.value("junit", flags.reports.junit, "Write the JUnit report", "FILE");
  verb.value("html", flags.reports.html, "Write the HTML report", "FILE");
  verb.value("tap", flags.reports.tap, "Write the TAP report", "FILE");
  verb.value("resume", flags.resume, "Carry over the results of this JSON report, or of its journal", "FILE");
  verb.value("detail", flags.detail, "Rows on the console: auto (default), all, cells or failing", "LEVEL");
  verb.toggle("as-cases", flags.as_cases, "One row per case on the console");
  verb.toggle("fail-fast", flags.fail_fast, "Stop after the first cell that fails");
  verb.value("perf", flags.perf, "report (default), judge or off", "CHOICE");
  verb.value("timeout", flags.timeout,
             "Seconds that a call of a plug-in may take, and that a helper process may be silent (default 60)",
             "SECONDS");
  verb.toggle("dry-run", flags.dry_run, "Print the ids of the cells and their count, run nothing");
}

void add_scan(Verb& verb, ScanFlags& flags) {
  verb.app().add_option("operator", flags.op, "Operator")->type_name("OP")->required();
  verb.value("rows", flags.rows, "Row counts: ranges and numbers, such as 1..1500 or 1..64,129 (default 1..256)",
             "LIST");
  add_run(verb, flags.selection);
  verb.values("set", flags.selection.set, "Attribute or axis in place of the case's value; may be repeated",
              "NAME=VALUE");
  verb.value("victims", flags.victims, "Rows that are followed through all batches (default 32)", "NUMBER");
  verb.value("suite", flags.suite, "Suite whose case gives axes and inputs (default: the operator's ci.json)", "FILE");
  verb.value("case", flags.case_name, "Name of that case (default: the operator's first)", "NAME");
  verb.value("json", flags.json, "Write the result as JSON", "FILE");
  verb.value("timeout", flags.timeout, "Seconds that a call of a plug-in may take (default 60)", "SECONDS");
}

}  // namespace

const std::vector<std::string>& shown_verbs() {
  static const std::vector<std::string> verbs = {"check", "scan", "list", "doctor", "schema", "new"};
  return verbs;
}

bool is_verb(const std::string& word) {
  return word == "digest" || std::find(shown_verbs().begin(), shown_verbs().end(), word) != shown_verbs().end();
}

int run_words(const std::vector<std::string>& words, const std::string& footer) {
  CLI::App app("Tells, byte by byte, whether an operator's row depends on its batch.", "batchproof");
  app.set_version_flag("--version", fmt::format("batchproof {} (build {})", program_version(), program_build()));
  app.require_subcommand(0, 1);
  app.footer(footer);

  CheckFlags check_flags;
  Verb check(app, "check", "Run cells and judge them", true);
  add_check(check, check_flags);

  ScanFlags scan_flags;
  Verb scan(app, "scan", "Find every batch size at which a row's bytes change", true);
  add_scan(scan, scan_flags);

  ListFlags list_flags;
  Verb list(app, "list", "Operators, their ports, implementations and controls", false);
  list.app().add_option("operator", list_flags.name, "Only this operator")->type_name("OP");
  list.toggle("json", list_flags.json, "As JSON");

  Verb doctor(app, "doctor", "This build and machine; what is validated where", false);

  std::string schema_name = "native";
  Verb schema(app, "schema", "Print a JSON Schema (draft-07)", false);
  schema.app().add_option("name", schema_name, "native (default), atk or report")->type_name("NAME");

  NewFlags new_flags;
  Verb fresh(app, "new", "Write an operator of your own, ready to build, into a new folder", false);
  fresh.app().add_option("name", new_flags.name, "Letters, digits and _")->type_name("NAME")->required();
  fresh.value("language", new_flags.language, "c (default) or c++", "NAME");
  fresh.value("directory", new_flags.directory, "Folder to make (default: ./NAME)", "DIR");

  // The child gets everything on its command line, so that the environment cannot change it.
  SelectionFlags digest_flags;
  Verb digest(app, "digest", "", false);
  digest.app().group("");
  add_selection(digest, digest_flags);
  double digest_timeout = kDefaultTimeout;
  digest.app().add_option("--timeout", digest_timeout);

  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend() - 1));
  } catch (const CLI::Success& success) {
    return app.exit(success);  // --help and --version
  } catch (const CLI::ParseError& error) {
    return report_shared_error({Error::Kind::usage, fmt::format("{} (--help lists what there is)", error.what())});
  }
  if (check.chosen()) return run_check(check_flags, words);
  if (scan.chosen()) return run_scan(scan_flags, words);
  if (list.chosen()) return run_list(list_flags);
  if (doctor.chosen()) return run_doctor();
  if (schema.chosen()) return run_schema(schema_name);
  if (fresh.chosen()) return run_new(new_flags);
  if (digest.chosen()) return run_digest(digest_flags, digest_timeout);
  fmt::print("{}", app.help());
  return kExitOk;
}

}  // namespace batchproof::cli
