"""`Schedule`: the loops of a nest, transformed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tilewright.arguments import given
from tilewright.errors import ArgumentError, ScheduleError
from tilewright.frames import hiding_frames
from tilewright.schedule import transforms
from tilewright.schedule.affine import Index
from tilewright.schedule.delayed import DelayedNest, depends, has_order, known_order, numbered_by, transformed
from tilewright.schedule.loop_nest import LoopNest
from tilewright.schedule.naming import assigned_names, user_frame
from tilewright.schedule.orders import refuse_violations
from tilewright.schedule.plan import Plan
from tilewright.schedule.targets import Target


class _Nest(Protocol):
    """What a schedule is made of: a `Nest`."""

    def loop_nest(self) -> LoopNest: ...


class Schedule:
    """The loops of a nest and their transforms. `print(schedule)` prints the current loops.

    A transform raises an error if it would reorder two accesses of the same element of which one is a write: the error
    names the pair. Iterations of a reduction (`C[i, j] += ...`, also with *, min, max, &, |, ^) may be reordered among
    themselves; a sum of floats is then rounded differently.

    The examples below start from this schedule::

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
        # The indices, in any order, and which lies outside of which: known also while the nest waits for parameters.
        self._indices = list(known_order(self.nest) or ())
        self._pairs: list[tuple[Index, Index]] = []

    def get_indices(self) -> tuple[Index, ...]:
        """Return the indices of the loops, outermost first."""
        return self.nest.order

    @hiding_frames
    def split(self, index: Index, size: int) -> Index:
        """Split a loop into blocks of `size` iterations and return the index of the new inner loop.

        `ii = schedule.split(i, 4)`::

            for i in range(16):              for i in range(0, 16, 4):
                for j in range(10):    ->        for ii in range(4):
                    B[i, j] = A[i, j]                for j in range(10):
                                                         B[i + ii, j] = A[i + ii, j]

        If the size does not divide the loop, iterations beyond its end do not run. Raises `ScheduleError` for an index
        that is not a loop here, or a size below 1.
        """
        inner = Index(_first(assigned_names(user_frame()), _doubled(index)))
        self._transform(
            transforms.split, index, size, inner, order=_with_inner(known_order(self.nest), [index], [inner])
        )
        self._note([index], [inner])
        return inner

    @hiding_frames
    def tile(self, shape: Mapping[Index, int]) -> tuple[Index, ...]:
        """Split several loops, each as `split` does, and return the inner indices in the order of `shape`.

        Each inner loop is directly inside its own outer loop, so the order is i, ii, j, jj; `reorder` brings the inner
        loops together. `ii, jj = schedule.tile({i: 4, j: 5})`::

            for i in range(16):              for i in range(0, 16, 4):
                for j in range(10):    ->        for ii in range(4):
                    B[i, j] = A[i, j]                for j in range(0, 10, 5):
                                                         for jj in range(5):
                                                             B[i + ii, j + jj] = A[i + ii, j + jj]

        Raises `ScheduleError` as `split` does. Source: Accera, `Schedule.tile`.
        """
        if not isinstance(shape, Mapping):
            raise ScheduleError(f"tile of {shape!r}", help="give each index its size: schedule.tile({i: 16, j: 16})")
        names = assigned_names(user_frame())
        inner = tuple(Index(_first(names[n:], _doubled(index))) for n, index in enumerate(shape))
        self._transform(_tile, shape, inner, order=_with_inner(known_order(self.nest), list(shape), inner))
        self._note(list(shape), inner)
        return inner

    @hiding_frames
    def reorder(self, order: Index | Sequence[Index], *args: Index) -> None:
        """Reorder the loops: pass all indices, outermost first, one by one or as one sequence.

        `schedule.reorder(j, i)`::

            for i in range(16):              for j in range(10):
                for j in range(10):    ->        for i in range(16):
                    B[i, j] = A[i, j]                B[i, j] = A[i, j]

        The inner loop of a split stays inside of its outer loop, and loops that only some of fused schedules have
        inside of the fusing index. Raises `ScheduleError` for other orders, for one that a dependence forbids, and if
        the indices are too complex to decide this within a limit of work. A nest that calls functions accepts an order
        that is legal once inner loops of splits are erased: if the plan does not erase them, building its kernel raises
        an error.
        """
        indices = _flat((order, *args))
        self._transform(_reorder, indices, order=None if depends(indices) else indices)

    @hiding_frames
    def is_valid_loop_order(self, *order: Index | Sequence[Index]) -> bool:
        """Return whether `reorder` accepts an order: False also if it cannot decide.

        While the schedule waits for parameters, the result only says whether each loop is inside of those that it must
        be.
        """
        indices = _flat(order)
        if isinstance(self.nest, DelayedNest):  # whether a dependence forbids the order is said when it has values
            return (
                set(indices) == set(self._indices)
                and len(indices) == len(self._indices)
                and all(indices.index(outer) < indices.index(inner) for outer, inner in self._pairs)
            )
        try:
            _reorder(self.nest, indices)
        except ScheduleError:
            return False
        return True

    @hiding_frames
    def pad(self, index: Index, size: int, front: bool = True) -> None:
        """Add `size` iterations that do nothing before a loop, or after it.

        `schedule.pad(i, 2)`::

            for i in range(16):              for i in range(18):
                for j in range(10):    ->        for j in range(10):
                    B[i, j] = A[i, j]                if i >= 2:
                                                         B[i - 2, j] = A[i - 2, j]

        Raises `ScheduleError` for an index that is not a loop here, or a negative size.
        """
        self._transform(transforms.pad, index, size, front, order=known_order(self.nest))

    @hiding_frames
    def skew(self, index: Index, reference_index: Index, unroll_loops_smaller_than: int | None = None) -> None:
        """Shift a loop by the index of another one, so that an iteration of it covers a diagonal of both.

        `schedule.skew(j, i)`::

            for i in range(16):              for i in range(16):
                for j in range(10):    ->        for j in range(25):
                    B[i, j] = A[i, j]                if j - i >= 0 and j - i < 10:
                                                         B[i, j - i] = A[i, j - i]

        A stencil whose iterations depend on neighbours along both loops can be run diagonal by diagonal afterwards: the
        points of one diagonal are independent. Each of the two loops with fewer iterations than
        `unroll_loops_smaller_than` is unrolled.

        Raises `ScheduleError` for loops that do not count by 1, and where a dependence forbids the new order.
        """
        self._transform(_skew, index, reference_index, unroll_loops_smaller_than, order=known_order(self.nest))

    @hiding_frames
    def unroll(self, index: Index) -> None:
        """Unroll a loop: the kernel's code contains each of its iterations.

        `schedule.unroll(jj)`, of a loop of two iterations::

            for jj in range(2):                        B[i, j] = A[i, j]
                B[i, j + jj] = A[i, j + jj]      ->    B[i, j + 1] = A[i, j + 1]

        Raises `ScheduleError` for a loop whose length is known only at launch.
        """
        self._transform(_unroll, index, order=known_order(self.nest))

    @hiding_frames
    def erase_loops(self, indices: Index | Sequence[Index]) -> None:
        """Reduce loops to their first iteration, so that their body runs once, with their index at 0.

        `schedule.erase_loops([ii])`, of a nest that computes a whole tile where one begins::

            for i in range(0, 16, 4):        for i in range(0, 16, 4):
                for ii in range(4):    ->        for ii in range(1):
                    f(A, i + ii)                     f(A, i)

        This changes what is computed: dependences are those of the iterations that are left.

        Raises `ScheduleError` for an index that is not a loop here, that distinguishes fused schedules or calls, or
        whose loop is padded.
        """
        self._transform(transforms.erase, _flat([indices]), order=known_order(self.nest))

    _erase_loops = erase_loops

    def _note(self, outer: Sequence[Index], inner: Sequence[Index]) -> None:
        self._indices += inner
        self._pairs += zip(outer, inner, strict=True)

    def _transform(self, function: Callable[..., LoopNest], *arguments: Any, order: Sequence[Index] | None) -> None:
        """Apply a transform, or keep it until its parameters have values; `order` is that of the loops after it."""
        self.nest = has_order(transformed(function, self.nest, *arguments), order)  # Any: what the function takes

    @hiding_frames
    def fuse(self, *others: Schedule, partial: int | None = None) -> Schedule:
        """Return the schedule that runs this one and others as one nest; see `fuse`."""
        return fuse(self, *others, partial=partial)

    def get_fusing_index(self) -> Index:
        """Return the index that numbers the schedules that were fused. Raises `ScheduleError` where none were."""
        self._refuse_unfused()
        return self.nest.fusing[0]

    def get_fused_indices(self) -> tuple[Index, ...]:
        """Return the indices of the loops that fused schedules share. Raises `ScheduleError` where none were fused."""
        self._refuse_unfused()
        self.nest.order  # noqa: B018  # raises an error where a parameter decides which loops there are
        return self.nest.fused

    def get_unfused_indices(self) -> tuple[Index, ...]:
        """Return the indices of the loops that only one of the fused schedules has, schedule by schedule.

        Raises `ScheduleError` where none were fused.
        """
        self._refuse_unfused()
        self.nest.order  # noqa: B018  # as above
        return self.nest.unfused

    def _refuse_unfused(self) -> None:
        if not self.nest.fusing:
            raise ScheduleError("the schedule was not made by fuse", help="fuse(schedule0, schedule1) makes one")

    @hiding_frames
    def create_plan(self, target: Target | None = None) -> Plan:
        """Return a plan of how the loops run on a target, by default the machine's own GPU.

        Raises `ScheduleError` if the loops are still in the order of `fuse` and a dependence forbids it.
        """
        return Plan(transformed(_checked, self.nest), target)

    def __str__(self) -> str:
        return self.nest.text()

    def __repr__(self) -> str:
        return f"Schedule({', '.join(map(str, self.nest.order))})"


