// SPDX-License-Identifier: Apache-2.0
//
// Standard normal values from 32-bit words without libm: only IEEE +, -, *, / and sqrt in double, each rounded once, so
// that host and device give the same bits.
//
// A word w stands for the probability p = (w + 1/2) / 2^32; the value is the inverse of the normal distribution
// function at p, by the rational approximations of Wichura, "Algorithm AS 241", Applied Statistics 37 (1988), PPND16
// (relative error about 1e-16). p is never below 2^-33, so the approximation of the far tail is not needed and |value|
// < 6.4. ~w stands for 1 - p and gives exactly the negated value.
#ifndef BATCHPROOF_SRC_NUMERIC_NORMAL_H_
#define BATCHPROOF_SRC_NUMERIC_NORMAL_H_

#include <cstdint>

#include "src/numeric/host_device.h"

namespace batchproof {

// Natural logarithm of x in [2^-33, 1), normal; relative error about 2e-16.
BATCHPROOF_HD inline double log_below_one(double x) {
  const std::uint64_t bits = cast_bits<std::uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = cast_bits<double>((bits & 0x000FFFFFFFFFFFFFu) | 0x3FF0000000000000u);
  if (m > 1.4142135623730951) {  // m in (sqrt(1/2), sqrt(2)]
    m = mul_rn(m, 0.5);
    exponent += 1;
  }
  // log m = 2 artanh(s) with s = (m - 1) / (m + 1), |s| < 0.1716; s^2 < 0.0295, so eleven terms leave 1e-17.
  const double s = div_rn(sub_rn(m, 1.0), add_rn(m, 1.0));
  const double t = mul_rn(s, s);
  double sum = 1.0 / 23.0;
  sum = add_rn(mul_rn(sum, t), 1.0 / 21.0);
  sum = add_rn(mul_rn(sum, t), 1.0 / 19.0);
  sum = add_rn(mul_rn(sum, t), 1.0 / 17.0);
  sum = add_rn(mul_rn(sum, t), 1.0 / 15.0);
  sum = add_rn(mul_rn(sum, t), 1.0 / 13.0);
  sum = add_rn(mul_rn(sum, t), 1.0 / 11.0);
  sum = add_rn(mul_rn(sum, t), 1.0 / 9.0);
  sum = add_rn(mul_rn(sum, t), 1.0 / 7.0);
  sum = add_rn(mul_rn(sum, t), 1.0 / 5.0);
  sum = add_rn(mul_rn(sum, t), 1.0 / 3.0);
  sum = mul_rn(mul_rn(sum, t), s);
  const double log_m = add_rn(add_rn(s, s), add_rn(sum, sum));
  // ln 2 in two parts; the upper one has 32 zero bits at the end, so its product with the exponent is exact.
  const double e = exponent;
  return add_rn(mul_rn(e, 0x1.62e42fee00000p-1), add_rn(mul_rn(e, 0x1.a39ef35793c76p-33), log_m));
}

// p - 1/2, exact.
BATCHPROOF_HD inline double centred_probability(std::uint32_t word) {
  return mul_rn(sub_rn(static_cast<double>(word), 2147483647.5), 0x1p-32);
}

// Whether the word lies in the tails: |p - 1/2| > 0.425.
BATCHPROOF_HD inline bool in_normal_tail(std::uint32_t word) {
  const double q = centred_probability(word);
  return q < -0.425 || q > 0.425;
}

// The value where |p - 1/2| <= 0.425; finite but meaningless in the tails, so that a loop can blend without a branch.
BATCHPROOF_HD inline double normal_centre(std::uint32_t word) {
  const double q = centred_probability(word);
  const double r = sub_rn(0.180625, mul_rn(q, q));
  double num = 2.5090809287301226727e+3;
  num = add_rn(mul_rn(num, r), 3.3430575583588128105e+4);
  num = add_rn(mul_rn(num, r), 6.7265770927008700853e+4);
  num = add_rn(mul_rn(num, r), 4.5921953931549871457e+4);
  num = add_rn(mul_rn(num, r), 1.3731693765509461125e+4);
  num = add_rn(mul_rn(num, r), 1.9715909503065514427e+3);
  num = add_rn(mul_rn(num, r), 1.3314166789178437745e+2);
  num = add_rn(mul_rn(num, r), 3.3871328727963666080e+0);
  double den = 5.2264952788528545610e+3;
  den = add_rn(mul_rn(den, r), 2.8729085735721942674e+4);
  den = add_rn(mul_rn(den, r), 3.9307895800092710610e+4);
  den = add_rn(mul_rn(den, r), 2.1213794301586595867e+4);
  den = add_rn(mul_rn(den, r), 5.3941960214247511077e+3);
  den = add_rn(mul_rn(den, r), 6.8718700749205790830e+2);
  den = add_rn(mul_rn(den, r), 4.2313330701600911252e+1);
  den = add_rn(mul_rn(den, r), 1.0);
  return mul_rn(q, div_rn(num, den));
}

// The value in the tails.
BATCHPROOF_HD inline double normal_tail(std::uint32_t word) {
  const bool lower = word < 0x80000000u;
  const double p = mul_rn(add_rn(static_cast<double>(lower ? word : ~word), 0.5), 0x1p-32);  // exact
  const double r = sub_rn(sqrt_rn(-log_below_one(p)), 1.6);
  double num = 7.74545014278341407640e-4;
  num = add_rn(mul_rn(num, r), 2.27238449892691845833e-2);
  num = add_rn(mul_rn(num, r), 2.41780725177450611770e-1);
  num = add_rn(mul_rn(num, r), 1.27045825245236838258e+0);
  num = add_rn(mul_rn(num, r), 3.64784832476320460504e+0);
  num = add_rn(mul_rn(num, r), 5.76949722146069140550e+0);
  num = add_rn(mul_rn(num, r), 4.63033784615654529590e+0);
  num = add_rn(mul_rn(num, r), 1.42343711074968357734e+0);
  double den = 1.05075007164441684324e-9;
  den = add_rn(mul_rn(den, r), 5.47593808499534494600e-4);
  den = add_rn(mul_rn(den, r), 1.51986665636164571966e-2);
  den = add_rn(mul_rn(den, r), 1.48103976427480074590e-1);
  den = add_rn(mul_rn(den, r), 6.89767334985100004550e-1);
  den = add_rn(mul_rn(den, r), 1.67638483018380384940e+0);
  den = add_rn(mul_rn(den, r), 2.05319162663775882187e+0);
  den = add_rn(mul_rn(den, r), 1.0);
  const double value = div_rn(num, den);
  return lower ? -value : value;
}

// N(0, 1), finite for every word, strictly increasing in the word up to rounding.
BATCHPROOF_HD inline double normal_from_word(std::uint32_t word) {
  return in_normal_tail(word) ? normal_tail(word) : normal_centre(word);
}

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_NUMERIC_NORMAL_H_
