"""What rewritten code calls: the rewriter puts this module under a name of its own among the user's globals.

Loops, branches and logic are those of `trace`. What assignments, assertions, `in` and some builtins mean stands here.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, KeysView, Mapping, ValuesView
from functools import partial
from typing import Any

from tilewright.arguments import given, shown
from tilewright.dtypes import DType, bool_, float32, float64, int32, int64
from tilewright.errors import LanguageError
from tilewright.frames import is_entry
from tilewright.tensors import Tensor
from tilewright.trace.branches import and_, compare_chain, if_expression, if_statement, not_, or_
from tilewright.trace.carry import rename, value_of
from tilewright.trace.control import DeviceRange
from tilewright.trace.debug import device_assert
from tilewright.trace.engine import BufferEngine
from tilewright.trace.iteration import device_enumerate, device_iter, device_map, device_reversed, device_zip
from tilewright.trace.loops import for_loop, while_loop
from tilewright.trace.mathematics import round as device_round
from tilewright.trace.scalar import Scalar, arithmetic, as_scalar

__all__ = [
    "and_", "annotated", "assertion", "builtin", "compare_chain", "contains", "for_loop", "if_expression",
    "if_statement", "named", "named_all", "not_", "object_of", "or_", "value_of", "while_loop",
]  # fmt: skip


def object_of(x: Any) -> Any:
    """Return what is asked to be the object True or False, which no device value is."""
    if isinstance(x, Scalar):
        raise LanguageError("`is` asks of a device value whether it is an object of Python", help="compare by ==")
    return x


def named(name: str, value: Any) -> Any:
    """Give a fresh device value the name of the variable that it is assigned to."""
    rename(name, value)
    return value


def named_all(names: tuple[str | None, ...], value: Any) -> Any:
    """Give the parts of a tuple the names of the variables they are unpacked into."""
    if isinstance(value, (Scalar, Tensor, str)) or not hasattr(value, "__iter__"):
        return value
    parts = value if isinstance(value, (tuple, list)) else tuple(value)
    if len(parts) == len(names):
        for name, part in zip(names, parts, strict=True):
            if name is not None:
                rename(name, part)
    return parts


def annotated(name: str, value: Any, annotation: Any) -> Any:
    """Return the value of `name: annotation = value`: converted where the annotation is an element type."""
    if isinstance(annotation, DType):
        value = annotation(value) if isinstance(value, Scalar) else as_scalar(value, annotation)
    return named(name, value)


def assertion(condition: Any, message: Callable[[], Any]) -> None:
    """Run an assert statement: now where Python knows the condition, on the device otherwise."""
    if isinstance(condition, Scalar):
        device_assert(condition, str(message()))
    elif not condition:
        raise AssertionError(message())


is_entry(assertion)  # what it raises is the fault of who asserts


def builtin(function: Any) -> Any:
    """Return what a Python builtin means in a kernel; any other function as it is."""
    try:
        return _BUILTINS.get(function, function)
    except TypeError:  # not hashable
        return function


def _extreme(kind: str, python: Callable[..., Any]) -> Callable[..., Any]:
    def choose(*values: Any, **options: Any) -> Any:
        if any(isinstance(v, Tensor) for v in values):
            raise LanguageError(
                f"{kind}() of a tensor",
                help=f"write t.reduce('{kind}') for its {kind}imum, tw.{kind}imum(a, b) for that of each two elements",
            )
        items = list(values[0]) if len(values) == 1 and not isinstance(values[0], (Scalar, Tensor)) else list(values)
        if not any(isinstance(v, Scalar) for v in items):
            return python(items, **options)
        if options.get("key") is not None:
            raise LanguageError(
                f"{kind}(..., key=) would compare device values while the kernel is traced",
                help=f"keep the best so far: better = f(x) {'<' if kind == 'min' else '>'} f(best); "
                "best = tw.where(better, x, best)",
            )
        result = items[0]
        for item in items[1:]:
            both = isinstance(result, Scalar) or isinstance(item, Scalar)
            result = arithmetic(kind, result, item) if both else python(result, item)
        return result

    return choose


def _conversion(python: type, target: Callable[[DType], DType]) -> Callable[..., Any]:
    def convert_to(*values: Any) -> Any:
        if len(values) == 1 and isinstance(values[0], Scalar):
            return values[0].to(target(values[0].dtype))
        return python(*values)

    return convert_to


def _integer_of(type: DType) -> DType:
    """Return the type of int(x): a wide integer's own, int64 for what comes of float64, else int32."""
    if type.is_integer and type.bits >= 32:
        return type
    return int64 if type is float64 else int32


