"""TEMP arrays that each point of a nest has for itself: it writes what it reads, so that points may change places.

A nest that packs a tile into a TEMP array, and then computes with it, uses one memory again and again. By the elements
alone no two tiles could change places. But where every read at a point is of what the same point wrote before, and the
loops of the points stand outside of all others, it does not matter which point runs first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tilewright.schedule.affine import Affine, Dimension, Division, Index, Size, as_affine
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.dependences import Instance, Side
from tilewright.schedule.integers import LIMIT, UndecidedError
from tilewright.schedule.loop_nest import Access, LoopNest, Part, settled
from tilewright.schedule.places import BySize, Minimum
from tilewright.schedule.sides import Work

_KNOWN = (Division, Minimum, BySize)  # terms that say the same wherever indices and sizes are the same


def private_points(nest: LoopNest) -> dict[Array, tuple[Index, ...]]:
    """Return the TEMP arrays that points of a nest have for themselves, each with the loops that run through these.

    The points are those of the nest's own indices that all accesses of the array are inside of.
    """
    found: dict[Array, tuple[Index, ...]] = {}
    uses: dict[Array, list[Use]] = {}
    for number, part in enumerate(nest.parts):
        for statement in part.statements:
            for access in statement.accesses:
                if access.array.memory.role is Role.TEMP:
                    uses.setdefault(access.array.memory, []).append(Use(nest, number, access))
    for memory, all_uses in uses.items():
        if any(use.access.array is not memory for use in all_uses):
            continue  # seen with other elements too
        points = Points(nest, all_uses)
        if points.indices and points.are_apart and all(map(points.is_written_before, points.reads)):
            found[memory] = points.loops
    return found


@dataclass(frozen=True, eq=False)
class Use:
    """An access of a part."""

    nest: LoopNest
    number: int
    access: Access

    @property
    def part(self) -> Part:
        return self.nest.parts[self.number]

    @cached_property
    def sequence(self) -> tuple[int | Index, ...]:
        """When the part was declared to run."""
        return self.nest.sequence(self.number)


@dataclass(frozen=True, eq=False)
class Points:
    """The points of the indices that some uses of one array are all inside of."""

    nest: LoopNest
    uses: list[Use]

    @property
    def reads(self) -> list[Use]:
        return [use for use in self.uses if not use.access.is_write]

    @cached_property
    def depth(self) -> int:
        """How much of when they were declared to run is the same for all uses."""
        count = 0
        for places in zip(*(use.sequence for use in self.uses), strict=False):
            if any(isinstance(x, Index) for x in places):
                is_one = all(x is places[0] for x in places)
            else:
                is_one = len(set(places)) == 1
            if not is_one:
                break
            count += 1
        return count

    @cached_property
    def indices(self) -> tuple[Index, ...]:
        return tuple(x for x in self.uses[0].sequence[: self.depth] if isinstance(x, Index))

    @cached_property
    def loops(self) -> tuple[Index, ...]:
        """The loops that the points move with: an iteration of all of them is one point, where `are_apart`."""
        places = [self.uses[0].part.places[index] for index in self.indices]
        return tuple(loop.index for loop in self.nest.loops if any(place.mentions(loop.index) for place in places))

    @property
    def are_apart(self) -> bool:
        """Whether the loops of the points are outside of all others that the uses move with, and are theirs alone."""
        parts = [use.part for use in self.uses]
        places = [[part.places[index] for index in self.indices] for part in parts]
        if any(not is_same(x, y) for others in places for x, y in zip(places[0], others, strict=True)):
            return False
        moving = [loop.index for loop in self.nest.loops if loop.trips != 1 and not _is_pinned(loop.index, parts)]
        outer = [index in self.loops for index in moving]
        rest = [place for part in parts for own, place in part.places.items() if own not in self.indices]
        is_shared = any(place.mentions(index) for index in self.loops for place in rest)
        return not is_shared and sorted(outer, reverse=True) == outer

    def is_written_before(self, read: Use) -> bool:
        """Whether one of the writes surely writes each element that is read, at the same point and before."""
        return any(self._covers(write, read) for write in self.uses if write.access.is_write)

    def _covers(self, write: Use, read: Use) -> bool:
        if not self._is_earlier(write, read) or not _is_under(write, read):
            return False
        if any(not isinstance(term, _KNOWN) for at in write.access.place for term in at.nonlinear()):
            return False  # an element says where, which may have changed since
        if write.number == read.number:
            return all(map(is_same, write.access.place, read.access.place))
        conditions = self._missed(write, read)
        return conditions is not None and not any(_may_be(read, *condition) for condition in conditions)

    def _is_earlier(self, write: Use, read: Use) -> bool:
        if write.number == read.number:
            return write.access.statement.number < read.access.statement.number
        one, other = (use.sequence[self.depth : self.depth + 1] for use in (write, read))
        return all(isinstance(x, int) for x in (*one, *other)) and bool(one) and bool(other) and one[0] < other[0]

    def _missed(self, write: Use, read: Use) -> list[tuple[Affine, bool]] | None:
        """Return what would be below 0 (or other than 0) for an element that is read and not written; None for unknown.

        Each mode of the place that is written has one index of its own, or none: so the element tells the iteration.
        """
        part, mine = write.part, set(self.indices)
        own = {index: extent for index, extent in zip(part.indices, part.shape, strict=True) if index not in mine}
        left, conditions = dict(own), list[tuple[Affine, bool]]()
        for at, element in zip(write.access.place, read.access.place, strict=True):
            moving = [index for index in own if at.mentions(index)]
            if len(moving) > 1 or any(at.factor(index) != 1 or at.divides(index) for index in moving):
                return None
            if not moving:
                conditions.append((self._at(read, element) - self._at(read, at), True))
                continue
            index = moving[0]
            if left.pop(index, None) is None:
                return None  # of another mode too, or the index has a range that its extent does not say
            iteration = self._at(read, element) - self._at(read, at - index)
            last = self._last(own[index], own, read)
            if last is None:
                return None
            conditions += [(iteration, False), (last - iteration, False)]
        for extent in left.values():  # the write runs at all of them, and at one at least
            last = self._last(extent, own, read)
            if last is None:
                return None
            conditions.append((last, False))
        return conditions

    def _last(self, extent: Size | Affine | None, own: dict[Index, Size | Affine | None], read: Use) -> Affine | None:
        if extent is None:
            return None
        last = as_affine(extent) - 1
        return None if any(last.mentions(index) for index in own) else self._at(read, last)

    def _at(self, read: Use, value: Affine) -> Affine:
        """Return an expression of the nest's own indices among the loops, where an element is read."""
        return settled(value.substitute(read.part.places), self.nest.loops)


