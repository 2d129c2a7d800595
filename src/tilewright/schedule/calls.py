"""Calls in the logic of a nest: what a function of a package computes, at each point of another nest.

A call is inlined. Its loops run inside of those of the nest that calls, its arrays are the arguments, and what its
statements access are these, so that dependences between calls, and between arguments that are one array, are
known exactly. A nest of several statements and calls has a loop that numbers them, as fused schedules have:

    for i: S; f(A, i); T        ->        for i: for call in range(3): for the loops of f:
                                              if call == 0 and these are 0: S
                                              if call == 1: the statements of f
                                              if call == 2 and these are 0: T
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Union

from tilewright.errors import ScheduleError
from tilewright.schedule.affine import (
    Affine,
    Dimension,
    Index,
    Position,
    Size,
    as_affine,
    recording,
)
from tilewright.schedule.arrays import Array, Load, Role, Store, record
from tilewright.schedule.elements import with_arrays
from tilewright.schedule.loop_nest import Condition, Loop, LoopNest, Part, Statement
from tilewright.schedule.orders import refuse_violations
from tilewright.schedule.places import as_index, least_and_most, spread
from tilewright.schedule.private import is_same
from tilewright.schedule.values import Apply, Convert, Expression, Guard, expression
from tilewright.source import SourceLocation

Replaced = Mapping[Any, Any]  # Any: parameters, and the sizes that are theirs; what stands in their place


@dataclass(frozen=True, eq=False)
class Call:
    """A function's loops, what its parameters and sizes are, and where it is called."""

    name: str
    nest: LoopNest
    replaced: Replaced
    guards: tuple[Guard, ...]
    location: SourceLocation | None


Step = Union[Statement, Call]


def record_call(
    name: str, nest: LoopNest, parameters: Sequence[Array], arguments: Sequence[Any], location: SourceLocation | None
) -> None:  # Any: arrays, and numbers for arrays without modes
    """Record a call in the logic of a nest. Raises `ScheduleError` for arguments that do not fit the parameters."""
    assert recording.stores is not None, name
    names = ", ".join(parameter.name for parameter in parameters)
    if len(arguments) != len(parameters):
        raise ScheduleError(
            f"{name} takes {len(parameters)} arguments, ({names}), got {len(arguments)}", location=location
        )
    replaced: dict[Any, Any] = {}  # Any: as in Replaced
    for parameter, argument in zip(parameters, arguments, strict=True):
        _match(name, parameter, argument, replaced, location)
    for size in _sizes(nest):
        if size not in replaced:
            raise ScheduleError(
                f"{name} runs to {size}, which none of its arguments gives", location=location,
                help="let it take an array of that extent, or the size itself",
            )  # fmt: skip
    recording.stores.append(Call(name, nest, replaced, recording.guards, location))


def _match(
    name: str, parameter: Array, argument: Any, replaced: dict[Any, Any], location: SourceLocation | None
) -> None:  # Any: as in record_call
    size: Dimension | None = getattr(parameter, "stands_for", None)  # of a number that gives a size
    if size is not None:
        place = as_index(argument)
        if place is None:
            shown = argument if isinstance(argument, Expression) else repr(argument)
            raise ScheduleError(
                f"{name} takes the size {parameter.name}, got {shown}, which is not affine",
                location=location,
                help="give a number, a size, an affine expression of indices, or a minimum or maximum of such",
            )
        _replace(name, size, place, replaced, location)
        return
    if not parameter.rank and not isinstance(argument, Array):
        replaced[parameter] = expression(argument)
        return
    if not isinstance(argument, Array):
        raise ScheduleError(f"{name} takes the array {parameter!r}, got {argument!r}", location=location)
    declared = f"{name} takes {parameter!r}, got {argument!r}"
    if argument.rank != parameter.rank:
        raise ScheduleError(f"{declared}: {parameter.rank} modes, got {argument.rank}", location=location)
    if argument.element_type is not parameter.element_type:
        raise ScheduleError(f"{declared}: elements of another type", location=location)
    if parameter.role in (Role.OUTPUT, Role.INPUT_OUTPUT) and argument.role in (Role.INPUT, Role.CONST):
        raise ScheduleError(
            f"{declared}: {name} writes it", location=location, help="declare it with Role.INPUT_OUTPUT or Role.OUTPUT"
        )
    for extent, given in zip(parameter.shape, argument.shape, strict=True):
        if isinstance(extent, Dimension):
            _replace(name, extent, as_affine(given), replaced, location)
        elif not is_same(as_affine(given), Affine((), extent)):
            raise ScheduleError(f"{declared}: an extent of {extent}, got {given}", location=location)
    replaced[parameter] = argument


def _replace(name: str, size: Dimension, value: Affine, replaced: dict[Any, Any], location: Any) -> None:
    if size in replaced and not is_same(replaced[size], value):
        raise ScheduleError(
            f"{name} takes one size {size} where the arguments have {replaced[size]} and {value}", location=location
        )
    replaced[size] = value


