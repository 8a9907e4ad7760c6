// SPDX-License-Identifier: Apache-2.0
//
// Whole files in, whole files out, and their digests.
#ifndef BATCHPROOF_SRC_RUNTIME_FILE_H_
#define BATCHPROOF_SRC_RUNTIME_FILE_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "src/runtime/error.h"

namespace batchproof {

constexpr std::size_t kDefaultFileLimit = std::size_t{64} << 20;

// The bytes of a file, a pipe or a terminal. More than `limit` bytes is an error (nothing reads an endless device to
// the end). Errors name the path and the system's reason: kind usage where the path is at fault, else environment.
Result<std::string> read_file(const std::string& path, std::size_t limit = kDefaultFileLimit);

// Replaces the file as a whole: readers see the old content or the new one, an error leaves the old one. A link is
// followed, permissions of an existing file are kept, and what is no regular file (/dev/stdout, a pipe) is written
// directly.
Result<void> write_file(const std::string& path, std::string_view content);

// XXH3-64 of the file's bytes as 16 hexadecimal digits (C7); any size.
Result<std::string> file_digest(const std::string& path);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_RUNTIME_FILE_H_