def _float_of(type: DType) -> DType:
    return type if type is float64 else float32


def _print(*values: Any, **options: Any) -> None:
    """Refuse to print what only the device knows; print anything else while tracing."""
    for value in values:
        if isinstance(value, Scalar) or (isinstance(value, Tensor) and isinstance(value.engine, BufferEngine)):
            raise LanguageError(
                f"print runs while the kernel is traced, when the numbers of {shown(value)} are not known",
                help="tw.device_print('x is', x) prints numbers when the kernel runs; print(x.layout) shows a layout",
            )
    builtins.print(*values, **options)


def _joined(join: Callable[..., Any], empty: bool) -> Callable[[Any], Any]:
    """Return any() or all(): an item is computed where the items before it do not decide."""

    def over(items: Any) -> Any:
        result: Any = empty
        left, count = iter(items), 0

        def following() -> Any:
            nonlocal count
            for item in left:
                count += 1
                return item
            return empty

        before = -1
        while before != count:
            before = count
            result = join(result, following, left)
        return result if isinstance(result, Scalar) else bool(result)

    return over


def _map(function: Any, *iterables: Any) -> Any:
    return device_map(builtin(function), *iterables)


def _round(x: Any, digits: int | None = None) -> Any:
    if not isinstance(x, Scalar):
        return builtins.round(x, digits)
    if digits is not None:
        raise LanguageError("round(x, digits) has no device form", help="write tw.round(x * 10**digits) / 10**digits")
    return device_round(x)


_BUILTINS: dict[Any, Any] = {
    builtins.range: DeviceRange,
    builtins.min: _extreme("min", builtins.min),
    builtins.max: _extreme("max", builtins.max),
    builtins.int: _conversion(int, _integer_of),
    builtins.float: _conversion(float, _float_of),
    builtins.bool: _conversion(bool, lambda _: bool_),
    builtins.print: _print,
    builtins.round: _round,
    builtins.any: _joined(or_, False),
    builtins.all: _joined(and_, True),
    builtins.enumerate: device_enumerate,
    builtins.iter: device_iter,
    builtins.map: _map,
    builtins.zip: device_zip,
    builtins.reversed: device_reversed,
}


_COMPARED = (tuple, list, set, frozenset, Mapping, KeysView, ValuesView)


def contains(item: Any, container: Any) -> Any:
    """Return `item in container`: a device bool where it takes a device value to know.

    Each item is compared. Python would look a device value up by its identity, and find nothing.
    Raises `LanguageError` for a device value in a container whose items are not known one by one.
    """
    if isinstance(container, (DeviceRange, range)) and isinstance(item, Scalar):
        span = (
            container
            if isinstance(container, DeviceRange)
            else DeviceRange(container.start, container.stop, container.step)
        )
        return span.contains(item)
    holds = _holds_device_value(item)
    if not isinstance(container, _COMPARED):
        as_list = getattr(container, "tolist", None) if holds else None  # an array of NumPy
        if holds and as_list is None:
            raise LanguageError(
                f"a device value is looked for in {given(container)}, whose items cannot be compared one by one",
                help="write the items as a tuple, or loop over them",
            )
        if as_list is None:
            return item in container
        container = container.ravel().tolist() if hasattr(container, "ravel") else as_list()
    if not holds and isinstance(container, (set, frozenset, Mapping, KeysView)):
        return item in container  # no device value can be among these
    held: Any = False
    for candidate in container:
        held = or_(held, partial(_equal, item, candidate))
    return held


def _holds_device_value(item: Any) -> bool:
    return isinstance(item, Scalar) or (type(item) is tuple and any(map(_holds_device_value, item)))


def _equal(a: Any, b: Any) -> Any:
    if a is b:
        return True
    equal = a == b
    return bool(equal) if isinstance(equal, Tensor) else equal  # whose truth is refused
