"""What every family answers, and that one joins by its answers alone: needs, predicted times, launch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.helpers.slow import examples

import tilewright as tw
from tilewright.arch import ARCHES, GPUS, VECTOR_BYTES, Arch
from tilewright.kernels import choice
from tilewright.kernels.choice import FAMILIES, all_candidates, fastest
from tilewright.kernels.family import Family, KernelLaunch, LayoutNeeds, Needs, Resources
from tilewright.kernels.matmul import _signature
from tilewright.kernels.model import Machine, Prediction, StepTimes
from tilewright.kernels.multistage import STEP_TIMES, Multistage
from tilewright.kernels.problem import Configuration, Operand, Problem
from tilewright.runtime.arrays import describe

H200 = Machine.of(Arch.parse("sm_90a"))
COMPUTED = {  # what the instruction takes: the operands' type, and the accumulators'
    tw.float16: (tw.float16, tw.float32),
    tw.bfloat16: (tw.bfloat16, tw.float32),
    tw.tfloat32: (tw.float32, tw.float32),
    tw.float32: (tw.float32, tw.float32),
    tw.float64: (tw.float64, tw.float64),
    tw.int8: (tw.int8, tw.int32),
    tw.uint8: (tw.uint8, tw.int32),
    tw.float8_e4m3fn: (tw.float8_e4m3fn, tw.float32),
    tw.float8_e5m2: (tw.float8_e5m2, tw.float32),
}


def problem_of(compute: tw.DType, m: int, n: int, k: int, batch: int = 1, a: Operand | None = None) -> Problem:
    stored, accumulator = COMPUTED[compute]
    operand = Operand(stored, "K", 16)
    return Problem(m, n, k, batch, a or operand, operand, Operand(accumulator, "MN", 16), compute, accumulator)


configurations = st.builds(
    Configuration,
    st.tuples(*[st.sampled_from([16, 32, 48, 64, 96, 128, 192, 256])] * 2, st.sampled_from([8, 16, 32, 64, 128, 256])),
    st.tuples(*[st.sampled_from([1, 2, 4, 8])] * 2),
    st.integers(2, 8),
)


@examples(8, 40)
@given(
    compute=st.sampled_from(list(COMPUTED)),
    configuration=configurations,
    gpu=st.sampled_from([g for g in GPUS.values() if not g.arch.is_amd]),
    extents=st.tuples(*[st.integers(1, 10000)] * 3, st.integers(1, 50)),
    more=st.integers(1, 5000),
)
def test_every_legal_configuration_has_a_predicted_time(
    compute: tw.DType, configuration: Configuration, gpu: object, extents: tuple[int, int, int, int], more: int
) -> None:
    """Also those that nobody measured: finite, positive, no shorter for a longer K, and longer for a much longer one."""
    machine, family = Machine(gpu.arch, gpu), Multistage()
    m, n, k, batch = extents
    problem = problem_of(compute, m, n, k, batch)
    resources = family.resources(problem, configuration, machine.arch)
    assume(resources.rejection is None)

    def us(k: int) -> float:
        return family.predict(replace(problem, k=k), configuration, resources, machine).us

    assert math.isfinite(us(k)) and us(k) > 0
    assert us(k) <= us(k + more)
    assert us(k) < us(k + 1000 * configuration.tile[2])


@given(
    compute=st.sampled_from([*COMPUTED, tw.int16, tw.uint64]),
    configuration=configurations,
    blocks=st.integers(1, 32),
    gpu=st.sampled_from([g for g in GPUS.values() if not g.arch.is_amd]),
    measured=st.sampled_from([STEP_TIMES, StepTimes({}), StepTimes({tw.bfloat16: STEP_TIMES.measured[tw.bfloat16]})]),
)
def test_steps_that_were_not_measured_follow_the_formula(
    compute: tw.DType, configuration: Configuration, blocks: int, gpu: object, measured: StepTimes
) -> None:
    """Of any type, on any GPU, for a family with any measurements or none: each tile more takes its arithmetic more."""
    assume((configuration.tile, configuration.warps, configuration.stages) not in measured.measured.get(compute, {}))
    steps = measured.steps_us(compute, configuration, blocks, Machine(gpu.arch, gpu))
    assert len(steps) == blocks and all(math.isfinite(us) and us > 0 for us in steps)
    assert all(a < b for a, b in itertools.pairwise(steps))
    larger = replace(configuration, tile=tuple(2 * extent for extent in configuration.tile))
    assume((larger.tile, larger.warps, larger.stages) not in measured.measured.get(compute, {}))
    assert measured.steps_us(compute, larger, 1, Machine(gpu.arch, gpu))[0] > steps[0]


@pytest.mark.parametrize("compute", list(STEP_TIMES.measured), ids=str)
def test_the_formula_is_near_what_was_measured(compute: tw.DType) -> None:
    """Each measured step, left out of the table, is predicted within a factor of 2.5."""
    for tiling, steps in STEP_TIMES.measured[compute].items():
        left = {other: us for other, us in STEP_TIMES.measured[compute].items() if other != tiling}
        formula = StepTimes({**STEP_TIMES.measured, compute: left})
        for predicted, us in zip(
            formula.steps_us(compute, Configuration(*tiling), len(steps), H200), steps, strict=True
        ):
            assert us / 2.5 < predicted < 2.5 * us, (tiling, predicted, us)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("arch", [arch for arch in ARCHES if not Arch.parse(arch).is_amd])
@pytest.mark.parametrize("compute", list(COMPUTED), ids=str)
@pytest.mark.spread(6)
def test_every_family_answers_in_full(family: Family, arch: str, compute: tw.DType) -> None:
    """A candidate has a predicted time or a reason of one line, never both, and never an exception."""
    stored, _ = COMPUTED[compute]
    for major in ("K", "MN", "none"):
        for alignment in (stored.bytes, VECTOR_BYTES):
            problem = problem_of(compute, 300, 200, 100, a=Operand(stored, major, alignment))
            for candidate in family.candidates(problem, Machine.of(Arch.parse(arch))):
                assert (candidate.prediction is None) == (candidate.rejection is not None)
                assert candidate.rejection is None or "\n" not in candidate.rejection
                needs = family.needs(candidate.problem)
                assert needs.a.unmet(candidate.problem.a) is None and needs.b.unmet(candidate.problem.b) is None


class Outer(Family):
    """A family for matrices that are contiguous along K and aligned to 16 bytes."""

    name = "outer"
    us = 0.001

    def __init__(self) -> None:
        self.launched: list[tuple[Problem, Configuration]] = []

    def configurations(self, problem: Problem, arch: Arch) -> Sequence[Configuration]:
        return [Configuration((16, 16, 16), (1, 1), 1)]

    def needs(self, problem: Problem) -> Needs:
        strict = LayoutNeeds(("K",), 16)
        return Needs(a=strict, b=strict, d=LayoutNeeds(("MN",)))

    def resources(self, problem: Problem, configuration: Configuration, arch: Arch) -> Resources:
        return Resources(0, 8)

    def predict(
        self, problem: Problem, configuration: Configuration, resources: Resources, machine: Machine
    ) -> Prediction:
        return Prediction(1, 1, 1, self.us, self.us)

    def launch(self, problem: Problem, configuration: Configuration, arch: Arch) -> KernelLaunch:
        self.launched.append((problem, configuration))

        def multiply(
            D: object, A: object, B: object, alpha: object, beta: object, plan: str, *operands: object
        ) -> None:
            assert plan == "the plan" and not operands
            assert all(view.strides[1] == 1 and view.strides[0] % 4 == 0 for view in (A, B)), "as they were packed"
            d, a, b = (host(view) for view in (D, A, B))
            d[...] = alpha * np.einsum("mkl,nkl->mnl", a, b)

        return KernelLaunch(multiply, "the plan")


def host(view: object) -> np.ndarray:
    """Return a view of NumPy's memory as an array."""
    return describe(view).host()


