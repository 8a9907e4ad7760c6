# SPDX-License-Identifier: Apache-2.0
"""Prints the Markdown table of docs/libraries.md from JSON reports: table.py FOLDER LIBRARY=VERSION ...

Exit status 1 where an FP32 cell of a library could not be judged: the table would have a hole.
"""
import json
import os
import platform
import sys

NAMES = {"openblas": "OpenBLAS", "blis": "BLIS", "onednn": "oneDNN", "eigen": "Eigen"}
# A relation's runs start from M as the cell has it; batch_size compares with M = 1.
RELATIONS = ("position", "threads", "neighbours", "repeat")


def processor():
    """(model, what decides which kernels a library takes and how it cuts the work)"""
    facts = {}
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            facts.setdefault(key.strip(), value.strip())
    flags = facts.get("flags", "").split()
    isa = [name for name in ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    kind = "family {}, model {}; {}; {} processors".format(
        facts.get("cpu family", "?"), facts.get("model", "?"), " ".join(isa) or "no vector extension of note",
        len(os.sched_getaffinity(0)))
    return facts.get("model name", platform.machine()), kind


def read(folder, library):
    with open("{}/{}.json".format(folder, library), encoding="utf-8") as text:
        report = json.load(text)
    if not report["cells"]:
        sys.exit("{} has no cells".format(library))
    return report["cells"]


def collect(cells):
    """{(dtype, N, K): {"errors": {...}, relation: {verdict: [M, ...]}}}"""
    rows = {}
    for cell in cells:
        axes = cell["axes"]
        row = rows.setdefault((axes.get("dtype", "fp32"), int(axes["N"]), int(axes["K"])), {"errors": set()})
        if cell["verdict"] in ("error", "skipped"):
            row["errors"].add(cell["reason"] or "; ".join(r["reason"] for r in cell["relations"] if r["reason"]))
            continue
        for relation in cell["relations"]:
            verdicts = row.setdefault(relation["relation"], {})
            verdicts.setdefault(relation["verdict"], []).append(int(axes["M"]))
    return rows


def listed(sizes):
    return ", ".join(map(str, sorted(sizes))) or "none"


def described(verdicts):
    """"breaks at 257, holds at 17"; what is neither is named."""
    words = {"violation": "**breaks**", "pass": "holds"}
    return ", ".join("{} at {}".format(words.get(verdict, verdict), listed(verdicts[verdict]))
                     for verdict in ("violation", "pass", "vacuous", "error", "skipped") if verdict in verdicts) or "-"


def main():
    folder, versions = sys.argv[1], [word.split("=", 1) for word in sys.argv[2:]]
    print("Processor: {} ({})\n".format(*processor()))
    print("| library | dtype | N, K | batch_size breaks at M = | batch_size holds at M = | {} |".format(
        " | ".join(RELATIONS)))
    print("|{}".format(" --- |" * (5 + len(RELATIONS))))
    failed = False
    for library, version in versions:
        for (dtype, n, k), row in collect(read(folder, library)).items():
            # BF16 may be missing on a processor; FP32 never is.
            failed = failed or (dtype == "fp32" and bool(row["errors"]))
            start = "| {} {} | {} | {}, {} |".format(NAMES.get(library, library), version, dtype, n, k)
            if row["errors"]:
                print("{} not run: {} |{}".format(start, "; ".join(sorted(row["errors"])), " |" * (1 + len(RELATIONS))))
                continue
            sizes = row.get("batch_size", {})
            rest = {verdict: found for verdict, found in sizes.items() if verdict not in ("violation", "pass")}
            print("{} {} | {}{} | {} |".format(
                start, listed(sizes.get("violation", [])), listed(sizes.get("pass", [])),
                "; " + described(rest) if rest else "",
                " | ".join(described(row.get(relation, {})) for relation in RELATIONS)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
