"""TEMP arrays that are read before they are written: which reads those are, and which writes caches have forgotten.

A TEMP array begins with zeros where a read of it may come before every write of the element. It is found out exactly:
what a read of some iterations reaches is covered where another access surely writes it in an earlier iteration, which
is given as an expression of those of the read. A read that no cover holds is looked at where it stands, with numbers.

And TEMP arrays that no cache keeps: which of them fit the registers of a thread, and which the launch allocates.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Affine, Dimension, Index, Position, Symbol
from tilewright.schedule.arrays import Array, Load
from tilewright.schedule.caches import region_of
from tilewright.schedule.conditions import is_of_indices
from tilewright.schedule.dependences import (
    Instance,
    Pair,
    Side,
    Values,
    Variable,
    difference,
    instances,
    is_before,
    iterations,
)
from tilewright.schedule.elements import index_loads
from tilewright.schedule.integers import LIMIT, System, UndecidedError
from tilewright.schedule.loop_nest import Condition, Loop, LoopNest, at_places, settled
from tilewright.schedule.memory_spaces import IN_MEMORY, IN_REGISTERS
from tilewright.schedule.places import spread
from tilewright.schedule.plan_state import PlanState
from tilewright.schedule.private import private_points
from tilewright.schedule.sides import Work
from tilewright.schedule.values import Expression, Guard

Cover = tuple[Condition, ...]  # on the iteration of a read: where all hold, the element has been written
Template = dict[Index, Affine]  # the iteration of a write, by that of a read

_MOST_CASES = 400  # in which covers fail, each a question to the solver
_MOST_LOOKS = 8  # reads that are looked at with numbers, each of which gives a further cover


@dataclass(frozen=True, eq=False)
class Write:
    """A write, and the conditions on elements under which alone it happens."""

    instance: Instance
    guards: tuple[Guard, ...]

    @property
    def number(self) -> int:
        return self.instance.access.statement.number

    def comes_first(self, read: Instance) -> bool:
        """Whether it runs before a read at the same point of the loops."""
        return (self.instance.number, self.number) < (read.number, read.access.statement.number)


@dataclass(frozen=True, eq=False)
class Unwritten:
    """A read that may come before every write of its element: `values` say where, or are None where that is open."""

    read: Instance
    values: Values | None

    def __str__(self) -> str:
        if self.values is None:
            return f"the {self.read.access}"
        return f"the {self.read.at(self.values)}{Pair(self.read, self.read).sizes(self.values)}"


def unwritten(plan: PlanState, memory: Array) -> Unwritten | None:
    """Return a read of an array that may come before every write of what it reads, None where there is none."""
    found: Unwritten | None = None
    if memory in private_points(plan.nest):
        return None  # each point writes what it reads, and its loops keep the order in it
    for read in (accesses := Accesses(plan, memory)).reads:
        found = accesses.unwritten(read)
        if found is not None and found.values is not None:
            return found
    return found


def forgotten(plan: PlanState, array: Array, around: Sequence[Index]) -> Instance | None:
    """Return a read of an array whose element was written in another iteration of the loops around, and not in its own.

    Raises `UndecidedError` where that is not decided.
    """
    accesses = Accesses(plan, array.memory)
    return next((x for x in accesses.reads if x.access.array is array and accesses.is_forgotten(x, around)), None)


def is_of_several(plan: PlanState, memory: Array, kind: str) -> bool:
    """Whether two threads (`kind` THREAD) or blocks (BLOCK) access one element of an array, or may."""
    found = [instance for instance in instances(plan.nest) if instance.access.array.memory is memory]
    loops = [loop for binding in plan.bindings if binding.kind == kind for loop in binding.loops if loop.trips != 1]
    for one, other in itertools.combinations_with_replacement(found, 2) if loops else ():
        system = Pair(one, replace(other, side=1)).meets()
        for loop in loops:
            for order in (iterations(loop), iterations(loop)[::-1]):
                try:
                    if is_before(system, *order).solve() is not None:
                        return True
                except UndecidedError:
                    return True
    return False


class Accesses:
    """The reads of an array, but for those in place of which a prologue sets it, and its writes.

    Forms of one memory are compared byte by byte: a read then has one iteration more, of the loop over its bytes.
    """

    def __init__(self, plan: PlanState, memory: Array) -> None:
        forms = {array for array in plan.arrays if array.memory is memory}
        self.by_bytes: bool = len(forms) > 1
        longest = max((array.element_type.bytes for array in forms), default=1)
        self.byte: Index = Index("byte")
        more = (Loop(self.byte, Affine((), longest)),) if self.by_bytes else ()
        self.nest: LoopNest = replace(plan.nest, loops=(*plan.nest.loops, *more))
        found = [instance for instance in instances(self.nest) if instance.access.array.memory is memory]
        tile = plan.tensorization
        set_by = tile.statement.number if tile is not None and tile.sets(memory) else None
        self.reads: list[Instance] = [x for x in found if not x.access.is_write and x.access.statement.number != set_by]
        self.writes: list[Write] = _joined(
            [Write(x, _open(x.access.statement.store.guards)) for x in found if x.access.is_write]
        )

    def modes(self, instance: Instance) -> tuple[Affine, ...] | None:
        """Return what is accessed: a place, or a byte. None where only the launch knows it."""
        if not self.by_bytes:
            return instance.modes
        address = instance.access.array.address(instance.modes)
        if address is None:
            return None
        return (address if instance.access.is_write else address + self.byte,)

    def width(self, write: Write) -> int:
        """Return how many neighbours a write reaches: elements, or bytes."""
        return write.instance.access.array.element_type.bytes if self.by_bytes else 1

    # --- what is asked -----------------------------------------------------------------------------------

    def unwritten(self, read: Instance) -> Unwritten | None:
        """Return where a read may come before every write of what it reads, None where it does nowhere."""
        if self.modes(read) is None or any(self.modes(write.instance) is None for write in self.writes):
            return Unwritten(read, None)
        covers, work = list(self.covers(read, ())), Work(LIMIT)
        try:
            for _ in range(_MOST_LOOKS):
                values = self.escape(read, self._runs(read), covers, work)
                if values is None:
                    return None
                found = self._earlier_write(read, values, work)
                if found is None:
                    return Unwritten(read, values)
                covers += self._covers_like(read, *found, values)
        except UndecidedError:
            pass
        return Unwritten(read, None)

    def is_forgotten(self, read: Instance, around: Sequence[Index]) -> bool:
        """Whether what is read was written in another iteration of the loops around, and not in that of the read."""
        covers = list(self.covers(read, around))
        for write in self.writes:
            pair = Pair(write.instance, replace(read, side=1))
            for system in self._in_other_iterations(pair, around):
                if self.escape(read, system, covers, Work(LIMIT), side=1) is not None:
                    return True
        return False

    def _runs(self, read: Instance) -> System[Variable]:
        system = read.runs()
        if self.by_bytes:
            system = system.at_least_zero({(self.byte, read.side): -1}, read.access.array.element_type.bytes - 1)
        return system

    # --- covers ------------------------------------------------------------------------------------------

    def covers(self, read: Instance, around: Sequence[Index]) -> Iterator[Cover]:
        """Yield conditions under which a write comes before a read, in its iteration of the loops `around`."""
        for write in self.writes:
            for template in self._templates(read, write.instance, around):
                yield from self._covers_of(read, write, template)

    def _templates(self, read: Instance, write: Instance, around: Sequence[Index]) -> Iterator[Template]:
        """Yield iterations in which a write may reach what a read reads, as expressions of the read's."""
        modes, loops = self.modes(write), self.nest.loops
        if modes is None or self.modes(read) is None:
            return
        start: Template = {index: index.as_affine() for index in around}
        for condition in write.part.conditions:
            if condition.is_equality and len(condition.value.terms) == 1:
                symbol, factor = condition.value.terms[0]
                if isinstance(symbol, Index) and condition.value.constant % factor == 0:
                    start.setdefault(symbol, Affine((), -condition.value.constant // factor))
        same = {loop.index: loop.index.as_affine() for loop in loops}
        placed = {symbol for mode in modes for symbol in mode.symbols() if isinstance(symbol, Index)}
        found: dict[tuple[Affine, ...], Template] = {}
        for template in (self._solved(read, write, start), {**{s: same[s] for s in placed}, **start}):
            for rest in ("same", "first", "last"):
                whole = dict(template)
                for loop in loops:
                    if rest != "last" or loop.last is not None:
                        end = Affine((), 0 if rest == "first" else loop.last or 0)
                        whole.setdefault(loop.index, same[loop.index] if rest == "same" else end)
                if len(whole) == len(loops):
                    found.setdefault(tuple(whole[loop.index] for loop in loops), whole)
        yield from found.values()

    def _solved(self, read: Instance, write: Instance, start: Template) -> Template:
        """Return the iterations of those loops by which a write is where a read is: digits of the read's place."""
        found = dict(start)
        for mode, place in zip(self.modes(write) or (), self.modes(read) or (), strict=True):
            left = [self.nest.loop(s) for s, _ in mode.terms if isinstance(s, Index) and s not in found]
            left.sort(key=lambda loop: abs(mode.factor(loop.index)) * loop.step, reverse=True)
            known = Affine.of({s: c for s, c in mode.terms if not isinstance(s, Index) or s in found}, mode.constant)
            value = place - known.substitute(found)
            for loop in left:
                factor = mode.factor(loop.index)
                value, unit = (value if factor > 0 else -value), abs(factor) * loop.step
                if loop is left[-1] and unit == loop.step:
                    found[loop.index] = value
                else:
                    found[loop.index] = settled(value // unit, self.nest.loops) * loop.step
                    value = settled(value % unit, self.nest.loops)
                value = value if factor > 0 else -value
        return found

    def _covers_of(self, read: Instance, write: Write, template: Template) -> Iterator[Cover]:
        """Yield the conditions under which the write of a template happens, reaches what is read, and comes before."""
        made, part, loops = write.instance, write.instance.part, self.nest.loops
        if not all(_is_known_to_hold(guard, read, made, template) for guard in write.guards):
            return
        needed: list[Condition] = []
        for loop in loops:
            index = template[loop.index]
            if index.constant % loop.step or any(c * self._step(s) % loop.step for s, c in index.terms):
                needed.append(Condition(index % loop.step, True))
            ends = [Condition(loop.stop - 1 - index)] if loop.index not in part.fixed else []
            needed += [Condition(index), *ends]
        needed += [condition.substitute(template) for condition in made.conditions]
        for mine, other in zip(self.modes(made) or (), self.modes(read) or (), strict=True):
            apart, width = other - mine.substitute(template), self.width(write)
            needed += [Condition(apart, True)] if width == 1 else [Condition(apart), Condition(width - 1 - apart)]
        needed = [replace(c, value=settled(c.value, loops)) for c in needed]
        needed = [x for c in needed for x in ([c] if c.is_equality else map(Condition, spread(c.value)))]
        for order in self._orders(read, write, template):
            conditions = [c for c in (*needed, *order) if not _is_true(c)]
            if not any(_is_false(c) for c in conditions):
                yield tuple(conditions)

    def _step(self, symbol: Symbol) -> int:
        return self.nest.loop(symbol).step if isinstance(symbol, Index) else 1

    def _orders(self, read: Instance, write: Write, template: Template) -> Iterator[Cover]:
        """Yield the ways in which the iteration of a template comes before that of the read."""
        before: list[Condition] = []
        for loop in self.nest.loops:
            if loop.index is self.byte:
                continue
            apart = settled(loop.index - template[loop.index], self.nest.loops)
            if apart.is_constant and apart.constant == 0:
                continue
            if not (apart.is_constant and apart.constant < 0):
                yield (*before, Condition(apart - 1))
            if apart.is_constant:
                return
            before.append(Condition(apart, True))
        if write.comes_first(read):
            yield tuple(before)

    # --- what no cover holds -----------------------------------------------------------------------------

    def escape(
        self, read: Instance, system: System[Variable], covers: Sequence[Cover], work: Work, side: int = 0
    ) -> Values | None:
        """Return an iteration of a read, on one side of a system, that no cover holds; None where there is none."""
        known = {(c.value, c.is_equality) for c in _own_conditions(read)}
        for size in (v for v in system.variables() if isinstance(v, Dimension)):
            system = system.at_least_zero({size: 1}, -1)
        different = {tuple(c for c in cover if (c.value, c.is_equality) not in known) for cover in covers}
        if () in different:
            return None  # one holds wherever the read happens
        sides, fixed, left = Side(self.nest, side), read.part.fixed, [_MOST_CASES]

        def within(system: System[Variable], covers: Sequence[Cover]) -> Values | None:
            """Look for one where some covers do not hold: one that holds where it is found has to fail in some way."""
            left[0] -= 1
            if left[0] < 0:
                raise UndecidedError(f"whether {len(different)} covers hold everywhere was not decided")
            values = system.solve(work)
            holding = None if values is None else next((x for x in covers if self._holds(x, values, side)), None)
            if values is None or holding is None:
                return values
            others = [cover for cover in covers if cover is not holding]
            for condition in holding:
                for value in _negated(condition):
                    found = within(_with(system, sides, fixed, (Condition(value),)), others)
                    if found is not None:
                        return found
            return None

        return within(system, sorted(different, key=len))

    def _holds(self, cover: Cover, values: Values, side: int) -> bool:
        """Whether a cover holds in an iteration, as far as that is known."""
        numbers: dict[Any, Any] = {v: n for v, n in values.items() if isinstance(v, Dimension)}  # Any: symbols
        numbers.update((loop.index, values.get((loop.index, side), 0) * loop.step) for loop in self.nest.loops)
        for condition in cover:
            value = condition.value
            if next(index_loads([value]), None) is not None:
                continue
            for size in (s for s in value.symbols() if isinstance(s, Dimension)):
                numbers.setdefault(size, 1)
            number = value.evaluate(numbers)
            if number != 0 if condition.is_equality else number < 0:
                return False
        return True

    def _earlier_write(self, read: Instance, values: Values, work: Work) -> tuple[Write, Values] | None:
        """Return a write that surely comes before a read that stands at numbers, and where; None without one."""
        second = replace(read, side=1)
        numbers = {v if isinstance(v, Dimension) else (v[0], 1): n for v, n in values.items()}
        for write in (write for write in self.writes if not write.guards):
            system = write.instance.runs().and_(self._runs(second))
            for mine, other in zip(self.modes(write.instance) or (), self.modes(read) or (), strict=True):
                apart, width = difference(second.terms(other), write.instance.terms(mine)), self.width(write)
                end = difference(({}, width - 1), apart)
                system = system.equal(*apart) if width == 1 else system.at_least_zero(*apart).at_least_zero(*end)
            for variable in system.variables():
                if variable in numbers and (isinstance(variable, Dimension) or variable[1] == 1):
                    system = system.equal({variable: 1}, -numbers[variable])
            for loop in self.nest.loops:
                if loop.index is self.byte:
                    continue
                mine_at, other_at = iterations(loop)
                found = is_before(system, mine_at, other_at).solve(work)
                if found is not None:
                    return write, found
                system = system.equal(*difference(mine_at, other_at))
            if write.comes_first(read) and (found := system.solve(work)) is not None:
                return write, found
        return None

    def _covers_like(self, read: Instance, write: Write, at: Values, values: Values) -> Iterator[Cover]:
        """Yield covers by a write that stands to other reads as it does to the one where it was found."""
        loops = self.nest.loops
        numbers = {loop.index: at.get((loop.index, 0), 0) * loop.step for loop in loops}
        own = {loop.index: values.get((loop.index, 0), 0) * loop.step for loop in loops}
        placed = {s for mode in self.modes(write.instance) or () for s in mode.symbols()}
        for is_solved in (False, True):
            for moves in (False, True):
                template = self._solved(read, write.instance, {}) if is_solved else {}
                for index, number in numbers.items():
                    moved = index + (number - own[index])
                    is_moved = moves or (not is_solved and index in placed)
                    template.setdefault(index, moved if is_moved else Affine((), number))
                yield from self._covers_of(read, write, template)
        # At the least, this very read is covered.
        yield tuple(Condition(index - number, True) for index, number in own.items())

    def _in_other_iterations(self, pair: Pair, around: Sequence[Index]) -> Iterator[System[Variable]]:
        """Yield the ways in which a pair's first access is in an earlier iteration of `around` than its second."""
        system = pair.meets()
        for loop in self.nest.loops:
            mine, other = iterations(loop)
            before = is_before(system, mine, other)
            if loop.index in around:
                yield before
            elif loop.trips != 1:
                for index in around:
                    if self.nest.position(index) > self.nest.position(loop.index):
                        one, another = iterations(self.nest.loop(index))
                        yield is_before(before, one, another)
                        yield is_before(before, another, one)
            system = system.equal(*difference(mine, other))


# --- conditions ------------------------------------------------------------------------------------------


def _open(guards: Sequence[Guard]) -> tuple[Guard, ...]:
    """Return the conditions of which is not known before the kernel runs where they hold."""
    return tuple(guard for guard in guards if not is_of_indices(guard.test))


def _joined(writes: list[Write]) -> list[Write]:
    """Return writes, and for two on both sides of a condition on elements one that surely happens."""
    found = list(writes)
    for later in found:  # it grows
        for one in found[: found.index(later)]:
            mine, others = one.guards, later.guards
            if not mine or len(mine) != len(others) or one.instance.number != later.instance.number:
                continue
            same = all(_are_same(a, b) for a, b in zip(mine[:-1], others[:-1], strict=True))
            is_either = mine[-1].decision is others[-1].decision and mine[-1].holds is not others[-1].holds
            ends = [(x.instance.modes, x.instance.access.array, x.instance.case) for x in (one, later)]
            if same and is_either and ends[0] == ends[1]:
                found.append(Write(max(one, later, key=lambda write: write.number).instance, mine[:-1]))
    return found


def _are_same(one: Guard, other: Guard) -> bool:
    return one.decision is other.decision and one.holds is other.holds


def _is_known_to_hold(guard: Guard, read: Instance, write: Instance, template: Template) -> bool:
    """Whether a condition on elements that a write has is one that the read has too, computed of the same elements."""
    mine = read.access.statement.store.guards[: read.access.under]
    if not any(_are_same(guard, other) for other in mine):
        return False
    if read.number == write.number and all(value == index.as_affine() for index, value in template.items()):
        return True
    written = {x.array.memory for p in read.nest.parts for s in p.statements for x in s.accesses if x.is_write}
    if any(load.array.memory in written for load in guard.test.loads()):
        return False
    places = zip(_places(write, guard), _places(read, guard), strict=True)
    return all(place.substitute(template) == other for place, other in places)


def _places(instance: Instance, guard: Guard) -> list[Affine]:
    """Return the expressions of loops in a condition, where an access has it."""
    statement = at_places(instance.access.statement, instance.part.places)
    left: list[Expression] = [next(x.test for x in statement.store.guards if _are_same(x, guard))]
    places: list[Affine] = []
    while left:
        x = left.pop()
        if isinstance(x, Load):
            places += x.place
        elif isinstance(x, Position):
            places.append(x.place)
        left += x.operands
    return places


def _own_conditions(read: Instance) -> Iterator[Condition]:
    """Yield the conditions under which a read happens."""
    for loop in read.nest.loops:
        yield Condition(loop.index.as_affine())
        yield from (Condition(end) for end in spread(loop.stop - 1 - loop.index) if loop.index not in read.part.fixed)
    yield from read.conditions


def _with(
    system: System[Variable], side: Side, fixed: Collection[Index], conditions: Sequence[Condition]
) -> System[Variable]:
    """Return a system with conditions on the loops of one side, some of which are `fixed`."""
    if any(condition.value.nonlinear() for condition in conditions):
        system = system.and_(side.runs([condition.value for condition in conditions], fixed))
    for condition in conditions:
        terms = side.terms(condition.value)
        system = system.equal(*terms) if condition.is_equality else system.at_least_zero(*terms)
    return system


def _negated(condition: Condition) -> list[Affine]:
    """Return expressions one of which is at least 0 where a condition does not hold."""
    value = condition.value
    return [value - 1, -value - 1] if condition.is_equality else [-value - 1]


def _is_true(condition: Condition) -> bool:
    value = condition.value
    return value.is_constant and (value.constant == 0 or (value.constant > 0 and not condition.is_equality))


def _is_false(condition: Condition) -> bool:
    return condition.value.is_constant and not _is_true(condition)


_REGISTER_BYTES = 255 * 4  # of registers, which is what a thread has at most: beyond it they are memory all the same


def scratch_of(plan: PlanState) -> tuple[Array, ...]:
    """Return the TEMP arrays that a launch allocates: those that no cache keeps and no thread can hold.

    A TEMP array is one array, whoever accesses it, so that both places mean the same: a binding under which two threads
    would access one element, and one of them writes, is refused. Raises `ScheduleError` for an array that its flags put
    into registers and whose elements in a thread only the launch counts.
    """
    found = []
    shared = {crossing.pair.write.array.memory for crossing in plan.crossings}  # of threads that wait for one another
    for array in plan.memories:
        if not plan.is_temporary(array) or any(cache.array.memory is array for cache in plan.caches):
            continue
        if is_constant(plan, array):
            continue
        forms = [form for form in plan.arrays if form.memory is array and form is not array]
        if array.flags in IN_REGISTERS:
            if forms:
                raise ScheduleError(
                    f"{array.name} is kept in registers and is seen as {forms[0].name}",
                    help="leave its flags out, or take AllocateFlags.HEAP: memory can be seen as other elements",
                )
            _touched(plan, array)
        elif array.flags in IN_MEMORY or forms or array in shared or not _fits(plan, array):
            found.append(array)
    return tuple(found)


def is_constant(plan: PlanState, array: Array) -> bool:
    """Whether a TEMP array is nothing but zeros: it begins with them, and no statement writes it."""
    statements = (statement for part in plan.nest.parts for statement in part.statements)
    return array.memory in plan.begun and all(
        statement.store.array.memory is not array.memory for statement in statements
    )


def _fits(plan: PlanState, array: Array) -> bool:
    try:
        return _touched(plan, array) * array.element_type.bytes <= _REGISTER_BYTES
    except ScheduleError:
        return False


def _touched(plan: PlanState, array: Array) -> int:
    """Return how many elements a thread touches. Raises `ScheduleError` where they are not a box of known size."""
    loops = [plan.nest.loop(index) for index in plan.serial]
    return region_of(array, plan.accesses(array), loops).size
