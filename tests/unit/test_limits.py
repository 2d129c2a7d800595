"""The limits that `docs/limits.md` and `docs/comparison.md` state are there: who lifts one finds the pages here."""

from __future__ import annotations

import numpy as np
import pytest
from tests.helpers.pages import DOCS

import tilewright as tw
from tilewright.schedule import Array, Nest, Role

LIMITS = " ".join((DOCS / "limits.md").read_text(encoding="utf-8").split())  # wherever its lines break
COMPARISON = (DOCS / "comparison.md").read_text(encoding="utf-8")


@tw.kernel
def double(out, x):
    out[tw.thread_idx.x] = 2 * x[tw.thread_idx.x]


def test_what_there_is_not_of_hopper_and_blackwell() -> None:
    assert "TMA does not gather rows" in LIMITS
    assert "| wgmma, TMA (Hopper), tcgen05 (Blackwell) | wgmma, TMA and clusters |" in COMPARISON
    names = dir(tw.atoms)
    assert not [name for name in names if "GATHER" in name or name.startswith(("SM100", "SM120"))]
    assert len(names) > 80


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1030"])
def test_rdna_is_refused(arch: str) -> None:
    assert "RDNA is refused" in LIMITS
    with pytest.raises(tw.ArgumentError):
        double.source(np.zeros(32), np.zeros(32), arch=arch)


@pytest.mark.parametrize("arch", ["gfx908", "gfx90a", "gfx942", "sm_70", "sm_100", "sm_120"])
def test_targets_that_the_pages_name_are_printed(arch: str) -> None:
    assert arch in LIMITS
    assert "__global__" in double.source(np.zeros(32, np.float32), np.zeros(32, np.float32), arch=arch)


def test_plans_write_to_no_places_that_elements_say() -> None:
    assert "a scatter is a kernel written by hand" in LIMITS
    at, x = Array(Role.INPUT, tw.int32, (8,)), Array(Role.INPUT, tw.float32, (8,))
    y, nest = Array(Role.INPUT_OUTPUT, tw.float32, (8,)), Nest((8,))
    i = nest.get_indices()
    with pytest.raises(tw.ScheduleError, match="not affine"):
        nest.iteration_logic(lambda: y.__setitem__(at[i], x[i]))


def test_the_version_is_the_first() -> None:
    assert "Version 0.1:" in LIMITS
    assert tw.__version__.startswith("0.1.")


def test_shares_of_cublas_are_those_of_the_measurements() -> None:
    measurements = (DOCS / "measurements.md").read_text(encoding="utf-8")
    assert "reaches 1.00, 1.01\nand 1.03 of cuBLAS for bf16" in measurements
    assert "float64 0.98, int8 1.00" in measurements and "float64 and int8 0.98 and 1.00" in " ".join(LIMITS.split())
    assert "by them reaches 1.00 to 1.03 of cuBLAS" in LIMITS
    shares = next(line for line in measurements.splitlines() if line.startswith('| `"ieee"` |')).split("|")[2:-2]
    assert f"Float32 reaches {min(map(float, shares)):.2f} to {max(map(float, shares)):.2f}" in LIMITS
