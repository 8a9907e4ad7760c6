// SPDX-License-Identifier: Apache-2.0
//
// Command lines as text that a POSIX shell reads back as the same words.
#ifndef BATCHPROOF_SRC_CLI_COMMAND_TEXT_H_
#define BATCHPROOF_SRC_CLI_COMMAND_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

namespace batchproof::cli {

// One word, quoted where needed, on one line. Control characters need bash's $'...'.
std::string shell_quote(std::string_view word);
std::string shell_join(const std::vector<std::string>& words);
// An ECMAScript regular expression that matches exactly this text.
std::string regex_escape(std::string_view text);

}  // namespace batchproof::cli

#endif  // BATCHPROOF_SRC_CLI_COMMAND_TEXT_H_
