"""Each synchronisation of each example's kernels removed: an error is reported if and only if it was needed.

What is needed is found by a graph search over all that the threads did (see `traces`), not by the race checker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.checkers.programs import RACES
from tests.checkers.traces import races
from tests.helpers.slow import rest_is_slow

import tilewright as tw
from tilewright.backends import sim
from tilewright.backends.sim import execute
from tilewright.demo import example_files
from tilewright.demo.examples import examples_folder, load_example
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.cp_async import AsyncCommit, AsyncWait
from tilewright.ir.core import Block, Kernel, Op, Parameter
from tilewright.profile import simulate

Dim3 = tuple[int, int, int]
TUTORIAL = {path.stem: load_example(path) for path in example_files()}
TENSORCORE = {path.stem: load_example(path) for path in example_files(examples_folder() / "tensorcore")}


@dataclass(frozen=True)
class Launch:
    kernel: Kernel
    grid: Dim3
    block: Dim3
    arguments: Mapping[Parameter, Any]

    def places(self) -> list[tuple[Block, Op]]:
        """Return the synchronisations, each with the block it stands in."""
        blocks = [self.kernel.body, *(b for op in self.kernel.body.walk() for b in op.blocks)]
        return [(b, op) for b in blocks for op in b.ops if isinstance(op, (Barrier, AsyncWait, AsyncCommit))]


def launches(run: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Return what a call launches, without running it."""
    found: list[Launch] = []
    with monkeypatch.context() as patch:
        patch.setattr(sim, "execute", lambda k, g, b, a, **more: found.append(Launch(k, g, b, a)))
        run()
    return found


@contextmanager
def without(block: Block, op: Op) -> Iterator[None]:
    """Take an op out of its block for a while."""
    place = next(n for n, other in enumerate(block.ops) if other is op)
    del block.ops[place]
    try:
        yield
    finally:
        block.ops.insert(place, op)


def findings(launch: Launch) -> list[sim.Finding]:
    with simulate(raise_errors=False) as run:
        execute(launch.kernel, launch.grid, launch.block, launch.arguments)
    return run.findings


def matrices(dtype: Any, m: int, n: int, k: int, order: str, out: Any = None) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, shape).astype(dtype, order=order) for shape in ((m, k), (n, k)))
    return np.zeros((m, n), out or dtype, order=order), a, b


def square(n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((n, n), np.float32), np.ones((n, n), np.float32)


COPY, TRANSPOSE, MATMUL = (TUTORIAL[name] for name in ("01_copy", "02_transpose", "03_matmul"))
TILE, TF32, MULTISTAGE, PLANNED, SPECIALISED, VOLTA = (TENSORCORE[name] for name in sorted(TENSORCORE))

# A tile of C, and enough of K for every stage to be filled again, with zeros where kernels go beyond the last one.
CASES: dict[str, Callable[[], None]] = {
    "copy_elements": lambda: COPY.launch_elements(*square(32)),
    "copy_tiles": lambda: COPY.launch_tiles(*square(32)),
    "transpose": lambda: TRANSPOSE.launch(*square(32)),
    "transpose_fast": lambda: TRANSPOSE.launch_fast(*square(64)),
    "matmul_simple": lambda: MATMUL.simple(*matrices(np.float32, 128, 128, 24, "F")),
    "matmul_overlapped": lambda: MATMUL.overlapped(*matrices(np.float32, 128, 128, 24, "F")),
    "matmul_double_buffered": lambda: MATMUL.double_buffered(*matrices(np.float32, 128, 128, 24, "F")),
    "matmul_row_major": lambda: MATMUL.row_major(*matrices(np.float32, 128, 128, 24, "C")),
    "single_tile": lambda: TILE.plain(*matrices(np.float32, 16, 8, 8, "C")),
    "single_tile_ldmatrix": lambda: TILE.by_ldmatrix(*matrices(np.float32, 16, 8, 8, "C")),
    "matmul_tf32": lambda: TF32.matmul(
        *(np.asfortranarray(x) if n == 1 else x for n, x in enumerate(matrices(np.float32, 128, 128, 32, "C")))
    ),
    "matmul_multistage": lambda: MULTISTAGE.matmul(
        *matrices(np.float16, 128, 128, 64, "C"), tile=(128, 128, 32), stages=2
    ),
    "matmul_planned": lambda: PLANNED.matmul(*matrices(np.int8, 128, 256, 128, "C", np.int32), PLANNED.INT8),
    "matmul_8x8x4": lambda: VOLTA.matmul(*matrices(np.float16, 128, 128, 32, "F", np.float32)),
    "matmul_warp_specialised": lambda: SPECIALISED.matmul(*matrices(np.float16, 128, 128, 96, "C", np.float32), 2),
}


def test_every_kernel_is_here() -> None:
    kernels = [
        name
        for module in (*TUTORIAL.values(), *TENSORCORE.values())
        for name, value in vars(module).items()
        if isinstance(value, tw.Kernel) and name.islower()
    ]
    assert sorted(kernels) == sorted(CASES)


# That of a plan has the copies and waits of matmul_multistage; it and that of tf32 take longest.
LONG = {"matmul_planned", "matmul_tf32"}


@pytest.mark.parametrize("name", rest_is_slow(CASES, *(name for name in CASES if name not in LONG)))
@pytest.mark.spread(4)
def test_removing_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (launch,) = launches(CASES[name], monkeypatch)
    assert launch.kernel.name == name
    assert findings(launch) == []
    for block, op in launch.places():
        with without(block, op):
            needed = races(launch.kernel, launch.grid, launch.block, launch.arguments)
            found = [f for f in findings(launch) if f.kind in RACES]
        assert bool(found) == needed, (op.location, needed, [f.message for f in found])
