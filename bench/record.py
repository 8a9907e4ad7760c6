#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the results of one run of bench/gpu.sh into one file, RESULTS/record.json: where and when, what passed, the
tensor-core rules per dtype, the times of the matrix product, of rms_norm, of mHC and of its product alone. Lists of numbers
stay one line each.

usage: record.py RESULTS DATE "DEVICE, DRIVER" COMMIT
"""

import json
import sys
from pathlib import Path


def rules_summary(report):
    """Per rule and dtype: outputs that differ and outputs compared, over all inputs."""
    table = {}
    for result in report["results"]:
        cell = table.setdefault(result["rule"], {}).setdefault(result["type"], [0, 0])
        cell[0] += result["differing"]
        cell[1] += result["total"]
    return {"results": len(report["results"]), "holds": report["holds"], "notes": report["notes"], "differing": table}


def lines(value, indent=0):
    """JSON with one line for each dictionary or list that holds no dictionary and no list."""
    pad = " " * (indent + 1)
    if isinstance(value, dict) and any(isinstance(v, (dict, list)) for v in value.values()):
        inner = [f"{pad}{json.dumps(k)}: {lines(v, indent + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(inner) + "\n" + " " * indent + "}"
    if isinstance(value, list) and any(isinstance(v, (dict, list)) for v in value):
        return "[\n" + ",\n".join(pad + lines(v, indent + 1) for v in value) + "\n" + " " * indent + "]"
    return json.dumps(value)


def rounded(value):
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list) else value


def main():
    results, date, device, commit = Path(sys.argv[1]), *sys.argv[2:5]
    name, driver = (word.strip() for word in device.rsplit(",", 1))
    record = {"date": date, "device": name, "driver": driver, "commit": commit, "parts": []}
    for line in (results / "parts.tsv").read_text().splitlines():
        part, verdict, seconds, last = line.split("\t", 3)
        record["parts"].append({"part": part, "result": verdict, "seconds": int(seconds), "last_line": last})
    for key, file in (("rules", "rules.json"), ("matmul", "matmul.json"), ("rms_norm", "rms_norm.json"),
                      ("mhc", "mhc.json"), ("mhc_product", "mhc_product.json")):
        if (results / file).exists():
            content = json.loads((results / file).read_text())
            record[key] = rules_summary(content) if key == "rules" else rounded(content)
    (results / "record.json").write_text(lines(record) + "\n")


main()
