# SPDX-License-Identifier: Apache-2.0
"""Prints the Markdown table of docs/libraries.md from JSON reports: table.py FOLDER LIBRARY=VERSION ..."""
import json
import platform
import sys


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        facts = {}
        for line in lines:
            key, _, value = line.partition(":")
            facts.setdefault(key.strip(), value.strip())
    flags = facts.get("flags", "").split()
    isa = [name for name in ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    return "{} (family {}, model {}; {})".format(
        facts.get("model name", platform.machine()), facts.get("cpu family", "?"), facts.get("model", "?"),
        " ".join(isa) or "no vector extension of note")


def main():
    folder, versions = sys.argv[1], [word.split("=", 1) for word in sys.argv[2:]]
    print("Processor: {}\n".format(processor()))
    print("| library | dtype | N, K | row differs from its M = 1 bytes at M = | does not differ at M = | other relations |")
    print("| --- | --- | --- | --- | --- | --- |")
    failed = False
    for library, version in versions:
        with open("{}/{}.json".format(folder, library), encoding="utf-8") as text:
            report = json.load(text)
        if not report["cells"]:
            sys.exit("{} has no cells".format(library))
        rows = {}
        for cell in report["cells"]:
            axes = cell["axes"]
            key = (axes.get("dtype", "fp32"), int(axes["N"]), int(axes["K"]))
            row = rows.setdefault(key, {"breaks": [], "holds": [], "others": {}, "errors": set()})
            if cell["verdict"] in ("error", "skipped"):
                row["errors"].add(cell["reason"])
                continue
            for relation in cell["relations"]:
                m = int(axes["M"])
                if relation["relation"] == "batch_size":
                    if relation["verdict"] == "violation":
                        row["breaks"].append(m)
                    elif relation["verdict"] == "pass":
                        row["holds"].append(m)
                    else:
                        row["errors"].add("batch_size at M = {}: {}".format(m, relation["verdict"]))
                else:
                    row["others"].setdefault(relation["relation"], []).append((m, relation["verdict"]))
        for (dtype, n, k), row in rows.items():
            # BF16 may be missing on a processor; FP32 never is.
            failed = failed or (dtype == "fp32" and bool(row["errors"]))
            name = "{} {}".format(library, version)
            if row["errors"] and not row["breaks"] and not row["holds"]:
                print("| {} | {} | {}, {} | not run: {} | | |".format(name, dtype, n, k, "; ".join(sorted(row["errors"]))))
                continue
            listed = lambda sizes: ", ".join(map(str, sorted(sizes))) or "none"
            others = []
            for relation, found in sorted(row["others"].items()):
                broken = [(m, verdict) for m, verdict in found if verdict != "pass"]
                others.append("{} {}".format(relation, "holds" if not broken else ", ".join(
                    "{} at M = {}".format("**breaks**" if verdict == "violation" else verdict, m)
                    for m, verdict in broken)))
            if row["errors"]:
                others.append("errors: " + "; ".join(sorted(row["errors"])))
            print("| {} | {} | {}, {} | {} | {} | {} |".format(
                name, dtype, n, k, listed(row["breaks"]), listed(row["holds"]), "; ".join(others)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