def _sizes(nest: LoopNest) -> list[Dimension]:
    """Return the sizes that the loops run to, and that statements name."""
    found: dict[Dimension, None] = {}
    for loop in nest.loops:
        found.update((s, None) for s in loop.stop.symbols() if isinstance(s, Dimension))
    for part in nest.parts:
        values = [place for statement in part.statements for place in statement.places()]
        for value in (*values, *(condition.value for condition in part.conditions)):
            found.update((s, None) for s in value.symbols() if isinstance(s, Dimension))
    return list(found)


# --- nests with calls ------------------------------------------------------------------------------------


def with_calls(
    indices: tuple[Index, ...], shape: tuple[Size, ...], loops: Sequence[Loop], steps: Sequence[Step]
) -> LoopNest:
    """Return the loops of a nest with those of what it calls. Raises `ScheduleError` as `refuse_violations` does.

    That is where arguments are one array, so that an order of the function's loops which was legal for different
    arrays is not.
    """
    segments = list(_segments(steps))
    _refuse_changing_conditions(steps)
    numbering = Index("call")
    group = object()
    all_loops = [*loops, *([Loop(numbering, Affine((), len(segments)))] if len(segments) > 1 else [])]
    box = dict(zip(indices, shape, strict=True))
    inlined = [_Inlined(segment, box) if isinstance(segment, Call) else None for segment in segments]
    own = [loop for each in inlined if each is not None for loop in each.loops]
    parts: list[Part] = []
    precedences: list[tuple[Index, Index]] = []
    unrolled: set[Index] = set()
    fusing: list[Index] = []
    for number, (segment, each) in enumerate(zip(segments, inlined, strict=True)):
        here = [] if each is None else each.loops
        conditions = [Condition(loop.index.as_affine(), True) for loop in own if loop not in here]
        if len(segments) > 1:
            conditions.insert(0, Condition(numbering - number, True))
        around = {index: index.as_affine() for index in indices}
        if each is None:
            assert isinstance(segment, tuple), segment
            sequence: tuple[int | Index, ...] = (*indices, number)
            parts.append(Part(indices, segment, around, shape, tuple(conditions), group, sequence))
            continue
        for part, inner in each.parts():
            parts.append(
                Part(
                    (*indices, *part.indices),
                    part.statements,
                    {**around, **part.places},
                    (*shape, *part.shape),
                    (*conditions, *part.conditions),
                    group,
                    (*indices, number, *inner),
                )
            )
        precedences += each.precedences
        unrolled |= each.unrolled
        fusing += each.fusing
    if len(segments) > 1:
        precedences += [(numbering, loop.index) for loop in own]
        fusing.insert(0, numbering)
    called = tuple(loop.index for loop in (*all_loops[len(loops) :], *own))
    settled = [part.settled((*all_loops, *own)) for part in parts]
    nest = LoopNest(
        (*all_loops, *own), _numbered(settled), tuple(precedences), frozenset(unrolled), tuple(fusing), called=called
    )
    names = ", ".join(dict.fromkeys(segment.name for segment in segments if isinstance(segment, Call)))
    refuse_violations(replace(nest, loops=()), nest, f"calling {names}")
    return nest


def _refuse_changing_conditions(steps: Sequence[Step]) -> None:
    """Raise `ScheduleError` where a call runs under a condition on elements that the nest writes.

    The condition is computed in each iteration of the call's loops, and has to be the same in all of them.
    """
    written = {step.store.array for step in steps if isinstance(step, Statement)}
    for call in (step for step in steps if isinstance(step, Call)):
        stores = (statement.store.array for part in call.nest.parts for statement in part.statements)
        written |= {_memory(call.replaced.get(array, array)) for array in stores}
    for call in (step for step in steps if isinstance(step, Call)):
        for guard in call.guards:
            for load in guard.test.loads():
                if _memory(load.array) in written:
                    raise ScheduleError(
                        f"{call.name} is called under the condition {guard.test}, and {load.array.name} is written",
                        location=call.location,
                        help="keep what the condition reads in an array that the nest does not write",
                    )


def _memory(array: Any) -> Any:  # Any: an array, or a view of one
    return getattr(array, "memory", array)


