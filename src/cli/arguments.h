// SPDX-License-Identifier: Apache-2.0
//
// The command line as CLI11 sees it: every verb and flag, each flag of check with its environment twin.
#ifndef BATCHPROOF_SRC_CLI_ARGUMENTS_H_
#define BATCHPROOF_SRC_CLI_ARGUMENTS_H_

#include <string>
#include <vector>

namespace batchproof::cli {

bool is_verb(const std::string& word);
// Verbs that --help shows.
const std::vector<std::string>& shown_verbs();

// Parses `words` (the program's name first), runs the verb and returns the exit code. `footer` ends the help.
int run_words(const std::vector<std::string>& words, const std::string& footer);

}  // namespace batchproof::cli

#endif  // BATCHPROOF_SRC_CLI_ARGUMENTS_H_
