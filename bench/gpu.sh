#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a device, in one command. Each part is a process of its own with its own time limit: a crash or
# a hang costs that part. Prints a short table last; status 1 where a part failed.
#
#   bench/gpu.sh PROGRAMS RESULTS    PROGRAMS: build folder's gpu/ (target gpu_programs), made here or carried here
set -u
programs=${1:?folder of the device programs} results=${2:?folder for records and logs}
here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$results"
programs=$(cd "$programs" && pwd) results=$(cd "$results" && pwd)
cuda=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")")
# cuBLASLt is opened at run time; without it the benchmark leaves its column empty.
export LD_LIBRARY_PATH="$programs:$cuda/lib64:$cuda/targets/x86_64-linux/lib:${LD_LIBRARY_PATH:-}"
failed=0 table=""

part() {  # NAME SECONDS COMMAND...
  local name=$1 limit=$2 start status word
  shift 2
  start=$(date +%s)
  timeout "$limit" "$@" >"$results/$name.txt" 2>&1
  status=$?
  word=pass
  [ $status -eq 124 ] && word="time limit"
  [ $status -ne 0 ] && [ $status -ne 124 ] && word="FAIL ($status)"
  [ $status -ne 0 ] && failed=1
  table+=$(printf '%-22s %-12s %4ds  %s' "$name" "$word" $(($(date +%s) - start)) "$(tail -n 1 "$results/$name.txt" | cut -c1-120)")$'\n'
}

part rules 120 "$programs/rules_check" "$results/rules.json"
part correct 200 "$programs/matmul_check" correct
part repeat 120 "$programs/matmul_check" repeat
sanitizer=$(command -v compute-sanitizer || ls "$cuda"/bin/compute-sanitizer "$cuda"/compute-sanitizer/compute-sanitizer 2>/dev/null | head -1)
if [ -n "$sanitizer" ]; then
  for tool in memcheck racecheck synccheck; do
    part $tool "${BATCHPROOF_SANITIZER_SECONDS:-120}" "$sanitizer" --tool $tool --error-exitcode 9 "$programs/matmul_check" sanitize
  done
else
  table+=$'sanitizer              skipped: compute-sanitizer is not installed\n'
fi
part bench 240 "$programs/matmul_bench" bench "$results/matmul.json" 200

{
  echo "date: $(date -u +%Y-%m-%d)"
  echo "device: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1)"
  echo "commit: $(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo none)"
} >"$results/where.txt"
cat "$results/where.txt"
grep -h '^FAIL' "$results"/*.txt | head -20
printf '%s' "$table"
exit $failed
