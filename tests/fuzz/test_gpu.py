"""The differential fuzzer: each generated kernel on the simulator and on the GPU, to the bit or within its bound.

    python -m tests.fuzz.run --backend gpu --count 2000 --json fuzz.json    2,000 kernels, by Python too, in several processes
    python -m pytest -m gpu tests/fuzz                      500 kernels
    TILEWRIGHT_FUZZ_SEED=1000 python -m pytest -m gpu tests/fuzz    others

A kernel is made by one seed, `write_program(Random(seed), loose=True)`; what the language refuses is not compared. A failure prints the kernel, the first element
that differs, and the command that runs it again. The last test draws by Hypothesis, which shrinks what it finds. A kernel whose results once differed becomes an entry of
once_differed.py.
"""

from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conformance.harness import Gpu, Simulator
from tests.fuzz.matrices import write_product
from tests.fuzz.programs import write_program
from tests.fuzz.trial import Program

import tilewright as tw
from tilewright.arch import Arch

pytestmark = pytest.mark.gpu

FIRST = int(os.environ.get("TILEWRIGHT_FUZZ_SEED", "0"))
BATCH = 10
PROGRAMS, PRODUCTS = 32, 12  # batches; with the 60 that Hypothesis draws, 500 kernels


@pytest.fixture(scope="module", autouse=True)
def needs_hopper() -> None:
    """Matrix instructions are drawn up to those of sm_90."""
    torch = pytest.importorskip("torch")
    if torch.cuda.get_device_capability() < Arch.parse("sm_90").capability:
        pytest.skip("needs sm_90")


def compare(program: Program, again: str) -> None:
    try:
        simulated = program.run(Simulator())
    except tw.LanguageError:
        return
    try:
        program.assert_agree(("the simulator", "the GPU"), simulated, program.run(Gpu()))
    except AssertionError as error:
        raise AssertionError(f"{error}\nagain: {again}") from None
    except Exception as error:
        raise AssertionError(f"{error}\n{program}\nagain: {again}") from error


def command(test: str, seed: int) -> str:
    """Return what runs the kernel of a seed, and the nine after it."""
    return f"TILEWRIGHT_FUZZ_SEED={seed} python -m pytest -n0 -m gpu 'tests/fuzz/test_gpu.py::{test}[0]'"


@pytest.mark.parametrize("batch", range(PROGRAMS))
def test_programs(batch: int) -> None:
    for seed in range(FIRST + batch * BATCH, FIRST + (batch + 1) * BATCH):
        compare(write_program(Random(seed), loose=True), command("test_programs", seed))


@pytest.mark.parametrize("batch", range(PRODUCTS))
def test_products(batch: int) -> None:
    for seed in range(FIRST + batch * BATCH, FIRST + (batch + 1) * BATCH):
        compare(write_product(Random(seed)), command("test_products", seed))


@settings(max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_shrunk_programs(random: Random) -> None:
    compare(write_program(random, loose=True), "the same test")