def is_same(one: Affine, other: Affine) -> bool:
    """Say whether two sums are always equal."""
    rest: Affine = one - other  # and not ==, which is a value in the logic of a nest
    return rest.is_constant and rest.constant == 0


def _is_pinned(index: Index, parts: list[Part]) -> bool:
    """Whether a loop stands at one number for all of some parts, such as that of a call."""
    numbers = []
    for part in parts:
        here = [
            (c.value.factor(index), c.value.constant)
            for c in part.conditions
            if c.is_equality and len(c.value.terms) == 1 and c.value.factor(index)
        ]
        if not here:
            return False
        numbers.append(here[0][1] * -here[0][0])
    return len(set(numbers)) == 1


def _is_under(write: Use, read: Use) -> bool:
    """Whether a write runs wherever a read does, as far as their conditions say."""
    first = write.access.statement.store.guards
    second = read.access.statement.store.guards[: read.access.under]
    return len(first) <= len(second) and all(
        a.decision is b.decision and a.holds == b.holds for a, b in zip(first, second, strict=False)
    )


def _may_be(read: Use, value: Affine, is_equality: bool) -> bool:
    """Whether a value is below 0, or for an equality other than 0, somewhere where an element is read."""
    statement, access = read.access.statement, read.access
    for case in statement.cases[access.under]:
        for instance in Instance(read.nest, read.number, access, case=case).chosen(value):
            runs = instance.runs().and_(Side(read.nest, 0).runs((value,), read.part.fixed))
            terms, constant = instance.terms(value)
            for sign in (1, -1) if is_equality else (1,):
                system = runs.at_least_zero({v: -sign * c for v, c in terms.items()}, -sign * constant - 1)
                for size in [v for v in system.variables() if isinstance(v, Dimension)]:
                    system = system.at_least_zero({size: 1}, -1)
                try:
                    if system.solve(Work(LIMIT)) is not None:
                        return True
                except UndecidedError:
                    return True
    return False
