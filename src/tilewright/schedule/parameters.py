"""Parameters of plans: placeholders for values that are chosen later, and grids of choices."""

from __future__ import annotations

import inspect
import itertools
import operator
import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, Union

from tilewright.arguments import function, instance, integer, shown
from tilewright.errors import ScheduleError
from tilewright.schedule.naming import LoopName, assigned_names, calling_frame

_MOST_PARAMETERS = 1000  # of one call
_MOST_LOOPS = 9  # whose orders are all looked at
_MAX_GRID = 1 << 24  # combinations that are looked at; a sample of more is of a grid that nobody measures


class Delayed:
    """A value that is known later: a parameter, or arithmetic of parameters and numbers."""

    __hash__: Any = object.__hash__

    def value_for(self, values: Mapping[Any, Any]) -> Any:  # Any: parameters or their names; whatever was chosen
        """Return the value for chosen parameters."""
        raise NotImplementedError  # pragma: no cover  # both kinds have their own

    def __add__(self, other: Any) -> Delayed:  # Any: numbers and delayed values, here and below
        return _Arithmetic("+", operator.add, self, other)

    def __radd__(self, other: Any) -> Delayed:  # Any: as above
        return _Arithmetic("+", operator.add, other, self)

    def __sub__(self, other: Any) -> Delayed:  # Any: as above
        return _Arithmetic("-", operator.sub, self, other)

    def __rsub__(self, other: Any) -> Delayed:  # Any: as above
        return _Arithmetic("-", operator.sub, other, self)

    def __mul__(self, other: Any) -> Delayed:  # Any: as above
        return _Arithmetic("*", operator.mul, self, other)

    def __rmul__(self, other: Any) -> Delayed:  # Any: as above
        return _Arithmetic("*", operator.mul, other, self)

    def __floordiv__(self, other: Any) -> Delayed:  # Any: as above
        return _Arithmetic("//", operator.floordiv, self, other)

    def __rfloordiv__(self, other: Any) -> Delayed:  # Any: as above
        return _Arithmetic("//", operator.floordiv, other, self)

    def __mod__(self, other: Any) -> Delayed:  # Any: as above
        return _Arithmetic("%", operator.mod, self, other)

    def __rmod__(self, other: Any) -> Delayed:  # Any: as above
        return _Arithmetic("%", operator.mod, other, self)

    def __truediv__(self, other: Any) -> Delayed:  # Any: as above
        return _Arithmetic("/", operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Delayed:  # Any: as above
        return _Arithmetic("/", operator.truediv, other, self)

    def __pow__(self, other: Any) -> Delayed:  # Any: as above
        return _Arithmetic("**", operator.pow, self, other)

    def __lshift__(self, other: Any) -> Delayed:  # Any: as above
        return _Arithmetic("<<", operator.lshift, self, other)

    def __rshift__(self, other: Any) -> Delayed:  # Any: as above
        return _Arithmetic(">>", operator.rshift, self, other)

    def __and__(self, other: Any) -> Delayed:  # Any: as above
        return _Arithmetic("&", operator.and_, self, other)

    def __or__(self, other: Any) -> Delayed:  # Any: as above
        return _Arithmetic("|", operator.or_, self, other)

    def __xor__(self, other: Any) -> Delayed:  # Any: as above
        return _Arithmetic("^", operator.xor, self, other)

    def __lt__(self, other: Any) -> Delayed:  # Any: as above
        return _Arithmetic("<", operator.lt, self, other)

    def __le__(self, other: Any) -> Delayed:  # Any: as above
        return _Arithmetic("<=", operator.le, self, other)

    def __gt__(self, other: Any) -> Delayed:  # Any: as above
        return _Arithmetic(">", operator.gt, self, other)

    def __ge__(self, other: Any) -> Delayed:  # Any: as above
        return _Arithmetic(">=", operator.ge, self, other)

    def __neg__(self) -> Delayed:
        return 0 - self

    def __bool__(self) -> bool:
        raise ScheduleError(
            f"whether {self} holds is asked before the parameter has a value",
            help="declare the plan in a function of the parameters: package.add(make_plan, parameters=...)",
        )


def waiting(names: Sequence[str] = ()) -> ScheduleError:
    """Return the error of asking for what depends on parameters without values, which `names` are where known."""
    if len(names) > 1:
        what = f"the parameters {', '.join(names)}, which have no values"
    else:
        what = f"{f'the parameter {names[0]}' if names else 'a parameter'} that has no value"
    return ScheduleError(
        f"this depends on {what} yet",
        help="choose values: package.add(plan, ..., parameters={...}), or plan.with_parameters({...})",
    )


class DelayedParameter(Delayed):
    """A placeholder for a value that is chosen when a plan is added to a package, built or tuned.

    It may replace extents of arrays and nests, element types, sizes of splits and tiles, and arguments of a plan's
    methods. `set_value` gives it a default, for when none is chosen.

    >>> P = DelayedParameter("P")
    >>> (2 * P + 1).value_for({P: 8})
    17
    """

    def __init__(self, name: str | None = None) -> None:
        names = assigned_names(calling_frame()) if name is None else (name,)
        self.name: str = names[0] if names else "parameter"
        self._values: list[Any] = []  # Any: one chosen value, or none

    def get_value(self) -> Any:  # Any: whatever was set
        """Return the value that was set. Raises `ScheduleError` where none was."""
        if not self._values:
            raise ScheduleError(
                f"parameter {self.name} has no value",
                help=f"choose one: package.add(plan, ..., parameters={{{self.name}: 16}})",
            )
        return self._values[0]

    def set_value(self, value: Any) -> None:  # Any: whatever the plan takes in its place
        """Set the parameter's value, which is used where a choice of values does not contain it."""
        self._values = [value]

    def value_for(self, values: Mapping[Any, Any]) -> Any:  # Any: as in Delayed
        """Return the chosen value, found by the parameter or by its name, or else the one that was set."""
        if self in values:
            return values[self]
        return values[self.name] if self.name in values else self.get_value()

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


class _Arithmetic(Delayed):
    """Arithmetic whose operands are delayed or numbers."""

    def __init__(self, symbol: str, function: Callable[[Any, Any], Any], left: Any, right: Any) -> None:
        self.symbol, self.function, self.operands = symbol, function, (left, right)

    def value_for(self, values: Mapping[Any, Any]) -> Any:  # Any: as in Delayed
        """Return the value for chosen parameters."""
        left, right = (x.value_for(values) if isinstance(x, Delayed) else x for x in self.operands)
        return self.function(left, right)

    def __str__(self) -> str:
        left, right = (f"({x})" if isinstance(x, _Arithmetic) else str(x) for x in self.operands)
        return f"{left} {self.symbol} {right}"

    __repr__ = __str__


Parameter: TypeAlias = Union[DelayedParameter, str]
Choice: TypeAlias = "dict[Parameter, Any]"  # Any: a value of each parameter


def create_parameters(number: int | None = None, *names: str) -> Any:  # Any: one parameter, or a tuple of more
    """Return placeholders, named by the variables that they are assigned to; one alone is returned by itself.

    Their number is that of these variables unless given.

    >>> tile_m, tile_n = create_parameters(2)
    >>> tile_m
    tile_m
    >>> create_parameters(2, "p", "q")
    (p, q)

    Raises `ScheduleError` if the number cannot be found, is below 1, or is not that of the names. Source: Accera,
    `create_parameters`.
    """
    seen = names or assigned_names(calling_frame())
    if number is None and not seen:
        raise ScheduleError("create_parameters(None) is assigned to no variables", help="say how many, as a number")
    count = len(seen) if number is None else integer("create_parameters", "number", number)
    if not 1 <= count <= _MOST_PARAMETERS:
        raise ScheduleError(
            f"create_parameters: number is from 1 to {_MOST_PARAMETERS}, got {shown(count)}",
            help="say how many: create_parameters(3)",
        )
    if names and len(names) != count:
        raise ScheduleError(f"create_parameters({count}) with {len(names)} names")
    chosen_names = seen if len(seen) == count else tuple(f"parameter{n}" for n in range(count))
    made = tuple(map(DelayedParameter, chosen_names))
    return made if len(made) > 1 else made[0]


def create_parameter_grid(
    parameter_choices: Mapping[Any, Iterable[Any]],  # Any: parameters, or their names; their values
    filter_func: Callable[..., bool] | None = None,
    sample: int = 0,
    seed: int | None = None,
) -> list[Choice]:
    """Return all combinations of choices, as a list of dicts from each parameter to its value.

    The grid is {p1: a, p2: b, ...} for (a, b, ...) in choices1 x choices2 x ..., the last varying fastest.
    `filter_func` takes a combination's values in the order of the parameters, or, where it has one parameter (`choice`
    or `*choice`) and the grid has more, their tuple, and says whether it stays. A single value is one choice. Where all
    choices are indices of loops, the choices are their orders, for `reorder`. With `sample` n > 0 at most n of the rest
    are drawn without replacement, in the order of the grid; the same `seed` draws the same.

    >>> create_parameter_grid({"m": [16, 32], "n": [16, 32]}, filter_func=lambda m, n: m <= n)
    [{'m': 16, 'n': 16}, {'m': 16, 'n': 32}, {'m': 32, 'n': 32}]
    >>> len(create_parameter_grid({"m": range(10), "n": range(10)}, sample=7, seed=1))
    7

    Raises `ScheduleError` for no parameters, one without choices, a negative sample, and more than 2**24 combinations.
    Source: Accera, `create_parameter_grid`.
    """
    instance(
        "create_parameter_grid", "parameter_choices", parameter_choices, Mapping, "a dict from parameters to values"
    )
    if filter_func is not None:
        function("create_parameter_grid", "filter_func", filter_func)
    integer("create_parameter_grid", "sample", sample)
    if not parameter_choices:
        raise ScheduleError("a grid needs at least one parameter")
    parameters = list(parameter_choices)
    choices = [_choices(parameter, parameter_choices[parameter]) for parameter in parameters]
    _refuse_same_names(parameters)
    if sample < 0:
        raise ScheduleError(f"sample={sample!r}", help="a whole number, 0 for the whole grid")
    total = 1
    for values in choices:
        total *= len(values)
    if total > _MAX_GRID:
        raise ScheduleError(
            f"the grid has {total} combinations, and at most {_MAX_GRID} are looked at", help="give fewer choices"
        )
    keeps = _tuple_filter(filter_func, len(parameters))
    kept = [point for point in itertools.product(*choices) if keeps(point)]
    if 0 < sample < len(kept):
        places = sorted(random.Random(seed).sample(range(len(kept)), sample))
        kept = [kept[place] for place in places]
    return [dict(zip(parameters, point, strict=True)) for point in kept]


def get_parameters_from_grid(
    parameter_grid: Sequence[Mapping[Any, Any]] | Mapping[Any, Any],
) -> Any:  # Any: a tuple of parameters, or a list of dicts of their values
    """Return the parameters of a grid, in order; of a dict of choices all of its combinations, as a list of dicts.

    >>> get_parameters_from_grid(create_parameter_grid({"m": [16, 32], "n": [8]}))
    ('m', 'n')
    >>> get_parameters_from_grid({"m": [16, 32], "n": 8})
    [{'m': 16, 'n': 8}, {'m': 32, 'n': 8}]

    Raises `ScheduleError` for an empty grid, or one of unlike dicts. The second form is that of Accera,
    `get_parameters_from_grid`.
    """
    if isinstance(parameter_grid, Mapping):
        return create_parameter_grid(parameter_grid)
    instance("get_parameters_from_grid", "parameter_grid", parameter_grid, (list, tuple), "a list of dicts")
    for point in parameter_grid:
        instance("get_parameters_from_grid", "each entry of parameter_grid", point, Mapping, "a dict of values")
    if not parameter_grid:
        raise ScheduleError("the grid is empty", help="give more choices, or let the filter keep some")
    first = tuple(parameter_grid[0])
    for point in parameter_grid:
        if set(point) != set(first):
            raise ScheduleError(f"a grid of unlike parameters: {first} and {tuple(point)}")
    return first


def named_values(values: Mapping[Any, Any]) -> dict[str, Any]:  # Any: parameters, or their names; their values
    """Return chosen values by the names of the parameters."""
    _refuse_same_names(list(values))
    return {str(parameter): value for parameter, value in values.items()}


def _choices(parameter: Any, values: Any) -> list[Any]:  # Any: a parameter or its name; values, or one
    if not isinstance(parameter, (DelayedParameter, str)):
        raise ScheduleError(f"{parameter!r} is not a parameter", help="use create_parameters(n), or names")
    if isinstance(values, str) or values is None:
        raise ScheduleError(f"the choices of {parameter} are {values!r}", help="give a list of values")
    choices = list(values) if isinstance(values, Iterable) and not isinstance(values, LoopName) else [values]
    if len(choices) > 1 and all(isinstance(value, LoopName) for value in choices):
        if len(choices) > _MOST_LOOPS:
            raise ScheduleError(
                f"the choices of {parameter} are the orders of {len(choices)} loops, and at most {_MOST_LOOPS} are "
                "looked at",
                help="give a list of the orders to choose from",
            )
        choices = list(itertools.permutations(choices))
    if not choices:
        raise ScheduleError(f"parameter {parameter} has no choices")
    return _distinct(choices)


def _tuple_filter(
    filter_func: Callable[..., bool] | None, number: int
) -> Callable[[tuple[Any, ...]], bool]:  # Any: values of parameters
    """Return a filter that takes one tuple."""
    if filter_func is None:
        return lambda point: True
    try:
        accepted = list(inspect.signature(filter_func).parameters.values())
    except (TypeError, ValueError):  # builtins that say nothing of their parameters
        return lambda point: filter_func(*point)
    is_of_tuples = number > 1 and len(accepted) == 1
    return filter_func if is_of_tuples else lambda point: filter_func(*point)


def _distinct(values: list[Any]) -> list[Any]:
    """Return values without those that come again; 1, 1.0 and True are different choices."""
    seen: set[Hashable] = set()
    kept = []
    for value in values:
        key = (type(value), value) if isinstance(value, Hashable) else None
        if key is None or key not in seen:
            kept.append(value)
        if key is not None:
            seen.add(key)
    return kept


def _refuse_same_names(parameters: list[Any]) -> None:
    names = [str(parameter) for parameter in parameters]
    for name in names:
        if names.count(name) > 1:
            raise ScheduleError(f"two parameters are called {name}", help="name them: create_parameters(2, 'm', 'n')")
