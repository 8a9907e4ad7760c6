#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of README.md and docs/cuda.md from the newest record of bench/records, between the lines
<!-- table NAME --> and <!-- end -->. With --check nothing is written; exit 1 where a table is not the record's.

usage: tables.py [--check]
"""

import json
import math
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = ("README.md", "docs/cuda.md")
TYPES = ("bf16", "fp16", "tf32", "e4m3", "e5m2", "s8")


def mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


def where(record):
    return (f"{record['device']}, driver {record['driver']}, {record['date']}, commit `{record['commit']}`, "
            f"cuBLASLt {record['matmul']['cublaslt'] // 10000}.{record['matmul']['cublaslt'] // 100 % 100}")


def summary(record):
    rows = record["matmul"]["rows"]
    text = [where(record), "", "| M | speed against cuBLASLt | time over floor | cost of invariance |", "| --- | --- | --- | --- |"]
    for name, low, high in (("1 to 64", 1, 64), ("128 to 1024", 128, 1024), ("2048 to 8192", 2048, 8192)):
        part = [r for r in rows if low <= r["M"] <= high]
        speed = mean([r["cublaslt_us"] / r["ours_us"] for r in part])
        floor = mean([r["ours_us"] / r["floor_us"] for r in part])
        cost = mean([r["ours_us"] / min(r["fast_us"], r["cublaslt_us"]) for r in part])
        text.append(f"| {name} | {speed:.2f} | {floor:.2f} | {cost:.2f} |")
    ours = {c["ours"] for c in record["matmul"]["classes"]}
    peer = sum(c["cublaslt"] > 1 for c in record["matmul"]["classes"])
    text += ["", f"Geometric means over {len(record['matmul']['classes'])} weight shapes. Bit classes of row 0 over M: "
             f"ours {max(ours)} everywhere, cuBLASLt more than one at {peer} of {len(record['matmul']['classes'])} shapes."]
    return text


def matmul(record):
    rows = record["matmul"]["rows"]
    shapes = list(dict.fromkeys((r["N"], r["K"]) for r in rows))
    text = [where(record), "", "| M | " + " | ".join(f"{n} x {k}" for n, k in shapes) + " |",
            "| --- |" + " --- |" * len(shapes)]
    for m in sorted({r["M"] for r in rows}):
        cells = []
        for shape in shapes:
            found = [r for r in rows if (r["N"], r["K"], r["M"]) == (*shape, m)]
            cells.append(f"{found[0]['ours_us']:.1f} ({found[0]['cublaslt_us'] / found[0]['ours_us']:.2f})" if found else "-")
        text.append(f"| {m} | " + " | ".join(cells) + " |")
    return text


def parts(record):
    text = [where(record), "", "| part | result | seconds | its last line |", "| --- | --- | --- | --- |"]
    return text + [f"| {p['part']} | {p['result']} | {p['seconds']} | {p['last_line'].replace('|', '/')} |" for p in record["parts"]]


def rules(record):
    text = [where(record), "", "| rule | " + " | ".join(TYPES) + " |", "| --- |" + " --- |" * len(TYPES)]
    for rule, cells in record["rules"]["differing"].items():
        if rule.startswith("CPU model"):
            continue
        shown = []
        for name in TYPES:
            differing, total = cells.get(name, (0, 0))
            shown.append("-" if total == 0 else "same" if differing == 0 else f"{100 * differing / total:.1f} % differ")
        text.append(f"| {rule} | " + " | ".join(shown) + " |")
    return text


def by_rows(record, key, of, name, cell, rows=None):
    """A line for every M, a column for every kind of row, which of() tells and name() shows."""
    if key not in record:
        return ["Not in the newest record; the next run of `./run gpu` has it."]
    rows = rows or record[key]["rows"]
    columns = list(dict.fromkeys(of(r) for r in rows))
    found = {(of(r), r["M"]): cell(r) for r in rows}
    text = [where(record), "", "| M | " + " | ".join(name(c) for c in columns) + " |", "| --- |" + " --- |" * len(columns)]
    return text + [f"| {m} | " + " | ".join(found.get((c, m), "-") for c in columns) + " |"
                   for m in sorted({r["M"] for r in rows})]


def row_0(record, key):
    if key not in record:
        return []
    rows = record[key]["rows"]
    moved = sum(r["row_0_elements_moved"] for r in rows)
    return ["", f"Elements of row 0 that differ between a call with one row and with M: {moved} in {len(rows)} calls."]


def rms_norm(record):
    if "rms_norm" not in record:
        return by_rows(record, "rms_norm", None, None, None)
    text = by_rows(
        record, "rms_norm", lambda r: r["H"], lambda h: f"H = {h}",
        lambda r: f"{r['us']:.1f} us, {r['gb_per_s']:.0f} GB/s ({r['of_copy']:.2f}; copy {r['copy_us']:.1f} us)",
        [r for r in record["rms_norm"]["rows"] if r["dtype"] == "bf16"])
    ours = max(c["ours"] for c in record["rms_norm"]["classes"])
    fast = max(c["fast"] for c in record["rms_norm"]["classes"])
    return text + ["", f"Bit classes of row 0 over M: {ours}; fast mode: {fast}."]


def mhc(record):
    def cell(r):
        dependent = f" / {r['dependent_us']:.1f}" if r["dependent_us"] > 0 else ""
        return f"{r['us']:.1f}{dependent} ({r['us'] / r['floor_us']:.2f})"

    return by_rows(record, "mhc", lambda r: (r["op"], r["H"]), lambda c: f"{c[0]}, {c[1]}", cell) + row_0(record, "mhc")


def mhc_peer(record):
    """Times of the public prenorm product by (H, M), measured beside this record; none where there are none."""
    for path in (ROOT / "bench/records/peers").glob("*.json"):
        peer = json.loads(path.read_text())
        if peer["beside_commit"] == record["commit"]:
            return {(r["H"], r["M"]): r["us"] for r in peer["mhc_product"]}
    return {}


def mhc_product(record):
    peer = mhc_peer(record)

    def cell(r):
        beside = f"; {r['us'] / peer[r['H'], r['M']]:.2f}" if (r["H"], r["M"]) in peer else ""
        return f"{r['us']:.2f} / {r['dependent_us']:.2f} ({r['us'] / r['floor_us']:.2f}{beside})"

    return by_rows(record, "mhc_product", lambda r: r["H"], lambda h: f"H = {h}", cell) + row_0(record, "mhc_product")


def mhc_summary(record):
    """The fused operator and the product of every H, for the README."""
    peer = mhc_peer(record)

    def cell(r):
        of_floor = r["floor_us"] / r["us"]
        if r["kind"] == "fused":
            return f"{r['us']:.1f} ({of_floor:.2f}; {r['us'] / r['fast_us']:.2f})"
        cost = f"; {100 * (r['us'] / peer[r['H'], r['M']] - 1):+.0f} %" if (r["H"], r["M"]) in peer else ""
        return f"{r['us']:.2f} ({of_floor:.2f}{cost})"

    fused = [r for r in record.get("mhc", {"rows": []})["rows"] if r["op"] == "mhc_fused_post_pre"]
    product = record.get("mhc_product", {"rows": []})["rows"]
    rows = [{**r, "kind": kind} for kind, some in (("fused", fused), ("product", product)) for r in some]
    return by_rows(record, "mhc", lambda r: (r["kind"], r["H"]), lambda c: f"{c[0]}, {c[1]}", cell,
                   sorted(rows, key=lambda r: (r["kind"], r["H"])))


def newest():
    records = [json.loads(p.read_text()) for p in sorted((ROOT / "bench/records").glob("*.json"))]
    return sorted(records, key=lambda r: r["date"])[-1]  # of one day: the last by name


def main():
    record = newest()
    made = {f.__name__: f(record) for f in (summary, matmul, parts, rms_norm, mhc, mhc_product, mhc_summary, rules)}
    stale = []
    for name in FILES:
        path = ROOT / name
        old = path.read_text()
        new = re.sub(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)",
                     lambda m: m[1] + "\n".join(made[m[2]]) + "\n" + m[3], old, flags=re.DOTALL)
        if "<!-- table " not in old:
            stale.append(f"{name} has no table")
        if new != old and "--check" in sys.argv:
            stale.append(f"{name} does not show the newest record; run bench/tables.py")
        elif new != old:
            path.write_text(new)
    for line in stale:
        print(line, file=sys.stderr)
    sys.exit(1 if stale else 0)


main()
