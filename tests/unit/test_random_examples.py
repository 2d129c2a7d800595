"""The examples of random numbers and of atomics on bytes, on the simulator."""

from __future__ import annotations

import pytest

from tilewright.demo import Case, collect_cases, run_case
from tilewright.demo.examples import examples_folder
from tilewright.demo.runner import greatest_difference

FILES = [examples_folder() / "kernels" / f"{name}.py" for name in ("dropout", "histogram")]
CASES = collect_cases(FILES, "sim", quick=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(",", "").replace(" ", "-"))
def test_case(case: Case) -> None:
    trial = case.prepare()
    assert greatest_difference(trial.result(), trial.expected) > trial.limit  # nothing is right before the launch
    report = run_case(case, "sim")
    assert report.passed, report.failure
