#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""examples/libraries in a reduced form: OpenBLAS, BLIS, oneDNN in FP32 and BF16, and Eigen are built as plug-ins and judged.

A library chooses its kernels by processor, so what holds everywhere is little: every cell is judged with a live
witness, repeat and neighbours pass, and batch_size breaks somewhere. Processors listed in
examples/libraries/verdicts.json have one verdict per cell and relation, and there each must come again.
usage: libraries_test.py SOURCE_DIR PROGRAM [--update]    exit status 77: the Debian packages are not installed
"""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # table.py is read from the source tree

# 30 of 190 cells: one size in each range of kernels.
FILTER = r"n512_k512/.*M=(2|8|17|257),"
LIBRARIES = {"openblas": {"fp32"}, "blis": {"fp32"}, "onednn": {"fp32", "bf16"}, "eigen": {"fp32"}}


def die(message):
    sys.exit("libraries_test: " + message)


def main():
    root, program = pathlib.Path(sys.argv[1]), sys.argv[2]
    here = root / "examples" / "libraries"
    spec = importlib.util.spec_from_file_location("table", here / "table.py")
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BATCHPROOF_")}
    environment.update(BATCHPROOF_NO_INSTALL="1", BATCHPROOF_FILTER=FILTER)
    found, breaks = {}, set()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([here / "run.sh", "--keep", folder, program], env=environment, capture_output=True,
                              text=True, check=False)
        if done.returncode == 3 and "missing packages" in done.stderr:
            print(done.stderr)
            return 77
        if done.returncode != 0:
            die("run.sh exited {}\n{}{}".format(done.returncode, done.stdout, done.stderr))
        for library, dtypes in LIBRARIES.items():
            cells = table.read(folder, library)
            seen = {cell["axes"].get("dtype", "fp32") for cell in cells}
            if seen != dtypes:
                die("{} ran {}, not {}".format(library, seen, dtypes))
            for cell in cells:
                if cell["axes"].get("dtype") == "bf16" and cell["verdict"] == "error":
                    if "this processor lacks what the dtype needs" not in cell["reason"]:
                        die("{}: {}".format(cell["id"], cell["reason"]))
                    found[cell["id"]] = {"cell": "error"}
                    continue
                found[cell["id"]] = {entry["relation"]: entry["verdict"] for entry in cell["relations"]}
                for entry in cell["relations"]:
                    name = "{} {}".format(cell["id"], entry["relation"])
                    if entry["verdict"] not in ("pass", "violation"):
                        die("{}: {} {}".format(name, entry["verdict"], entry["reason"]))
                    if entry["witness"]["rows_moved"] == 0:
                        die("{}: the witness is dead".format(name))
                    if entry["relation"] in ("repeat", "neighbours") and entry["verdict"] != "pass":
                        die("{}: {}".format(name, entry["verdict"]))
                    if entry["relation"] == "batch_size" and entry["verdict"] == "violation":
                        breaks.add(library)
            for word in table.NAMES[library], "batch_size":
                if word not in done.stdout:
                    die("the table does not name {}\n{}".format(word, done.stdout))
    if not breaks:
        die("batch_size broke for no library")
    for cell, relations in found.items():
        if not relations:
            die("{}: no relation ran".format(cell))
    verdicts_file = here / "verdicts.json"
    known = json.loads(verdicts_file.read_text(encoding="utf-8"))
    kind = table.processor()[1]
    if "--update" in sys.argv[3:]:
        known[kind] = found
        verdicts_file.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    elif kind not in known:
        print("no verdicts are recorded for this processor ({})".format(kind))
    elif known[kind] != found:
        different = [cell for cell in {**known[kind], **found} if known[kind].get(cell) != found.get(cell)]
        die("verdicts are not the recorded ones:\n" + "\n".join(
            "{}: {} was {}".format(cell, found.get(cell), known[kind].get(cell)) for cell in sorted(different)))
    print("{} cells of {} libraries judged; batch_size breaks for {}".format(
        len(found), len(LIBRARIES), ", ".join(sorted(breaks))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
