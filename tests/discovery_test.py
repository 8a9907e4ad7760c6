#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""No operator and no control may stay outside what CTest runs.

Every folder of ops has a ci.json and a CTest test suites/<folder> that runs it and its controls.json; every implementation
that `batchproof list` shows, controls included, has a cell in them. Each rule is then tried out: with any one of the
suite files taken away, or any one of the CTest tests, it must be broken.
usage: discovery_test.py SOURCE_DIR BUILD_DIR PROGRAM
"""

import json
import subprocess
import sys
from pathlib import Path

NAMES = ("ci.json", "more.json", "controls.json", "cuda.json", "cuda_controls.json")


def output(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"`{' '.join(map(str, words))}` exited {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def implementations(program):
    """(operator, implementation) of everything that the program lists."""
    listed = json.loads(output(program, "list", "--json"))
    return {(op["name"], impl["id"]) for op in listed["operators"] for impl in op["implementations"]}


def cells(program, suite):
    """(operator, implementation) of the suite's cells."""
    lines = output(program, "check", "--dry-run", suite).splitlines()[:-1]
    return {tuple(line.split("/")[:2]) for line in lines}


def ctest_suites(build):
    """The suite files of each CTest test, by the test's name."""
    tests = json.loads(output("ctest", "--test-dir", build, "--show-only=json-v1"))["tests"]
    return {test["name"]: {Path(word).resolve() for word in test.get("command", []) if word.endswith(".json")}
            for test in tests}


def problems(folders, covered, wanted, tests):
    """What is wrong; `covered`: suite file -> its cells."""
    found = []
    for folder in folders:
        suites = [folder / name for name in NAMES if folder / name in covered]
        if folder / "ci.json" not in suites:
            found.append(f"{folder.name} has no ci.json")
        for suite in suites:
            if suite not in tests.get(f"suites/{folder.name}", set()):
                found.append(f"no CTest test suites/{folder.name} runs {suite.name}")
    seen = set().union(*covered.values())
    found += [f"no cell of {op}/{impl}" for op, impl in sorted(wanted - seen)]
    return found


def main():
    source, build, program = sys.argv[1:4]
    folders = sorted(folder.resolve() for folder in (Path(source) / "ops").iterdir() if folder.is_dir())
    covered = {folder / name: cells(program, folder / name)
               for folder in folders for name in NAMES if (folder / name).is_file()}
    wanted = implementations(program)
    tests = ctest_suites(build)
    found = problems(folders, covered, wanted, tests)
    if found:
        sys.exit("\n".join(found))
    for gone in covered:
        rest = {suite: pairs for suite, pairs in covered.items() if suite != gone}
        if not problems(folders, rest, wanted, tests):
            sys.exit(f"without {gone.parent.name}/{gone.name} nothing would be missed: it covers nothing of its own")
    for gone in [f"suites/{folder.name}" for folder in folders]:
        if not problems(folders, covered, wanted, {name: files for name, files in tests.items() if name != gone}):
            sys.exit(f"without the CTest test {gone} nothing would be missed")
    print(f"{len(wanted)} implementations in {len(covered)} suites of {len(folders)} folders")


if __name__ == "__main__":
    main()
