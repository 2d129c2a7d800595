"""Conditions in the logic of a nest: `If`, and the iterations at which statements under conditions run.

A condition of comparisons of affine expressions, joined by & | and ~, is known exactly: it is a union of cases, each of
which is a conjunction of linear conditions. Of a condition on values nothing is known before the kernel runs, so
statements under it count as run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tilewright.arguments import function as check_function
from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Affine, affine_or_none, recording
from tilewright.schedule.integers import System, UndecidedError
from tilewright.schedule.places import as_index, at_least_zero
from tilewright.schedule.values import Apply, Convert, Decision, Expression, Guard, Number, expression
from tilewright.trace.scalar import as_scalar

Term: TypeAlias = tuple[Affine, bool]  # an expression that is at least 0; equal to 0 where this is True
Case: TypeAlias = tuple[Term, ...]  # all of which hold

MOST_CASES = 256  # of the conditions around one statement

_AND, _OR, _NOT = {"&", "logical_and"}, {"|", "logical_or"}, {"~", "logical_not"}
_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


class If:
    """Run statements at those points of a nest at which a condition holds: in its logic, as a statement of its own.

    `condition` compares indices, sizes and elements of arrays, with & | ~, or `logical_and`, `logical_or` and
    `logical_not`. `then` is a function without parameters that makes the stores. `ElseIf` and `Else` follow
    immediately. The condition is computed once, before the statements.

    >>> from tilewright.schedule import Array, If, Nest, Role
    >>> A = Array(Role.INPUT, "float32", (5,), name="A")
    >>> B = Array(Role.OUTPUT, "float32", (8,), name="B")
    >>> nest = Nest((8,))
    >>> i = nest.get_indices()
    >>> @nest.iteration_logic
    ... def _():
    ...     def copy(): B[i] = A[i]
    ...     def fill(): B[i] = 0.0
    ...     If(i < 5, copy).Else(fill)
    >>> print(nest)
    for i in range(8):
        if i < 5:
            B[i] = A[i]
        else:
            B[i] = 0.0

    Raises `ScheduleError` outside of a nest's logic, and for a condition that is not one. Source: Accera, `_If`.
    """

    def __init__(self, condition: Any, then: Callable[[], Any]) -> None:  # Any: whatever is an expression; None
        if recording.stores is None:
            raise ScheduleError(
                "If stands outside of a nest's logic", help="use it in a function decorated with @nest.iteration_logic"
            )
        self._outer = recording.guards
        self._last: Guard | None = None
        self._branch(condition, then)

    def ElseIf(self, condition: Any, then: Callable[[], Any]) -> If:  # Accera's name
        """Run statements where no previous condition holds and this one does."""
        self._follow("ElseIf")
        self._branch(condition, then)
        return self

    def Else(self, then: Callable[[], Any]) -> None:  # Accera's name
        """Run statements where no previous condition holds."""
        self._follow("Else")
        check_function("Else", "then", then)
        self._run(self._outer, then)
        self._last = None

    def _branch(self, condition: Any, then: Callable[[], Any]) -> None:  # Any: as in __init__
        check_function("If", "then", then)
        test = _test_of(condition)
        self._last = Guard(Decision(), test, True)
        guards = (*self._outer, self._last)
        cases(guards)
        self._run(guards, then)
        self._outer = (*self._outer, Guard(self._last.decision, test, False))

    def _run(self, guards: tuple[Guard, ...], then: Callable[[], Any]) -> None:  # Any: None
        outer, recording.guards = recording.guards, guards
        try:
            then()
        finally:
            recording.guards = outer
        self._count = len(recording.stores or ())

    def _follow(self, name: str) -> None:
        if recording.stores is None or self._last is None or len(recording.stores) != self._count:
            raise ScheduleError(
                f"{name} does not follow its If: something is stored between them, or Else was there already",
                help=f"write If(condition, then).{name}(...)",
            )


def _test_of(condition: Any) -> Expression:  # Any: whatever is an expression
    if isinstance(condition, (bool, int)):
        return Number(bool(condition))
    try:
        return expression(condition)
    except ScheduleError:
        raise ScheduleError(
            f"{condition!r} is not a condition", help="compare indices, sizes and elements of arrays: If(i < 5, then)"
        ) from None


def cases(guards: Sequence[Guard]) -> tuple[Case, ...]:
    """Return the cases in which all guards hold, as far as that is known before the kernel runs."""
    found: tuple[Case, ...] = ((),)
    for guard in guards:
        found = _both(found, _cases(guard.test, guard.holds))
    return found


def _cases(x: Expression, holds: bool) -> tuple[Case, ...]:
    if isinstance(x, Number):
        return ((),) if bool(x.value) is holds else ()
    if isinstance(x, Convert):
        return _cases(x.value, holds) if x.dtype.kind == "bool" else ((),)
    if isinstance(x, Apply) and x.name in _NEGATED and len(x.arguments) == 2:
        first, second = map(as_index, x.arguments)
        if first is not None and second is not None:
            return _compared(x.name if holds else _NEGATED[x.name], first - second)
    if isinstance(x, Apply) and x.name in _AND | _OR and len(x.arguments) == 2:
        parts = [_cases(part, holds) for part in x.arguments]
        return _both(*parts) if (x.name in _AND) is holds else (*parts[0], *parts[1])
    if isinstance(x, Apply) and x.name in _NOT and len(x.arguments) == 1:
        return _cases(x.arguments[0], not holds)
    return ((),)


def is_of_indices(x: Expression) -> bool:
    """Whether a condition asks for indices and sizes alone, so that it is known where it holds."""
    if isinstance(x, Number):
        return True
    if isinstance(x, Convert):
        return x.dtype.kind == "bool" and is_of_indices(x.value)
    if isinstance(x, Apply) and x.name in _NEGATED and len(x.arguments) == 2:
        return all(as_index(part) is not None for part in x.arguments)
    return isinstance(x, Apply) and x.name in _AND | _OR | _NOT and all(map(is_of_indices, x.arguments))


def _both(some: tuple[Case, ...], others: tuple[Case, ...]) -> tuple[Case, ...]:
    if len(some) * len(others) > MOST_CASES:
        raise ScheduleError(
            f"the conditions around a statement have {len(some) * len(others)} cases, and at most {MOST_CASES} are "
            "looked at",
            help="split the condition into several If, one after the other",
        )
    joined = (_distinct((*a, *b)) for a in some for b in others)
    return tuple(case for case in joined if not _is_contradiction(case))


def _distinct(case: Case) -> Case:
    # By their parts: in the logic of a nest, == of affine expressions is an expression.
    return tuple(
        {(value.terms, value.constant, is_equality): (value, is_equality) for value, is_equality in case}.values()
    )


def _is_contradiction(case: Case) -> bool:
    """Whether two terms cannot both hold, as i - 5 >= 0 and -i + 4 >= 0; others are left to the dependences."""
    for value, is_equality in case:
        for other, _ in case:
            if (value + other).is_constant and (value + other).constant < 0:
                return True
            if is_equality and (other - value).is_constant and (other - value).constant < 0:
                return True
    return False


def _compared(sign: str, value: Affine) -> tuple[Case, ...]:
    if sign == "==":
        return (((value, True),),)
    if sign == "!=":
        return (*_compared("<", value), *_compared(">", value))
    least = {"<": -value - 1, ">": value - 1, "<=": -value, ">=": value}[sign]
    return tuple(tuple((part, False) for part in case) for case in at_least_zero(least))


def _truth(self: Expression) -> bool:
    """Return whether a condition holds, where it does or does not at every point of the nest: `i < 8` in range(8).

    Python's `and`, `or` and `if` ask for it. Raises `ScheduleError` for any other condition, and for a value.
    """
    if recording.is_on and is_of_indices(self):
        for holds in (True, False):
            if not any(map(_is_possible, _cases(self, not holds))):
                return holds
    return _undecided(self)


_undecided = Expression.__bool__
Expression.__bool__ = _truth  # type: ignore[method-assign]  # what a condition asks for stands above values


def _is_possible(case: Case) -> bool:
    """Whether the terms of a case hold at some point of the nest that is recorded, whatever its sizes are."""
    system = System[Any]()  # Any: indices, sizes, quotients and remainders
    divisions: dict[Any, None] = {}
    extents = recording.extents or {}
    for value, is_equality in case:
        divisions.update(dict.fromkeys(value.nonlinear()))
        terms = dict(value.terms), value.constant
        system = system.equal(*terms) if is_equality else system.at_least_zero(*terms)
    if divisions:
        return True
    for symbol in system.variables():
        if symbol not in extents:
            continue
        extent = affine_or_none(extents[symbol])
        system = system.at_least_zero({symbol: 1})
        if extent is not None:
            last = extent - 1 - symbol
            system = system.at_least_zero(dict(last.terms), last.constant)
    try:
        return system.solve() is not None
    except UndecidedError:
        return True


def logical_and(a: Any, b: Any) -> Expression:  # Any: whatever is an expression
    """Return whether both values are other than zero. Source: Accera, `logical_and`."""
    return Apply("logical_and", _device_and, (expression(a), expression(b)))


def logical_or(a: Any, b: Any) -> Expression:  # Any: as above
    """Return whether one of two values is other than zero. Source: Accera, `logical_or`."""
    return Apply("logical_or", _device_or, (expression(a), expression(b)))


def logical_not(a: Any) -> Expression:  # Any: as above
    """Return whether a value is zero. Source: Accera, `logical_not`."""
    return Apply("logical_not", _device_not, (expression(a),))


def _device_and(a: Any, b: Any) -> Any:  # Any: device numbers
    return truth_of(a) & truth_of(b)


def _device_or(a: Any, b: Any) -> Any:  # Any: device numbers
    return truth_of(a) | truth_of(b)


def _device_not(a: Any) -> Any:  # Any: device numbers
    return ~truth_of(a)


def truth_of(x: Any) -> Any:  # Any: a number of host or device
    """Return whether a number is other than zero, as a device bool."""
    value = as_scalar(x)
    return value if value.dtype.kind == "bool" else value != 0
