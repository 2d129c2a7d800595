"""A whole generated HIP file, as it was when somebody last read it: `pytest tests/golden --update-golden`."""

from __future__ import annotations

import difflib

import pytest
from tests.golden.test_golden import GOLDEN, HERE

from tilewright.runtime.clang import compile_hip, find_clang
from tilewright.runtime.compiler_log import AmdResources

ARCHES = ("gfx908", "gfx90a")
STEPS = next(golden for golden in GOLDEN if golden.kernel == "histogram_of_steps")
PATH = HERE / "histogram_of_steps.hip"


def test_text(request: pytest.FixtureRequest) -> None:
    text = STEPS.source("gfx908")
    if request.config.getoption("--update-golden"):
        PATH.write_text(text, newline="\n")
        return
    kept = PATH.read_text() if PATH.exists() else ""
    difference = "".join(difflib.unified_diff(kept.splitlines(True), text.splitlines(True), PATH.name, "generated now"))
    assert not difference, f"where that is meant: pytest tests/golden --update-golden\n{difference}"


def test_both_targets_have_one_text() -> None:
    assert STEPS.source("gfx908") == STEPS.source("gfx90a")


@pytest.mark.skipif(find_clang() is None, reason="needs clang")
@pytest.mark.parametrize("arch", ARCHES)
def test_compiles_without_spills(arch: str) -> None:
    found = compile_hip(STEPS.source(arch), name=STEPS.kernel, arch=arch).resources
    assert isinstance(found, AmdResources)
    assert not found.spills and found.stack_bytes == 0, found
    assert 0 < found.registers <= 32 and found.static_shared_bytes == 256, found  # 32: all waves that a SIMD can hold
