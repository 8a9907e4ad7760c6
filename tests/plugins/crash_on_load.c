/* SPDX-License-Identifier: Apache-2.0
 *
 * Aborts in its constructor. */
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void when_loaded(void) {
  fputs("licence server not found\n", stderr);
  abort();
}
