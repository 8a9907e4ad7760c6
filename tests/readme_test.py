#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the README's commands as they stand and compares what they print.

A ```console block holds lines `$ command`, each followed by what the command writes to standard output. A line `...`
stands for any number of lines. `# exit N` after the output gives the exit status; 0 where there is none. /tmp is a
folder of the test's own, so that nothing is left behind and nothing is in the way.
usage: readme_test.py SOURCE_DIR [FILE...]
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path


def blocks(text):
    for match in re.finditer(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield match.group(1).splitlines()


def commands(lines):
    """(command, expected lines, exit status) of one block."""
    current = None
    for line in lines:
        if line.startswith("$ "):
            if current:
                yield current
            current = (line[2:], [], 0)
        elif current and re.fullmatch(r"# exit \d+", line):
            current = (current[0], current[1], int(line.split()[2]))
        elif current:
            current[1].append(line)
    if current:
        yield current


def matches(expected, found):
    """Whether `found` fits `expected`, in which `...` is any number of lines."""
    pattern = "".join("(?:.*\n)*?" if line.strip() == "..." else re.escape(line) + "\n" for line in expected)
    return re.fullmatch(pattern, "".join(line + "\n" for line in found)) is not None


def main():
    root = Path(sys.argv[1])
    files = [Path(name) for name in sys.argv[2:]] or [root / "README.md"]
    with tempfile.TemporaryDirectory() as folder:
        ran = run(root, files, folder)
    if ran == 0:
        sys.exit("no command was found")
    print(f"{ran} commands ran as written")


def run(root, files, folder):
    ran = 0
    for path in files:
        for lines in blocks(path.read_text(encoding="utf-8").replace("/tmp/", folder + "/")):
            for command, expected, status in commands(lines):
                done = subprocess.run(command, shell=True, cwd=root, capture_output=True, text=True, check=False)
                found = [line.rstrip() for line in done.stdout.splitlines()]
                wanted = [line.rstrip() for line in expected]
                ran += 1
                if done.returncode != status:
                    sys.exit(f"{path.name}: `{command}` exited {done.returncode}, the text says {status}\n"
                             f"{done.stdout[-3000:]}{done.stderr[-3000:]}")
                if not matches(wanted, found):
                    sys.exit(f"{path.name}: `{command}` prints\n" + "\n".join(found[-80:]) + "\nthe text says\n"
                             + "\n".join(wanted))
    return ran


if __name__ == "__main__":
    main()
