// SPDX-License-Identifier: Apache-2.0
#include "batchproof/registry.h"

#include <algorithm>
#include <cstring>

namespace batchproof {
namespace {

// A function-local static: registrations run before main, in any order.
std::vector<const bp_operator*>& tables() {
  static std::vector<const bp_operator*> list;
  return list;
}

}  // namespace

void register_operator(const bp_operator* table) { tables().push_back(table); }

void unregister_operator(const bp_operator* table) { std::erase(tables(), table); }

std::vector<const bp_operator*> registered_operators() {
  std::vector<const bp_operator*> sorted = tables();
  std::sort(sorted.begin(), sorted.end(),
            [](const bp_operator* a, const bp_operator* b) { return std::strcmp(a->name, b->name) < 0; });
  return sorted;
}

}  // namespace batchproof
