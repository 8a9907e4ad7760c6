// SPDX-License-Identifier: Apache-2.0
#include "src/suite/load.h"

#include "src/numeric/digest.h"
#include "src/runtime/file.h"
#include "src/suite/json_source.h"
#include "src/suite/read.h"

namespace batchproof {

Result<Suite> load_suite_text(std::string_view text, const std::string& name) {
  const Result<JsonValue> root = parse_json(text, name);
  if (!root) return tl::unexpected<Error>(root.error());
  Suite suite;
  suite.path = name;
  suite.build_id = digest_bytes(text.data(), text.size());
  Reader reader(name);
  if (root->is_object()) {
    load_native(reader, *root, suite);
  } else if (root->is_array()) {
    load_atk(reader, *root, suite);
    for (Case& loaded : suite.cases) loaded.dialect = Dialect::atk;
  } else {
    reader.fail_type(*root, "a suite", "an object (native) or a list of cases (ATK)");
  }
  if (const auto& error = reader.error()) return tl::unexpected<Error>(*error);
  return suite;
}

Result<Suite> load_suite(const std::string& path) {
  const Result<std::string> text = read_file(path, kMaxJsonBytes);
  if (!text) return tl::unexpected<Error>(text.error());
  return load_suite_text(*text, path);
}

}  // namespace batchproof
