#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The installed package as its users meet it: install to a prefix, then, outside the tree and with that prefix alone,
# write an operator, build it, check it; a consumer of the built-in operators; the Debian package.
# usage: package_test.sh BUILD_DIR
set -euo pipefail
build_dir=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
cmake --install "$build_dir" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$prefix" # nothing may hold the prefix that it was installed to
export PATH=$prefix/bin:$PATH PKG_CONFIG_PATH=$prefix/lib/pkgconfig CMAKE_PREFIX_PATH=$prefix
pc=$(find "$prefix" -name batchproof.pc)
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH

die() {
  printf 'package_test: %s\n' "$*" >&2
  exit 1
}
# status COMMAND...: runs it with its output in $work/out and $work/err and prints the exit status.
status() {
  local code=0
  "$@" >"$work/out" 2>"$work/err" || code=$?
  echo "$code"
}
expect() { # wanted COMMAND...
  local wanted=$1 code
  shift
  code=$(status "$@")
  if [ "$code" != "$wanted" ]; then
    cat "$work/out" "$work/err" >&2
    die "exit $code, not $wanted: $*"
  fi
}
has() { grep -qF -- "$1" "$work/out" "$work/err" || { cat "$work/out" "$work/err" >&2; die "no \"$1\""; }; }

[ "$(command -v batchproof)" = "$prefix/bin/batchproof" ] || die "another batchproof is found first"
for file in operator.h problem.h registry.h; do
  [ -f "$prefix/include/batchproof/$file" ] || die "$file is not installed"
done
[ -f "$prefix/share/batchproof/schema/native.schema.json" ] || die "the schemas are not installed"
# The installed program takes its suites from the prefix.
cd "$work"
expect 0 batchproof doctor
has "$prefix/share/batchproof/ops"
expect 0 batchproof check --dry-run "$prefix/share/batchproof/ops/matmul/ci.json"
# A suite that names a captured tensor beside it.
expect 0 batchproof check --filter /pre-v41-eps/ --relations position "$prefix/share/batchproof/ops/mhc/ci.json"

for language in c c++; do
  cd "$work"
  if [ $language = c ]; then suffix=c compile=(gcc -std=c99); else suffix=cc compile=(g++ -std=c++20); fi
  folder="$work/some place $language"
  expect 0 batchproof new softcap --language $language --directory "$folder"
  expect 2 batchproof new softcap --language $language --directory "$folder"
  has 'is there already'
  cd "$folder"
  if grep -rn my_op .; then die "the placeholder is left"; fi

  read -ra cflags <<<"$(pkg-config --cflags batchproof)"
  for library in softcap softcap_variant; do
    "${compile[@]}" -O2 -ffp-contract=off -Wall -Werror -fPIC -shared "${cflags[@]}" $library.$suffix -o $library.so
  done
  expect 0 batchproof check --plugin ./softcap.so softcap.json
  [ "$(tail -n 1 "$work/out")" = '4 passed, 0 failed, 0 skipped' ] || { cat "$work/out"; die "last line"; }
  expect 1 batchproof check --plugin ./softcap_variant.so softcap.json
  [ "$(tail -n 1 "$work/out")" = '0 passed, 4 failed, 0 skipped' ] || { cat "$work/out"; die "last line"; }
  has 'row bytes are not equal: softcap/cpu-fp32-ascending/rows/K=256,M=3,N=32 relation batch_size'
  has 'changed: M = 5 instead of 3'
  has 'port y, row 0:'
  has 'first difference: column 0, byte 0 of the row'

  # The same through CMake; the variant as well, whose tests must fail.
  echo 'batchproof_add_suite(variant softcap.json PLUGIN softcap_variant RANKS 1 LABELS variant)' >>CMakeLists.txt
  expect 0 cmake -S . -B build -G Ninja
  expect 0 cmake --build build
  expect 0 ctest --test-dir build -N -L batch_invariance
  for case in one-row rows odd; do has "softcap/$case"; done
  has 'Total Tests: 3'
  expect 0 ctest --test-dir build -L batch_invariance
  has '100% tests passed, 0 tests failed out of 3'
  expect 8 ctest --test-dir build -L variant
  has '0% tests passed, 3 tests failed out of 3'
done

# What new refuses. Nothing is written.
cd "$work" && mkdir empty && cd empty
for name in 9op a-b 'a b' '' test matmul ../x; do expect 2 batchproof new "$name"; done
expect 2 batchproof new fine --language fortran
[ -z "$(ls -A)" ] || die "a refused name left files"
touch taken
expect 2 batchproof new taken

# A project that links the built-in tables, through CMake and through pkg-config.
mkdir "$work/consumer" && cd "$work/consumer"
cat >main.cc <<'END'
#include <cstdio>

#include "batchproof/registry.h"

int main() {
  for (const bp_operator* table : batchproof::registered_operators()) std::puts(table->name);
}
END
cat >skipped.json <<'END'
[{"name": "no such op", "aclnn_name": "aclnnNoSuchOperator", "inputs": [
  {"name": "x", "type": "tensor", "dtype": "fp32", "shape": [2, 2], "range_values": [0, 1]}]}]
END
cat >CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.24)
project(consumer LANGUAGES C CXX)
find_package(batchproof 0.1 REQUIRED CONFIG COMPONENTS operators)
add_executable(tables main.cc)
target_link_libraries(tables PRIVATE batchproof::operators)
enable_testing()
batchproof_add_suite(skips skipped.json)
END
expect 0 cmake -S . -B build -G Ninja
expect 0 cmake --build build
expect 0 build/tables
sort "$work/out" >"$work/tables"
batchproof list --json | python3 -c '
import json, sys
print("\n".join(sorted(op["name"] for op in json.load(sys.stdin)["operators"])))' >"$work/listed"
grep -qx matmul "$work/tables" || die "matmul is not linked"
diff "$work/listed" "$work/tables" || die "the linked tables are not the program's"
read -ra flags <<<"$(pkg-config --cflags --libs batchproof-operators)"
expect 0 g++ -std=c++20 main.cc -o tables "${flags[@]}"
expect 0 ./tables
diff "$work/listed" <(sort "$work/out") || die "pkg-config: the linked tables are not the program's"
expect 0 ctest --test-dir build -R '^skips/no_such_op$'
has '***Skipped'

# The Debian package.
if command -v dpkg-deb >/dev/null; then
  expect 0 cpack -G DEB --config "$build_dir/CPackConfig.cmake" -B "$work/deb" \
    -D "CPACK_PACKAGE_CONTACT=Package Test <package.test@localhost>"
  deb=$(find "$work/deb" -maxdepth 1 -name 'batchproof_*.deb')
  expect 0 dpkg-deb -I "$deb"
  has 'Package: batchproof'
  has 'Maintainer: Package Test <package.test@localhost>'
  expect 0 dpkg-deb -x "$deb" "$work/root"
  expect 0 "$work/root/usr/bin/batchproof" --version
fi
echo "the installed package works outside the tree"
