"""`Schedule`: the loops of a nest, transformed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from tilewright.arguments import given
from tilewright.errors import ArgumentError, ScheduleError
from tilewright.schedule import transforms
from tilewright.schedule.affine import Index
from tilewright.schedule.delayed import numbered_by, transformed
from tilewright.schedule.dependences import refuse_violations
from tilewright.schedule.loop_nest import LoopNest
from tilewright.schedule.naming import assigned_names
from tilewright.schedule.plan import Plan
from tilewright.schedule.targets import Target


class _Nest(Protocol):
    """What a schedule is made of: a `Nest`."""

    def loop_nest(self) -> LoopNest: ...


class Schedule:
    """The loops of a nest and the transforms of them. `print(schedule)` prints the loops as they are now.

    A transform is refused where it would let two accesses of the same element change places, one of which writes: the
    error names the pair. Turns of a reduction (`C[i, j] += ...`, also with *, min, max, &, |, ^) may change places with
    one another; a sum of floats is then rounded otherwise.

    The examples below begin with this schedule::

        nest = Nest(shape=(16, 10))
        i, j = nest.get_indices()
        @nest.iteration_logic
        def _():
            B[i, j] = A[i, j]
        schedule = nest.create_schedule()
    """

    def __init__(self, nest: _Nest | LoopNest) -> None:
        if not isinstance(nest, LoopNest) and not hasattr(nest, "loop_nest"):
            raise ArgumentError(
                f"Schedule: nest is a Nest, got {given(nest)}", help="Nest(shape=(16, 10)).create_schedule()"
            )
        self.nest: LoopNest = nest if isinstance(nest, LoopNest) else nest.loop_nest()

    def get_indices(self) -> tuple[Index, ...]:
        """Return the indices of the loops, outermost first."""
        return self.nest.order

    def split(self, index: Index, size: int) -> Index:
        """Split a loop into blocks of `size` iterations and return the index of the new inner loop.

        `ii = schedule.split(i, 4)`::

            for i in range(16):              for i in range(0, 16, 4):
                for j in range(10):    ->        for ii in range(4):
                    B[i, j] = A[i, j]                for j in range(10):
                                                         B[i + ii, j] = A[i + ii, j]

        Where the size does not divide the loop, what would lie beyond it does not run.
        Raises `ScheduleError` for an index that is not a loop here, or a size below 1.
        """
        inner = Index(_first(assigned_names(sys._getframe(1)), _doubled(index)))
        self.nest = transformed(transforms.split, self.nest, index, size, inner)
        return inner

    def tile(self, sizes: Mapping[Index, int]) -> tuple[Index, ...] | Index:
        """Split several loops and put the inner ones inside of all of the outer ones; return the inner indices.

        `ii, jj = schedule.tile({i: 4, j: 5})`::

            for i in range(16):              for i in range(0, 16, 4):
                for j in range(10):    ->        for j in range(0, 10, 5):
                    B[i, j] = A[i, j]                for ii in range(4):
                                                         for jj in range(5):
                                                             B[i + ii, j + jj] = A[i + ii, j + jj]

        Raises `ScheduleError` as `split` and `reorder` do.
        """
        if not isinstance(sizes, Mapping):
            raise ScheduleError(f"tile of {sizes!r}", help="give each index its size: schedule.tile({i: 16, j: 16})")
        names = assigned_names(sys._getframe(1))
        inner = [Index(_first(names[n:], _doubled(index))) for n, index in enumerate(sizes)]
        self.nest = transformed(_tile, self.nest, sizes, inner)
        return tuple(inner) if len(inner) > 1 else inner[0]

    def reorder(self, *order: Index | Sequence[Index]) -> None:
        """Give the loops another order: all indices, outermost first.

        `schedule.reorder(j, i)`::

            for i in range(16):              for j in range(10):
                for j in range(10):    ->        for i in range(16):
                    B[i, j] = A[i, j]                B[i, j] = A[i, j]

        The inner loop of a split stays inside of its outer loop, and loops that only some of fused schedules have
        inside of the fusing index. Raises `ScheduleError` for another order, for one that a dependence forbids, and
        where the indices are so involved that this cannot be decided within a limit of work.
        """
        self.nest = transformed(_reorder, self.nest, _flat(order))

    def is_valid_loop_order(self, *order: Index | Sequence[Index]) -> bool:
        """Say whether `reorder` would take an order: False also where it refuses because it cannot decide."""
        indices = _flat(order)
        if transforms.misplaced(self.nest, indices) is not None:
            return False
        try:
            refuse_violations(self.nest, transforms.reorder(self.nest, indices), "")
        except ScheduleError:
            return False
        return True

    def pad(self, index: Index, size: int, front: bool = True) -> None:
        """Add `size` iterations that do nothing in front of a loop, or behind it.

        `schedule.pad(i, 2)`::

            for i in range(16):              for i in range(18):
                for j in range(10):    ->        for j in range(10):
                    B[i, j] = A[i, j]                if i >= 2:
                                                         B[i - 2, j] = A[i - 2, j]

        Raises `ScheduleError` for an index that is not a loop here, or a negative size.
        """
        self.nest = transformed(transforms.pad, self.nest, index, size, front)

    def skew(self, index: Index, reference_index: Index, unroll_loop_smaller_than: int | None = None) -> None:
        """Let a loop run ahead by the index of another one, so that what both reach together lies on a diagonal.

        `schedule.skew(j, i)`::

            for i in range(16):              for i in range(16):
                for j in range(10):    ->        for j in range(25):
                    B[i, j] = A[i, j]                if j - i >= 0 and j - i < 10:
                                                         B[i, j - i] = A[i, j - i]

        A stencil whose iterations depend on neighbours along both loops can be run diagonal by diagonal afterwards:
        what is on one is independent. A loop of fewer iterations than `unroll_loop_smaller_than` is unrolled.
        Raises `ScheduleError` for loops that do not count by 1, and where a dependence forbids the new order.
        """
        self.nest = transformed(_skew, self.nest, index, reference_index, unroll_loop_smaller_than)

    def unroll(self, index: Index) -> None:
        """Unroll a loop: the kernel's code has each of its iterations.

        `schedule.unroll(jj)`, of a loop of two iterations::

            for jj in range(2):                        B[i, j] = A[i, j]
                B[i, j + jj] = A[i, j + jj]      ->    B[i, j + 1] = A[i, j + 1]

        Raises `ScheduleError` for a loop whose length only the launch knows.
        """
        self.nest = transformed(_unroll, self.nest, index)

    def fuse(self, *others: Schedule, partial: int | None = None) -> Schedule:
        """Return the schedule that runs this one and others as one nest; see `fuse`."""
        return fuse(self, *others, partial=partial)

    def get_fusing_index(self) -> Index:
        """Return the index that numbers the schedules that were fused. Raises `ScheduleError` where none were."""
        if not self.nest.fusing:
            raise ScheduleError("the schedule was not made by fuse")
        return self.nest.fusing[0]

    def create_plan(self, target: Target | None = None) -> Plan:
        """Return a plan, which says how the loops run on a target; without one, on the machine's own GPU."""
        return Plan(self.nest, target)

    def __str__(self) -> str:
        return self.nest.text()

    def __repr__(self) -> str:
        return f"Schedule({', '.join(map(str, self.nest.order))})"