def test_a_family_joins_by_one_line_of_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is explained, chosen where it is fastest, has its operands packed as it needs them, and launches itself."""
    outer = Outer()
    monkeypatch.setattr(choice, "FAMILIES", (*FAMILIES, outer))
    _signature.cache_clear()
    try:
        a, b = np.arange(63, dtype=np.float32).reshape(9, 7), np.arange(70, dtype=np.float32).reshape(7, 10)
        found = tw.matmul.explain(a, b)
        assert {c.family.name for c in found.candidates} == {"multistage", "outer"}
        # float32 is read by the multistage kernel as it lies; packing counts against this family, which needs it.
        assert found.choice is not None and found.choice.family.name == "multistage"
        mine = next(c for c in found.candidates if c.family is outer)
        assert mine.packed == (True, True) and mine.prediction is not None and mine.prediction.packing_us > 1
        padded = np.zeros((9, 8), np.float32)[:, :8], np.zeros((10, 8), np.float32).T
        assert tw.matmul.explain(*padded).choice.family is outer
        monkeypatch.setattr(Outer, "us", -100.0)
        assert "chosen: outer" in str(tw.matmul.explain(a, b)) and "A is packed first" in str(tw.matmul.explain(a, b))
        assert np.array_equal(tw.matmul(a, b, alpha=2), 2 * (a @ b))
        ((problem, _),) = outer.launched
        assert problem.a == Operand(tw.float32, "K", 16) and (problem.m, problem.n, problem.k) == (9, 10, 7)
    finally:
        _signature.cache_clear()


def test_a_result_that_a_family_cannot_write_rejects_it() -> None:
    problem = replace(problem_of(tw.float32, 8, 8, 8), d=Operand(tw.float32, "none", 4))
    (candidate,) = Outer().candidates(problem, H200)
    assert candidate.prediction is None
    assert candidate.rejection == (
        "D cannot be written: it is contiguous along neither mode, and along M or N is needed"
    )


@examples(6, 30)
@given(rows=st.integers(1, 9000), k=st.integers(1, 9000), batch=st.integers(1, 9))
def test_packing_counts_in_the_predicted_time(rows: int, k: int, batch: int) -> None:
    """One pass reads and writes the operand: as long as memory takes for that, and more."""
    problem = problem_of(tw.bfloat16, rows, 64, k, batch)
    odd = replace(problem, a=Operand(tw.bfloat16, "K", 2))
    for aligned, packed in zip(Multistage().candidates(problem, H200), Multistage().candidates(odd, H200), strict=True):
        assert packed.packed == (True, False) and aligned.packed == (False, False)
        if aligned.prediction is not None:
            assert packed.prediction is not None
            assert packed.prediction.us >= aligned.prediction.us + 2 * rows * k * batch * 2 / H200.bandwidth


def test_nothing_is_packed_where_nothing_is_read() -> None:
    odd = replace(problem_of(tw.bfloat16, 64, 64, 0), a=Operand(tw.bfloat16, "none", 2))
    assert all(c.packed == (False, False) for c in Multistage().candidates(odd, H200))


def test_of_equally_fast_candidates_the_first_is_chosen() -> None:
    problem = problem_of(tw.float32, 8, 8, 8)
    found = all_candidates(problem, H200, [Outer(), Outer()])
    assert fastest(problem, H200, found) is found[0]
