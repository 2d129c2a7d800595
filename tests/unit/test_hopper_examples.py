"""The examples for Hopper: right on the simulator, and compiled for sm_90a without spills or serialised products."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.demo import Case, collect_cases, example_files, run_case, runner
from tilewright.demo.examples import examples_folder, load_example

FILES = example_files(examples_folder() / "hopper")
MODULES = {path.stem: load_example(path) for path in FILES}
CASES = collect_cases(FILES, "sim", quick=True)
KERNELS = [(stem, name) for stem, module in MODULES.items() for name, value in vars(module).items()
           if isinstance(value, tw.Kernel)]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case) -> None:
    report = run_case(case, "sim")
    assert report.passed, report.failure
    trial = case.prepare()
    assert runner.greatest_difference(trial.result(), trial.expected) > trial.limit  # no right answer before the launch


@pytest.mark.parametrize(("stem", "name"), KERNELS)
def test_kernels_compile_cleanly(stem: str, name: str) -> None:
    _, block, args = getattr(MODULES[stem], f"example_{name}")()
    lowered = getattr(MODULES[stem], name).lower(*args, arch="sm_90a", block=block)
    module = lowered.module
    assert not module.resources.spills and not module.resources.stack_bytes, module.resources
    assert not re.search(r"C75\d\d", module.log), module.log


@pytest.mark.parametrize("k", [64, 128, 256, 448])
@pytest.mark.parametrize("stages", [2, 3])
def test_few_tiles_of_k(k: int, stages: int) -> None:
    """A ring that is never full, and one that is filled again."""
    random = np.random.default_rng(k)
    a, b = (random.integers(-4, 5, (rows, k)).astype(ml_dtypes.bfloat16) for rows in (128, 256))
    c = np.full((128, 256), np.nan, np.float32)
    MODULES["04_producer_consumers"].matmul(c, a, b, stages=stages)
    assert np.array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)
