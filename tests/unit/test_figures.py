"""The measured figures of the pages come from reports, and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.helpers.scripts import load_script

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    return load_script(DOCS / "fill_figures.py")


def report(**changes: Any) -> dict[str, Any]:
    row = {"name": "01 naive", "size": "64", "failure": None, "milliseconds": 2.0, "gflops": 1500.0}
    rows = [row, {**row, "name": "02 coalesced", "of_library": 0.25, "registers": 32, "shared_bytes": 2048}]
    machine = {"gpu": {"name": "a GPU"}, "date": "2026-01-01T10:00:00+00:00"}
    return {"settings": {"backend": "cuda", "dtype": "float32"}, "machine": machine, "rows": rows, **changes}


def test_rows_become_lines(figures: ModuleType) -> None:
    lines = figures.table(report(), "results/x.json").splitlines()
    assert lines[0] == "float32, 64, a GPU, 2026-01-01 ([JSON](../results/x.json)):"
    assert lines[4:] == [
        "| 01 naive | 2.000 | 1.50 |  |  |  |  |",
        "| 02 coalesced | 2.000 | 1.50 | 0.250 | 32 | 2.0 KB |  |",
    ]


def test_filling_twice_leaves_one_table(figures: ModuleType) -> None:
    page = (DOCS / "matmul.md").read_text(encoding="utf-8")
    once = figures.filled(page, ["| a |"])
    assert figures.filled(once, ["| b |"]).count("|") == figures.filled(page, ["| b |"]).count("|")
    assert "| a |" in once and "Not measured yet" not in once
    with pytest.raises(ValueError, match="no <!-- figures -->"):
        figures.filled("a page", [])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {"backend": "sim"}}, "is not a report of"),
        ({"rows": [{"name": "05", "size": "64", "failure": "wrong"}]}, "rungs that failed: 05"),
        ({"rows": [{"name": "05", "size": "64", "failure": None}]}, "holds no times for 64"),
    ],
)
def test_reports_without_figures_are_refused(figures: ModuleType, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        figures.table(report(**changes), "x.json")


def counters(simulator: int, gpu: float) -> dict[str, Any]:
    case = {
        "case": "rows",
        "simulator": {"wavefronts": simulator, "sectors": 4},
        "gpu": {"wavefronts": gpu, "sectors": 4.0},
        "equal": {"wavefronts": simulator == gpu, "sectors": True},
    }
    return {"machine": {"gpu": {"name": "a GPU", "driver": "1.2"}, "date": "2026-01-01T10:00"}, "cases": [case]}


def test_counters_that_differ_stand_out(figures: ModuleType) -> None:
    lines = figures.counters_table(counters(8, 15.0), "results/x.json").splitlines()
    assert lines[0] == "a GPU, driver 1.2, 2026-01-01 ([JSON](../results/x.json)); simulator / GPU:"
    assert lines[2:] == ["| kernel | wavefronts | sectors |", "|---|---|---|", "| rows | **8 / 15** | 4 / 4 |"]
    assert "| rows | 15 / 15 | 4 / 4 |" in figures.counters_table(counters(15, 15.0), "x.json")
    with pytest.raises(ValueError, match="is not a report of"):
        figures.counters_table(report(), "x.json")


def test_the_table_of_counters_is_that_of_its_file(figures: ModuleType) -> None:
    source = "benchmarks/results/counters_h200.json"
    record = json.loads((DOCS.parent / source).read_text(encoding="utf-8"))
    page = (DOCS / "profiler.md").read_text(encoding="utf-8")
    assert figures.filled(page, [figures.counters_table(record, source)]) == page
