"""Operators of tensors: each acts on the elements, and gives a new tensor of the elements' results.

    r * 2 + s      r == 0      tw.exp(r)      tw.where(r > 0, r, 0)      r += s      r.reduce("max")

A tensor in a kernel gives a fragment of the thread's registers, computed by its engine (`compute`, `assign`, `update`,
`reduce`); a tensor on the host gives a host tensor, computed by NumPy. The operands are tensors and numbers, the shapes
those of `broadcasting`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any

from tilewright.errors import ArgumentError, LanguageError
from tilewright.frames import is_entry
from tilewright.tensors import host

Function = Callable[..., Any]  # Any: numbers of host or device


def compute(name: str, function: Function, operands: tuple[Any, ...]) -> Any:  # Any: tensors and numbers; a tensor
    """Return the tensor of `function` of the elements of the operands; `name` is what messages call it."""
    tensors = [x for x in operands if isinstance(x, Arithmetic)]
    for t in tensors:
        if hasattr(t.engine, "compute"):
            return t.engine.compute(name, function, operands)
    for t in tensors:
        if not hasattr(t.engine, "storage"):
            raise LanguageError(
                f"{name} of {t.title}: the elements of a {t.engine.space} tensor are coordinates, not numbers",
                help="take one element, whose parts are numbers: t[i]",
            )
    return host.compute(name, function, operands)


def elementwise(operands: int) -> Callable[[Function], Function]:
    """Let a function of numbers take tensors among its first `operands` arguments, and act on their elements.

    Law: f(t)[c] == f(t[c]) for every coordinate c; numbers beside tensors are the same for all elements. Operands that
    are given by name count as well.
    """

    def decorate(function: Function) -> Function:
        names = list(signature(function).parameters)[:operands]

        @wraps(function)
        def apply(*values: Any, **options: Any) -> Any:
            numbers, settings = values[:operands], values[operands:]
            named = {name: options[name] for name in names if name in options}
            if not any(isinstance(x, Arithmetic) for x in (*numbers, *named.values())):
                return function(*values, **options)

            def of_elements(*x: Any) -> Any:
                given = dict(zip(named, x[len(numbers) :], strict=True))
                return function(*x[: len(numbers)], *settings, **{**options, **given})

            return compute(f"tw.{function.__name__}", of_elements, (*numbers, *named.values()))

        is_entry(apply)
        return apply

    return decorate


def refuse_tensors(name: str, *values: Any) -> None:  # Any: the arguments of a function of numbers
    """Refuse tensors where a function gives several results for each element."""
    for x in values:
        if isinstance(x, Arithmetic):
            raise LanguageError(
                f"{name} gives several numbers, and takes no tensors: {x.title}",
                help="loop over the elements, for i in range(t.size): t[i]; or call a function that gives one number",
            )


def is_operand(x: object) -> bool:
    """Say whether a tensor's operator takes a value beside it: a tensor, or a number of host or device."""
    if isinstance(x, (Arithmetic, int, float)) or hasattr(x, "__tilewright_cast__"):
        return True
    shape = getattr(x, "shape", None)
    if hasattr(x, "__array__") and shape != ():
        raise LanguageError(
            f"a tensor meets a {type(x).__name__} of shape {shape}, whose modes need not be the tensor's",
            help="write tw.tensor(array) on the host; a kernel takes arrays as arguments",
        )
    return hasattr(x, "dtype") and shape == ()  # NumPy's numbers


def _forward(name: str, function: Function) -> Any:
    def apply(self: Any, other: Any) -> Any:
        return compute(name, function, (self, other)) if is_operand(other) else NotImplemented

    return apply


def _reflected(name: str, function: Function) -> Any:
    def apply(self: Any, other: Any) -> Any:
        return compute(name, function, (other, self)) if is_operand(other) else NotImplemented

    return apply


def _in_place(name: str, function: Function) -> Any:
    def apply(self: Any, other: Any) -> Any:
        if not is_operand(other):
            return NotImplemented
        update = getattr(self.engine, "update", None)
        if update is not None:
            update(self, name, function, other)
        else:
            host.fill_view(self, compute(name, function, (self, other)))
        return self

    return apply


def _unary(name: str, function: Function) -> Any:
    return lambda self: compute(name, function, (self,))