def fuse(schedules: Schedule | Iterable[Schedule], *args: Schedule, partial: int | None = None) -> Schedule:
    """Return one schedule that runs several, which share their first loops.

    With `partial` they share that many; by default all of them, and then each must have the same number. The loops are
    those that they share, then the fusing index, which numbers the schedules, then the other loops of each schedule. So
    the schedules alternate: at each point of the shared loops, each runs its statements::

        for i in range(16):                     for i in range(16):
            for j in range(10):                     for j in range(10):
                C[i, j] = A[i, j] + B[i, j]             for f in range(2):
                                          ->                if f == 0:
        for i in range(16):                                     C[i, j] = A[i, j] + B[i, j]
            for j in range(10):                             if f == 1:
                C[i, j] = C[i, j] * 2                           C[i, j] = C[i, j] * 2

    `reorder(f, i, j)` runs one after the other. The result is always that of the first schedule, then the second, and
    so on. If a dependence forbids alternating, `fuse` still returns this order of indices, and `create_plan` raises an
    error that asks for another one. A loop that is shorter in one of the schedules becomes as long as the longest.

    Raises `ScheduleError` for loops that do not fit. Source: Accera, `fuse`.
    """
    parts: list[Schedule] = []
    for item in (schedules, *args):
        parts += list(item) if isinstance(item, Iterable) else [item]
    for item in parts:
        if not isinstance(item, Schedule):
            raise ScheduleError(f"fuse of {item!r}, which is not a schedule", help="nest.create_schedule() makes one")
    if len(parts) < 2:
        raise ScheduleError("fuse takes at least two schedules")
    fusing = Index(_first(assigned_names(user_frame())[1:], "f"))
    others = [schedule.nest for schedule in parts[1:]]
    orders = [known_order(schedule.nest) for schedule in parts]
    if any(order is None for order in orders):
        made = transformed(_fuse, parts[0].nest, others, partial, fusing, None)
        return Schedule(numbered_by(made, fusing))
    known = [order for order in orders if order is not None]
    shared = _shared_depth([len(order) for order in known], partial)
    common = tuple(Index(index.name) for index in known[0][:shared])
    own = tuple(index for order in known for index in order[shared:])
    made = numbered_by(transformed(_fuse, parts[0].nest, others, partial, fusing, common), fusing)
    schedule = Schedule(has_order(made, (*common, fusing, *own), fused=common, unfused=own))
    schedule._note([fusing] * len(own), own)
    schedule._indices = [*common, fusing, *own]
    for part, order in zip(parts, known, strict=True):
        names = dict(zip(order, common, strict=False))
        schedule._pairs += [(names.get(a, a), names.get(b, b)) for a, b in part._pairs]
    return schedule