def _numbered(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return parts whose statements are numbered through."""
    found, count = [], 0
    for part in parts:
        statements = tuple(Statement(count + n, statement.store) for n, statement in enumerate(part.statements))
        count += len(statements)
        found.append(replace(part, statements=statements))
    return tuple(found)


def _segments(steps: Sequence[Step]) -> Iterator[tuple[Statement, ...] | Call]:
    for is_call, group in groupby(steps, lambda step: isinstance(step, Call)):
        if is_call:
            yield from group  # type: ignore[misc]  # calls
        else:
            yield tuple(group)  # type: ignore[arg-type]  # statements


def _spread(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return conditions with one for each part of a minimum, and without those that follow from others."""
    found: list[Condition] = []
    for condition in conditions:
        values = (condition.value,) if condition.is_equality else spread(condition.value)
        found += [Condition(value, condition.is_equality) for value in values]
    kept: list[Condition] = []
    for number, condition in enumerate(found):
        others = (*kept, *found[number + 1 :])
        if condition.is_equality or not any(_follows(condition, other) for other in others):
            kept.append(condition)
    return tuple(kept)


def _follows(condition: Condition, other: Condition) -> bool:
    """Whether a condition is met wherever another one is: it has more of indices, which are from 0, on its left."""
    more: Affine = condition.value - other.value
    return not other.is_equality and more.constant >= 0 and all(c > 0 and isinstance(s, Index) for s, c in more.terms)


class _Inlined:
    """A call's loops under indices of its own, and its parts on the arguments."""

    def __init__(self, call: Call, box: Mapping[Index, Size]) -> None:
        self.call, self.box = call, box
        nest = call.nest
        self.indices = {loop.index: Index(loop.index.name) for loop in nest.loops}
        self.sizes: dict[Any, Affine] = {s: x for s, x in call.replaced.items() if isinstance(s, Dimension)}
        self.loops = [Loop(self.indices[loop.index], self._stop(loop), loop.step) for loop in nest.loops]
        self.precedences = [(self.indices[a], self.indices[b]) for a, b in nest.precedences]
        self.unrolled = {self.indices[index] for index in nest.unrolled}
        self.fusing = [self.indices[index] for index in nest.fusing]

    def _stop(self, loop: Loop) -> Affine:
        """Return where a loop ends at the latest: at a number, or an expression of sizes."""
        stop = loop.stop.substitute(self.sizes)
        _, most = least_and_most(stop, self.box)
        most.sort(key=lambda end: (bool(end.terms), bool(end.nonlinear()), end.constant))
        if not most or (most[0].is_constant and most[0].constant < 1):
            end = f"{stop}, which has no end that is known" if not most else f"{stop}, {most[0]} at most"
            end = f"{stop}" if stop.is_constant else end
            raise ScheduleError(
                f"loop {loop.index} of {self.call.name} would run to {end}",
                location=self.call.location,
                help="give a size that is at least 1 somewhere, or call the function under a condition: If",
            )
        return most[0]

    def _ends(self, part: Part) -> Iterator[Condition]:
        """Yield the conditions that loops end where the call says, for those that may run further."""
        for loop, mine in zip(self.call.nest.loops, self.loops, strict=True):
            stop = loop.stop.substitute(self.sizes)
            if loop.index not in part.fixed and not is_same(stop, mine.stop):
                yield Condition(stop - 1 - mine.index)

    def parts(self) -> Iterator[tuple[Part, tuple[int | Index, ...]]]:
        """Yield each part, and when it was declared to run among the others of the call."""
        mapping: dict[Any, Affine] = {index: new.as_affine() for index, new in self.indices.items()}  # Any: symbols
        mapping |= self.sizes
        for number, part in enumerate(self.call.nest.parts):
            statements = tuple(x for statement in part.statements for x in self._statements(statement))
            shape = tuple(self._extent(extent) for extent in part.shape)
            moved = part.substitute(mapping)
            conditions = _spread((*moved.conditions, *self._ends(part)))
            yield (
                replace(moved, statements=statements, shape=shape, conditions=conditions),
                self.call.nest.sequence(number),
            )

    def _extent(self, extent: Size | Affine | None) -> Size | Affine | None:
        if isinstance(extent, Affine):
            return self._at(extent)
        if not isinstance(extent, Dimension):
            return extent
        value: Affine = self.sizes[extent]
        if value.is_constant:
            return value.constant
        symbol, factor = value.terms[0]
        is_size = isinstance(symbol, Dimension) and factor == 1 and len(value.terms) == 1 and not value.constant
        return symbol if is_size else value  # type: ignore[return-value]  # a size

    def _statements(self, statement: Statement) -> Iterator[Statement]:
        store = statement.store
        target = self.call.replaced.get(store.array, store.array)
        place, value = tuple(map(self._at, store.place)), self._value(store.value)
        for made in record(lambda: target.__setitem__(place, value)):
            guards = tuple(Guard(guard.decision, self._value(guard.test), guard.holds) for guard in store.guards)
            made = Store(made.array, made.place, made.value, store.location, (*self.call.guards, *guards))
            yield Statement(statement.number, made)

    def _at(self, value: Affine) -> Affine:
        return with_arrays(value.substitute(self.sizes), self.call.replaced)

    def _value(self, x: Expression) -> Expression:
        if isinstance(x, Load):
            argument = self.call.replaced.get(x.array, x.array)
            if isinstance(argument, Expression):
                return argument
            read: Expression = argument[tuple(map(self._at, x.place))]
            return read
        if isinstance(x, Position):
            return expression(self._at(x.place))
        if isinstance(x, Convert):
            return Convert(self._value(x.value), x.dtype)
        if isinstance(x, Apply):
            return Apply(x.name, x.function, tuple(map(self._value, x.arguments)))
        return x
