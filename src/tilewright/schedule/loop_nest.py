"""The state of a schedule: statements, loops in order, and parts, each of which says where its statements stand.

A part is a nest with its statements. Each of its own indices is an affine expression of the loops, and it runs at those
points of the loops at which its conditions hold. All transforms of a schedule rewrite these expressions, add conditions
and change the order of the loops; what runs is thus always told by one rule:

    for all points of the loops in lexicographic order, for all parts in order:
        if the part's conditions hold: run its statements at its places
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import TypeAlias, Union

from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Affine, Dimension, Division, Index, Position, Quotient, Size, Symbol, Term
from tilewright.schedule.arrays import Array, Load, Store
from tilewright.schedule.conditions import cases
from tilewright.schedule.elements import index_loads
from tilewright.schedule.values import Apply, Convert, Expression, Guard
from tilewright.source import SourceLocation

# --- statements ------------------------------------------------------------------------------------------

# The operators whose order of application changes a sum by its rounding only, and a minimum not at all.
REDUCTIONS = frozenset({"+", "*", "min", "max", "minimum", "maximum", "&", "|", "^"})


@dataclass(frozen=True, eq=False)
class Access:
    """One read or write of an array by a statement."""

    statement: Statement
    array: Array
    place: tuple[Affine, ...]
    is_write: bool
    under: int = 0  # how many of the statement's guards, from the outermost on, have to hold

    def __str__(self) -> str:
        return f"{'write of' if self.is_write else 'read of'} {Load(self.array, self.place)}"


@dataclass(frozen=True, eq=False)
class Statement:
    """array[place] = value at each point of a nest; `number` counts the statements of the nest."""

    number: int
    store: Store

    @property
    def location(self) -> SourceLocation | None:
        return self.store.location

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """All reads, those of the conditions first, then the write."""
        guards = self.store.guards
        tests = [
            Access(self, x.array, x.place, False, under)
            for under, guard in enumerate(guards)
            for load in guard.test.loads()
            for x in (*index_loads(load.indices), load)
        ]
        loads = [x for load in self.store.value.loads() for x in (*index_loads(load.indices), load)]
        reads = [Access(self, x.array, x.place, False, len(guards)) for x in loads]
        return (*tests, *reads, Access(self, self.store.array, self.store.place, True, len(guards)))

    @cached_property
    def cases(self) -> tuple[tuple[tuple[Condition, ...], ...], ...]:
        """The cases in which the first n of the guards hold, as conditions on the nest's own indices, for each n."""
        guards = self.store.guards
        return tuple(
            tuple(tuple(Condition(*term) for term in case) for case in cases(guards[:n]))
            for n in range(len(guards) + 1)
        )

    @property
    def named(self) -> tuple[Array, ...]:
        """The arrays as the logic names them, views among them."""
        return (*(load.named for load in self.elements), self.store.named)

    @property
    def elements(self) -> tuple[Load, ...]:
        """The elements that are read, by the value and by the conditions under which the statement runs."""
        tests = (load for guard in self.store.guards for load in guard.test.loads())
        loads = (*self.store.value.loads(), *tests)
        return tuple(x for load in loads for x in (*index_loads(load.indices), load))

    @property
    def positions(self) -> list[Affine]:
        """The affine expressions whose values take part in what is computed."""

        def within(x: Expression) -> Iterator[Affine]:
            if isinstance(x, Position):
                yield x.place
            for operand in x.operands:
                yield from within(operand)

        return [place for x in (self.store.value, *(guard.test for guard in self.store.guards)) for place in within(x)]

    @cached_property
    def reduction(self) -> tuple[str, Expression] | None:
        """The operator and what is combined, of array[place] = array[place] op value, where value does not read it.

        The operator is one of `REDUCTIONS`; other statements have none.
        """
        value = self.store.value
        if not isinstance(value, Apply) or value.name not in REDUCTIONS or len(value.arguments) != 2:
            return None
        memory = self.store.array.memory
        if any(load.array.memory is memory for guard in self.store.guards for load in guard.test.loads()):
            return None
        for mine, other in (value.arguments, value.arguments[::-1]):
            if self._is_target(mine) and not any(load.array.memory is memory for load in other.loads()):
                return value.name, other
        return None

    def _is_target(self, x: Expression) -> bool:
        return (
            isinstance(x, Load)
            and x.array is self.store.array
            and x.place == self.store.place
            and x.element_type is self.store.element_type
        )

    def places(self) -> Iterator[Affine]:
        """Yield all affine expressions: where elements are, and values and conditions of indices."""
        for access in self.accesses:
            yield from access.place
        left = [self.store.value, *(guard.test for guard in self.store.guards)]
        while left:
            x = left.pop()
            if isinstance(x, Position):
                yield x.place
            left += x.operands

    def __str__(self) -> str:
        guards = " and ".join(map(str, self.store.guards))
        return f"if {guards}: {self.text()}" if guards else self.text()

    def text(self) -> str:
        """Return the statement without its conditions."""
        target = Load(self.store.named, self.store.indices)
        if self.reduction is not None and not self.reduction[0].isidentifier():
            return f"{target} {self.reduction[0]}= {self.reduction[1]}"
        return f"{target} = {self.store.value}"


