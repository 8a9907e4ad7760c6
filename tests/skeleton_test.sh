#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Adding an operator edits no shared file: the copy-me operator is dropped into a copy of the tree under another name,
# the tree builds, and the new operator is listed, checked, and its control caught.
# usage: skeleton_test.sh SOURCE_DIR
set -euo pipefail
source_dir=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree
mkdir -p "$tree"
(cd "$source_dir" && git ls-files -co --exclude-standard -z | xargs -0 -I{} sh -c '[ -f "$1" ] && printf "%s\0" "$1"' _ {}) |
  (cd "$source_dir" && tar --null -T - -cf -) | tar -C "$tree" -xf -

# The README of examples/skeleton, step by step.
cp -r "$tree/examples/skeleton" "$tree/ops/dropped_in"
cd "$tree/ops/dropped_in"
for file in skeleton*; do mv "$file" "dropped_in${file#skeleton}"; done
sed -i s/skeleton/dropped_in/g ./*
cd "$tree"

export CCACHE_BASEDIR=$tree CCACHE_NOHASHDIR=1
cmake -S . -B build/release -G Ninja -DCMAKE_BUILD_TYPE=Release -DBATCHPROOF_TESTS=ON -DBATCHPROOF_BENCHMARKS=OFF \
  >"$work/configure.log" 2>&1 || { cat "$work/configure.log"; exit 1; }
ninja -C build/release batchproof dropped_in_dropped_in_test >"$work/build.log" 2>&1 || { tail -n 40 "$work/build.log"; exit 1; }
build/release/dropped_in_dropped_in_test

# Nothing but the new folder differs from the source tree.
changed=$(diff -rq --exclude=build --exclude=.git "$source_dir" "$tree" 2>/dev/null | grep -v "^Only in $source_dir" || true)
expected="Only in $tree/ops: dropped_in"
if [ "$changed" != "$expected" ]; then
  printf 'expected: %s\nfound:    %s\n' "$expected" "$changed"
  exit 1
fi

listed=$(build/release/batchproof list 2>/dev/null)
grep -q dropped_in <<<"$listed"
build/release/batchproof check --filter '^dropped_in/' ops/dropped_in/ci.json >"$work/check.txt" 2>"$work/check.err" || {
  cat "$work/check.err" "$work/check.txt"
  exit 1
}
last=$(tail -n 1 "$work/check.txt")
[ "$last" = '8 passed, 0 failed, 0 skipped' ] || { cat "$work/check.txt"; exit 1; }
grep -q control-order-by-batch "$work/check.txt"
echo "the copy-me operator builds and is checked: $last"
