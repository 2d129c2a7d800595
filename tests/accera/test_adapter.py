"""The adapter for programs of Accera, on programs of our own: what becomes of each is told right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).with_name("programs.py")


def run(tmp_path, *options):
    out = tmp_path / "records.json"
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "tests.accera", str(PROGRAMS), "--out", str(out), *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {record["test"]: record for record in json.loads(out.read_text())}, done.stdout, out


def test_programs_are_told_apart(tmp_path):
    records, shown, out = run(tmp_path, "--only", "works|refused|wrong|unsayable")
    expected = {"works": "works", "refused": "refused", "wrong": "wrong", "unsayable": "cannot be said"}
    found = {name: record["verdict"] for name, record in records.items()}
    assert found == {name: expected[name.split("_")[1]] for name in found}, records
    assert Counter(found.values())["works"] == 5
    assert records["test_refused"]["reason"].startswith("the order (j, i) lets two accesses of X[1, 1] change places")
    assert "elements differ" in records["test_wrong"]["reason"]
    assert "| programs.py | 8 | 5 | 1 | 1 | 1 | 0 | 0 |" in shown
    table = out.with_suffix(".md").read_text()
    assert "- **1** AttributeError: '..' object has no attribute '..'" in table


@pytest.mark.slow
def test_what_worked_is_not_run_again_and_what_takes_long_is_ended(tmp_path):
    records, _, out = run(tmp_path, "--only", "works_fused")
    earlier = tmp_path / "earlier.json"
    out.rename(earlier)
    again, shown, _ = run(tmp_path, "--only", "works_fused|slow", "--limit", "2", "--again", str(earlier))
    assert again["test_works_fused"] == records["test_works_fused"]
    assert again["test_slow"]["verdict"] == "slow"
    assert "test_works_fused" not in shown and "test_slow" in shown
