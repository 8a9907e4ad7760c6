// SPDX-License-Identifier: Apache-2.0
//
// Problem owns what a bp_problem points to.
#ifndef BATCHPROOF_SRC_RUNTIME_PROBLEM_H_
#define BATCHPROOF_SRC_RUNTIME_PROBLEM_H_

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "batchproof/operator.h"

namespace batchproof {

using AttrValue = std::variant<bool, std::int64_t, double, std::string>;

// A value type: copy it, change an axis, take a new view.
class Problem {
 public:
  int world = 1;
  std::map<std::string, std::int64_t> axes;
  std::map<std::string, AttrValue> attrs;  // every declared attribute, defaults filled in
  std::vector<bp_dtype> dtypes;            // one per port of the operator; BP_NONE: absent

  std::int64_t axis(const std::string& name) const;  // -1 where absent

  // A C view of this problem. Valid until the Problem changes or is destroyed.
  class View {
   public:
    explicit View(const Problem& problem);
    View(const View&) = delete;
    View& operator=(const View&) = delete;
    const bp_problem* get() const { return &problem_; }

   private:
    std::vector<bp_axis> axes_;
    std::vector<bp_attr> attrs_;
    bp_problem problem_;
  };
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_RUNTIME_PROBLEM_H_
