"""TEMP arrays that are read before they are written: they begin with zeros, wherever they live."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ScheduleError, TilewrightWarning
from tilewright.schedule import (
    AllocateFlags,
    Array,
    Dimension,
    GridUnit,
    If,
    Location,
    MMAFragmentOp,
    MMAShape,
    Nest,
    Plan,
    Role,
    Scalar,
    Schedule,
    Target,
    fuse,
)
from tilewright.schedule.beginnings import unwritten

A100 = Target("NVIDIA A100")


def _temporary(shape: tuple[Any, ...], flags: AllocateFlags = AllocateFlags.NONE, dtype: Any = tw.float32) -> Array:
    return Array(Role.TEMP, dtype, shape, name="T", flags=flags)


def _nest(shape: tuple[Any, ...], logic: Callable[..., None]) -> Nest:
    nest = Nest(shape)
    nest.iteration_logic(lambda: logic(*nest.indices))
    return nest


def _sums(size: Any, depth: int, flags: AllocateFlags = AllocateFlags.NONE) -> tuple[Schedule, tuple[Array, ...]]:
    """T[i] += A[i, k] from nothing, and B[i] = T[i] * 2."""
    A, B = Array(Role.INPUT, tw.float32, (size, depth), name="A"), Array(Role.OUTPUT, tw.float32, (size,), name="B")
    T = _temporary((size,), flags)
    first = _nest((size, depth), lambda i, k: T.__setitem__(i, T[i] + A[i, k]))
    second = _nest((size,), lambda i: B.__setitem__(i, T[i] * 2.0))
    return fuse(first.create_schedule(), second.create_schedule(), partial=1), (A, T, B)


@pytest.mark.parametrize("kept", ["registers", "memory", "shared", "private", "global", "shared and private"])
@pytest.mark.parametrize(("size", "depth", "block"), [(16, 3, 4), (13, 2, 5), (7, 1, 8)])
@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.spread(4)
def test_sums_that_nothing_begins(kept: str, size: int, depth: int, block: int, threads: bool) -> None:
    flags = {"registers": AllocateFlags.STACK, "memory": AllocateFlags.HEAP}.get(kept, AllocateFlags.NONE)
    schedule, (A, T, B) = _sums(size, depth, flags)
    i, f, k = schedule.get_indices()
    inner = schedule.split(i, block)
    schedule.reorder(i, inner, f, k)
    plan = schedule.create_plan(A100)
    if threads:
        plan.bind({i: GridUnit.BLOCK_X, inner: GridUnit.THREAD_X})
    if kept in ("shared", "shared and private"):
        plan.cache(T, index=f, location=Location.SHARED)
    if kept == "global":
        plan.cache(T, index=f, location=Location.GLOBAL)
    if kept == "private":
        plan.cache(T, index=f, location=Location.PRIVATE)
    if kept == "shared and private":
        plan.cache(T, index=k, location=Location.PRIVATE)
    with pytest.warns(TilewrightWarning, match=r"T is TEMP, and the read of T\[i0\] at i0=0, i1=0 comes before every"):
        kernel = plan.build(args=(A, B))
    assert "= 0.0f" in kernel.source()  # registers hold zeros in the simulator anyway
    random = np.random.default_rng(size)
    a, b = random.integers(-8, 9, (size, depth)).astype(np.float32), np.zeros(size, np.float32)
    for _ in range(2):  # memory of the launch is begun in each launch
        kernel(a, b)
        np.testing.assert_array_equal(b, 2 * a.sum(1))


def test_the_warning_stands_at_the_line_of_the_program() -> None:
    T, B = _temporary((4,)), Array(Role.OUTPUT, tw.float32, (4,), name="B")
    nest = Nest((4,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        B[i] = T[i]  # this line

    with pytest.warns(TilewrightWarning) as caught:
        kernel = nest.create_plan(A100).build()
    with open(__file__) as file:
        assert file.read().splitlines()[caught[0].lineno - 1].endswith("# this line")
    assert caught[0].filename == __file__
    b = np.ones(4, np.float32)
    kernel(b)
    assert not b.any()


def test_text_begins_what_is_read_and_nothing_else() -> None:
    """An array that is written first costs nothing."""

    def text(is_begun: bool) -> str:
        A, T, B = (
            Array(role, tw.float32, (4,), name=name)
            for role, name in ((Role.INPUT, "A"), (Role.TEMP, "T"), (Role.OUTPUT, "B"))
        )
        first = _nest((4,), lambda i: T.__setitem__(i, A[i]))
        second = _nest((4,), lambda i: B.__setitem__(i, T[i] + A[i]))
        parts = [second.create_schedule(), first.create_schedule()] if is_begun else [first, second]
        schedule = fuse(*(x if isinstance(x, Schedule) else x.create_schedule() for x in parts), partial=0)
        plan = schedule.create_plan(A100)
        plan.cache(T, index=schedule.get_indices()[0], location=Location.PRIVATE)
        return plan.build().source()

    with pytest.warns(TilewrightWarning, match="T is TEMP"):
        begun = text(True)
    assert "rT[" in begun and "= 0.0f" in begun
    assert "= 0.0f" not in text(False)


@pytest.mark.parametrize("flags", [AllocateFlags.NONE, AllocateFlags.HEAP, AllocateFlags.STACK])
@pytest.mark.parametrize("size", [4, 2000, "N"])
@pytest.mark.spread(3)
def test_nothing_but_zeros(flags: AllocateFlags, size: Any) -> None:
    """What is never written is no memory at all, however large, and may be read by all."""
    extent = Dimension("N") if size == "N" else size
    T, B = _temporary((extent,), flags), Array(Role.OUTPUT, tw.float32, (5, extent), name="B")
    nest = _nest((5, extent), lambda i, j: B.__setitem__((i, j), T[j] + 1.0))
    schedule = nest.create_schedule()
    i, j = schedule.get_indices()
    inner = schedule.split(j, 4)
    plan = schedule.create_plan(A100)
    plan.bind({i: GridUnit.BLOCK_X})
    plan.vectorize(inner)
    with pytest.warns(TilewrightWarning, match="T is TEMP"):
        kernel = plan.build()
    assert not kernel.scratch
    b = np.zeros((5, 7 if size == "N" else size), np.float32)
    kernel(b)
    assert (b == 1).all()


def test_memory_that_is_seen_as_other_elements() -> None:
    """Four bytes are written of each float but one, which is zero."""
    T = _temporary((8,), AllocateFlags.HEAP, tw.float32)
    B, given = Array(Role.OUTPUT, tw.float32, (8,), name="B"), Array(Role.INPUT, tw.uint8, (32,), name="given")
    whole = T.memory_buffer()

    def kernel(bytes_written: int) -> Any:
        first = _nest((bytes_written,), lambda i: whole.__setitem__(i, given[i]))
        second = _nest((8,), lambda i: B.__setitem__(i, T[i]))
        return fuse(first.create_schedule(), second.create_schedule(), partial=0).create_plan(A100).build()

    values, b = np.arange(1, 9, dtype=np.float32), np.zeros(8, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel(32)(b, values.view(np.uint8))
    np.testing.assert_array_equal(b, values)
    with pytest.warns(TilewrightWarning, match=r"the read of T\[i0\] at i0=7 comes before every write"):
        made = kernel(28)
    made(b, values.view(np.uint8))
    np.testing.assert_array_equal(b, [*values[:7], 0])


def test_a_number_that_begins() -> None:
    """Accera's range: a number that is read, and then moved on."""
    N = Dimension("N")
    out, step = Array(Role.OUTPUT, tw.float32, (N,), name="out"), Scalar(tw.float32, name="step")
    at = Scalar(tw.float32, Role.TEMP, name="at")
    nest = Nest((N,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        out[i] = at
        at.set(at + step)

    with pytest.warns(TilewrightWarning, match="at is TEMP, and the read of at at i=0"):
        kernel = nest.create_plan(A100).build(args=(N, out, step))
    x = np.zeros(5, np.float32)
    kernel(5, x, 0.5)
    np.testing.assert_array_equal(x, np.arange(5) * 0.5)


@pytest.mark.parametrize("kept", ["memory", "shared"])
def test_threads_that_wait_for_one_another(kept: str) -> None:
    """Each iteration of t reads what other threads wrote in the one before: the first one reads zeros."""
    T, B = _temporary((7, 9)), Array(Role.OUTPUT, tw.float32, (6, 8), name="B")
    nest = Nest((6, 8))
    t, i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        B[t, i] = T[t, i + 1]
        T[t + 1, i] = T[t, i + 1] + 1.0

    plan = nest.create_plan(A100)
    plan.bind({i: GridUnit.THREAD_X})
    if kept == "shared":
        plan.cache(T, index=t)
    wanted, held = np.zeros((6, 8), np.float32), np.zeros((7, 9), np.float32)
    for row, column in itertools.product(range(6), range(8)):
        wanted[row, column] = held[row, column + 1]
        held[row + 1, column] = held[row, column + 1] + 1
    with pytest.warns(TilewrightWarning, match=r"the read of T\[t, i \+ 1\] at t=0, i=0 comes before every write"):
        kernel = plan.build(args=(B,))
    assert len(kernel.scratch) == (kept == "memory")
    b = np.zeros((6, 8), np.float32)
    kernel(b)
    np.testing.assert_array_equal(b, wanted)


@pytest.mark.parametrize("held", ["fragments", "shared", "shared around fragments"])
@pytest.mark.parametrize("prologue", [MMAFragmentOp.NONE, MMAFragmentOp.SCALE])
@pytest.mark.parametrize("target", ["sm_80", "gfx908"])
@pytest.mark.spread(4)
def test_products_that_nothing_begins(held: str, prologue: MMAFragmentOp, target: str) -> None:
    """D = (A B) + 1, with the sums in a TEMP array that begins with zeros."""
    A, B = Array(Role.INPUT, tw.float16, (32, 48), name="A"), Array(Role.INPUT, tw.float16, (48, 32), name="B")
    C, D = Array(Role.TEMP, tw.float32, (32, 32), name="C"), Array(Role.OUTPUT, tw.float32, (32, 32), name="D")
    product = _nest((32, 32, 48), lambda i, j, k: C.__setitem__((i, j), C[i, j] + A[i, k] * B[k, j]))
    end = _nest((32, 32), lambda x, y: D.__setitem__((x, y), C[x, y] + 1.0))
    schedule = fuse(product.create_schedule(), end.create_schedule(), partial=2)
    i1, j1, f, k1 = schedule.get_indices()
    i2, j2, k2 = schedule.tile({i1: 16, j1: 16, k1: 16})
    schedule.reorder(i1, j1, f, k1, i2, j2, k2)
    plan = schedule.create_plan(Target(target))
    plan.bind({i1: GridUnit.BLOCK_Y, j1: GridUnit.BLOCK_X})
    is_scaled = prologue is MMAFragmentOp.SCALE and held == "fragments"
    plan.tensorize(
        (i2, j2, k2), MMAShape.M16N16K16, **({"prologue_op": prologue, "prologue_arg": 3.0} if is_scaled else {})
    )
    if held != "fragments":
        plan.cache(C, index=f)
    if held != "shared":
        plan.cache(C, index=k1 if held == "shared around fragments" else f, location=Location.MMA_FRAGMENT)
    with pytest.warns(TilewrightWarning, match="C is TEMP"):
        kernel = plan.build(args=(A, B, D))
    random = np.random.default_rng(3)
    a, b = (random.integers(-3, 4, shape).astype(np.float16) for shape in ((32, 48), (48, 32)))
    d = np.zeros((32, 32), np.float32)
    kernel(a, b, d)
    np.testing.assert_array_equal(d, a.astype(np.float32) @ b.astype(np.float32) + 1)


def test_three_matrices() -> None:
    """E += (A B) D, fused so that a tile of A B is used when it is done: the tiles begin with zeros."""
    A, B = Array(Role.INPUT, tw.float32, (10, 3), name="A"), Array(Role.INPUT, tw.float32, (3, 12), name="B")
    C, D = Array(Role.TEMP, tw.float32, (10, 12), name="C"), Array(Role.INPUT, tw.float32, (12, 4), name="D")
    E = Array(Role.INPUT_OUTPUT, tw.float32, (10, 4), name="E")
    first = _nest((10, 12, 3), lambda i, j, k: C.__setitem__((i, j), C[i, j] + A[i, k] * B[k, j]))
    second = _nest((10, 4, 12), lambda i, j, k: E.__setitem__((i, j), E[i, j] + C[i, k] * D[k, j]))
    reordered = second.create_schedule()
    i1, j1, k1 = reordered.get_indices()
    reordered.reorder(i1, k1, j1)
    schedule = fuse(first.create_schedule(), reordered, partial=2)
    i, j, f, k0, j1 = schedule.get_indices()
    ii, jj = schedule.tile({i: 7, j: 8})
    schedule.reorder(i, j, f, jj, k0, j1, ii)
    plan = schedule.create_plan(A100)
    for array in (A, B, C, D, E):
        plan.cache(array, index=f)
    with pytest.warns(TilewrightWarning, match="C is TEMP"):
        kernel = plan.build(args=(A, B, D, E))
    random = np.random.default_rng(5)
    a, b, d, e = (random.integers(-3, 4, s).astype(np.float32) for s in ((10, 3), (3, 12), (12, 4), (10, 4)))
    wanted = e + a @ b @ d
    kernel(a, b, d, e)
    np.testing.assert_array_equal(e, wanted)


# --- refusals --------------------------------------------------------------------------------------------


def test_a_cache_that_forgets_what_an_earlier_iteration_wrote() -> None:
    """T is written in the first iteration of t alone, and read in all: a cache inside of t has it no more."""
    A, B = Array(Role.INPUT, tw.float32, (8,), name="A"), Array(Role.OUTPUT, tw.float32, (3, 8), name="B")
    T = _temporary((8,))
    nest = Nest((3, 8))
    t, i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        If(t == 0, lambda: T.__setitem__(i, A[i]))
        B[t, i] = T[i]

    plan = nest.create_plan(A100)
    plan.cache(T, index=i, location=Location.PRIVATE)
    with pytest.raises(
        ScheduleError, match=r"rT is filled anew in each iteration of t, and nothing is written there be"
    ):
        plan.build()
    plan = nest.create_plan(A100)
    plan.cache(T, index=t, location=Location.PRIVATE)
    a, b = np.arange(8, dtype=np.float32), np.zeros((3, 8), np.float32)
    plan.build(args=(A, B))(a, b)
    np.testing.assert_array_equal(b, [a, a, a])


def test_a_cache_that_would_lose_sums() -> None:
    schedule, (_, T, _) = _sums(8, 6)
    i, f, k = schedule.get_indices()
    kk = schedule.split(k, 2)
    plan = schedule.create_plan(A100)
    plan.cache(T, index=kk, location=Location.PRIVATE)
    with pytest.raises(ScheduleError, match=r"rT is filled anew in each iteration of i0, f?.*nothing is written there"):
        plan.build()
    assert i is not f


def test_a_cache_that_is_filled_ahead() -> None:
    T, B = _temporary((4, 8)), Array(Role.OUTPUT, tw.float32, (4, 8), name="B")
    nest = _nest((4, 8), lambda i, j: B.__setitem__((i, j), T[i, j]))
    i, j = nest.indices
    plan = nest.create_plan(A100)
    plan.cache(T, index=j, double_buffer=True)
    with pytest.raises(ScheduleError, match="sT is double-buffered, and T is TEMP and begins in it"):
        plan.build()
    assert i is not j


def test_an_element_of_several_blocks() -> None:
    """T[8] is written by nobody and read by all blocks: none can begin it for the others."""
    T, B = _temporary((9,), AllocateFlags.HEAP), Array(Role.OUTPUT, tw.float32, (8,), name="B")
    nest = Nest((8,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        T[i] = 1.0
        B[i] = T[i] + T[8]

    plan = nest.create_plan(A100)
    plan.bind({i: GridUnit.BLOCK_X})
    with pytest.raises(ScheduleError, match="several blocks access one element, and none can begin it"):
        plan.build(args=(B,))
    threads = nest.create_plan(A100)
    threads.bind({i: GridUnit.THREAD_X})
    with pytest.warns(TilewrightWarning, match=r"the read of T\[8\] at i=0 comes before every write"):
        kernel = threads.build(args=(B,))
    b = np.zeros(8, np.float32)
    kernel(b)
    assert (b == 1).all()


# --- which reads they are --------------------------------------------------------------------------------


def _conditional(test: Callable[[Any], Any], *, otherwise: bool, is_read_within: bool) -> Plan:
    A, B = Array(Role.INPUT, tw.float32, (8,), name="A"), Array(Role.OUTPUT, tw.float32, (8,), name="B")
    T = _temporary((8,))
    nest = Nest((8,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        def write() -> None:
            T[i] = 1.0
            if is_read_within:
                B[i] = T[i]

        found = If(test(A[i]), write)
        if otherwise:
            found.Else(lambda: T.__setitem__(i, 2.0))
        if not is_read_within:
            B[i] = T[i]

    return nest.create_plan(A100)


@pytest.mark.parametrize(
    ("otherwise", "is_read_within", "is_unwritten"),
    [(False, False, True), (True, False, False), (False, True, False), (True, True, False)],
)
def test_writes_under_conditions_on_elements(otherwise: bool, is_read_within: bool, is_unwritten: bool) -> None:
    plan = _conditional(lambda x: x > 0, otherwise=otherwise, is_read_within=is_read_within)
    T = next(array for array in plan.arrays if array.name == "T")
    assert (unwritten(plan, T) is not None) is is_unwritten
    a, b = np.arange(-3, 5, dtype=np.float32), np.full(8, 7, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan.build()(a, b)
    below = 7 if is_read_within else 2 if otherwise else 0
    np.testing.assert_array_equal(b, np.where(a > 0, 1, below))


class _Program:
    """A few random nests on T, and what they do, point by point."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.extent = int(self.random.integers(4, 7))
        self.T = _temporary((3 * self.extent,))
        self.B = Array(Role.OUTPUT, tw.float32, (3, self.extent, 6), name="B")
        self.steps: list[tuple[Any, ...]] = []
        self.parts = [self._nest(n) for n in range(int(self.random.integers(1, 4)))]

    def _place(self, point: tuple[Any, ...]) -> tuple[int, int, int]:
        return tuple(int(self.random.integers(low, high)) for low, high in ((0, 3), (0, 2), (0, 4)))  # type: ignore[return-value]  # three

    def _nest(self, number: int) -> Schedule:
        shape = (self.extent, int(self.random.integers(2, 5)))
        nest = Nest(shape)
        i, j = nest.get_indices()
        writes = bool(self.random.integers(0, 2)) or number == 0
        reads = bool(self.random.integers(0, 3)) or not writes
        to, of = self._place((i, j)), self._place((i, j))
        limit = int(self.random.integers(1, self.extent + 1))
        has_guard = bool(self.random.integers(0, 2))

        @nest.iteration_logic
        def _() -> None:
            def body() -> None:
                at = of[0] * i + of[1] * j + of[2] if of[0] < 2 else of[0] + j
                value = self.T[at] if reads else 1.0
                if writes:
                    self.T[to[0] * i + to[1] * j + to[2] if to[0] < 2 else to[0] + i] = value + 1.0
                else:
                    self.B[number, i, j] = value

            if has_guard:
                If(i < limit, body)
            else:
                body()

        self.steps.append((shape, writes, reads, to, of, limit if has_guard else self.extent))
        return nest.create_schedule()

    def is_unwritten(self) -> bool:
        written: set[int] = set()
        for shape, writes, reads, to, of, limit in self.steps:
            for i, j in itertools.product(range(shape[0]), range(shape[1])):
                if i >= limit:
                    continue
                at = of[0] * i + of[1] * j + of[2] if of[0] < 2 else of[0] + j
                if reads and at not in written:
                    return True
                if writes:
                    written.add(to[0] * i + to[1] * j + to[2] if to[0] < 2 else to[0] + i)
        return False


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.spread(6)
def test_reads_of_random_programs(seed: int) -> None:
    """Whether a warning is given is what running through all points says, and the result is that of zeros."""
    program = _Program(seed)
    schedule = program.parts[0] if len(program.parts) == 1 else fuse(*program.parts, partial=0)
    for index in schedule.get_indices():
        if program.random.integers(0, 2) and schedule.nest.loop(index).trips not in (1, len(program.parts)):
            schedule.split(index, int(program.random.integers(2, 5)))
    plan = schedule.create_plan(A100)
    found = unwritten(plan, program.T)
    assert (found is not None) is program.is_unwritten()
    assert found is None or found.values is not None


def test_writes_on_all_sides_of_nested_conditions() -> None:
    A, B = Array(Role.INPUT, tw.float32, (8,), name="A"), Array(Role.OUTPUT, tw.float32, (8,), name="B")
    T = _temporary((8,))
    nest = Nest((8,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        def inner() -> None:
            If(A[i] > 2, lambda: T.__setitem__(i, 2.0)).Else(lambda: T.__setitem__(i, 3.0))

        If(A[i] > 0, inner).Else(lambda: T.__setitem__(i, 1.0))
        B[i] = T[i]

    assert unwritten(nest.create_plan(A100), T) is None


@pytest.mark.parametrize("split", [3, 4])
def test_a_mode_that_is_written_in_other_blocks_than_it_is_read(split: int) -> None:
    """The write has loops of its own, of which the element that is read gives the iteration by // and %."""
    N = Dimension("N")
    A, B = Array(Role.INPUT, tw.float32, (N,), name="A"), Array(Role.OUTPUT, tw.float32, (N,), name="B")
    T = _temporary((N,))
    first = _nest((N,), lambda i: T.__setitem__(i, A[i])).create_schedule()
    second = _nest((N,), lambda j: B.__setitem__(j, T[j])).create_schedule()
    first.split(first.get_indices()[0], split)
    second.split(second.get_indices()[0], 5)
    plan = fuse(first, second, partial=0).create_plan(A100)
    assert unwritten(plan, T) is None


@pytest.mark.parametrize("left_out", [None, 0, 5])
def test_many_writes_together_are_found_to_reach_all_or_all_but_one(left_out: int | None) -> None:
    """Eight statements write each eighth element; all of them are written where none is left out."""
    A, B = Array(Role.INPUT, tw.float32, (64,), name="A"), Array(Role.OUTPUT, tw.float32, (64,), name="B")
    T = _temporary((64,))
    packing = Nest((8,))
    i = packing.get_indices()

    @packing.iteration_logic
    def _() -> None:
        for n in (n for n in range(8) if n != left_out):
            T[8 * i + n] = A[8 * i + n]

    reading = _nest((64,), lambda j: B.__setitem__(j, T[j])).create_schedule()
    j = reading.get_indices()[0]
    jj = reading.split(j, 24)
    reading.split(jj, 5)
    plan = fuse(packing.create_schedule(), reading, partial=0).create_plan(A100)
    found = unwritten(plan, T)
    assert (found is None) is (left_out is None)
    assert found is None or int(str(found).rsplit("=", 1)[1]) % 8 == left_out
