"""Loops and calls that wait for the values of parameters: recorded as they are declared, done when values are chosen.

A transform of loops is a function from a loop nest to a loop nest, so what waits is a chain of such functions. A plan
keeps its calls, which are done anew on a plan of the nest that the chain gives.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, cast

from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import ScheduleError
from tilewright.frames import hiding_frames, is_entry
from tilewright.pickling import find, place_of
from tilewright.schedule.affine import Affine, Index, as_affine
from tilewright.schedule.arrays import Array, Load, Store, View
from tilewright.schedule.elements import index_loads, with_arrays
from tilewright.schedule.loop_nest import LoopNest, Statement
from tilewright.schedule.parameters import Delayed, DelayedParameter
from tilewright.schedule.parameters import waiting as waiting_for
from tilewright.schedule.values import Apply, Convert, Expression, Guard, Later, expression

Method = TypeVar("Method", bound=Callable[..., Any])  # Any: whatever a plan's methods take and return


class DelayedNest(LoopNest):
    """A loop nest that a function will give when its arguments are known; asking for anything of it is an error.

    Which indices its loops have, and in which order, may be known before: then `has_order` gave them.
    """

    def __init__(self, function: Callable[..., LoopNest], arguments: tuple[Any, ...]) -> None:
        first = arguments[0]
        # The indices that number fused schedules are made when these are fused, so they are known.
        is_nest = isinstance(first, LoopNest)
        groups = {name: getattr(first, name) if is_nest else () for name in ("fusing", "fused", "unfused")}
        for name, value in {"function": function, "arguments": arguments, **groups}.items():
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # Python asks so whether an object has a method of its own, for copies for example
            raise AttributeError(name)
        raise waiting(self)

    @property
    def order(self) -> tuple[Index, ...]:
        known: tuple[Index, ...] | None = vars(self).get("known_order")
        if known is None:
            raise waiting(self)
        return known


def known_order(nest: LoopNest) -> tuple[Index, ...] | None:
    """Return the indices of a nest, outermost first, None where they depend on a parameter."""
    return vars(nest).get("known_order") if isinstance(nest, DelayedNest) else nest.order


def has_order(nest: LoopNest, order: Sequence[Index] | None, **groups: tuple[Index, ...]) -> LoopNest:
    """Return a nest that tells its indices, and the groups of those of fused schedules, also while it waits."""
    if isinstance(nest, DelayedNest) and order is not None:
        object.__setattr__(nest, "known_order", tuple(order))
        for name, indices in groups.items():
            object.__setattr__(nest, name, indices)
    return nest


def waiting(*x: Any) -> ScheduleError:  # Any: as in `parameters_in`
    """Return the error of asking for what depends on parameters without values, and names them."""
    return waiting_for(list(dict.fromkeys(map(str, parameters_in(x)))))


def numbered_by(nest: LoopNest, fusing: Index) -> LoopNest:
    """Return a nest of fused schedules that tells the index which numbers them, also while it waits."""
    if isinstance(nest, DelayedNest):
        object.__setattr__(nest, "fusing", (fusing, *nest.fusing))
    return nest


def transformed(function: Callable[..., LoopNest], *arguments: Any) -> LoopNest:  # Any: what the function takes
    """Return function(*arguments), delayed where an argument is."""
    return DelayedNest(function, arguments) if depends(arguments) else function(*arguments)


def parameters_in(x: Any) -> Iterator[DelayedParameter]:  # Any: asks what it is
    """Yield the parameters of which something is made."""
    if isinstance(x, DelayedParameter):
        yield x
    elif isinstance(x, Delayed):
        yield from parameters_in(getattr(x, "operands", ()))
    elif isinstance(x, DelayedNest):
        yield from parameters_in(vars(x)["arguments"])
    elif isinstance(x, Step):
        yield from parameters_in((x.args, x.kwargs))
    elif isinstance(x, Mapping):
        yield from parameters_in((*x.keys(), *x.values()))
    elif isinstance(x, (tuple, list)):
        for part in x:
            yield from parameters_in(part)
    elif isinstance(x, View):
        yield from parameters_in((x.parent, x.arguments))
    elif isinstance(x, Array):
        yield from parameters_in((x.shape, x.layout, x.element_type))
    elif isinstance(x, Statement):
        yield from parameters_in(list(x.named))
        yield from parameters_in(list(_delayed_in(x)))


def _delayed_in(statement: Statement) -> Iterator[Delayed]:
    """Yield the parameters, and what is made of them, that a statement names in its values, conditions and places."""
    elements: tuple[Load | Store, ...] = (*statement.elements, statement.store)
    indices: list[object] = [index for element in elements for index in element.indices]
    yield from (index for index in indices if isinstance(index, Delayed))
    left = [statement.store.value, *(guard.test for guard in statement.store.guards)]
    while left:
        x = left.pop()
        if isinstance(x, Later):
            yield x.value
        left += x.operands


def depends(x: Any) -> bool:  # Any: asks what it is
    """Say whether something has a parameter in it that waits for a value."""
    if isinstance(x, (Delayed, DelayedNest, Step)):
        return True
    if isinstance(x, Mapping):
        return any(depends(key) or depends(value) for key, value in x.items())
    if isinstance(x, (tuple, list)):
        return any(map(depends, x))
    if isinstance(x, View):
        return x.is_delayed
    if isinstance(x, Array):
        return depends(x.shape) or depends(x.layout) or depends(x.element_type)
    if isinstance(x, Statement):
        return any(depends(array) for array in x.named) or any(True for _ in _delayed_in(x))
    return False


class Step:
    """One call of a plan's method, and what it returned where it was done."""

    def __init__(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.method: Any = method
        self.args = args
        self.kwargs = kwargs
        self.result: Any = None  # Any: what methods return, such as a cache

    def __getstate__(self) -> dict[str, Any]:  # Any: attributes
        # Python finds what `recorded` made under the method's name, and the method within.
        place = place_of(self.method, self.method.__module__, self.method.__qualname__)
        assert place is not None, self.method
        return {**self.__dict__, "method": place}

    def __setstate__(self, state: dict[str, Any]) -> None:  # Any: attributes
        self.__dict__.update(state)
        self.method = find(*state["method"])


class Recorder:
    """What keeps the calls of its methods: they are done again on a copy once its parameters have values.

    `start` is the loop nest that it began with; it `is_delayed` from the first call on that waits for a value.
    """

    def __init__(self, start: LoopNest) -> None:
        self.start = start
        self.steps: list[Step] = []
        self.is_delayed: bool = isinstance(start, DelayedNest)
        self.is_within_step = False

    def restarted(self, start: LoopNest) -> Any:  # Any: another of its own class
        """Return one that begins with another loop nest, and on which nothing has been called."""
        raise NotImplementedError  # pragma: no cover  # a plan has its own


def recorded(method: Method) -> Method:
    """Let a plan keep the calls of a method, and only keep them from the first that waits for a parameter."""
    returns = method.__annotations__.get("return") != "None"

    def record(plan: Recorder, *args: Any, **kwargs: Any) -> Any:  # Any: as Method
        if plan.is_within_step:
            return method(plan, *args, **kwargs)
        step = Step(method, args, kwargs)
        if plan.is_delayed or depends((args, kwargs)):
            plan.steps.append(step)
            plan.is_delayed = True
            return step if returns else None
        plan.is_within_step = True
        try:
            step.result = method(plan, *args, **kwargs)
        finally:
            plan.is_within_step = False
        plan.steps.append(step)
        return step.result

    is_entry(record)  # it hands arguments on
    return cast("Method", functools.wraps(method)(hiding_frames(record)))


class Resolution:
    """One choice of values: what is declared with parameters, with their values in place. Each thing is made once."""

    def __init__(self, values: Mapping[Any, Any]) -> None:  # Any: parameters or their names; their values
        self.values = values
        self._made: dict[object, Any] = {}  # Any: arrays, nests, and results of steps

    def resolve(self, x: Any) -> Any:  # Any: whatever stands in an argument
        """Return something with values in place of parameters."""
        if isinstance(x, Delayed):
            return x.value_for(self.values)
        if isinstance(x, Mapping):
            return {self.resolve(key): self.resolve(value) for key, value in x.items()}
        if type(x) in (tuple, list):
            return type(x)(self.resolve(part) for part in x)
        if isinstance(x, DelayedNest):
            if x not in self._made:
                function, arguments = vars(x)["function"], vars(x)["arguments"]
                self._made[x] = function(*self.resolve(arguments))
            return self._made[x]
        if isinstance(x, Array):
            return self.array(x)
        if isinstance(x, Statement):
            return self._statement(x)
        return self._made.get(id(x), x)

    def array(self, array: Array) -> Array:
        """Return an array with values in place of parameters."""
        if not depends(array):
            return array
        if array not in self._made and isinstance(array, View):
            view = View(self.array(array.parent), array.method, self.resolve(array.arguments), array.name)
            view.number = array.number
            self._made[array] = view
        if array not in self._made:
            made = self._made[array] = copy.copy(array)
            made.declare(
                as_dtype(self.resolve(array.element_type)), self.resolve(array.shape), self.resolve(array.layout)
            )
        resolved: Array = self._made[array]
        return resolved

    def _statement(self, statement: Statement) -> Statement:
        if not depends(statement):
            return statement
        store = statement.store
        value = self._expression(store.value)
        guards = tuple(Guard(guard.decision, self._expression(guard.test), guard.holds) for guard in store.guards)
        made = Store(self.array(store.named), self._place(store.indices), value, store.location, guards)
        return Statement(statement.number, made)

    def _place(self, place: tuple[Affine, ...]) -> tuple[Affine, ...]:
        modes = [as_affine(self.resolve(mode)) for mode in place]
        arrays = {load.named: self.array(load.named) for load in index_loads(modes)}
        return tuple(with_arrays(mode, arrays) for mode in modes)

    def _expression(self, x: Expression) -> Expression:
        if isinstance(x, Load):
            return Load(self.array(x.named), self._place(x.indices))
        if isinstance(x, Later):
            return self._expression(expression(self.resolve(x.value)))
        if isinstance(x, Convert):
            return Convert(self._expression(x.value), x.dtype)
        if isinstance(x, Apply):
            return Apply(x.name, x.function, tuple(map(self._expression, x.arguments)))
        return x

    def plan(self, plan: Recorder) -> Any:  # Any: a plan
        """Return a plan whose calls are done with values in place of parameters."""
        made = plan.restarted(self.resolve(plan.start))
        for step in plan.steps:
            result = step.method(made, *self.resolve(step.args), **self.resolve(step.kwargs))
            # A later call may name what this one gave: the result itself, or the step in its place.
            self._made[id(step)] = result
            if step.result is not None:
                self._made[id(step.result)] = result
        made.steps = [Step(step.method, self.resolve(step.args), self.resolve(step.kwargs)) for step in plan.steps]
        return made
