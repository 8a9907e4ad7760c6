// SPDX-License-Identifier: Apache-2.0
//
// A plug-in's shared library, loaded into this process. Only a worker does this.
#ifndef BATCHPROOF_SRC_PLUGIN_LIBRARY_H_
#define BATCHPROOF_SRC_PLUGIN_LIBRARY_H_

#include <memory>
#include <string>
#include <vector>

#include "batchproof/operator.h"
#include "src/runtime/error.h"

namespace batchproof {

// Stays loaded until the process ends: unloading runs a stranger's destructors.
class Library {
 public:
  // Loads the file, asks it for its tables and checks them. Errors are of kind usage and begin with the path. The
  // floating-point environment is the default one afterwards, whatever loading did to it.
  static Result<Library> load(const std::string& path);

  const std::vector<const bp_operator*>& tables() const { return tables_; }
  // What loading changed in the process, a sentence fragment each: "sets flush-to-zero when loaded".
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  std::vector<const bp_operator*> tables_;
  std::vector<std::string> notes_;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_PLUGIN_LIBRARY_H_