def arrays_of(statements: tuple[Statement, ...]) -> Iterator[Array]:
    """Yield the arrays that statements access, each once, in the order of their making: memory, and forms of it."""
    arrays = {access.array for statement in statements for access in statement.accesses}
    yield from sorted(arrays, key=lambda array: array.number)


def moved(x: Expression, at: Callable[[Affine], Affine]) -> Expression:
    """Return an expression whose affine expressions are replaced by others."""
    if isinstance(x, Load):
        return Load(x.named, tuple(map(at, x.indices)))
    if isinstance(x, Position):
        return Position(at(x.place))
    if isinstance(x, Convert):
        return Convert(moved(x.value, at), x.dtype)
    if isinstance(x, Apply):
        return Apply(x.name, x.function, tuple(moved(part, at) for part in x.arguments))
    return x


def at_places(statement: Statement, places: Mapping[Index, Affine], loops: Sequence[Loop] = ()) -> Statement:
    """Return a statement whose indices are replaced by affine expressions of loops."""

    def at(value: Affine) -> Affine:
        return settled(value.substitute(places), loops)

    store = statement.store
    guards = tuple(Guard(guard.decision, moved(guard.test, at), guard.holds) for guard in store.guards)
    indices = tuple(map(at, store.indices))
    return Statement(statement.number, Store(store.named, indices, moved(store.value, at), store.location, guards))


Group: TypeAlias = Union[Statement, tuple[Expression, list[Statement], list[Statement]]]


def grouped(statements: Iterable[Statement], depth: int) -> Iterator[Group]:
    """Yield statements under no more than `depth` conditions, and groups of those that have one condition more.

    A group is its condition, the statements where it holds, and those where it does not.
    """

    def decision(statement: Statement) -> object:
        guards = statement.store.guards
        return guards[depth].decision if len(guards) > depth else None

    for found, group in groupby(statements, decision):
        members = list(group)
        if found is None:
            yield from members
            continue
        guards = [statement.store.guards[depth] for statement in members]
        sides: tuple[list[Statement], list[Statement]] = ([], [])
        for statement, guard in zip(members, guards, strict=True):
            sides[0 if guard.holds else 1].append(statement)
        yield guards[0].test, *sides


