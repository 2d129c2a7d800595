"""Random programs with waits at random places: dividing and uniting agents changes nothing of what threads compute.

The programs are those of `test_sim_programs`, whose threads do not depend on each other. Waits for a phase that is over
stand anywhere in them, in branches and loops of any depth, and each lets only a random part of its threads go on
at first. So agents divide by blocks and by lanes, and meet again or do not.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tests.helpers.slow import examples
from tests.property.test_sim_programs import BLOCK, GRID, programs, reference
from tests.unit.backends.sim_kernels import Sketch

from tilewright.backends.sim.barriers import Mbarriers
from tilewright.backends.sim.values import Array, Lanes, Mask
from tilewright.dtypes import int32, uint64
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.mbarrier import MbarrierInit, MbarrierWait
from tilewright.ir.core import Block, Buffer, Op, Space
from tilewright.ir.ops import Allocate, Yield, constant

ZERO, ONE = constant(0, int32), constant(1, int32)


def blocks_of(block: Block) -> Iterator[Block]:
    yield block
    for op in block.ops:
        for inner in op.blocks:
            yield from blocks_of(inner)


@st.composite
def programs_with_waits(draw: st.DrawFn) -> tuple[Sketch, np.ndarray]:
    sketch = draw(programs())
    wanted = reference(sketch)
    barrier = Buffer("barrier", uint64, Space.SHARED, 1, 8)
    for block in blocks_of(sketch.body):
        for _ in range(draw(st.integers(0, 2))):
            end = len(block.ops) - isinstance(block.ops[-1], Yield)
            block.ops.insert(draw(st.integers(0, end)), MbarrierWait(barrier, ZERO, ONE))
    sketch.body.ops[:0] = [*initialisation(barrier), MbarrierWait(barrier, ZERO, ONE)]
    return sketch, wanted


def initialisation(barrier: Buffer) -> list[Op]:
    """Return ops that let one thread make an mbarrier, and all wait for it."""
    start = Sketch()
    start.do(Allocate(barrier))
    x, y, z = (start.special(f"thread_idx.{axis}") for axis in "xyz")
    with start.when(start.compare("eq", start.add(start.add(x, y), z), 0)):
        start.do(MbarrierInit(barrier, ZERO, ONE))
    start.do(Barrier("block"))
    return start.body.ops


@examples(6, 40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(programs_with_waits(), st.integers(0, 2**32 - 1))
def test_random_divisions_change_nothing(
    monkeypatch: pytest.MonkeyPatch, program: tuple[Sketch, np.ndarray], seed: int
) -> None:
    sketch, wanted = program
    random = np.random.default_rng(seed)
    share = random.choice([0.2, 0.8, 0.99, 1.0])

    def over(self: Mbarriers, index: Lanes, parity: Lanes, mask: Mask) -> Array:
        """Let a random part of the threads go on, and always one."""
        active = np.broadcast_to(True if mask is None else mask, (self.count.shape[0], int(np.prod(BLOCK))))
        ready = active & (random.random(active.shape) < share)
        ready.ravel()[random.choice(np.flatnonzero(active))] = True
        return ready

    monkeypatch.setattr(Mbarriers, "over", over)
    for check in (True, False):
        copied = copy.copy(sketch)
        copied.arguments = [np.zeros_like(wanted), *sketch.arguments[1:]]
        copied.run(GRID, BLOCK, check=check)
        np.testing.assert_array_equal(copied.arguments[0], wanted)