def fuse(*schedules: Schedule | Sequence[Schedule], partial: int | None = None) -> Schedule:
    """Return one schedule that runs several, which share their first loops.

    With `partial` they share that many; without it all of them, which then have to have equally many. The first loop
    numbers the schedules, so that they run one after the other; `reorder` moves it inwards, and they alternate::

        for i in range(16):                     for f in range(2):
            for j in range(10):                     for i in range(16):
                C[i, j] = A[i, j] + B[i, j]             for j in range(10):
                                          ->                if f == 0:
        for i in range(16):                                     C[i, j] = A[i, j] + B[i, j]
            for j in range(10):                             if f == 1:
                C[i, j] = C[i, j] * 2                           C[i, j] = C[i, j] * 2

    A loop that is shorter in one of them is as long as the longest. Raises `ScheduleError` for loops that do not fit.
    """
    parts: list[Schedule] = []
    for item in schedules:
        parts += list(item) if isinstance(item, (tuple, list)) else [item]  # type: ignore[list-item]  # checked below
    for item in parts:
        if not isinstance(item, Schedule):
            raise ScheduleError(f"fuse of {item!r}, which is not a schedule", help="nest.create_schedule() makes one")
    if len(parts) < 2:
        raise ScheduleError("fuse takes at least two schedules")
    fusing = Index(_first(assigned_names(sys._getframe(1))[1:], "f"))
    others = [schedule.nest for schedule in parts[1:]]
    return Schedule(numbered_by(transformed(_fuse, parts[0].nest, others, partial, fusing), fusing))


