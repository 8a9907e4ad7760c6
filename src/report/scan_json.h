// SPDX-License-Identifier: Apache-2.0
//
// A scan as JSON (docs/reports.md).
#ifndef BATCHPROOF_SRC_REPORT_SCAN_JSON_H_
#define BATCHPROOF_SRC_REPORT_SCAN_JSON_H_

#include <string>

#include "src/check/result.h"
#include "src/check/scan.h"

namespace batchproof {

constexpr int kScanSchemaVersion = 1;

// One document, with a newline at the end. Classes are numbers from 0, in the order in which they appear.
std::string scan_json(const ScanResult& result, const RunContext& context);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_REPORT_SCAN_JSON_H_
