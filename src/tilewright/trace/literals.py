"""Numbers of Python and NumPy: the types that they take alone or give others, their rounding, comparisons."""

from __future__ import annotations

import math
from numbers import Number
from typing import Any

from tilewright.arguments import given, shown
from tilewright.dtypes import LARGEST_FLOAT8, DType, bool_, float32, int32, int64
from tilewright.errors import LanguageError
from tilewright.ir.core import Value
from tilewright.ir.evaluate import COMPARE
from tilewright.remarks import Remark
from tilewright.trace.tracer import current


def is_numpy_number(x: object) -> bool:
    """Say whether a value is a NumPy number, which has an element type of its own: what `tw.float32(0)` gives."""
    return is_numpy(x) and getattr(x, "shape", None) == () and hasattr(x, "item")


def is_numpy(x: object) -> bool:
    """Say whether a value is of a type of NumPy or ml_dtypes."""
    return type(x).__module__ in ("numpy", "ml_dtypes")


def not_compared(x: object) -> Any:
    """Return NotImplemented for what is not a number of the device; Python then says of == that the two differ.

    Raises `LanguageError` for a Fraction, a Decimal or a complex number, to which a number may be equal.
    """
    if isinstance(x, Number):
        raise LanguageError(f"a device value is compared with {given(x)}", help="compare with an int or a float")
    return NotImplemented


def default_type(x: float) -> DType:
    """Return the type that a Python number takes by itself: bool, int32 (int64 where needed), float32."""
    if isinstance(x, bool):
        return bool_
    if isinstance(x, int):
        return int32 if int32.lowest <= x <= int32.highest else int64
    return float32


def rounded(x: float, target: DType) -> float:
    """Return the number that the device would hold: of an 8-bit float the largest, where it is larger."""
    import numpy as np

    with np.errstate(over="ignore"):
        try:
            if target in LARGEST_FLOAT8:
                x = np.clip(np.float32(x), -LARGEST_FLOAT8[target], LARGEST_FLOAT8[target])
            return float(target.numpy.type(x))
        except OverflowError:  # an int beyond float64
            raise LanguageError(f"{shown(x)} does not fit into {target}", help="write float('inf')") from None


MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def in_integers(kind: str, number: float, type: DType) -> tuple[str, int]:
    """Return the comparison of integers of a type that says the same as one with a Python number; a bool decides it.

    >>> from tilewright.dtypes import uint32
    >>> in_integers("lt", 2.5, int32), in_integers("eq", 2.5, int32), in_integers("gt", -1, uint32)
    (('lt', 3), ('eq', False), ('gt', True))
    """
    if isinstance(number, int):
        inside = type.lowest <= number <= type.highest
        return kind, int(number) if inside else COMPARE[kind](0, 1 if number > 0 else -1)
    if math.isnan(number):
        return kind, kind == "ne"
    if not type.lowest <= number <= type.highest:
        return kind, COMPARE[kind](0, 1 if number > 0 else -1)
    if kind in ("eq", "ne"):
        return kind, int(number) if number.is_integer() else kind == "ne"
    whole = math.ceil(number) if kind in ("lt", "ge") else math.floor(number)
    return kind, whole


def note_wide_number(number: object, other: DType) -> None:
    """Add a remark to the trace where a NumPy float64 makes an operation on a narrower float one of float64.

    `number` is a number that is known while tracing, or the value of an argument: a Python float is float32 as an
    argument, and takes the type of what it meets in a kernel. NumPy's numbers have a type of their own, float64 mostly
    without anybody's asking: `np.sqrt(2)` and `array.mean()` are such. On most GPUs float64 is computed at a small part
    of the rate of float32.
    """
    tracer = current("arithmetic")
    if isinstance(number, Value):
        name = next((p.argument for p in tracer.parameters if p.target is number), None)
        if name is None:  # computed in float64, or loaded
            return
        what, help = f"argument {name!r}", f"pass float({name}), which is float32 in the kernel; or np.{other}({name})"
    elif is_numpy_number(number):
        value = shown(float(number))  # type: ignore[arg-type]  # of a NumPy number
        what, help = value, f"write float({value}), which takes the type of what it meets; or tw.{other}({value})"
    else:
        return
    location = tracer.location()
    lines = [f"wide number: {what} is a NumPy float64, so {other} is widened and this is computed in float64"]
    if location is not None:
        lines += [f"  {line}" for line in location.excerpt()]
    lines.append(f"  help: {help}")
    tracer.remarks[Remark("wide-number", "\n".join(lines), location)] = None
