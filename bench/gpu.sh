#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a device, in one command. Each part is a process of its own with its own time limit: a crash or
# a hang costs that part. Prints a short table last; status 1 where a part failed, 3 where there is no device.
#
#   bench/gpu.sh PROGRAMS RESULTS    PROGRAMS: folder of the device programs and of batchproof (the build folder's gpu/,
#                                    made here or carried here with its libraries in lib/); RESULTS: logs and record.json
set -u
programs=${1:?folder of the device programs} results=${2:?folder for records and logs}
here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$results"
programs=$(cd "$programs" && pwd) results=$(cd "$results" && pwd)
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
cuda=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
# cuBLASLt is opened at run time; without it the benchmark leaves its column empty.
export LD_LIBRARY_PATH="$programs/lib:$cuda/lib64:$cuda/targets/x86_64-linux/lib:${LD_LIBRARY_PATH:-}"
batchproof=$programs/batchproof
[ -x "$batchproof" ] || batchproof=$programs/../batchproof
if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "gpu.sh: this machine has no CUDA device, or no driver for it" >&2
  exit 3
fi
# Nothing of an earlier run may get into this one's record.
rm -f "$results"/*.part "$results"/*.txt "$results"/{rules,matmul,rms_norm,mhc,mhc_product,record}.json
index=0

part() { # NAME SECONDS COMMAND...
  local name=$1 limit=$2 start status word
  shift 2
  start=$(date +%s)
  timeout "$limit" "$@" >"$results/$name.txt" 2>&1
  status=$?
  word=pass
  [ $status -eq 124 ] && word="time limit"
  [ $status -ne 0 ] && [ $status -ne 124 ] && word="FAIL ($status)"
  printf '%s\t%s\t%s\t%s\n' "$name" "$word" "$(($(date +%s) - start))" \
    "$(tail -n 1 "$results/$name.txt" | cut -c1-120)" >"$results/$(printf %03d $index).part"
}
# What only has to be right runs side by side; what is timed runs alone, behind all that.
beside() {
  index=$((index + 1))
  part "$@" &
}
alone() {
  index=$((index + 1))
  part "$@"
}

beside rules 120 "$programs/rules_check" "$results/rules.json"
beside correct 200 "$programs/matmul_check" correct
beside repeat 120 "$programs/matmul_check" repeat
beside inputs 120 "$programs/inputs_check"
beside virtual 120 "$programs/virtual_check" correct
beside rms_norm 60 "$programs/rms_norm_check" correct
beside mhc 200 "$programs/mhc_check" correct
beside mhc-repeat 200 "$programs/mhc_check" repeat
beside mhc-flips 120 "$programs/mhc_check" flips
beside suites 240 "$batchproof" check --device cuda "$here"/ops/*/cuda.json
beside controls 120 "$batchproof" check --device cuda "$here"/ops/*/cuda_controls.json
sanitizer=$(command -v compute-sanitizer || true)
for place in "$cuda/bin" "$cuda/compute-sanitizer"; do
  [ -n "$sanitizer" ] || { [ -x "$place/compute-sanitizer" ] && sanitizer=$place/compute-sanitizer; }
done
sanitize() { # TOOL PROGRAM
  if [ -n "$sanitizer" ]; then
    beside "$1-$2" "${BATCHPROOF_SANITIZER_SECONDS:-240}" "$sanitizer" --tool "$1" --error-exitcode 9 \
      "$programs/$2_check" sanitize
  else
    index=$((index + 1))
    printf '%s\tskipped\t0\tcompute-sanitizer is not installed\n' "$1-$2" >"$results/$(printf %03d $index).part"
  fi
}
for tool in memcheck racecheck synccheck; do
  for program in matmul rms_norm virtual mhc; do sanitize $tool $program; done
done
wait
alone mhc-layers 60 "$programs/mhc_check" layers
alone mhc-every 240 "$programs/mhc_check" every
alone bench 240 "$programs/matmul_bench" bench "$results/matmul.json" "${BATCHPROOF_BENCH_SECONDS:-200}"
alone bench-rms_norm 60 "$programs/rms_norm_bench" bench "$results/rms_norm.json"
alone bench-mhc_product 60 "$programs/mhc_bench" product "$results/mhc_product.json" 50
alone bench-mhc 240 "$programs/mhc_bench" bench "$results/mhc.json" "${BATCHPROOF_BENCH_SECONDS:-200}"
cat "$results"/*.part >"$results/parts.tsv"
failed=0
grep -qvP '\t(pass|skipped)\t' "$results/parts.tsv" && failed=1

commit=${BATCHPROOF_COMMIT:-$(git -C "$here" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)}
device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)
python3 "$here/bench/record.py" "$results" "$(date -u +%Y-%m-%d)" "$device" "$commit" || failed=1
grep -h '^FAIL' "$results"/*.txt | head -n 20
awk -F'\t' '{printf "%-18s %-12s %4ds  %s\n", $1, $2, $3, $4}' "$results/parts.tsv"
exit $failed
