#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""JSON reports follow schema/report.schema.json, and the schema can tell.

BATCHPROOF_BIN names the program; without it only the golden report is looked at.
"""

import copy
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import jsonschema

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = os.environ.get("BATCHPROOF_BIN", "")
SCHEMA = json.loads((HERE.parent / "schema" / "report.schema.json").read_text())
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)
GOLDEN = json.loads((HERE / "golden" / "report.json.golden").read_text())


def objects(node, path=()):
    """Every object of a document with the path to it."""
    if isinstance(node, dict):
        yield path, node
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from objects(value, path + (key,))


def at(document, path):
    for key in path:
        document = document[key]
    return document


class ReportSchema(unittest.TestCase):
    def test_schema_is_draft_07(self):
        jsonschema.Draft7Validator.check_schema(SCHEMA)

    def test_golden_report_is_valid(self):
        VALIDATOR.validate(GOLDEN)

    def test_unknown_fields_are_allowed(self):
        document = copy.deepcopy(GOLDEN)
        for path, _ in list(objects(document)):
            if path[-1:] not in (("axes",), ("build_ids",), ("settings",)):
                at(document, path)["added_later"] = 1
        VALIDATOR.validate(document)

    def test_a_missing_field_is_refused(self):
        removed = 0
        # Two mismatches, a vacuous cell, and cells with every standard; the rest repeats them.
        few = dict(GOLDEN, cells=GOLDEN["cells"][1:3] + GOLDEN["cells"][9:12])
        for standard in ("accuracy", "performance", "memory"):
            self.assertTrue(any(cell[standard] for cell in few["cells"]), standard)
        self.assertTrue(few["performance_means"])
        for path, node in objects(few):
            if path[-1:] in (("axes",), ("build_ids",), ("settings",)):
                continue  # free names
            for key in node:
                document = copy.deepcopy(few)
                del at(document, path)[key]
                self.assertFalse(VALIDATOR.is_valid(document), f"{path} without {key}")
                removed += 1
        self.assertGreater(removed, 100)

    def test_verdicts_of_standards_are_words_of_the_schema(self):
        document = copy.deepcopy(GOLDEN)
        self.assertEqual({cell["verdict"] for cell in document["cells"]} & {"wrong", "heavy"}, {"wrong", "heavy"})
        document["cells"][10]["accuracy"]["verdict"] = "inaccurate"
        self.assertFalse(VALIDATOR.is_valid(document))

    @unittest.skipUnless(PROGRAM, "BATCHPROOF_BIN is not set")
    def test_a_real_report_is_valid(self):
        with tempfile.TemporaryDirectory() as folder:
            suite = pathlib.Path(folder) / "suite.json"
            report = pathlib.Path(folder) / "report.json"
            case = {"name": "a", "op": "matmul", "axes": {"M": [4], "K": [512], "N": [8]}, "standard": {"bi": {}}}
            bad = dict(case, name="b", impl="control-arrival-order")
            standards = dict(case, name="c", standard={"acc": "single_bm", "perf": [0.001, 0.001], "mem": 100})
            suite.write_text(json.dumps({"version": 1, "cases": [case, bad, standards]}))
            run = subprocess.run([PROGRAM, "check", suite, "--json", report, "--perf", "judge"], capture_output=True,
                                 text=True)
            self.assertEqual(run.returncode, 1, run.stderr)
            document = json.loads(report.read_text())
            VALIDATOR.validate(document)
            self.assertEqual(document["totals"], {"passed": 2, "failed": 1, "skipped": 0})
            judged = document["cells"][2]
            self.assertEqual(judged["accuracy"]["verdict"], "pass")
            self.assertEqual(judged["performance"]["verdict"], "pass")
            self.assertEqual(judged["memory"]["verdict"], "pass")
            self.assertEqual(len(document["performance_means"]), 1)


if __name__ == "__main__":
    unittest.main()
