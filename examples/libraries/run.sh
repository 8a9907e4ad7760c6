#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Which matrix products of real libraries are batch invariant on this machine? Installs from Debian what is missing,
# builds the plug-ins, runs their suites and prints the table of docs/libraries.md.
#
# Verdicts differ by processor, so the suites expect nothing: a violation is a result here, not a failure.
# usage: run.sh [--keep FOLDER] [PROGRAM [LIBRARY ...]]
#   FOLDER   existing folder for the plug-ins and their JSON reports; without it nothing is kept
#   PROGRAM  default build/release/batchproof
#   LIBRARY  openblas blis onednn eigen; default all
# BATCHPROOF_NO_INSTALL=1: install nothing; what is missing ends the run with exit code 3. BATCHPROOF_FILTER narrows the
# cells as it does for the program.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
keep=
if [ "${1:-}" = --keep ]; then
  [ -d "${2:-}" ] || { echo "run.sh: --keep needs a folder that exists" >&2; exit 2; }
  keep=$(cd "$2" && pwd)
  shift 2
fi
program=$(realpath "${1:-$root/build/release/batchproof}")
[ -x "$program" ] || { echo "run.sh: there is no program $program; ./run build makes it" >&2; exit 2; }
shift || true
libraries=("$@")
[ ${#libraries[@]} -gt 0 ] || libraries=(openblas blis onednn eigen)
work=$keep
if [ -z "$work" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi

declare -A package=([openblas]=libopenblas-dev [blis]=libblis-dev [onednn]=libdnnl-dev [eigen]=libeigen3-dev)
missing=()
for library in "${libraries[@]}"; do
  name=${package[$library]:-}
  [ -n "$name" ] || { echo "run.sh: no library $library; there are: openblas blis onednn eigen" >&2; exit 2; }
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null || true)" = installed ] || missing+=("$name")
done
if [ ${#missing[@]} -gt 0 ]; then
  if [ "${BATCHPROOF_NO_INSTALL:-0}" = 1 ]; then echo "run.sh: missing packages: ${missing[*]}" >&2; exit 3; fi
  as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  export DEBIAN_FRONTEND=noninteractive
  { "${as_root[@]}" apt-get update -qq && "${as_root[@]}" apt-get install -y -qq --no-install-recommends \
    "${missing[@]}"; } >&2 || exit 3
fi

# The libraries choose kernels from the processor, not from somebody's settings. Threads that wait shall sleep: those
# of the harness and of the library share the processor.
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE OPENBLAS_NUM_THREADS BLIS_NUM_THREADS BLIS_ARCH_TYPE OMP_NUM_THREADS
unset DNNL_MAX_CPU_ISA ONEDNN_MAX_CPU_ISA
export OMP_WAIT_POLICY=passive

multiarch=/usr/include/$(gcc -print-multiarch)
flags=(-O2 -Wall -Wextra -fPIC -shared -I"$root/include" -I"$here")
for library in "${libraries[@]}"; do
  out=$work/$library.so
  case $library in
    # By file, for the system's choice of cblas.h and libblas may be another library.
    openblas) gcc -std=c99 "${flags[@]}" -isystem "$multiarch/openblas-pthread" "$here/openblas.c" -o "$out" \
      -l:libopenblas.so.0 ;;
    blis) gcc -std=c99 "${flags[@]}" -isystem "$multiarch/blis-openmp" "$here/blis.c" -o "$out" -lblis ;;
    onednn) g++ -std=c++20 "${flags[@]}" -fopenmp "$here/onednn.cc" -o "$out" -ldnnl ;;
    # Eigen is compiled with its caller: what this processor has decides.
    eigen) g++ -std=c++20 "${flags[@]}" -fopenmp -march=native -isystem /usr/include/eigen3 "$here/eigen.cc" \
      -o "$out" ;;
  esac || { echo "run.sh: $library does not build" >&2; exit 1; }
  status=0
  "$program" check --plugin "$out" "$here/$library.json" --json "$work/$library.json" --timeout 120 \
    >"$work/$library.out" 2>"$work/$library.err" || status=$?
  # 1: some cell is not invariant, or could not run. Both stand in the report, and the table says which.
  case $status in 0 | 1) ;; *) cat "$work/$library.err" >&2; exit "$status" ;; esac
  [ -f "$work/$library.json" ] || { cat "$work/$library.err" >&2; exit 1; }
done

versions=()
for library in "${libraries[@]}"; do
  versions+=("$library=$(dpkg-query -W -f '${Version}' "${package[$library]}")")
done
/usr/bin/python3 "$here/table.py" "$work" "${versions[@]}"
