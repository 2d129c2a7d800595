"""A loop of the device whose body is traced: which variables and places it carries, of which types.

The body is traced with what is known before the loop, and again where an iteration leaves something else: other types
of Python numbers (`acc = 0.0`), wider ranges of integers, an item of a list that the body assigns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from types import CodeType
from typing import Any

from tilewright.arguments import shown
from tilewright.dtypes import DType
from tilewright.errors import LanguageError
from tilewright.ir.core import Block, Value
from tilewright.ir.facts import Facts, exactly, unknown
from tilewright.trace.aliases import aliased, note_copies, watch
from tilewright.trace.carry import (
    RESULT,
    Carried,
    TakesType,
    Undefined,
    flatten,
    joined_facts,
    merge_types,
    placeholder,
    unwrap,
)
from tilewright.trace.control import end
from tilewright.trace.heap import LOOP, Heap, Place, replaced, snapshot
from tilewright.trace.holders import same_value
from tilewright.trace.literals import rounded
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import Tracer
from tilewright.trace.variables import Variables

# The inferred facts of carried integers settle after a few traces of the body; then the widest are taken.
_MAX_TRACES = 8
_EXACT_TRACES = 2
_MAX_STARTS = 100  # how often a trace of the body may find more places to carry


@dataclass(eq=False)
class Settled:
    """What a loop carried when it was last traced: where the loop around it has it traced again, it is mostly the same.

    `facts` are those of `leaves`, where an iteration shows that no fewer would do.
    """

    code: CodeType
    places: list[tuple[Any, Any]] = field(default_factory=list)  # objects, and the keys of their places
    leaves: list[Value] = field(default_factory=list)
    facts: list[Facts | None] = field(default_factory=list)
    inner: list[Settled] = field(default_factory=list)


class Loop:
    """One loop of the device. `runs` says that it runs at least once."""

    def __init__(
        self, tracer: Tracer, variables: Variables, functions: Sequence[Callable[..., Any]], *, runs: bool
    ) -> None:
        self.tracer = tracer
        self.variables = variables
        self.runs = runs
        self.initial: list[Any] = variables.read()
        self.heap: Heap = snapshot(tracer, functions, variables.cells)
        self.places: list[Place] = []
        self.carried: Carried = self._flattened()
        self._copied: dict[int, Any] = {}  # the objects that are carried by what they hold, and that others hold too
        self._first: set[int] = set()  # the variables that the loop assigns first and that have a value after it
        self._valueless: set[int] = set()  # those that have none
        self._known = _take_known(tracer, functions[0].__code__)

    def _flattened(self) -> Carried:
        names = (*self.variables.names, *(place.name for place in self.places))
        return flatten(self._befores(), names, holds=self.heap.holds)

    def put(self, leaves: Sequence[Value]) -> None:
        """Set the variables and places to stand-ins, and all else to what it is before the loop."""
        values = self.carried.rebuild(list(leaves))
        count = len(self.initial)
        self.variables.write(values[:count])
        self.heap.restore()
        self.heap.write(self.places, values[count:])
        if self._copied:
            for name, before, value in zip(self.carried.names, self._befores(), values, strict=True):
                note_copies(self.tracer, name, before, value, self._copied.keys())

    def _befores(self) -> list[Any]:
        return [*self.initial, *(place.before for place in self.places)]

    def settle(self, trace: Callable[[list[Value]], Block]) -> tuple[Block, tuple[Value, ...]]:
        """Trace the body until what it assumes holds after an iteration; return it and what the loop starts with.

        `trace` begins its block with `put`, which may emit what stand-ins need.
        """
        around = self.tracer.settled, self.tracer.next_loop
        try:
            initial = list(self.initial)
            if self._guess():
                found = self._settle(trace, guessed=True)
                if found is not None:
                    return found
                self.initial, self.places = initial, []
                self._first.clear()
                self._valueless.clear()
                self.heap.restore()
                self.carried = self._flattened()
            found = self._settle(trace, guessed=False)
            assert found is not None
            return found
        finally:
            self.tracer.settled, self.tracer.next_loop = around

    def _settle(
        self, trace: Callable[[list[Value]], Block], *, guessed: bool
    ) -> tuple[Block, tuple[Value, ...]] | None:
        """Settle, from a guess or not. None where the guess carries more than iterations change, or assumes less."""
        tracer, known = self.tracer, self._known
        assumed: list[Facts | None] = [v.facts for v in self.carried.leaves]
        if guessed and [v.type for v in self.carried.leaves] == [v.type for v in known.leaves]:
            assumed = [joined_facts(a, f) for a, f in zip(assumed, known.facts, strict=True)]
        attempt = starts = 0
        requirements, copies = dict(tracer.requirements), len(tracer.copies)
        while attempt < _MAX_TRACES:
            tracer.requirements = dict(requirements)
            del tracer.copies[copies:]
            carried = self.carried
            leaves = [Value(v.type, n, f) for v, n, f in zip(carried.leaves, carried.leaf_names, assumed, strict=True)]
            tracer.weak_leaves.update(v for v, weak in zip(leaves, carried.weak, strict=True) if weak)
            tracer.settled, tracer.next_loop = known.inner, 0
            try:
                block = trace(leaves)
                with tracer.inside(block):
                    after = None if self._changed() else self._flattened_after()
                    if after is None and starts < _MAX_STARTS:
                        left = self.values()
                        self.heap.restore()  # what is carried starts with what objects hold before the loop
                        self.carried = self._flattened()
                        assumed = self._expected(left)
                        starts += 1
                        continue
                    assert after is not None, self.carried.names
                    wider = merge_types(carried, after)
                    if wider is None:
                        next_values = tuple(unwrap(after, carried))
                        needed = [joined_facts(a, v.facts) for a, v in zip(assumed, next_values, strict=True)]
                        if needed == assumed:
                            exact = self._remember(leaves, next_values)
                            if guessed and not exact:
                                tracer.requirements = requirements
                                del tracer.copies[copies:]
                                return None
                            _refuse_overflow(carried, after)
                            end(next_values)
                            return block, tuple(carried.leaves)
                        assumed = [
                            _widened(a, f, v, attempt) for a, f, v in zip(assumed, needed, carried.leaves, strict=True)
                        ]
            except TakesType as met:
                if met.leaf not in leaves:
                    raise
                self.carried = self._typed(leaves.index(met.leaf), met.dtype)
                assumed = [v.facts for v in self.carried.leaves]
                continue
            attempt += 1
            if wider is not None:
                self.carried = wider
                assumed = [v.facts for v in wider.leaves]
        names = ", ".join(self.carried.names)
        raise LanguageError(f"the types of the loop's variables change with each iteration: {names}")

    def _expected(self, left: Sequence[Any]) -> list[Facts | None]:
        """Return the facts to assume of what is carried, where an iteration that carried less has left these values.

        It began with what was before the loop, so what it left is among what the loop's iterations meet.
        """
        assumed = [v.facts for v in self.carried.leaves]
        bounds = [None] * len(self.initial) + [_bounds_of(place) for place in self.places]
        n = 0
        for part, value, bound in zip(self.carried.parts, left, bounds, strict=True):
            if part.shape == ("number",):
                dtype = self.carried.leaves[n].dtype
                for facts in (_facts_in(dtype, value), bound):
                    assumed[n] = joined_facts(assumed[n], facts) if facts is not None else assumed[n]
            n += part.count
        return assumed

    def _guess(self) -> bool:
        """Carry the places that were carried the last time, before the first trace; say whether there is a guess."""
        known = self._known
        found = {id(each.object): each for each in self.heap.found}
        for value, key in known.places:
            each = found.get(id(value))
            if each is not None and key in self.heap.held(each):
                self.places.append(self.heap.place(each, key))
        if self.places:
            self.carried = self._flattened()
        return bool(self.places or known.leaves)

    def _remember(self, leaves: Sequence[Value], after: Sequence[Value]) -> bool:
        """Keep what the loop carries; say whether it is no more than an iteration shows to be needed."""
        known, carried = self._known, self.carried
        known.places = [(place.found.object, place.key) for place in self.places]
        starts = [v.facts for v in carried.leaves]
        least = [joined_facts(a, v.facts) for a, v in zip(starts, after, strict=True)]
        exact = least == [v.facts for v in leaves]
        known.leaves, known.facts = (list(leaves), least) if exact else ([], [])
        count = sum(part.count for part in carried.parts[: len(self.initial)])
        for part in carried.parts[len(self.initial) :]:
            places = range(count, count + part.count)
            if all(after[n] is leaves[n] for n in places):
                exact = False
            count += part.count
        return exact

    def _typed(self, n: int, dtype: DType) -> Carried:
        """Return what is carried with a type for one Python number."""
        leaves, weak = list(self.carried.leaves), list(self.carried.weak)
        leaves[n], weak[n] = as_scalar(self.carried.numbers[n], dtype).value, False
        return replace(self.carried, leaves=leaves, weak=weak)

    def finish(self, results: Sequence[Value]) -> None:
        """Set the variables and places to what the loop leaves.

        A variable without a value before it has none after it: the loop may not run.
        """
        for result, name in zip(results, self.carried.leaf_names, strict=True):
            result.name = name
        self.put(results)
        if self._copied:
            moved = (
                name for name, before in zip(self.carried.names, self._befores(), strict=True) if _is_object(before)
            )
            watch(self.tracer, next(moved, "a variable"), list(self._copied.values()))
        for name, value in zip(self.variables.names, self.variables.read(), strict=True):
            if isinstance(value, Undefined):
                reason = "it is assigned only inside a loop, which may not run at all"
                if self.runs:
                    reason = "an iteration of the loop may leave it without one, or with what another cannot take over"
                self.variables.set(name, Undefined(name, reason))

    def values(self) -> list[Any]:
        """Return what the carried variables and places hold now."""
        return [*self.variables.read(), *(place.read() for place in self.places)]

    def refuse_changes(self, before: Sequence[Any], where: str) -> None:
        """Raise `LanguageError` where a variable or an object is not what it was, `before` being what is carried."""
        changed = [place.name for place in self._new(self.heap.places(self.heap.changes(where)))]
        for name, old, new in zip(self.carried.names, before, self.values(), strict=True):
            if not same_value(old, new):
                changed.append(name)
        if changed:
            self.heap.restore()
            raise LanguageError(
                f"{changed[0]!r} changes {where}",
                help="change it in the loop's body: write while True, and break where the condition does not hold",
            )

    def _new(self, places: Sequence[Place]) -> list[Place]:
        return [place for place in places if not any(place.same(known) for known in self.places)]

    def _changed(self) -> bool:
        """Take up what an iteration changes that is not carried yet; say whether there was any."""
        found = False
        objects: list[Any] = []
        befores, afters = self._befores(), self.values()
        for n, (before, after) in enumerate(zip(befores, afters, strict=True)):
            if isinstance(before, Undefined):
                found |= self._first_assigned(n, after)
            objects += replaced(before, after, self.heap)
        if objects:
            self._replace(objects, befores, afters)
        if found or objects:
            self.places = []
            return True
        new = self._new(self.heap.places(self.heap.changes(LOOP)))
        self.places += new
        for place in new:  # numbers that change together: an iteration from their first values may change only some
            self.places += self._new([self.heap.place(place.found, key) for key in _numbers_of(place.found.object)])
        return bool(new)

    def _replace(self, objects: Sequence[Any], befores: Sequence[Any], afters: Sequence[Any]) -> None:
        """Carry objects by what they hold, because variables and places hold others after an iteration."""
        count = len(self.initial)
        self.variables.write(self.initial)
        self.heap.restore()
        names, cells = self.variables.names, self.variables.cells
        moved = [before is not after for before, after in zip(befores, afters, strict=True)]
        variables = {name: cell for name, cell, is_moved in zip(names, cells, moved, strict=False) if is_moved}
        places = [place for place, is_moved in zip(self.places, moved[count:], strict=True) if is_moved]
        copied = aliased(self.tracer, objects, self.heap, variables, places)
        if copied:  # any of them may become any other: by a swap, say
            self._copied.update((id(value), value) for value in objects)
        self.heap.release(objects)
        for value in objects:
            if id(value) not in copied:  # nothing else reaches it
                self.heap.forget(value)

    def _first_assigned(self, n: int, after: Any) -> bool:
        """Give a variable that the loop assigns first a stand-in before it: what a return assigns, or a loop that runs.

        The first trace, in which it had no value, has shown that no iteration reads it before it assigns it.
        """
        if isinstance(after, Undefined) or n >= len(self.initial):
            return False
        if self.variables.names[n] != RESULT:
            if not self.runs or n in self._valueless:
                return False
            self._first.add(n)
        self.initial[n] = placeholder(after)
        return True

    def _flattened_after(self) -> Carried | None:
        """Take apart what an iteration leaves. None where a variable that the loop assigns first has no stand-in.

        It is left without a value then: a function made in the loop, say.
        """
        after = flatten(self.values(), self.carried.names, like=self.carried, holds=self.heap.holds)
        unfit = [n for n in self._first if self.carried.parts[n].shape != after.parts[n].shape]
        for n in unfit:
            self._first.discard(n)
            self._valueless.add(n)
            self.initial[n] = Undefined(self.variables.names[n], "it is not assigned before this point")
        return None if unfit else after


def _numbers_of(state: Any) -> dict[str, tuple[int, int]]:
    """Return the numbers of one of our states that change together, with their bounds; none of other objects."""
    numbers: dict[str, tuple[int, int]] = {}
    if getattr(type(state), "__tilewright_state__", False):
        numbers = getattr(state, "leaves", numbers)
    return numbers


def _bounds_of(place: Place) -> Facts | None:
    """Return between which numbers a place of a state is expected to stay, None of other objects."""
    bounds = _numbers_of(place.found.object).get(place.key)
    return None if bounds is None else Facts(*bounds)


def _facts_in(dtype: DType, value: Any) -> Facts | None:
    """Return the facts of a number of a type, None of others and of what is not known to be an integer of it."""
    if isinstance(value, Scalar) and value.dtype is dtype:
        return value.value.facts
    return exactly(value) if type(value) is int and dtype.lowest <= value <= dtype.highest else None


def _take_known(tracer: Tracer, code: CodeType) -> Settled:
    """Return what the last trace of the loop around settled of this loop of it, or a record to fill."""
    n = tracer.next_loop
    tracer.next_loop += 1
    if n >= len(tracer.settled) or tracer.settled[n].code is not code:
        tracer.settled[n:] = [Settled(code)]
    return tracer.settled[n]


def _refuse_overflow(carried: Carried, after: Carried) -> None:
    """Raise `LanguageError` where a finite Python float is infinite in the type that a loop carries it in."""
    for side in (carried, after):
        for number, leaf in zip(side.numbers, carried.leaves, strict=True):
            if not isinstance(number, float) or not isfinite(number) or not leaf.dtype.is_float:
                continue
            if not isfinite(rounded(number, leaf.dtype)):
                raise LanguageError(
                    f"{shown(number)} does not fit into {leaf.dtype}, which the variable has in the loop",
                    help=f"write tw.float64({shown(number)}), or float('inf') for what is larger than any number",
                )


def _is_object(value: Any) -> bool:
    return not isinstance(value, (Scalar, Undefined, int, float, str))


def _widened(assumed: Facts | None, needed: Facts | None, value: Value, attempt: int) -> Facts | None:
    """Return the facts to assume next: the join at first, then bounds that still grow go to the type's."""
    if assumed is None or needed is None or needed == assumed or attempt < _EXACT_TRACES - 1:
        return needed
    if attempt >= _MAX_TRACES - 3:
        return unknown(value.dtype)
    low = needed.low if needed.low >= assumed.low else value.dtype.lowest
    high = needed.high if needed.high <= assumed.high else value.dtype.highest
    return Facts(low, high, needed.divisor)
