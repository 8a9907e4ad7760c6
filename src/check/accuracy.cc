// SPDX-License-Identifier: Apache-2.0
#include "src/check/accuracy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/numeric/dtype.h"

namespace batchproof {
namespace {

constexpr double kSmall = 1e-7;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kShare = 0.99;  // of the elements that the mixed tolerance must hold
constexpr double kMareToMere = 10.0;
constexpr double kUlps = 32.0;

// Rows of the standards' tables. 0: the table has no entry for the dtype.
struct DtypeRow {
  bp_dtype dtype;
  int mantissa_bits;
  int least_exponent;  // of a normal number
  double floor;        // double benchmark: the benchmark's error counts at least this much
  double single;       // single benchmark: T
  double relative;     // mixed tolerance
  double absolute;
  double limit;
};
constexpr std::array<DtypeRow, 5> kRows = {{
    {BP_FP16, 10, -14, 0x1p-11, 0x1p-10, 0x1p-9, 0x1p-9, 0.1},
    {BP_BF16, 7, -126, 0x1p-8, 0x1p-7, 0x1p-6, 0x1p-6, 1.0},
    {BP_FP32, 23, -126, 0x1p-14, 0x1p-13, 0x1p-10, 0x1p-16, 0.01},
    {BP_E4M3, 3, -6, 0.0, 0x1p-3, 0x1p-3, 0x1p-3, 0.5},
    {BP_E5M2, 2, -14, 0.0, 0x1p-2, 0x1p-2, 0x1p-2, 1.0},
}};

const DtypeRow* row_of(bp_dtype dtype) {
  const auto found = std::find_if(kRows.begin(), kRows.end(), [&](const DtypeRow& row) { return row.dtype == dtype; });
  return found == kRows.end() ? nullptr : &*found;
}

double rounded(bp_dtype dtype, double golden) {
  std::array<std::byte, 8> element{};
  encode_element(dtype, golden, element.data(), 0);
  return decode_element(dtype, element.data(), 0);
}

bool same_value(double a, double b) { return (std::isnan(a) && std::isnan(b)) || a == b; }

double relative_error(double value, double golden) {
  return std::isfinite(value) ? std::fabs(value - golden) / (std::fabs(golden) + kSmall) : kInfinity;
}

WorstElement element_of(const PortSample& sample, std::int64_t i) {
  WorstElement worst;
  worst.rank = static_cast<int>(sample.count_per_rank > 0 ? i / sample.count_per_rank : 0);
  worst.index = sample.count_per_rank > 0 ? i % sample.count_per_rank : i;
  worst.value = decode_element(sample.dtype, sample.device, i);
  worst.golden = sample.golden[i];
  if (sample.benchmark != nullptr) worst.benchmark = decode_element(sample.dtype, sample.benchmark, i);
  return worst;
}

// The element for which `excess` is largest; NaN counts as infinite.
template <class Excess>
WorstElement worst_of(const PortSample& sample, const Excess& excess) {
  std::int64_t at = 0;
  double most = -1.0;
  for (std::int64_t i = 0; i < sample.count; ++i) {
    double here = excess(i);
    if (std::isnan(here)) here = kInfinity;
    if (here > most) {
      most = here;
      at = i;
    }
  }
  return element_of(sample, at);
}

// ---- exact ports ------------------------------------------------------------------------------------------------

// Counts the elements that differ by more than `allowed` from the golden rounded to the dtype.
void judge_rounded(const PortSample& sample, double allowed, PortAccuracy* result) {
  std::int64_t wrong = 0;
  const auto excess = [&](std::int64_t i) {
    const double value = decode_element(sample.dtype, sample.device, i);
    const double golden = rounded(sample.dtype, sample.golden[i]);
    if (same_value(value, golden)) return 0.0;
    const double difference = std::fabs(value - golden);
    return std::isnan(difference) ? kInfinity : difference;
  };
  result->worst = worst_of(sample, [&](std::int64_t i) {
    const double here = excess(i);
    wrong += here > allowed ? 1 : 0;
    return here;
  });
  result->share = 1.0 - static_cast<double>(wrong) / static_cast<double>(sample.count);
  result->verdict = wrong == 0 ? Verdict::pass : Verdict::wrong;
  if (wrong > 0) result->reason = fmt::format("{} of {} elements are not {}", wrong, sample.count, result->rule);
}

void judge_against_peer(const PortSample& sample, PortAccuracy* result) {
  result->rule = "equal to the unfused composition, byte by byte";
  std::int64_t wrong = 0;
  const auto differs = [&](std::int64_t i) {
    return load_bits(sample.dtype, sample.device, i) != load_bits(sample.dtype, sample.benchmark, i);
  };
  result->worst = worst_of(sample, [&](std::int64_t i) {
    const bool here = differs(i);
    wrong += here ? 1 : 0;
    return here ? 1.0 : 0.0;
  });
  result->share = 1.0 - static_cast<double>(wrong) / static_cast<double>(sample.count);
  result->verdict = wrong == 0 ? Verdict::pass : Verdict::wrong;
  if (wrong > 0) result->reason = fmt::format("{} of {} elements are not {}", wrong, sample.count, result->rule);
}

// ---- floating ports ---------------------------------------------------------------------------------------------

void add_exceeded(const char* name, double value, double limit, bool strict, PortAccuracy* result) {
  // Written so that NaN exceeds.
  if (strict ? value < limit : value <= limit) return;
  result->verdict = Verdict::wrong;
  result->reason += fmt::format("{}{} {:.3g} is not {} {:.3g}", result->reason.empty() ? "" : ", ", name, value,
                                strict ? "below" : "at most", limit);
}

// Where the golden, rounded, is NaN or infinite, the device must say the same; such elements enter no measure.
bool is_special(const PortSample& sample, std::int64_t i) {
  return !std::isfinite(rounded(sample.dtype, sample.golden[i]));
}
bool special_agrees(const PortSample& sample, std::int64_t i) {
  return same_value(decode_element(sample.dtype, sample.device, i), rounded(sample.dtype, sample.golden[i]));
}

void judge_mixed(const PortSample& sample, const DtypeRow& row, PortAccuracy* result) {
  result->rule = fmt::format("{:.0f} % within {} + {} |golden|, all within {} or {:.0f} ULP", kShare * 100.0,
                             row.absolute, row.relative, row.limit, kUlps);
  std::int64_t within = 0;
  std::int64_t beyond = 0;
  // How far beyond its last limit an element is, as a factor.
  const auto excess = [&](std::int64_t i) {
    if (is_special(sample, i)) return special_agrees(sample, i) ? 0.0 : kInfinity;
    const double golden = sample.golden[i];
    const double error = std::fabs(decode_element(sample.dtype, sample.device, i) - golden);
    return error / std::max(row.limit, kUlps * *ulp_of(sample.dtype, golden));
  };
  for (std::int64_t i = 0; i < sample.count; ++i) {
    const double golden = sample.golden[i];
    const bool inside = is_special(sample, i) ? special_agrees(sample, i)
                                              : std::fabs(decode_element(sample.dtype, sample.device, i) - golden) <=
                                                    row.absolute + row.relative * std::fabs(golden);
    within += inside ? 1 : 0;
    beyond += excess(i) <= 1.0 ? 0 : 1;  // NaN is beyond
  }
  result->worst = worst_of(sample, excess);
  result->share = static_cast<double>(within) / static_cast<double>(sample.count);
  result->verdict = Verdict::pass;
  if (*result->share < kShare) {
    result->verdict = Verdict::wrong;
    result->reason = fmt::format("{} of {} elements are within the tolerance, {:.0f} % must be", within, sample.count,
                                 kShare * 100.0);
  }
  if (beyond > 0) {
    result->verdict = Verdict::wrong;
    result->reason += fmt::format("{}{} element{} beyond the last limit", result->reason.empty() ? "" : ", ", beyond,
                                  beyond == 1 ? " is" : "s are");
  }
}

void judge_single(const PortSample& sample, const DtypeRow& row, PortAccuracy* result) {
  result->rule = "relative error below fixed limits";
  result->limit = ErrorMeasures{kMareToMere * row.single, row.single, 0.0};
  result->verdict = Verdict::pass;
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < sample.count; ++i) {
    if (is_special(sample, i) && !special_agrees(sample, i)) ++wrong;
  }
  if (wrong > 0) {
    result->verdict = Verdict::wrong;
    result->reason =
        fmt::format("{} element{} not NaN or infinite as the golden is", wrong, wrong == 1 ? " is" : "s are");
  }
  add_exceeded("MARE", result->device.mare, result->limit->mare, /*strict=*/true, result);
  add_exceeded("MERE", result->device.mere, result->limit->mere, /*strict=*/true, result);
}

double threshold(const AccStandard& standard, const char* name, double fallback) {
  const auto found = standard.thresholds.find(name);
  return found == standard.thresholds.end() ? fallback : found->second;
}

std::int64_t count_not_finite(bp_dtype dtype, const std::byte* values, std::int64_t count) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) found += std::isfinite(decode_element(dtype, values, i)) ? 0 : 1;
  return found;
}

