"""What an op does on the simulator is what its class declares: no access, arrival or wait comes as a surprise.

The tests of the examples run their cases under this law too (`tests/helpers/declared_effects.py`), so the suite does not
run them again here. The slow tests do, with all cases.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.helpers.declared_effects import declared_effects

import tilewright as tw
from tilewright.demo import Case, collect_cases, example_files, run_case
from tilewright.demo.examples import examples_folder
from tilewright.ir import effects
from tilewright.ir.ops import Store


def cases() -> list[Case]:
    """Return the examples' cases."""
    folders = (examples_folder(), examples_folder() / "tensorcore", examples_folder() / "hopper")
    return collect_cases([path for folder in folders for path in example_files(folder)], "sim", quick=True)


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_examples(case: Case) -> None:
    with declared_effects():
        report = run_case(case, "sim")
    assert report.passed, report.failure


def test_a_law_that_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = effects.roles_of(Store)
    x = np.zeros(32, np.float32)
    with declared_effects():
        write[1, 32](x)
        monkeypatch.setitem(effects.ROLES, Store, declared._replace(uses=()))
        with pytest.raises(AssertionError, match="Store does not declare"):
            write[1, 32](x)


def test_a_case_that_breaks_the_law_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs a case reports every error: the law's own comes out as one of the case."""
    case = next(case for case in cases() if "copy" in case.name)
    assert run_case(case, "sim").passed  # compiled while the law holds: a store without effects would be removed
    monkeypatch.setitem(effects.ROLES, Store, effects.roles_of(Store)._replace(uses=()))
    with declared_effects():
        report = run_case(case, "sim")
    assert not report.passed and "does not declare" in (report.failure or "")


@tw.kernel
def write(x):
    x[tw.thread_idx.x] = 1.0