class Arithmetic:
    """The operators of a tensor. Comparisons give tensors of bool, so it has no truth; its hash is its identity."""

    __slots__ = ()

    engine: Any  # that of a `Tensor`

    if TYPE_CHECKING:

        @property
        def title(self) -> str: ...

    __hash__: Any = object.__hash__

    __add__: Any = _forward("add", operator.add)
    __radd__: Any = _reflected("add", operator.add)
    __sub__: Any = _forward("sub", operator.sub)
    __rsub__: Any = _reflected("sub", operator.sub)
    __mul__: Any = _forward("mul", operator.mul)
    __rmul__: Any = _reflected("mul", operator.mul)
    __truediv__: Any = _forward("truediv", operator.truediv)
    __rtruediv__: Any = _reflected("truediv", operator.truediv)
    __floordiv__: Any = _forward("floordiv", operator.floordiv)
    __rfloordiv__: Any = _reflected("floordiv", operator.floordiv)
    __mod__: Any = _forward("mod", operator.mod)
    __rmod__: Any = _reflected("mod", operator.mod)
    __pow__: Any = _forward("pow", operator.pow)
    __rpow__: Any = _reflected("pow", operator.pow)
    __and__: Any = _forward("and", operator.and_)
    __rand__: Any = _reflected("and", operator.and_)
    __or__: Any = _forward("or", operator.or_)
    __ror__: Any = _reflected("or", operator.or_)
    __xor__: Any = _forward("xor", operator.xor)
    __rxor__: Any = _reflected("xor", operator.xor)
    __lshift__: Any = _forward("lshift", operator.lshift)
    __rlshift__: Any = _reflected("lshift", operator.lshift)
    __rshift__: Any = _forward("rshift", operator.rshift)
    __rrshift__: Any = _reflected("rshift", operator.rshift)
    __lt__: Any = _forward("lt", operator.lt)
    __le__: Any = _forward("le", operator.le)
    __gt__: Any = _forward("gt", operator.gt)
    __ge__: Any = _forward("ge", operator.ge)

    __iadd__: Any = _in_place("add", operator.add)
    __isub__: Any = _in_place("sub", operator.sub)
    __imul__: Any = _in_place("mul", operator.mul)
    __itruediv__: Any = _in_place("truediv", operator.truediv)
    __ifloordiv__: Any = _in_place("floordiv", operator.floordiv)
    __imod__: Any = _in_place("mod", operator.mod)
    __ipow__: Any = _in_place("pow", operator.pow)
    __iand__: Any = _in_place("and", operator.and_)
    __ior__: Any = _in_place("or", operator.or_)
    __ixor__: Any = _in_place("xor", operator.xor)
    __ilshift__: Any = _in_place("lshift", operator.lshift)
    __irshift__: Any = _in_place("rshift", operator.rshift)

    __neg__: Any = _unary("neg", operator.neg)
    __pos__: Any = _unary("pos", operator.pos)
    __abs__: Any = _unary("abs", operator.abs)
    __invert__: Any = _unary("invert", operator.invert)

    def __eq__(self, other: object) -> Any:  # Any: a tensor of bool
        return self._compared("eq", operator.eq, other)

    def __ne__(self, other: object) -> Any:  # Any: a tensor of bool
        return self._compared("ne", operator.ne, other)

    def _compared(self, name: str, function: Function, other: Any) -> Any:
        if not is_operand(other):  # Python would go on to compare identities, which answers another question
            raise LanguageError(
                f"{self.title} is compared with a {type(other).__name__}, and == of a tensor compares elements",
                help="compare with a number or a tensor, or write `is` for whether it is the same object",
            )
        return compute(name, function, (self, other))

    def __divmod__(self, other: Any) -> Any:
        return (self // other, self % other) if is_operand(other) else NotImplemented

    def __rdivmod__(self, other: Any) -> Any:
        return (other // self, other % self) if is_operand(other) else NotImplemented

    def __round__(self, digits: int | None = None) -> Any:
        raise LanguageError("round() of a tensor", help="write tw.round(t), which rounds each element")

    def __tilewright_apply__(self, name: str, function: Function, operands: tuple[Any, ...]) -> Any:
        """Return `function` of the elements; the functions of `tw`, such as `tw.exp`, ask for it."""
        for x in operands:
            if not is_operand(x):
                raise ArgumentError(f"tw.{name} takes tensors and numbers, got a {type(x).__name__}: {x!r}")
        return compute(name, function, operands)

    def __bool__(self) -> bool:
        raise LanguageError(
            f"a tensor has no truth: {self.title} holds many elements",
            help="compare `is None`, test one element (t[0]), or combine all: (t > 0).reduce('and')",
        )

    def _no_number(self, kind: str) -> Any:
        raise LanguageError(f"{self.title} is not one number, and cannot become {kind}", help="take an element: t[0]")

    def __int__(self) -> int:
        return self._no_number("an int")  # type: ignore[no-any-return]

    def __float__(self) -> float:
        return self._no_number("a float")  # type: ignore[no-any-return]

    def __contains__(self, item: object) -> bool:
        raise LanguageError(
            f"`in` of {self.title}: whether a tensor holds a value is not known while tracing",
            help="write (t == x).reduce('or')",
        )
