"""Candidates, the model's predictions, the choice, and how `tw.matmul.explain` shows them."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.slow import examples

import tilewright as tw
from tilewright.arch import ARCHES, Arch
from tilewright.kernels.choice import Explanation, all_candidates, fastest
from tilewright.kernels.family import LATER
from tilewright.kernels.model import Machine, resident_blocks
from tilewright.kernels.multistage import STEP_TIMES, Multistage
from tilewright.kernels.problem import Configuration

H200 = Machine.of(Arch.parse("sm_90a"))
TYPES = (tw.float16, tw.bfloat16, tw.float32, tw.float64, tw.int8, tw.uint8, tw.float8_e4m3fn, tw.float8_e5m2)


def explained(m: int, n: int, k: int, dtype: tw.DType = tw.bfloat16, **arguments: object) -> Explanation:
    return tw.matmul.explain(tw.spec(dtype, (m, k)), tw.spec(dtype, (k, n)), **arguments)


@examples(5, 25)
@given(
    extents=st.tuples(*[st.integers(1, 9000)] * 3),
    dtype=st.sampled_from(TYPES),
    arch=st.sampled_from([a for a in ARCHES if Arch.parse(a).number >= 80]),
)
def test_the_choice_is_legal_and_the_fastest(extents: tuple[int, int, int], dtype: tw.DType, arch: str) -> None:
    if dtype in (tw.float8_e4m3fn, tw.float8_e5m2) and Arch.parse(arch).number < 89:
        return
    found = explained(*extents, dtype, arch=arch)
    assert found.choice is not None and found.choice.prediction is not None
    for candidate in found.candidates:
        assert (candidate.prediction is None) == (candidate.rejection is not None)
        if candidate.prediction is not None:
            assert found.choice.prediction.us <= candidate.prediction.us
            assert candidate.resources.shared_bytes <= Arch.parse(arch).shared_bytes_optin
    machine = Machine.of(Arch.parse(arch))
    later = all_candidates(found.problem, machine, lazily=True)
    assert any(c.resources is LATER for c in later) == any(c.family.predicts_alone for c in found.candidates)
    assert fastest(found.problem, machine, later) == fastest(found.problem, machine, found.candidates)
    assert [c.looked_at(machine.arch) for c in later] == list(found.candidates)


@pytest.mark.parametrize("dtype", TYPES)
def test_large_problems_take_large_tiles_and_small_ones_small(dtype: tw.DType) -> None:
    """A small problem in large tiles would leave most multiprocessors without work."""

    def area(found: Explanation) -> int:
        assert found.choice is not None
        configuration = found.choice.configuration
        m, n, _ = configuration.tile
        return m * n // getattr(configuration, "splits", 1)  # as many blocks share one

    # K is too short for splits, which give small problems in large tiles more blocks.
    areas = [area(explained(n, n, 64, dtype)) for n in (256, 1024, 8192)]
    assert areas == sorted(areas) and areas[0] < areas[-1]


def test_the_model_gives_the_rates_that_it_is_made_of() -> None:
    """A step was measured on its own: whole waves take as many of them, and their overhead."""
    for dtype, tile in ((tw.bfloat16, (128, 256, 64)), (tw.float64, (128, 128, 16)), (tw.float32, (128, 128, 8))):
        found = explained(132 * tile[0], 3 * tile[1], 100 * tile[2], dtype)
        by_multistage = [c for c in found.candidates if isinstance(c.family, Multistage)]
        candidate = next(c for c in by_multistage if c.configuration.tile == tile)
        assert candidate.prediction is not None and candidate.prediction.waves == 3
        step = STEP_TIMES.steps_us(dtype, candidate.configuration, 1, H200)[0]
        assert candidate.prediction.compute_us == pytest.approx(300 * step, abs=3 * 8)


def predicted(found: Explanation, family: str, start: str) -> float:
    """Return the microseconds of a configuration by the beginning of its text."""
    chosen = next(c for c in found.candidates if c.family.name == family and str(c.configuration).startswith(start))
    assert chosen.prediction is not None
    return chosen.prediction.us


def test_large_tiles_of_float32_wait_for_what_they_store() -> None:
    """Measured: 4096 x 4096 x 8 takes 35 us in tiles of 128 x 256, and 22.5 in those of 64 x 64; a long K hides it."""
    short, long = (explained(4096, 4096, k, tw.float32) for k in (8, 8192))
    ratios = [predicted(x, "multistage", "128x256") / predicted(x, "multistage", "64x64x8, 1x2") for x in (short, long)]
    assert ratios[0] > 1.05 and ratios[1] < 0.95


def test_rows_of_odd_length_are_stored_by_warpgroups() -> None:
    """Measured: 384 of 197 x 197 x 64 in bfloat16 take 41 us on Hopper, and 56 to 60 by threads that store elements."""
    a, b = np.empty((384, 197, 64), tw.bfloat16.numpy), np.empty((384, 197, 64), tw.bfloat16.numpy)
    choice = tw.matmul.explain(a, b.swapaxes(1, 2), arch="sm_90a").choice
    assert choice is not None and choice.family.name == "hopper"


def test_packing_is_waited_for_where_no_launch_begins_beside_it() -> None:
    """Measured: 200 x 300 x 77 in bfloat16 takes 3.5 us on Hopper, whose launch does, and 7.7 by multistage."""
    found = tw.matmul.explain(np.empty((200, 77), np.float16), np.empty((300, 77), np.float16).T, arch="sm_90a")
    waits = {c.family.name: c.prediction.packing_us for c in found.candidates if c.prediction is not None}
    assert waits["multistage"] == pytest.approx(waits["hopper"] + 2.5) and waits["hopper"] > 0


def test_more_tiles_at_the_same_time_take_longer_but_less_than_one_after_the_other() -> None:
    """By more than the noise of measuring."""
    for tilings in STEP_TIMES.measured.values():
        for steps in tilings.values():
            assert all(x > 0 for x in steps)
            assert all(a < 1.03 * b for a, b in itertools.pairwise(steps))


def test_memory_bounds_what_is_computed_fast() -> None:
    found = explained(1, 8192, 8192)
    assert found.choice is not None and found.choice.prediction is not None
    kept = H200.gpu.l2_bytes
    assert kept is not None
    assert found.choice.prediction.us >= (2 * 8192 * 8192 - kept) / H200.bandwidth


@given(shared=st.integers(0, 227 * 1024), threads=st.sampled_from([128, 256, 512]), registers=st.integers(8, 200))
def test_resident_blocks_fit(shared: int, threads: int, registers: int) -> None:
    arch = H200.arch
    blocks = resident_blocks(threads, registers, shared, arch)
    assert blocks >= 1
    if blocks > 1:
        assert blocks * (shared + 1024) <= arch.shared_bytes_per_multiprocessor
        assert blocks * threads <= arch.threads_per_multiprocessor
        assert blocks * threads * registers <= arch.registers_per_multiprocessor


def test_rejections_name_the_hardware() -> None:
    found = explained(4096, 4096, 4096, arch="sm_86")
    reasons = {c.configuration.tile: c.rejection for c in found.candidates}
    assert reasons[128, 256, 64] == "147456 bytes of shared memory; a block of sm_86 has 101376"
    assert None in reasons.values()


def test_tiles_whose_accumulators_fill_the_registers_are_rejected() -> None:
    problem = explained(4096, 4096, 4096, tw.float32, out_dtype=tw.float16).problem
    configuration = Configuration((256, 256, 8), (2, 4), 2)
    rejection = Multistage().resources(problem, configuration, H200.arch).rejection
    assert rejection == "256 registers a thread for the accumulators alone; there are 255"


def test_explanation_as_text() -> None:
    found = explained(300, 200, 100, arch="sm_86", bias=tw.spec(tw.float32, (200,)))
    text = str(found)
    assert "300 x 200 x 100, bfloat16 with float32 accumulators, on sm_86" in text
    assert "A bfloat16, contiguous along K, aligned to 8; B bfloat16, contiguous along N, aligned to 16" in text
    assert "plus bias (float32)" in text
    assert "147456 bytes of shared memory; a block of sm_86 has 101376" in text
    chosen = [line for line in text.splitlines() if line.startswith("->")]
    assert found.choice is not None
    assert len(chosen) == 1 and str(found.choice.configuration) in chosen[0]
    assert text.splitlines()[-1].startswith(f"chosen: {found.choice.family.name}, {found.choice.configuration}")


def test_explanation_as_json() -> None:
    found = explained(300, 200, 100)
    read = json.loads(found.to_json())
    assert read == found.to_dict()
    assert read["problem"]["m"] == 300 and read["problem"]["a"] == {"dtype": "bfloat16", "major": "K", "alignment": 8}
    assert found.choice is not None
    assert read["candidates"][read["choice"]]["tile"] == list(found.choice.configuration.tile)


def test_explanation_of_real_arrays_does_not_compute() -> None:
    a, out = np.ones((8, 8), np.float32), np.zeros((8, 8), np.float32, order="F")
    found = tw.matmul.explain(a, a, out=out, beta=1, epilogue=lambda acc: acc * a)
    assert (out == 0).all()
    assert found.is_swapped and found.problem.has_c and found.problem.elements == (tw.float32,)
    assert "its transpose is computed" in str(found) and "<lambda>> with float32" in str(found)


def test_explanation_of_an_empty_result() -> None:
    found = explained(0, 8, 8)
    assert found.choice is None and "nothing is launched" in str(found)
    assert json.loads(found.to_json())["choice"] is None


def test_explanation_of_several_launches() -> None:
    a, b = tw.spec(tw.float16, (4, 1, 16, 64)), tw.spec(tw.float16, (9, 64, 32))
    found = tw.matmul.explain(a, b)
    assert found.launches == 4 and found.problem.batch == 36
    assert "4 launches" in str(found)
