"""Each barrier of collectives removed, and their halves of memory made one: a race is reported every time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.checkers.programs import RACES
from tests.checkers.test_examples_without import findings, launches, without

import tilewright as tw
from tilewright.errors import CheckError
from tilewright.instructions.barrier import Barrier, NamedBarrier
from tilewright.language import groups


@tw.kernel
def in_a_row(out, x, group: tw.constexpr):
    i = tw.thread_idx.x
    a = tw.reduce(x[i], "add", group)
    b = tw.scan(x[i] - a, "max", group)
    v, k = tw.argmax(b, group=group)
    out[i] = tw.broadcast(v + k, 3, group) + tw.reduce((a, b), lambda a, b: (a[0] + b[0], b[1]), group)[1]


@tw.kernel
def one_in_a_loop(out, x, group: tw.constexpr):
    i = tw.thread_idx.x
    total = tw.float32(0)
    for k in range(x.size // tw.block_dim.x):
        total += tw.reduce(x[k * tw.block_dim.x + i], "add", group)
    out[i] = total


@tw.kernel
def two_in_a_loop(out, x, group: tw.constexpr):
    i = tw.thread_idx.x
    total = tw.float32(0)
    for k in range(x.size // tw.block_dim.x):
        value = x[k * tw.block_dim.x + i]
        total += tw.scan(value - tw.reduce(value, "min", group), "add", group)
    out[i] = total


@tw.kernel
def sometimes(out, x, group: tw.constexpr):
    """A loop with a collective in a branch: how many there were is known to nobody before."""
    i = tw.thread_idx.x
    total = tw.float32(0)
    for k in range(x.size // tw.block_dim.x):
        value = x[k * tw.block_dim.x + i]
        if k % 3 == 1:
            value = tw.reduce(value, "max", group)
        total += tw.broadcast(value, 7, group)
    out[i] = total


@tw.kernel
def sorted_twice(out, x, group: tw.constexpr):
    i = tw.thread_idx.x
    for k in range(x.size // tw.block_dim.x):
        out[i] = tw.sort(x[k * tw.block_dim.x + i], group=group)
    value, place = tw.topk(out[i], 3, group=group)
    out[i] = value[2] + place[1]


KERNELS = (in_a_row, one_in_a_loop, two_in_a_loop, sometimes, sorted_twice)


def call(kernel: tw.Kernel, threads: int, group: Any) -> Callable[[], None]:
    x = np.random.default_rng(0).normal(size=5 * threads).astype(np.float32)
    return lambda: kernel[1, threads](np.zeros(threads, np.float32), x, group)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize(("threads", "group"), [(128, "block"), (288, "block"), (100, "block"), (256, "warpgroup")])
@pytest.mark.spread(2)
def test_every_barrier_is_needed(kernel: tw.Kernel, threads: int, group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_each(call(kernel, threads, group), monkeypatch)


@pytest.mark.parametrize(("layout", "loops"), [((1, 2, 1), 1), ((2, 4, 1), 1), ((1, 2, 1), 3)])
def test_every_barrier_of_rows_is_needed(
    layout: tuple[int, int, int], loops: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mma = tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32F16F16F32_TN, layout)

    @tw.kernel
    def of_rows(out, c, mma: tw.constexpr, loops):
        thread = mma.get_slice(tw.thread_idx.x)
        part, target = thread.partition_C(c), thread.partition_C(out)
        acc = thread.make_fragment_C(part)
        tw.copy(part, acc)
        rows = tw.accumulator_rows(mma, acc)
        for _ in range(loops):
            most = tw.reduce_rows(mma, acc, "max")
            for r in tw.static_range(rows.layout[0].size):
                for k in tw.static_range(rows.layout[1].size):
                    rows[r, k] = rows[r, k] - most[r, 0]
        tw.copy(acc, target)

    shape = (mma.tile_size(0), 2 * mma.tile_size(1))
    c = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    remove_each(lambda: of_rows[1, mma.size](tw.static(np.zeros_like(c)), tw.static(c), mma, loops), monkeypatch)


def remove_each(run: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a launch is right as it is, and that a race is found without each of its barriers."""
    (launch,) = launches(run, monkeypatch)
    assert findings(launch) == []
    blocks = [launch.kernel.body, *(b for op in launch.kernel.body.walk() for b in op.blocks)]
    barriers = [(b, op) for b in blocks for op in b.ops if isinstance(op, (Barrier, NamedBarrier))]
    assert barriers
    for block, op in barriers:
        with without(block, op):
            assert [f for f in findings(launch) if f.kind in RACES], op


@pytest.mark.parametrize("kernel", [one_in_a_loop, sometimes, sorted_twice], ids=str)
@pytest.mark.parametrize(("threads", "group"), [(128, "block"), (256, "warpgroup")])
def test_one_half_would_be_too_few(
    kernel: tw.Kernel, threads: int, group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the next step writes what others may still read, the checker says so: the memory has to alternate."""
    monkeypatch.setattr(groups.Exchange, "_half", lambda self: 0)
    with pytest.raises(CheckError, match="race"):
        call(replace_kernel(kernel), threads, group)()


def replace_kernel(kernel: tw.Kernel) -> tw.Kernel:
    """Return the kernel anew, so that it is traced again."""
    return tw.kernel(kernel.__wrapped__)


@pytest.mark.parametrize("group", ["block", "warpgroup"])
def test_one_barrier_for_each_step(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {in_a_row: 5, one_in_a_loop: 1, two_in_a_loop: 2, sometimes: 2}
    for kernel, expected in counts.items():
        (launch,) = launches(call(kernel, 256, group), monkeypatch)
        found = sum(isinstance(op, (Barrier, NamedBarrier)) for op in launch.kernel.body.walk())
        assert found == expected