def _fuse(
    first: LoopNest, others: Sequence[LoopNest], partial: int | None, fusing: Index, common: Sequence[Index] | None
) -> LoopNest:
    nests = [first, *others]
    return transforms.fuse(nests, _shared_depth([len(nest.loops) for nest in nests], partial), fusing, common)


def _shared_depth(depths: Sequence[int], partial: int | None) -> int:
    """Return how many loops schedules of so many loops share. Raises `ScheduleError` for a number they do not have."""
    if partial is None and len(set(depths)) > 1:
        raise ScheduleError(
            f"the schedules have {', '.join(map(str, depths))} loops", help="say how many they share: partial=n"
        )
    shared = depths[0] if partial is None else partial
    if not 0 <= shared <= min(depths):
        raise ScheduleError(f"partial={partial} of schedules of {', '.join(map(str, depths))} loops")
    return shared


def _with_inner(order: tuple[Index, ...] | None, outer: Sequence[Index], inner: Sequence[Index]) -> list[Index] | None:
    """Return an order with the inner loop of each split right inside of its outer one."""
    found = None if order is None else list(order)
    for index, within in zip(outer, inner, strict=True):
        if found is not None and index in found:  # what is not there is refused by the split itself
            found.insert(found.index(index) + 1, within)
    return found


