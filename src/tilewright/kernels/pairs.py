"""`tw.gated`: an epilogue of two accumulators, for weights whose columns are pairs of a gate and what it multiplies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NoReturn, get_args  # Any: device numbers

from tilewright.errors import ArgumentError, LanguageError
from tilewright.frames import hiding_frames

Pairs = Literal["halves", "interleaved"]


class Gated:
    """A function of the two accumulators of a pair of columns; `pairs` says which columns of b are a pair."""

    def __init__(self, function: Callable[..., Any], pairs: Pairs) -> None:
        if not callable(function):
            raise ArgumentError(
                f"tw.gated takes a function of two accumulators, got {type(function).__name__}",
                help="for example tw.gated(lambda gate, up: tw.maximum(gate, 0) * up)",
            )
        if pairs not in get_args(Pairs):
            raise ArgumentError(
                f"pairs is one of {', '.join(map(repr, get_args(Pairs)))}, got {pairs!r}",
                help="'halves' are columns n and N + n of b, 'interleaved' columns 2 n and 2 n + 1",
            )
        self.function: Callable[..., Any] = function
        self.pairs: Pairs = pairs

    def __call__(self, *values: Any) -> NoReturn:
        raise LanguageError(
            "tw.gated takes two accumulators, and this is a call with values", help="pass it as epilogue= of tw.matmul"
        )

    def __repr__(self) -> str:
        return f"tw.gated({getattr(self.function, '__qualname__', self.function)}, pairs={self.pairs!r})"


@hiding_frames
def gated(function: Callable[..., Any], pairs: Pairs = "halves") -> Gated:
    """Return an epilogue that computes each element of a result from two columns of the product.

    y[m, n] = function(gate[m, n], up[m, n]), where (a @ b) has 2 N columns and y has N.

    >>> import numpy as np, tilewright as tw
    >>> x, w13 = np.ones((1, 2), np.float32), np.array([[1, 1], [-1, -1], [3, 3], [4, 4]], np.float32)
    >>> tw.matmul(x, w13.T, epilogue=tw.gated(lambda gate, up: tw.maximum(gate, 0) * up))
    array([[12.,  0.]], dtype=float32)

    `pairs` says where the columns of b are that belong together: "halves" have all gates first, gate[:, n] in column n
    and up[:, n] in column N + n; "interleaved" have them in columns 2 n and 2 n + 1. So weights (2 N, K) with all rows
    of the gate first are passed as `w13.T`. Both accumulators belong to one thread, and nothing with 2 N columns is
    stored.

    `bias`, `c` and scales of `b` belong to the product and have 2 N columns, in the order of b. The arrays that the
    function captures, the results of `also=` and the result have N.

    Raises `ArgumentError` for what is not a function, and for other `pairs`.
    """
    return Gated(function, pairs)
