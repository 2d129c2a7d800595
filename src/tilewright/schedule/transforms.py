"""Transforms of loops: functions from a loop nest to a loop nest, which keep what runs and change its order at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Affine, Index
from tilewright.schedule.loop_nest import Condition, Loop, LoopNest, Part


def split(nest: LoopNest, index: Index, size: int, inner: Index) -> LoopNest:
    """Split a loop: its index then steps over `size` iterations, and `inner` runs through them, right inside of it.

    before: for i in range(0, stop, step)      after: for i in range(0, stop, size * step)
                                                         for ii in range(0, size * step, step)
    """
    loop = nest.loop(index)
    if not _is_count(size) or size < 1:
        raise ScheduleError(
            f"split of {index} by {size!r}", help="the size is a whole number of iterations, at least 1"
        )
    block = size * loop.step
    whole = Affine.of({index: 1, inner: 1})
    outer, within = Loop(index, loop.stop, block), Loop(inner, Affine((), block), loop.step)
    parts = tuple(part.substitute({index: whole}) for part in nest.parts)
    if not loop.stop.is_constant or loop.stop.constant % block:
        parts = tuple(part.where(Condition(loop.stop - 1 - whole)) for part in parts)
    at = nest.position(index)
    loops = (*nest.loops[:at], outer, within, *nest.loops[at + 1 :])
    # What one of fused schedules has stays inside of both halves of the loop that numbers them.
    copied = [(inner, b) for a, b in nest.precedences if a is index and index in nest.fusing]
    unrolled = nest.unrolled | ({inner} if index in nest.unrolled else set())
    precedences = (*nest.precedences, *copied, (index, inner))
    called = (*nest.called, inner) if index in nest.called else nest.called
    return replace(nest, loops=loops, parts=parts, precedences=precedences, unrolled=unrolled, called=called)


def reorder(nest: LoopNest, order: Sequence[Index]) -> LoopNest:
    """Give the loops another order. Raises `ScheduleError` for one that `misplaced` refuses."""
    problem = misplaced(nest, order)
    if problem is not None:
        raise problem
    order = _with_called(nest, order)
    return replace(nest, loops=tuple(nest.loop(index) for index in order))


def _with_called(nest: LoopNest, order: Sequence[Index]) -> list[Index]:
    """Return an order that names none of the loops of calls with these behind it, as they are now."""
    if nest.called and not any(index in nest.called for index in order):
        return [*order, *(index for index in nest.order if index in nest.called)]
    return list(order)


def misplaced(nest: LoopNest, order: Sequence[Index]) -> ScheduleError | None:
    """Return what is wrong with an order apart from dependences: what is missing, or inner loops outside of outer."""
    indices, ordered = set(nest.order), _with_called(nest, order)
    if len(ordered) != len(indices) or set(ordered) != indices:
        missing = [str(i) for i in nest.order if i not in set(ordered)]
        strange = [str(i) for i in ordered if i not in indices or ordered.count(i) > 1]
        what = [f"without {', '.join(missing)}"] * bool(missing) + [f"with {', '.join(strange)}"] * bool(strange)
        return ScheduleError(
            f"the order ({', '.join(map(str, ordered))}) is not one of all loops: it is {' and '.join(what)}",
            help=f"name each of ({', '.join(map(str, nest.order))}) once",
        )
    for outer, inner in nest.precedences:
        if ordered.index(outer) > ordered.index(inner):
            return ScheduleError(
                f"the order ({', '.join(map(str, ordered))}) puts {inner} outside of {outer}",
                help=f"{outer} tells the fused schedules apart, and {inner} is of one of them: keep {outer} before it"
                if outer in nest.fusing
                else f"{inner} runs inside of a block of {outer}: keep {outer} before {inner}",
            )
    return None


def pad(nest: LoopNest, index: Index, size: int, front: bool) -> LoopNest:
    """Add iterations that do nothing before or behind those of a loop.

    before: for i in range(0, stop)    after: for i in range(0, stop + size): if i >= size (front), i < stop (behind)
    """
    if not _is_count(size) or size < 0:
        raise ScheduleError(f"pad of {index} by {size!r}", help="the size is a whole number of iterations")
    loop = nest.loop(index)
    shift = size * loop.step
    padded = replace(loop, stop=loop.stop + shift)
    if front:
        moved = index - shift
        parts = tuple(part.substitute({index: moved}).where(Condition(moved)) for part in nest.parts)
    else:
        parts = tuple(part.where(Condition(loop.stop - 1 - index)) for part in nest.parts)
    return replace(_with_loop(nest, padded, parts), padded=nest.padded | {index})


def skew(nest: LoopNest, index: Index, reference: Index) -> LoopNest:
    """Let a loop's index run ahead by that of another: afterwards it stands for the sum of both.

    before: for j: for i in range(0, n)      after: for j: for i in range(0, n + m - 1): if 0 <= i - j < n
    """
    loop, other = nest.loop(index), nest.loop(reference)
    if index is reference:
        raise ScheduleError(f"skew of {index} by itself")
    if loop.step != 1 or other.step != 1:
        raise ScheduleError(
            f"skew of {index} by {reference}, whose steps are {loop.step} and {other.step}",
            help="skew before splitting, while both loops count by 1",
        )
    within = index - reference
    parts = tuple(
        part.substitute({index: within}).where(Condition(within), Condition(loop.stop - 1 - within))
        for part in nest.parts
    )
    return _with_loop(nest, replace(loop, stop=loop.stop + other.stop - 1), parts)


def erase(nest: LoopNest, indices: Sequence[Index]) -> LoopNest:
    """Let loops have their first iteration alone. Raises `ScheduleError` for loops whose first one is none of theirs.

    before: for ii in range(0, stop, step): S(i + ii)      after: for ii in range(1): S(i)
    """
    for index in indices:
        loop = nest.loop(index)
        if index in nest.fusing:
            raise ScheduleError(
                f"{index} tells schedules or calls apart and is erased", help="erase loops of the schedules themselves"
            )
        if index in nest.padded:
            raise ScheduleError(
                f"{index} is padded and is erased: its first iterations do nothing", help="pad another loop"
            )
        runs = [] if loop.stop.is_constant else [Condition(loop.stop - 1)]  # once, where it would run at all
        parts = []
        for part in nest.parts:
            moving = [at.mentions(index) for at in part.places.values()]
            shape = tuple(
                None if own in part.places and part.places[own].mentions(index) else extent
                for own, extent in zip(part.indices, part.shape, strict=True)
            )
            here = runs if any(moving) else []
            parts.append(replace(part.substitute({index: Affine((), 0)}).where(*here), shape=shape))
        nest = _with_loop(nest, Loop(index, Affine((), 1)), tuple(parts))
    parts = [part.settled(nest.loops) for part in nest.parts]
    return replace(nest, parts=tuple(parts), unrolled=nest.unrolled - set(indices))


def _with_loop(nest: LoopNest, loop: Loop, parts: tuple[Part, ...]) -> LoopNest:
    loops = tuple(loop if old.index is loop.index else old for old in nest.loops)
    return replace(nest, loops=loops, parts=parts)


def fuse(nests: Sequence[LoopNest], partial: int, fusing: Index, common: Sequence[Index] | None = None) -> LoopNest:
    """Make one nest of several: they share their first `partial` loops, around a loop that numbers the nests.

    before: for i: for j: P     and     for i: for j: for k: Q      (partial = 2)
    after:  for i: for j: for f in range(2): for k: if f == 0 and k == 0: P; if f == 1: Q

    Whether a dependence forbids that order is not asked here: another one may follow. `common` are the indices of the
    loops that are shared, made here unless given.
    """
    common = [Index(nests[0].loops[n].index.name) for n in range(partial)] if common is None else common
    shared = [_shared_loop(nests, n, index) for n, index in enumerate(common)]
    own = [loop for nest in nests for loop in nest.loops[partial:]]
    parts: list[Part] = []
    for number, nest in enumerate(nests):
        mapping = {loop.index: new.index.as_affine() for loop, new in zip(nest.loops, shared, strict=False)}
        fits = [
            Condition(loop.stop - 1 - new.index)
            for loop, new in zip(nest.loops, shared, strict=False)
            if loop.stop != new.stop
        ]
        absent = [Condition(x.index.as_affine(), True) for x in own if x not in nest.loops]
        for part in nest.parts:
            group = None if part.group is None else (number, part.group)  # a schedule may be fused with itself
            parts.append(
                replace(part, group=group).substitute(mapping).where(Condition(fusing - number, True), *fits, *absent)
            )
    names = {
        loop.index: new.index for nest in nests for loop, new in zip(nest.loops, shared, strict=False)
    }  # fmt: skip
    precedences = [(names.get(a, a), names.get(b, b)) for nest in nests for a, b in nest.precedences]
    unrolled = {names.get(index, index) for nest in nests for index in nest.unrolled}
    return LoopNest(
        (*shared, Loop(fusing, Affine((), len(nests))), *own),
        tuple(parts),
        (*precedences, *((fusing, loop.index) for loop in own)),
        frozenset(unrolled),
        (fusing, *(names.get(f, f) for nest in nests for f in nest.fusing)),
        frozenset(names.get(index, index) for nest in nests for index in nest.padded),
        tuple(loop.index for loop in shared),
        tuple(loop.index for loop in own),
        is_unchecked=partial > 0 or any(nest.is_unchecked for nest in nests),
        called=tuple(names.get(index, index) for nest in nests for index in nest.called),
    )


def _shared_loop(nests: Sequence[LoopNest], n: int, index: Index) -> Loop:
    """Return the loop that stands for loop n of each nest: as long as the longest of them."""
    loops = [nest.loops[n] for nest in nests]
    steps = {loop.step for loop in loops}
    if len(steps) > 1:
        raise ScheduleError(
            f"loops {', '.join(str(loop.index) for loop in loops)} are fused and step by {sorted(steps)}",
            help="fuse before splitting, or split all by the same size",
        )
    stops = {loop.stop for loop in loops}
    if len(stops) > 1 and not all(stop.is_constant for stop in stops):
        raise ScheduleError(
            f"loops {', '.join(str(loop.index) for loop in loops)} are fused and run to {', '.join(map(str, stops))}",
            help="sizes of the launch can be fused with themselves only",
        )
    stop = max(stops, key=lambda stop: stop.constant) if len(stops) > 1 else loops[0].stop
    return Loop(index, stop, loops[0].step)


def _is_count(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool)
