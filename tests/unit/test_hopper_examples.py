"""The examples of bulk copies: right on the simulator, without spills, free of bank conflicts, each synchronisation needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.helpers.declared_effects import declared_effects

import tilewright as tw
from tilewright.backends import sim
from tilewright.backends.sim import execute
from tilewright.demo import Case, collect_cases, example_files, run_case, runner
from tilewright.demo.examples import examples_folder, load_example
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.bulk_groups import BulkCommit, BulkWait
from tilewright.instructions.mbarrier import MbarrierArrive, MbarrierExpect, MbarrierWait
from tilewright.instructions.proxy_fence import ProxyFence
from tilewright.ir.core import Block, Op

FILES = [path for path in example_files(examples_folder() / "hopper") if path.stem in ("01_tma_copy", "03_ring")]
MODULES = {path.stem: load_example(path) for path in FILES}
CASES = collect_cases(FILES, "sim", quick=True)
KERNELS = [(stem, name) for stem, module in MODULES.items() for name, value in vars(module).items()
           if isinstance(value, tw.Kernel)]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.spread(3)
def test_case(case: Case) -> None:
    with declared_effects():
        report = run_case(case, "sim")
    assert report.passed, report.failure
    assert report.error is not None and report.error <= (report.limit or 0.0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_checks_its_kernel(case: Case) -> None:
    """The output holds no right answer before the launch."""
    trial = case.prepare()
    assert runner.greatest_difference(trial.result(), trial.expected) > trial.limit


@pytest.mark.parametrize(("stem", "name"), KERNELS)
def test_kernels_compile_without_spills(stem: str, name: str) -> None:
    module = MODULES[stem]
    grid, block, args = getattr(module, f"example_{name}")()
    kernel = getattr(module, name)[grid, block]
    resources = kernel.resources(*args, arch="sm_90a")
    assert not resources.spills and resources.local_bytes == 0, resources
    assert "cp.async.bulk.tensor.2d.shared::cluster.global" in kernel.ptx(*args, arch="sm_90a")


def test_shared_memory_is_free_of_conflicts() -> None:
    tma, ring = MODULES["01_tma_copy"], MODULES["03_ring"]
    a, c = np.ones((128, 128), np.float16), np.zeros((128, 128), np.float32)
    for run in (
        lambda: tma.launch_transpose(np.zeros((128, 64), np.float32), np.ones((64, 128), np.float32)),
        lambda: ring.matmul(c, a, a),
    ):
        with tw.simulate(profile=True) as found:
            run()
        (launch,) = found.launches
        assert sum(line.shared_conflicts for line in launch.lines) == 0


def test_bytes_by_tma_are_counted() -> None:
    x = np.ones((100, 132), np.float32)
    with tw.simulate(profile=True) as found:
        MODULES["01_tma_copy"].launch_copy(np.zeros_like(x), x)
    (launch,) = found.launches
    lines = [line for line in launch.lines if line.bulk_bytes]
    assert [line.bulk_bytes for line in lines] == [x.nbytes, x.nbytes]  # what lies outside is not counted
    counts = [line.instructions[kind] for line, kind in zip(lines, ("tma load", "tma store"), strict=True)]
    assert counts == [7, 7]  # 100 rows are 7 tiles, one box each
    assert [line.global_bytes for line in lines] == [x.nbytes, x.nbytes]
    assert re.search(r"bulk copies *\S+ kB of these by TMA", str(found.report()))


# --- each synchronisation removed ------------------------------------------------------------------------

SYNCHRONISATIONS = (Barrier, BulkCommit, BulkWait, MbarrierArrive, MbarrierExpect, MbarrierWait, ProxyFence)


@contextmanager
def without(block: Block, op: Op) -> Iterator[None]:
    """Take an op out of its block for a while."""
    place = next(n for n, other in enumerate(block.ops) if other is op)
    del block.ops[place]
    try:
        yield
    finally:
        block.ops.insert(place, op)


def findings(launched: tuple[Any, ...], more: Mapping[str, Any]) -> list[str]:
    with tw.simulate(raise_errors=False) as run:
        execute(*launched, maps=more["maps"])
    return [finding.kind for finding in run.findings]


def square(n: int, dtype: Any) -> np.ndarray:
    return np.arange(n * n).reshape(n, n).astype(dtype)


RUNS: dict[str, Callable[[], None]] = {
    "copy": lambda: MODULES["01_tma_copy"].launch_copy(square(64, np.float32), square(64, np.float32)),
    "transpose": lambda: MODULES["01_tma_copy"].launch_transpose(square(64, np.float32), square(64, np.float32)),
    "matmul_ring": lambda: MODULES["03_ring"].matmul(
        np.zeros((128, 128), np.float32), np.ones((128, 256), np.float16), np.ones((128, 256), np.float16), 2
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_each_synchronisation_is_needed_and_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are needed: the kernels have none to spare."""
    launches: list[tuple[tuple[Any, ...], Mapping[str, Any]]] = []
    with monkeypatch.context() as patch:
        patch.setattr(sim, "execute", lambda *given, **more: launches.append((given, more)))
        RUNS[name]()
    ((launched, more),) = launches
    kernel = launched[0]
    assert findings(launched, more) == []
    blocks = [kernel.body, *(b for op in kernel.body.walk() for b in op.blocks)]
    places = [(b, op) for b in blocks for op in b.ops if isinstance(op, SYNCHRONISATIONS)]
    assert len(places) == {"copy": 4, "transpose": 7, "matmul_ring": 6}[name]
    for block, op in places:
        with without(block, op):
            assert findings(launched, more), (type(op).__name__, op.location)
