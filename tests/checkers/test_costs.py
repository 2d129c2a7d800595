"""What the checks cost, in calls of functions, so that no other work of the machine shows."""

from __future__ import annotations

import numpy as np
from tests.helpers.work import calls_of

import tilewright as tw
from tilewright.demo.examples import examples_folder, load_example


def test_a_checked_transpose_of_2048() -> None:
    module = load_example(examples_folder() / "02_transpose.py")
    src = np.random.default_rng(0).standard_normal((2048, 2048), dtype=np.float32)
    dst = np.zeros_like(src)
    assert calls_of(lambda: module.launch(dst, src)) <= 120_000  # 99,000; four million elements
    assert np.array_equal(dst, src.T)


def test_checking_a_matmul_costs_less_than_four_times() -> None:
    module = load_example(examples_folder() / "03_matmul.py")
    a, b = (np.asfortranarray(np.ones((256, 64), np.float32)) for _ in range(2))
    c = np.zeros((256, 256), np.float32, order="F")
    module.double_buffered(c, a, b)
    with tw.simulate(check=False):
        unchecked = calls_of(lambda: module.double_buffered(c, a, b))
    assert calls_of(lambda: module.double_buffered(c, a, b)) <= 4 * unchecked  # 2.3 times
