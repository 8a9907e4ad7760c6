// SPDX-License-Identifier: Apache-2.0
//
// The process in which a plug-in runs, and the words that it and the program exchange.
#ifndef BATCHPROOF_SRC_PLUGIN_WORKER_H_
#define BATCHPROOF_SRC_PLUGIN_WORKER_H_

#include <cstdint>

#include "batchproof/operator.h"

namespace batchproof {

// The hidden verb by which the program starts itself as a worker.
constexpr const char* kWorkerVerb = "worker";

// Serves one plug-in until the program closes the channel. argv[0] is the verb, the rest is what the program passes to
// itself; returns an exit status.
int worker_main(int argc, char** argv);

// One tensor of a run message's blob: `view.data` is not sent, `offset` takes its place.
struct WireTensor {
  bp_tensor view;
  std::uint64_t offset;
  std::uint64_t piece_offset;
  std::uint64_t piece_bytes;
  std::uint32_t writable;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_PLUGIN_WORKER_H_
