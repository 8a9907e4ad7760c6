/* SPDX-License-Identifier: Apache-2.0
 *
 * A shared library that is no plug-in. */
int no_plug_in(void) { return 0; }