void judge_double(const AccStandard& standard, const PortSample& sample, const DtypeRow& row, PortAccuracy* result) {
  result->rule = "errors at most so many times the benchmark's";
  result->limit = ErrorMeasures{threshold(standard, "max_re_ratio", 10.0), threshold(standard, "avg_re_ratio", 2.0),
                                threshold(standard, "root_mean_squared_ratio", 2.0)};
  result->benchmark = error_measures(sample.dtype, sample.benchmark, sample.golden, sample.count);
  const std::int64_t bad_benchmark = count_not_finite(sample.dtype, sample.benchmark, sample.count);
  const std::int64_t bad_device = count_not_finite(sample.dtype, sample.device, sample.count);
  if (bad_benchmark > 0) {
    result->verdict = Verdict::pass;
    result->reason = fmt::format("{} element{} of the benchmark {} NaN or infinite: the standard lets that pass",
                                 bad_benchmark, bad_benchmark == 1 ? "" : "s", bad_benchmark == 1 ? "is" : "are");
    return;
  }
  if (bad_device > 0) {
    result->verdict = Verdict::wrong;
    result->reason = fmt::format("{} element{} NaN or infinite, none of the benchmark's", bad_device,
                                 bad_device == 1 ? " is" : "s are");
    return;
  }
  const auto ratio = [&](double device, double benchmark) { return device / std::max(benchmark, row.floor); };
  result->ratio = ErrorMeasures{ratio(result->device.mare, result->benchmark->mare),
                                ratio(result->device.mere, result->benchmark->mere),
                                ratio(result->device.rmse, result->benchmark->rmse)};
  result->verdict = Verdict::pass;
  add_exceeded("the MARE ratio", result->ratio->mare, result->limit->mare, /*strict=*/false, result);
  add_exceeded("the MERE ratio", result->ratio->mere, result->limit->mere, /*strict=*/false, result);
  add_exceeded("the RMSE ratio", result->ratio->rmse, result->limit->rmse, /*strict=*/false, result);
}

}  // namespace

