// SPDX-License-Identifier: Apache-2.0
//
// The library's one error type. The library returns it; only src/cli prints it and turns its kind into an exit code.
#ifndef BATCHPROOF_SRC_RUNTIME_ERROR_H_
#define BATCHPROOF_SRC_RUNTIME_ERROR_H_

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace batchproof {

struct Error {
  enum class Kind {
    usage,        // bad command line, suite or problem: exit 2
    environment,  // a device, library or rank that was asked for is missing: exit 3
    operation,    // an operator call failed: that cell is an error
    internal      // batchproof found itself inconsistent
  };
  Kind kind = Kind::internal;
  std::string message;  // one sentence: what, where, what would be right
};

template <class T>
using Result = tl::expected<T, Error>;

inline tl::unexpected<Error> fail(Error::Kind kind, std::string message) {
  return tl::unexpected<Error>(Error{kind, std::move(message)});
}

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_RUNTIME_ERROR_H_
