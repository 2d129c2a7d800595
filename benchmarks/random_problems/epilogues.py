"""Functions for epilogues: what a kernel compiles, and the same in float64 with what it makes of an error.

An epilogue takes elements of two arrays, a row (N,) and a column (M, 1), where `captures` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any  # Any: arrays of any library, and what stands for their elements in a kernel

import tilewright as tw

Function = Callable[..., Any]


@dataclass(frozen=True)
class Epilogue:
    """`make(row, column, gain, drop)` returns what a call gets; the others compute in float64.

    `values(xp, x, row, column, gain, kept)` returns the results for accumulators x, one for each of them, and `errors`
    with what x may be off in the place of x how far each of them may be off, without its own roundings.
    """

    make: Callable[[Any, Any, Any, Any], Function]
    values: Callable[..., tuple[Any, ...]]
    errors: Callable[..., tuple[Any, ...]]
    captures: bool = False
    drops: bool = False
    takes_integers: bool = True
    results: int = 1


def _relu(row: Any, column: Any, gain: Any, drop: Any) -> Function:
    return lambda acc: tw.where(acc > 0, acc, 0)


def _gain(row: Any, column: Any, gain: Any, drop: Any) -> Function:
    return lambda acc: acc * gain


def _affine(row: Any, column: Any, gain: Any, drop: Any) -> Function:
    return lambda acc: acc * column + row


def _silu(row: Any, column: Any, gain: Any, drop: Any) -> Function:
    return lambda acc: acc / (1 + tw.exp(-acc))


def _dropped(row: Any, column: Any, gain: Any, drop: Any) -> Function:
    return drop  # type: ignore[no-any-return]


def _dropped_sum(row: Any, column: Any, gain: Any, drop: Any) -> Function:
    return lambda acc: drop(tw.where(acc > 0, acc, 0)) + row


def _three(row: Any, column: Any, gain: Any, drop: Any) -> Function:
    return lambda acc: (tw.where(acc > 0, acc, 0), acc, acc * gain)


def _relu_of(xp: Any, x: Any) -> Any:
    return xp.where(x > 0, x, xp.zeros_like(x))


def _kept_of(xp: Any, x: Any, kept: Any) -> Any:
    """Return what dropout leaves; what it drops is 0, whatever it was."""
    return xp.where(kept > 0, x * kept, xp.zeros_like(x))


EPILOGUES: Mapping[str, Epilogue] = MappingProxyType(
    {
        "relu": Epilogue(
            _relu,
            lambda xp, x, row, column, gain, kept: (_relu_of(xp, x),),
            lambda xp, e, row, column, gain, kept: (e,),
        ),
        "gain": Epilogue(
            _gain,
            lambda xp, x, row, column, gain, kept: (x * gain,),
            lambda xp, e, row, column, gain, kept: (e * abs(gain),),
        ),
        "affine": Epilogue(
            _affine,
            lambda xp, x, row, column, gain, kept: (x * column + row,),
            lambda xp, e, row, column, gain, kept: (e * abs(column),),
            captures=True,
        ),
        "silu": Epilogue(  # the slope is 1.1 at most
            _silu,
            lambda xp, x, row, column, gain, kept: (x / (1 + xp.exp(-x)),),
            lambda xp, e, row, column, gain, kept: (1.1 * e,),
            takes_integers=False,
        ),
        "dropout": Epilogue(
            _dropped,
            lambda xp, x, row, column, gain, kept: (_kept_of(xp, x, kept),),
            lambda xp, e, row, column, gain, kept: (e * kept,),
            drops=True,
            takes_integers=False,
        ),
        "relu, dropout, sum": Epilogue(
            _dropped_sum,
            lambda xp, x, row, column, gain, kept: (_kept_of(xp, _relu_of(xp, x), kept) + row,),
            lambda xp, e, row, column, gain, kept: (e * kept,),
            captures=True,
            drops=True,
            takes_integers=False,
        ),
        "three": Epilogue(
            _three,
            lambda xp, x, row, column, gain, kept: (_relu_of(xp, x), x, x * gain),
            lambda xp, e, row, column, gain, kept: (e, e, e * abs(gain)),
            results=3,
        ),
    }
)  # fmt: skip
