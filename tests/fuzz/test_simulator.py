"""Generated kernels on the simulator, which has to find nothing, against what their text means run by Python.

A kernel that fails is printed, shrunk. More of them: `TILEWRIGHT_FUZZ=2000 python -m pytest tests/fuzz`, or by several
processes and with counts of what was refused, `python -m tests.fuzz.run --count 2000`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conformance.harness import Simulator
from tests.fuzz import run
from tests.fuzz.matrices import write_product
from tests.fuzz.programs import write_program
from tests.fuzz.trial import Argument, Program
from tests.helpers.slow import examples, rest_is_slow

import tilewright as tw
from tilewright.runtime import nvrtc

STATE_PROGRAMS = 20
MOST_REFUSED = 0.1  # of the programs: a generator most of whose programs are refused proves nothing
COUNT = int(os.environ.get("TILEWRIGHT_FUZZ", "0"))


def kernels(few: int, full: int) -> Callable[[Any], Any]:
    """Run a test with so many kernels, the same each time; with as many others as TILEWRIGHT_FUZZ says."""
    options: dict[str, Any] = {"database": None, "suppress_health_check": list(HealthCheck)}
    if COUNT:
        return settings(max_examples=COUNT, deadline=None, **options)
    return examples(few, full, derandomize=True, **options)


@kernels(8, 40)
@given(st.randoms(use_true_random=False))
def test_programs_mean_what_their_text_means(random: Random) -> None:
    program = write_program(random, with_state=False)
    program.assert_agree(("the simulator", "its text"), program.run(Simulator()), program.meaning())


@kernels(16, 40)
@given(st.randoms(use_true_random=False))
def test_products_are_those_of_matrices(random: Random) -> None:
    product = write_product(random)
    product.assert_agree(("the simulator", "NumPy"), product.run(Simulator()), product.meaning())


@pytest.mark.skipif(nvrtc.library_path() is None, reason="needs NVRTC")
@pytest.mark.parametrize("seed", range(COUNT) if COUNT else rest_is_slow(range(12), *range(4)))
def test_kernels_compile(seed: int) -> None:
    with contextlib.suppress(tw.LanguageError):  # it may be refused
        write_program(Random(seed), loose=True).compile()
    write_product(Random(seed)).compile()


# --- the fuzzer itself: it has to see what differs -----------------------------------------------------


def program(body: str, *dtypes: tw.DType) -> Program:
    arguments = tuple(Argument(f"x{n}", t, (64,)) for n, t in enumerate(dtypes))
    head = f"@tw.kernel\ndef kernel({', '.join(a.name for a in arguments)}):\n    i = tw.thread_idx.x\n"
    return Program(head + "".join(f"    {line}\n" for line in body.splitlines()), 1, 64, arguments, 0)


def test_a_difference_is_named_with_the_kernel_and_its_seed() -> None:
    one, other = program("x0[i] = x0[i] & 7", tw.int32), program("x0[i] = x0[i] & 15", tw.int32)
    with pytest.raises(AssertionError) as caught:
        one.assert_agree(("the simulator", "its text"), one.run(Simulator()), other.meaning())
    message = str(caught.value)
    assert "x0[" in message and "by the simulator and" in message and "of 64 elements differ" in message
    assert "seed of the arguments 0" in message and one.text in message


def test_the_meaning_waits_at_barriers_and_exchanges_within_warps() -> None:
    lines = "s = tw.shared(tw.int32, 64)\ns[i] = x0[i]\ntw.sync_threads()\nx0[i] = s[63 - i]\n"
    lines += "x1[i] = tw.shuffle_down(i, 3, 8)\nx2[i] = tw.ballot(i % 3 == 0)"
    trial = program(lines, tw.int32, tw.int32, tw.uint32)
    before, after = trial.make_arguments(), trial.meaning()
    assert (after[0] == before[0][::-1]).all()
    lanes = np.arange(64)
    assert (after[1] == np.where(lanes % 8 < 5, lanes + 3, lanes)).all()
    assert after[2].tolist() == [sum(1 << k for k in range(32) if (w + k) % 3 == 0) for w in (0, 32) for _ in range(32)]
    trial.assert_agree(("the simulator", "its text"), trial.run(Simulator()), after)


def test_programs_that_do_not_end_are_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where no verdict comes in time, the programs under way are written down, and the run ends."""
    monkeypatch.setattr(run, "MOST_SECONDS", 0.01)
    assert run.main(["--count", "3", "--processes", "2", "--json", str(tmp_path / "fuzz.json")]) == 1
    written = json.loads((tmp_path / "fuzz.json").read_text())
    assert written["verdicts"] == {"stalled": 3} and len(written["differences"]) == 3


def test_refusals_are_counted_by_what_they_say() -> None:
    first = "variable 'acc4' is float32 in one branch\n  kernel.py:50, in kernel"
    assert run.kind_of(first) == run.kind_of("variable 'l3' is float32 in one branch")
    assert run.kind_of(first) != run.kind_of("'acc4' changes in the condition of a loop")
