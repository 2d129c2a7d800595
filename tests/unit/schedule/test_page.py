"""docs/schedule.md: its examples give what it says, and its table is that of the counts that were written down."""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
from tests.helpers.scripts import load_script

from tilewright.runtime.clang import find_clang

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "schedule.md"

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="not a checkout")


@pytest.fixture(scope="module")
def registers() -> ModuleType:
    return load_script(DOCS / "schedule_registers.py")


@pytest.mark.parametrize(("page", "least"), [(PAGE, 60), (DOCS / "coming_from_accera.md", 25)])
def test_examples_of_the_page(page: Path, least: int) -> None:
    # Text outside of the code becomes blank lines, so that a failure names the line of the page.
    parts = re.split(r"^```(?:python)?\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    code = "\n".join([part if number % 2 else "\n" * part.count("\n") for number, part in enumerate(parts)])
    test = doctest.DocTestParser().get_doctest(code, {}, page.name, str(page), 0)
    assert len(test.examples) > least
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(test)
    assert results.failed == 0


def test_the_table_is_that_of_its_file(registers: ModuleType) -> None:
    record = json.loads(registers.RESULTS.read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    assert registers.filled(page, record) == page
    other = {**record, "rows": [{**row, "registers": 255} for row in record["rows"]]}
    assert registers.filled(page, other) != page
    with pytest.raises(ValueError, match="no <!-- registers -->"):
        registers.filled("a page", record)


def test_fragments_fall_in_proportion(registers: ModuleType) -> None:
    rows = json.loads(registers.RESULTS.read_text(encoding="utf-8"))["rows"]
    assert [(row["target"], row["operands"], row["fused"]) for row in rows] == [
        (name, "shared memory" if shared else "global memory", fused)
        for name, _, _, shared in registers.CASES
        for fused in (8, 4, 2, 1)
    ]
    for row in rows:
        assert row["fragments_a"] == row["fragments_b"] == row["fused"]
        # An element is 2 or 4 bytes; a fragment is dealt out to the 32 or 64 threads of a warp.
        each = {"float16": 16 * 16 * 2 // 4 // 32, "float32": 16 * 4 * 4 // 4 // 64}[row["type"]]
        assert row["fragment_registers"] == 2 * each * row["fused"]
        assert not row["spills"]


def test_the_kernels_registers_fall_too(registers: ModuleType) -> None:
    rows = json.loads(registers.RESULTS.read_text(encoding="utf-8"))["rows"]
    for first in range(0, len(rows), 4):
        case = rows[first : first + 4]
        counts = [row["registers"] for row in case]
        assert counts[0] > counts[1] and counts == sorted(counts, reverse=True), rows[first]
        if rows[first]["operands"] == "global memory":  # by exactly what the fragments fall by
            fragments = [row["fragment_registers"] for row in case]
            assert [counts[0] - n for n in counts] == [fragments[0] - n for n in fragments], rows[first]


@pytest.mark.parametrize("fused", [8, 1])
@pytest.mark.parametrize("case", [0, pytest.param(4, marks=pytest.mark.skipif(not find_clang(), reason="no clang"))])
@pytest.mark.spread(2)
def test_counts_of_fragments_are_those_of_the_kernels(registers: ModuleType, case: int, fused: int) -> None:
    """What compilers report changes with their release; what the IR declares does not."""
    name, dtype, shape, shared = registers.CASES[case]
    rows = json.loads(registers.RESULTS.read_text(encoding="utf-8"))["rows"]
    written = next(row for row in rows if row["target"] == name and row["fused"] == fused)
    found = registers.row_of(name, dtype, shape, shared, fused)
    same = ("fragments_a", "fragments_b", "fragment_registers", "spills", "shape", "type")
    assert {key: found[key] for key in same} == {key: written[key] for key in same}