def settled(value: Affine, loops: Sequence[Loop]) -> Affine:
    """Return an expression of loops whose quotients and remainders are as simple as the loops' steps and ends allow.

    With i in range(0, 64, 8) and ii in range(8): (i + ii) // 8 is i // 8, and (i + ii) % 8 is ii.
    """
    terms = [(s, factor) for s, factor in value.terms if isinstance(s, Term)]
    if not terms or not loops:
        return value
    total: Affine = value - Affine.of(dict(terms))
    steps: dict[Symbol, int] = {loop.index: loop.step for loop in loops}
    lasts: dict[Symbol, int | None] = {loop.index: loop.last for loop in loops}
    for division, factor in terms:
        if not isinstance(division, Division):
            total = total + factor * division.of(*(settled(part, loops) for part in division.parts))
            continue
        inner = settled(division.value, loops)
        whole = Affine.of({s: c for s, c in inner.terms if c * steps.get(s, 1) % division.divisor == 0})
        rest = inner - whole
        low, high = rest.bounds(lambda symbol: (0, lasts.get(symbol)))
        divisor, is_quotient = division.divisor, isinstance(division, Quotient)
        if low is not None and high is not None and low // divisor == high // divisor:
            times = low // divisor
            found = whole // divisor + times if is_quotient else rest - times * divisor
        else:
            found = division.of(rest) + (whole // divisor if is_quotient else 0)
        total = total + factor * found
    return total


# --- loops and parts -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loop:
    """for index in range(0, stop, step); `stop` is a number or the expression of a `Dimension`."""

    index: Index
    stop: Affine
    step: int = 1

    @property
    def trips(self) -> int | None:
        """How often the loop runs, None where only the launch knows."""
        return -(-self.stop.constant // self.step) if self.stop.is_constant else None

    @property
    def last(self) -> int | None:
        """The greatest value of the index, None where only the launch knows."""
        return None if self.trips is None else (self.trips - 1) * self.step

    def __str__(self) -> str:
        steps = f"0, {self.stop}, {self.step}" if self.step != 1 else f"{self.stop}"
        return f"for {self.index} in range({steps}):"


@dataclass(frozen=True)
class Condition:
    """value >= 0, or value == 0 for an equality, over the indices of loops."""

    value: Affine
    is_equality: bool = False

    def substitute(self, mapping: Mapping[Index, Affine]) -> Condition:
        """Return the condition with indices replaced."""
        return Condition(self.value.substitute(mapping), self.is_equality)

    def __str__(self) -> str:
        # What is known goes to the right: sizes and the constant.
        left = Affine.of({s: c for s, c in self.value.terms if not isinstance(s, Dimension)})
        right: Affine = left - self.value
        rises = [c > 0 for _, c in left.terms]
        if self.is_equality:
            return f"{left} == {right}" if any(rises) else f"{-left} == {-right}"
        if any(rises) and (self.value.constant <= 0 or all(rises)):
            return f"{left} >= {right}"
        return f"{-left} < {1 - right}"


@dataclass(frozen=True, eq=False)
class Part:
    """A nest among the loops: its statements, its own indices as expressions of the loops, and its conditions.

    `shape` are the nest's extents: of functions also expressions of the caller's indices, None where loops are erased.
    Parts run in their order at each point. Parts of one `group` were declared to run within one another: `sequence`
    says when, as numbers and indices that count from the outermost on. All other parts were declared to run one after
    the other.
    """

    indices: tuple[Index, ...]
    statements: tuple[Statement, ...]
    places: Mapping[Index, Affine]
    shape: tuple[Size | Affine | None, ...]
    conditions: tuple[Condition, ...] = ()
    group: object = None
    sequence: tuple[int | Index, ...] = ()

    def substitute(self, mapping: Mapping[Index, Affine]) -> Part:
        """Return the part with loops' indices replaced."""
        return replace(
            self,
            places={index: place.substitute(mapping) for index, place in self.places.items()},
            conditions=tuple(c.substitute(mapping) for c in self.conditions),
        )

    @cached_property
    def fixed(self) -> frozenset[Index]:
        """The loops of others, which the part stands at the start of, also where they run to 0."""
        return frozenset(
            symbol
            for condition in self.conditions
            for symbol, factor in condition.value.terms
            if condition.is_equality and len(condition.value.terms) == 1 and not condition.value.constant
            if isinstance(symbol, Index)
        )

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield the lines of the statements, at their places among the loops, and how deep each is indented."""
        yield from _lines([at_places(statement, self.places) for statement in self.statements], 0)

    def settled(self, loops: Iterable[Loop]) -> Part:
        """Return the part without conditions that hold wherever some loops stand."""
        lasts: dict[Symbol, int | None] = {loop.index: loop.last for loop in loops}

        def holds(condition: Condition) -> bool:
            low, high = condition.value.bounds(lambda symbol: (0 if symbol in lasts else None, lasts.get(symbol)))
            return low == high == 0 if condition.is_equality else low is not None and low >= 0

        return replace(self, conditions=tuple(c for c in self.conditions if not holds(c)))

    def where(self, *conditions: Condition) -> Part:
        """Return the part with further conditions."""
        return replace(self, conditions=(*self.conditions, *conditions))


@dataclass(frozen=True, eq=False)
class LoopNest:
    """Loops, outermost first, and parts. `precedences` are pairs of indices whose first has to stay outside the second.

    `unrolled` are the indices whose loops are unrolled; `fusing` those that number fused schedules, and `padded` those
    that were padded. The last `fuse` let its schedules share the loops of `fused`, and those of `unfused` are of one
    schedule each. Where `is_unchecked`, `fuse` has ordered the loops, and no dependence was compared with that order.
    """

    loops: tuple[Loop, ...]
    parts: tuple[Part, ...]
    precedences: tuple[tuple[Index, Index], ...] = ()
    unrolled: frozenset[Index] = field(default_factory=frozenset)
    fusing: tuple[Index, ...] = ()
    padded: frozenset[Index] = field(default_factory=frozenset)
    fused: tuple[Index, ...] = ()
    unfused: tuple[Index, ...] = ()
    is_unchecked: bool = False
    called: tuple[
        Index, ...
    ] = ()  # the loops of what the nest calls: an order may leave them out, inside of all others

    @property
    def order(self) -> tuple[Index, ...]:
        return tuple(loop.index for loop in self.loops)

    def position(self, index: Index) -> int:
        """Return the place of an index among the loops. Raises `ScheduleError` for one that is not there."""
        for n, loop in enumerate(self.loops):
            if loop.index is index:
                return n
        raise ScheduleError(
            f"{index!r} is not a loop of this schedule", help=f"its loops are {', '.join(map(str, self.order))}"
        )

    def loop(self, index: Index) -> Loop:
        """Return the loop of an index."""
        return self.loops[self.position(index)]

    def sequence(self, number: int) -> tuple[int | Index, ...]:
        """Return when a part was declared to run: numbers and its own indices, which count from the outermost on."""
        part = self.parts[number]
        if part.group is None:
            return (number, *part.indices)
        first = next(n for n, other in enumerate(self.parts) if other.group == part.group)
        return (first, *part.sequence)

    def dimensions(self) -> Iterator[Dimension]:
        """Yield the sizes that only the launch knows, each once."""
        extents: dict[Dimension, None] = {}
        for part in self.parts:
            extents.update((extent, None) for extent in part.shape if isinstance(extent, Dimension))
        yield from extents

    def text(self) -> str:
        """Return the loops as Python would have them."""
        lines = [
            f"{'    ' * n}{loop}{'  # unrolled' if loop.index in self.unrolled else ''}"
            for n, loop in enumerate(self.loops)
        ]
        for part in self.parts:
            depth = len(self.loops)
            if part.conditions:
                lines.append(f"{'    ' * depth}if {' and '.join(map(str, part.conditions))}:")
                depth += 1
            lines += [f"{'    ' * (depth + deeper)}{line}" for deeper, line in part.lines()]
        return "\n".join(lines)


def _lines(statements: list[Statement], depth: int, word: str = "if") -> Iterator[tuple[int, str]]:
    for group in grouped(statements, depth):
        if isinstance(group, Statement):
            yield 0, group.text()
            continue
        test, then, orelse = group
        if then:
            yield 0, f"{word} {test}:"
            yield from ((at + 1, line) for at, line in _lines(then, depth + 1))
        if orelse and then and len(list(grouped(orelse, depth + 1))) == 1 and len(orelse[0].store.guards) > depth + 1:
            yield from _lines(orelse, depth + 1, "elif")
        elif orelse:
            yield 0, "else:" if then else f"{word} not ({test}):"
            yield from ((at + 1, line) for at, line in _lines(orelse, depth + 1))


def substituted(statement: Statement, part: Part) -> str:
    """Return a statement's text with the nest's indices replaced by their places among the loops."""
    return str(at_places(statement, part.places))