def _fuse(first: LoopNest, others: Sequence[LoopNest], partial: int | None, fusing: Index) -> LoopNest:
    nests = [first, *others]
    depths = [len(nest.loops) for nest in nests]
    if partial is None and len(set(depths)) > 1:
        raise ScheduleError(
            f"the schedules have {', '.join(map(str, depths))} loops", help="say how many they share: partial=n"
        )
    shared = depths[0] if partial is None else partial
    if not 0 <= shared <= min(depths):
        raise ScheduleError(f"partial={partial} of schedules of {', '.join(map(str, depths))} loops")
    return transforms.fuse(nests, shared, fusing)


def _tile(nest: LoopNest, sizes: Mapping[Index, int], inner: Sequence[Index]) -> LoopNest:
    for (index, size), within in zip(sizes.items(), inner, strict=True):
        nest = transforms.split(nest, index, size, within)
    order = [index for index in nest.order if index not in inner]
    last = max((order.index(index) for index in sizes), default=len(order) - 1) + 1
    # An inner loop of an earlier split of the same index stays inside of the new one.
    displaced = [x for x in order[:last] if any(a in inner and b is x for a, b in nest.precedences)]
    outer = [x for x in order[:last] if x not in displaced]
    return _reorder(nest, [*outer, *inner, *displaced, *order[last:]])


def _reorder(nest: LoopNest, order: Sequence[Index]) -> LoopNest:
    order = _flat(order)  # a parameter may have stood for all of it
    changed = transforms.reorder(nest, order)
    refuse_violations(nest, changed, f"the order ({', '.join(map(str, order))})")
    return changed


def _skew(nest: LoopNest, index: Index, reference: Index, unroll_smaller_than: int | None) -> LoopNest:
    changed = transforms.skew(nest, index, reference)
    refuse_violations(nest, changed, f"skewing {index} by {reference}")
    trips = changed.loop(index).trips
    is_unrolled = unroll_smaller_than is not None and trips is not None and trips < unroll_smaller_than
    return _unroll(changed, index) if is_unrolled else changed


def _unroll(nest: LoopNest, index: Index) -> LoopNest:
    if nest.loop(index).trips is None:
        raise ScheduleError(f"{index} runs to {nest.loop(index).stop}, which only the launch knows")
    return replace(nest, unrolled=nest.unrolled | {index})


def _flat(order: Sequence[Index | Sequence[Index]]) -> list[Index]:
    flat: list[Index] = []
    for item in order:
        flat += list(item) if isinstance(item, (tuple, list)) else [item]  # type: ignore[list-item]  # checked later
    return flat


def _doubled(index: Index) -> str:
    """Return the name of the inner loop of a split that has no other: ii of i."""
    name = getattr(index, "name", "i")  # what is not an index is refused by the split itself
    return f"{name}{name[-1]}"


def _first(names: Sequence[str], otherwise: str) -> str:
    return names[0] if names else otherwise
