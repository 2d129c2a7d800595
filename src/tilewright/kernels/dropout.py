"""`tw.dropout`: what an epilogue calls to set elements of a product's result to zero at random."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any, NoReturn  # Any: arrays of any library

import numpy as np

from tilewright.arguments import number
from tilewright.errors import ArgumentError, LanguageError
from tilewright.frames import hiding_frames
from tilewright.runtime.arrays import describe

_PARTS = 1 << 16  # p is a multiple of one over this


class Dropout:
    """Set an element to zero with probability p, and multiply it by 1 / (1 - p) otherwise; for epilogues of `matmul`.

    `threshold` is p in multiples of 2^-16. An element is dropped whose 16 random bits are below.
    """

    def __init__(self, p: float, seed: Any) -> None:
        check_probability("tw.dropout", "p", p)
        self.threshold: np.uint32 = np.uint32(round(p * _PARTS))
        self.scale: float = _PARTS / (_PARTS - int(self.threshold)) if self.threshold < _PARTS else 0.0
        self.seed: Any = _seed(seed)

    @property
    def p(self) -> float:
        """The probability, rounded to a multiple of 2^-16."""
        return int(self.threshold) / _PARTS

    def __call__(self, x: Any) -> NoReturn:
        raise LanguageError(
            "tw.dropout drops elements of a product's result, and this is not an epilogue of tw.matmul",
            help="pass it as epilogue=, or call it in the epilogue by a variable (attributes of objects are not looked "
            "into); other kernels take numbers from tw.philox",
        )

    def __repr__(self) -> str:
        return f"tw.dropout({self.p}, {self.seed if isinstance(self.seed, np.generic) else '<array>'})"


def check_probability(function: str, name: str, value: Any) -> None:
    """Raise `ArgumentError` for an argument that is not a number from 0 to 1."""
    if not 0 <= number(function, name, value) <= 1:
        raise ArgumentError(f"{function}: {name} is a probability, from 0 to 1, got {value}")


def _seed(seed: Any) -> Any:
    """Return a seed as a number of 64 bits, or an array of one."""
    if not isinstance(seed, bool) and isinstance(seed, Integral):
        if not -(1 << 63) <= int(seed) < 1 << 64:
            raise ArgumentError(f"seed is an integer of 64 bits, got {seed}")
        return np.uint64(int(seed) % (1 << 64))
    info = describe(seed, "seed")
    if info is None or not info.dtype.is_integer or info.dtype.bits < 32 or math.prod(info.shape) != 1:
        what = f"a {type(seed).__name__}" if info is None else f"{info.dtype} of the shape {info.shape}"
        raise ArgumentError(f"seed is an integer, or an array of one integer of 32 or 64 bits, got {what}")
    return seed


@hiding_frames
def dropout(p: float, seed: Any) -> Dropout:
    """Return an epilogue that sets elements of a product's result to zero with probability p, by a seed.

    y = x / (1 - p) for elements that are kept, and 0 for the others, whatever x is.

    >>> import numpy as np, tilewright as tw
    >>> x, ones = np.ones((2, 1), np.float32), np.ones((1, 6), np.float32)
    >>> tw.matmul(x, ones, epilogue=tw.dropout(0.5, seed=1))
    array([[0., 2., 0., 2., 2., 0.],
           [2., 2., 0., 2., 0., 2.]], dtype=float32)

    A function calls it as any other: with `drop = tw.dropout(p, seed)` an epilogue may return `drop(gelu(acc)) + x`.

    Whether an element is kept follows from the seed, its row and its column alone, with rows counted through the batch:
    not from the kernel, its tiles, strides or element types. p is rounded to a multiple of 2^-16, and what is kept is
    divided by 1 - p of that one. `seed` is an integer of 64 bits, for which no new kernel is compiled, or an array of
    one integer of 32 or 64 bits, which the kernel reads.

    An element is dropped if its 16 bits are below 2^16 p: those of column 32 g + 8 w + 2 q + h of a row are half h
    (0 is the low one) of word w of `tw.philox(seed, (4 g + q, row))`.

    Raises `ArgumentError` for a p that is not from 0 to 1, and for a seed that is not such an integer.
    """
    return Dropout(p, seed)
