// SPDX-License-Identifier: Apache-2.0
//
// Registration as an operator's own file does it: static objects, in any order, listed by name.
#include "batchproof/registry.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace batchproof {
namespace {

bp_operator named(const char* name) {
  bp_operator table{};
  table.abi_version = BP_ABI_VERSION;
  table.struct_size = sizeof(bp_operator);
  table.name = name;
  return table;
}

const bp_operator zeta = named("zeta");
BATCHPROOF_REGISTER(zeta);
const bp_operator alpha = named("alpha");
BATCHPROOF_REGISTER(alpha);
const bp_operator alpha_gather = named("alpha_gather");
BATCHPROOF_REGISTER(alpha_gather);

// Taken before main, after the registrations above.
const std::size_t early_count = registered_operators().size();

TEST(RegistryTest, StaticRegistrationsAreThereBeforeMainAndSortedByName) {
  EXPECT_EQ(early_count, 3u);
  EXPECT_EQ(registered_operators(), (std::vector<const bp_operator*>{&alpha, &alpha_gather, &zeta}));
}

TEST(RegistryTest, ALaterRegistrationIsListed) {
  static const bp_operator middle = named("middle");
  register_operator(&middle);
  EXPECT_EQ(registered_operators(), (std::vector<const bp_operator*>{&alpha, &alpha_gather, &middle, &zeta}));
}

}  // namespace
}  // namespace batchproof