bool needs_benchmark(const AccStandard& standard) { return standard.name == "cv_fused_double_benchmark"; }
bool takes_peer(const AccStandard& standard) { return standard.name == "equal" || standard.name == "md5"; }

std::optional<double> ulp_of(bp_dtype dtype, double value) {
  const DtypeRow* row = row_of(dtype);
  if (row == nullptr) return std::nullopt;
  const int exponent = value == 0.0 || !std::isfinite(value) ? row->least_exponent : std::ilogb(value);
  return std::ldexp(1.0, std::max(exponent, row->least_exponent) - row->mantissa_bits);
}

ErrorMeasures error_measures(bp_dtype dtype, const std::byte* values, const double* golden, std::int64_t count) {
  ErrorMeasures measures;
  double squares = 0.0;
  std::int64_t counted = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(golden[i]) || !std::isfinite(rounded(dtype, golden[i]))) continue;
    const double value = decode_element(dtype, values, i);
    const double relative = relative_error(value, golden[i]);
    measures.mare = std::max(measures.mare, relative);
    measures.mere += relative;
    squares += std::isfinite(value) ? (value - golden[i]) * (value - golden[i]) : kInfinity;
    ++counted;
  }
  if (counted == 0) return {};
  measures.mere /= static_cast<double>(counted);
  measures.rmse = std::sqrt(squares / static_cast<double>(counted));
  return measures;
}

PortAccuracy judge_port(const AccStandard& standard, const PortSample& sample) {
  PortAccuracy result;
  result.port = sample.port;
  result.dtype = sample.dtype;
  result.elements = sample.count;
  if (sample.count == 0) {
    result.verdict = Verdict::pass;
    result.rule = "empty";
    return result;
  }
  result.device = error_measures(sample.dtype, sample.device, sample.golden, sample.count);
  if (takes_peer(standard)) {
    if (sample.benchmark != nullptr && sample.benchmark_is_peer) {
      judge_against_peer(sample, &result);
      return result;
    }
    result.rule = "equal to the golden, rounded once";
    judge_rounded(sample, 0.0, &result);
    return result;
  }
  if (sample.order_exact && !is_integer(sample.dtype)) {
    result.rule = "equal to the golden: the port moves data";
    judge_rounded(sample, 0.0, &result);
    return result;
  }
  if (is_integer(sample.dtype)) {
    const bool loose = sample.dtype == BP_INT8;
    result.rule = loose ? "within 1 of the golden" : "equal to the golden";
    judge_rounded(sample, loose ? 1.0 : 0.0, &result);
    return result;
  }
  const DtypeRow* row = row_of(sample.dtype);
  if (row == nullptr || (needs_benchmark(standard) && row->floor == 0.0)) {
    result.reason = fmt::format("the standard {} has no rule for {}", standard.name, dtype_name(sample.dtype));
    return result;
  }
  const auto relative = [&](std::int64_t i) {
    if (is_special(sample, i)) return special_agrees(sample, i) ? 0.0 : kInfinity;
    return relative_error(decode_element(sample.dtype, sample.device, i), sample.golden[i]);
  };
  if (standard.name == "single_bm") {
    judge_single(sample, *row, &result);
    result.worst = worst_of(sample, relative);
  } else if (needs_benchmark(standard)) {
    judge_double(standard, sample, *row, &result);
    result.worst = worst_of(sample, relative);
  } else {
    judge_mixed(sample, *row, &result);
  }
  return result;
}

}  // namespace batchproof
