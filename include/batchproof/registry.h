// SPDX-License-Identifier: Apache-2.0
//
// Registration of built-in operators: one static object in the operator's own file, no list anywhere.
#ifndef BATCHPROOF_REGISTRY_H_
#define BATCHPROOF_REGISTRY_H_

#include <vector>

#include "batchproof/operator.h"

namespace batchproof {

// Adds a table to the process-wide list. The table must outlive the process's use of it.
void register_operator(const bp_operator* table);
// Takes a table out again, for those whose table ends before the process (plug-ins).
void unregister_operator(const bp_operator* table);

// All registered tables, sorted by name.
std::vector<const bp_operator*> registered_operators();

struct Registration {
  explicit Registration(const bp_operator* table) { register_operator(table); }
};

}  // namespace batchproof

// At namespace scope in ops/<name>/<name>.cc: BATCHPROOF_REGISTER(matmul_table);
#define BATCHPROOF_REGISTER(table) static const ::batchproof::Registration table##_registration(&(table))

#endif  // BATCHPROOF_REGISTRY_H_
