// SPDX-License-Identifier: Apache-2.0
//
// The suite model: what a case file says (Suite, Case) and what it expands to (Cell). Both dialects, native and ATK,
// load into the same Case; nothing after loading knows which it was. Loading: load.h. Expansion: expand.h.
#ifndef BATCHPROOF_SRC_SUITE_SUITE_H_
#define BATCHPROOF_SRC_SUITE_SUITE_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "batchproof/operator.h"
#include "src/numeric/recipe.h"
#include "src/runtime/problem.h"
#include "src/runtime/words.h"

namespace batchproof {

struct SourcePosition {
  std::string file;
  int line = 0;  // 1-based
  int column = 0;
  std::string text() const;  // "file:line:column"
};

// A row position counts logical output rows: an index, "mid" = floor(rows / 2), "last" = rows - 1.
struct RowPosition {
  enum class Kind { index, mid, last } kind = Kind::index;
  std::int64_t index = 0;
};

// Which inputs an invariance run uses (DESIGN C5).
enum class BiInputs {
  automatic,  // the accuracy inputs when they are alive, else cancelling at the same shapes
  shared,     // the accuracy inputs
  own         // cancelling
};

struct BiStandard {
  std::vector<RowPosition> row_positions;  // default 0, mid, last
  int n_variants = 2;                      // counts variant A; at least 2
  std::uint32_t relations = 0;             // mask of BP_REPEAT, ...
  BiInputs inputs = BiInputs::automatic;
  int repeats = 5;                        // calls of repeat; two of every five run while every processor is busy
  std::vector<std::int64_t> batch_sizes;  // values of the row-count axis for batch_size; empty: the default sweep
};

struct AccStandard {
  // "default" (also "mixed_tolerance_bm"), "single_bm", "cv_fused_double_benchmark", "equal", "md5"; in an ATK file any
  // name, since its users register their own.
  std::string name;
  std::map<std::string, double> thresholds;
};
// Whether this build can judge by the standard of that name.
bool is_accuracy_standard(const std::string& name);

struct Standard {
  std::optional<AccStandard> acc;
  std::optional<std::array<double, 2>> perf;
  std::optional<double> mem;
  std::optional<BiStandard> bi;  // absent: no invariance verdict
};

// What a cell is expected to show. `relations` overrides `cell` for single relations.
struct Expectation {
  Verdict cell = Verdict::pass;
  std::string error;                           // for Verdict::error: a text that the message must contain
  std::map<std::uint32_t, Verdict> relations;  // key: one relation bit
  std::optional<Verdict> acc;                  // pass or wrong; nothing: wrong where `cell` is, else pass
  std::optional<Verdict> mem;                  // pass or heavy; the same
};

using AxisValue = std::variant<std::int64_t, std::string>;

struct CaseAxis {
  std::string name;
  std::vector<AxisValue> values;
  SourcePosition position;
};

// What the case says about one port; everything is optional but the name.
struct PortSpec {
  std::string name;
  std::optional<bp_dtype> dtype;
  std::vector<std::string> shape;  // expressions; checked against the operator's shape
  std::optional<RecipeSpec> recipe;
  SourcePosition position;
};

enum class Dialect { native, atk };

struct Case {
  Dialect dialect = Dialect::native;  // of the file that describes its inputs
  std::string name;
  std::string op;    // operator name
  std::string impl;  // empty: the mode's default
  bp_mode mode = BP_MODE_INVARIANT;
  std::vector<CaseAxis> axes;
  std::string where;                       // condition over the axes; empty: all
  std::map<std::string, AttrValue> attrs;  // as written; checked against the operator's declarations
  std::vector<PortSpec> ports;             // from inputs and outputs
  bool lists_outputs = false;              // `outputs` is given: optional outputs that it leaves out are absent
  Standard standard;
  Expectation expect;
  std::string allow_vacuous;        // the reason; empty: vacuous fails
  std::optional<double> timeout_s;  // limits.timeout_s, seconds
  SourcePosition position;
  // Where things are written, for messages: the values of "name", "op", "impl", "where", ..., the key "attrs.NAME".
  std::map<std::string, SourcePosition> positions;
  std::string skip_reason;  // ATK: the operator or its dtypes do not exist here

  // Where `key` is written; where the case begins if it is not.
  const SourcePosition& position_of(const std::string& key) const;
};

struct Suite {
  std::string path;
  std::uint64_t build_id = 0;  // XXH3 of the file's bytes (C7)
  std::vector<Case> cases;
};

// One point of a case's axes, ready to run.
struct Cell {
  std::string id;                   // op/impl/case/AXIS=value,... with sorted axes
  const bp_operator* op = nullptr;  // nullptr, like impl, only where skip_reason is set
  std::string op_name;              // the operator's name, as the file has it where op is nullptr
  const bp_implementation* impl = nullptr;
  Problem problem;
  bp_comm_mode comm_mode = BP_COMM_OFF;
  std::vector<RecipeSpec> recipes;  // one per port; absent and output ports: default
  Standard standard;
  Expectation expect;
  std::string allow_vacuous;
  std::optional<double> timeout_s;  // seconds
  std::string case_name;
  std::vector<std::pair<std::string, std::string>> axes;  // name, value as printed; sorted
  SourcePosition position;
  std::string skip_reason;  // not empty: skipped without running
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_SUITE_SUITE_H_
