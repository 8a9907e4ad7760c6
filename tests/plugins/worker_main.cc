// SPDX-License-Identifier: Apache-2.0
//
// The worker verb as a program of its own, for tests whose own program is a test.
#include <cstring>

#include "src/plugin/worker.h"

int main(int argc, char** argv) {
  if (argc < 2 || std::strcmp(argv[1], batchproof::kWorkerVerb) != 0) return 2;
  return batchproof::worker_main(argc - 1, argv + 1);
}
