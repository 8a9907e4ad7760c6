// SPDX-License-Identifier: Apache-2.0
//
// A scan as text: bit classes per output as intervals, and the flips.
#ifndef BATCHPROOF_SRC_REPORT_SCAN_TEXT_H_
#define BATCHPROOF_SRC_REPORT_SCAN_TEXT_H_

#include <string>

#include "src/check/scan.h"

namespace batchproof {

// One line per output ("comb_mix  order 32/32  3 classes  A 1..7  B 8..16  C 17..128"), the flips of each output with
// the number of victims that changed, the flips of any output, where the position in the batch mattered, and the
// verdict. Ends with a newline.
std::string format_scan(const ScanResult& result);

// "pass: ...", "violation: ...", "vacuous: ..." or "not judged: ...": one sentence.
std::string scan_verdict(const ScanResult& result);

// A, B, ..., Z, A1, B1, ...
std::string scan_class_name(int bit_class);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_REPORT_SCAN_TEXT_H_
