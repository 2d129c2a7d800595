"""Launches that begin early: each wait that is needed is missed when it is taken out, and no other is."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import tilewright as tw

BLOCKS, THREADS = 4, 64
COUNT = BLOCKS * THREADS


@tw.kernel(dependent_launch=True)
def pass_on(out, x, weights, where: tw.constexpr):
    """Write x times weights; `where` says who waits for the launches before, and when."""
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    weight = weights[i]
    if where == "early" or where == "early and late":
        tw.grid_dependency_wait()
    if where == "thread" or where == "thread without barrier":
        if tw.thread_idx.x == 0:
            tw.grid_dependency_wait()
        if where == "thread":
            tw.sync_threads()
    if where == "warps":
        if tw.lane_id() == 0:
            tw.grid_dependency_wait()
        tw.sync_warp()
    if where == "grid":
        if tw.block_idx.x == 0:
            tw.grid_dependency_wait()
        tw.sync_grid()
    value = x[i]
    if where == "late" or where == "early and late":
        tw.grid_dependency_wait()
    tw.launch_dependents()
    out[i] = value * weight


def arrays(count: int) -> list[np.ndarray]:
    return [np.full(COUNT, n + 1, np.float32) for n in range(count)]


def kinds(*launches: tuple[object, ...]) -> set[str]:
    """Launch one kernel after the other and return what is found."""
    with tw.simulate(raise_errors=False) as found:
        for kernel, *arguments in launches:
            kernel[BLOCKS, THREADS](*arguments)  # type: ignore[index]
    return {finding.kind for finding in found.findings}


plain = pass_on.configure(dependent_launch=False)
SAFE = ("early", "early and late", "thread", "warps", "grid")
UNSAFE = ("late", "none", "thread without barrier")


@pytest.mark.parametrize("where", [*SAFE, *UNSAFE])
def test_a_read_of_what_the_launch_before_wrote_waits_for_it(where: str) -> None:
    x, y, z, w = arrays(4)
    assert kinds((plain, y, x, w, "none"), (pass_on, z, y, w, where)) == (set() if where in SAFE else {"missing-wait"})
    assert (z == 4 * 4 * x).all()
    assert kinds((plain, y, x, w, "none"), (plain, z, y, w, where)) == set()  # without the option nothing is missed
    assert kinds((plain, y, x, w, "none"), (pass_on, z, x, w, where)) == set()  # nor where nothing is shared


@pytest.mark.parametrize("where", ["late", "early", "none"])
def test_writes_wait_for_what_the_launch_before_reads_and_writes(where: str) -> None:
    x, y, z, w = arrays(4)
    expected = {"missing-wait"} if where == "none" else set()
    assert kinds((plain, y, x, w, "none"), (pass_on, x, z, w, where)) == expected
    assert kinds((plain, y, x, w, "none"), (pass_on, y, z, w, where)) == expected


@pytest.mark.parametrize(("between", "wanted"), [("early", set()), ("late", set()), ("none", {"missing-wait"})])
def test_a_launch_that_has_not_waited_leaves_those_before_it_running(between: str, wanted: set[str]) -> None:
    x, y, z, w, u, v = arrays(6)
    assert kinds((plain, y, x, w, "none"), (pass_on, u, v, w, between), (pass_on, z, y, w, "early")) == wanted
    assert kinds((plain, y, x, w, "none"), (pass_on, u, v, w, between), (plain, z, y, w, "none")) == set()


def test_the_finding_names_both_lines() -> None:
    x, y, z, w = arrays(4)
    plain[BLOCKS, THREADS](y, x, w, "none")
    with pytest.raises(tw.CheckError) as raised:
        pass_on[BLOCKS, THREADS](z, y, w, "none")
    finding = raised.value.findings[0]
    assert finding.line is not None and finding.other is not None and finding.other.line > finding.line
    for part in ("load x[0], and kernel 'pass_on', which may still run", "tw.grid_dependency_wait()", "255 more"):
        assert part in finding.message, part


@tw.kernel(dependent_launch=True)
def add_to_half(x, half):
    i = half * tw.block_dim.x * tw.grid_dim.x + tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    x[i] = x[i] + 1


def test_elements_count_and_not_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros(2 * COUNT, np.float32)
    assert kinds((add_to_half, x, 0), (add_to_half, x, 1)) == set()
    assert kinds((add_to_half, x, 0), (add_to_half, x, 0)) == {"missing-wait"}
    # Another array over the same memory, and of another type.
    assert kinds((add_to_half, x, 0), (add_to_half, x.view(np.int32), 0)) == {"missing-wait"}
    assert kinds((add_to_half, x, 1), (add_to_half, x[COUNT:], 0)) == {"missing-wait"}
    # Of a launch before any kernel was made with the option, the arrays are known.
    with monkeypatch.context() as before:
        before.setattr("tilewright.specialise.has_dependent_launches", lambda: False)
        plain_half = add_to_half.configure(dependent_launch=False)
        plain_half[BLOCKS, THREADS](x, 0)
    assert kinds((add_to_half, x, 1)) == {"missing-wait"}


class Owner:
    """Owns the memory of arrays that are made of it: another one may own the same memory later, as an allocator's do."""

    def __init__(self, memory: np.ndarray) -> None:
        self.__array_interface__ = memory.__array_interface__


def test_freed_arrays_are_forgotten() -> None:
    """Their memory is given out again, and what a launch did there says nothing of the next array."""
    x, memory, z, w = arrays(4)
    for kept in (True, False):
        y = np.asarray(Owner(memory))
        plain[BLOCKS, THREADS](y, x, w, "none")
        if not kept:
            del y
        gc.collect()
        assert kinds((pass_on, z, np.asarray(Owner(memory)), w, "none")) == ({"missing-wait"} if kept else set())


def test_bulk_copies_wait_too() -> None:
    def make(waits: bool) -> object:
        @tw.kernel(dependent_launch=True)
        def kernel(out, x):
            smem, full = tw.shared(tw.float32, tw.row_major((8, 32))), tw.mbarrier(1)
            tw.sync_threads()
            if tw.thread_idx.x == 0:
                full.arrive_expect_tx(1024)
                if waits:
                    tw.grid_dependency_wait()
                tile = tw.local_tile(x, (8, 32), (0, 0), guard=True)
                tw.copy(tw.atoms.SM90_TMA_LOAD, tile, smem, barrier=full)
            full.wait(0)
            if tw.block_idx.x == 0:
                if tw.thread_idx.x < 32:
                    out[tw.thread_idx.x] = smem[1, tw.thread_idx.x]

        return kernel

    x, y, z, w = arrays(4)
    for waits in (True, False):
        expected = set() if waits else {"missing-wait"}
        assert kinds((plain, y, x, w, "none"), (make(waits), z, y.reshape(8, 32))) == expected
