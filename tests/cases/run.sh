#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the rebuilt cases as plug-ins and runs their suites: every defect is caught by the relations that its suite
# names, and by no other. Exit code 0 if so, 1 if not, 2 where something does not build.
# usage: run.sh PROGRAM
set -euo pipefail
[ $# = 1 ] || { echo "usage: run.sh PROGRAM" >&2; exit 2; }
program=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The settings of somebody's own run are not for this one.
unset "${!BATCHPROOF_@}"

arguments=()
for source in "$here"/*.c; do
  name=$(basename "$source" .c)
  [ -f "$here/$name.json" ] || { echo "$name has no suite" >&2; exit 2; }
  # No contraction: a case differs by its order of summation alone.
  ${CC:-cc} -std=c99 -O2 -ffp-contract=off -Wall -Wextra -Werror -fPIC -shared -I"$here/../../include" \
    "$source" -o "$work/$name.so" -lm -lpthread || exit 2
  arguments+=(--plugin "$work/$name.so" "$here/$name.json")
done
status=0
"$program" check "${arguments[@]}" >"$work/out" 2>"$work/err" || status=$?
cat "$work/out"
[ $status = 0 ] || cat "$work/err" >&2
exit $status
