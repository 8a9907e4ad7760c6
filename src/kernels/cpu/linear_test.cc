// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/cpu/linear.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace batchproof {
namespace {

// The status and the text of a call that ends in `body`, on a number of ranks.
struct Ended {
  bp_status status;
  std::string text;
};
Ended call(int world, const std::function<Result<void>()>& body) {
  char error[128] = "";
  bp_problem problem = {};
  problem.world = world;
  bp_context context = {};
  context.problem = &problem;
  context.error = error;
  context.error_size = sizeof(error);
  const bp_status status = operator_call(&context, body);
  return {status, error};
}
Ended failed(int world, Error::Kind kind) {
  return call(world, [&]() -> Result<void> { return fail(kind, "what went wrong"); });
}

TEST(OperatorCall, GivesEveryKindOfErrorItsStatus) {
  EXPECT_EQ(call(1, [] { return Result<void>(); }).status, BP_OK);
  for (const int world : {1, 2}) {
    EXPECT_EQ(failed(world, Error::Kind::usage).status, BP_INVALID);
    EXPECT_EQ(failed(world, Error::Kind::environment).status, BP_ENVIRONMENT);
    EXPECT_EQ(failed(world, Error::Kind::internal).status, BP_INTERNAL);
    EXPECT_EQ(failed(world, Error::Kind::internal).text, "what went wrong");
  }
  EXPECT_EQ(failed(2, Error::Kind::operation).status, BP_COMM);
  // One rank has lost no other.
  EXPECT_EQ(failed(1, Error::Kind::operation).status, BP_INTERNAL);
}

TEST(OperatorCall, LetsNoExceptionOut) {
  const Ended known = call(1, []() -> Result<void> { throw std::runtime_error("thrown"); });
  EXPECT_EQ(known.status, BP_INTERNAL);
  EXPECT_NE(known.text.find("thrown"), std::string::npos) << known.text;
  EXPECT_EQ(call(1, []() -> Result<void> { throw 7; }).status, BP_INTERNAL);
}

}  // namespace
}  // namespace batchproof
