#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The suite loader and the suite schemas give the same verdict.

BATCHPROOF_BIN names the program. Files under data/suites:
  good          both accept
  bad           both refuse
  bad_semantic  the schema accepts, the loader refuses: what a schema cannot know (duplicate keys, unknown operators)
  not_json      the loader refuses; no schema is asked
Beyond the files, every good file is damaged in every place, one edit at a time: what the schema refuses, the loader
must refuse (the loader may know more).
"""

import copy
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import jsonschema

HERE = pathlib.Path(__file__).resolve().parent
SUITES = HERE / "data" / "suites"
SCHEMAS = HERE.parent / "schema"
PROGRAM = os.environ.get("BATCHPROOF_BIN", "")
PLACE = re.compile(r":\d+:\d+: ")


def schema(dialect):
    return json.loads((SCHEMAS / f"{dialect}.schema.json").read_text())


VALIDATORS = {dialect: jsonschema.Draft7Validator(schema(dialect)) for dialect in ("native", "atk")}


def schema_accepts(document):
    """The file's form decides the dialect, as in the loader."""
    return VALIDATORS["atk" if isinstance(document, list) else "native"].is_valid(document)


def loader(path):
    """Whether the loader accepts the file, and what it said."""
    done = subprocess.run([PROGRAM, "check", "--dry-run", str(path)], capture_output=True, text=True, timeout=120)
    if done.returncode not in (0, 2):
        raise AssertionError(f"{path}: exit {done.returncode}\n{done.stderr}")
    return done.returncode == 0, done.stderr


def files(folder):
    found = sorted((SUITES / folder).glob("*.json"))
    assert found, f"no files in {folder}"
    return found


def places(document, path=()):
    """Every path into the document, the root left out."""
    entries = document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    for key, value in entries:
        yield path + (key,)
        yield from places(value, path + (key,))


def edited(document, path):
    """Copies of the document with one edit at `path`."""
    strangers = [None, True, -1, 0.5, 1e30, "", "no such word", [], [[]], {}, {"stranger": 1}]

    def changed(change):
        whole = copy.deepcopy(document)
        parent = whole
        for step in path[:-1]:
            parent = parent[step]
        change(parent)
        return whole

    for stranger in strangers:
        yield changed(lambda parent: parent.__setitem__(path[-1], stranger))
    yield changed(lambda parent: parent.__delitem__(path[-1]))
    if isinstance(path[-1], str):
        yield changed(lambda parent: parent.__setitem__("stranger", 1))
    else:
        yield changed(lambda parent: parent.append(copy.deepcopy(parent[path[-1]])))


class SchemaAgreement(unittest.TestCase):
    def test_schemas_are_draft_7(self):
        for dialect in VALIDATORS:
            self.assertEqual(schema(dialect)["$schema"], "http://json-schema.org/draft-07/schema#")
            jsonschema.Draft7Validator.check_schema(schema(dialect))

    def test_the_program_prints_these_schemas(self):
        for dialect in VALIDATORS:
            done = subprocess.run([PROGRAM, "schema", dialect], capture_output=True, text=True, timeout=60, check=True)
            self.assertEqual(json.loads(done.stdout), schema(dialect))

    def test_good(self):
        for path in files("good"):
            with self.subTest(path.name):
                errors = [e.message for e in VALIDATORS["atk" if path.name.startswith("atk") else "native"].iter_errors(
                    json.loads(path.read_text()))]
                self.assertEqual(errors, [])
                accepted, said = loader(path)
                self.assertTrue(accepted, said)

    def test_bad(self):
        for path in files("bad"):
            with self.subTest(path.name):
                self.assertFalse(schema_accepts(json.loads(path.read_text())), "the schema accepts")
                self.refused(path)

    def test_bad_semantic(self):
        for path in files("bad_semantic"):
            with self.subTest(path.name):
                self.assertTrue(schema_accepts(json.loads(path.read_text())), "the schema refuses")
                self.refused(path)

    def test_not_json(self):
        for path in files("not_json"):
            with self.subTest(path.name):
                self.refused(path)

    def refused(self, path):
        accepted, said = loader(path)
        self.assertFalse(accepted, "the loader accepts")
        self.assertRegex(said, re.escape(str(path)) + PLACE.pattern)

    def test_what_the_schema_refuses_the_loader_refuses(self):
        refused = 0
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "edited.json"
            for good in files("good"):
                document = json.loads(good.read_text())
                for place in places(document):
                    for candidate in edited(document, place):
                        if schema_accepts(candidate):
                            continue
                        refused += 1
                        path.write_text(json.dumps(candidate))
                        accepted, _ = loader(path)
                        self.assertFalse(accepted, f"{good.name} at {place}: the loader accepts {path.read_text()}")
        self.assertGreater(refused, 500)


if __name__ == "__main__":
    if not PROGRAM:
        sys.exit("BATCHPROOF_BIN is not set")
    unittest.main()