def _tile(nest: LoopNest, sizes: Mapping[Index, int], inner: Sequence[Index]) -> LoopNest:
    for (index, size), within in zip(sizes.items(), inner, strict=True):
        nest = transforms.split(nest, index, size, within)
    return nest


def _reorder(nest: LoopNest, order: Sequence[Index | Sequence[Index]]) -> LoopNest:
    order = _flat(order)  # a parameter in it stood for one index, or for all of them
    changed = transforms.reorder(nest, order)
    try:
        refuse_violations(nest, changed, f"the order ({', '.join(map(str, order))})")
    except ScheduleError:
        if not _may_be_erased(changed):
            raise
        return replace(changed, is_unchecked=True)  # until a plan has erased what it erases
    return replace(changed, is_unchecked=False)


def _may_be_erased(nest: LoopNest) -> bool:
    """Whether the order of a nest that calls functions would be legal if all inner loops of its splits were erased."""
    inner = [
        b for a, b in nest.precedences if a not in nest.fusing and b not in nest.called and b not in nest.padded
    ] if nest.called else []  # fmt: skip
    if not inner:
        return False
    try:
        refuse_violations(replace(nest, is_unchecked=True), transforms.erase(nest, inner), "")
    except ScheduleError:
        return False
    return True


def _checked(nest: LoopNest) -> LoopNest:
    """Return a nest whose order no dependence forbids: that which `fuse` gave is checked where it is still there."""
    try:
        return _reorder(nest, nest.order) if nest.is_unchecked else nest
    except ScheduleError as error:
        fusing = nest.fusing[0]
        sequence = ", ".join(map(str, (fusing, *(index for index in nest.order if index is not fusing))))
        raise ScheduleError(
            error.summary,
            location=error.location,
            help=f"fuse lets the schedules alternate; schedule.reorder({sequence}) runs one after the other",
        ) from None


def _skew(nest: LoopNest, index: Index, reference: Index, unroll_smaller_than: int | None) -> LoopNest:
    changed = transforms.skew(nest, index, reference)
    if not nest.is_unchecked:  # else the order may change once more, and is checked where it stays
        refuse_violations(nest, changed, f"skewing {index} by {reference}")
    for loop in (changed.loop(index), changed.loop(reference)):
        if unroll_smaller_than is not None and loop.trips is not None and loop.trips < unroll_smaller_than:
            changed = _unroll(changed, loop.index)
    return changed


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
