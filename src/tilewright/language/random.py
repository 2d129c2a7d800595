"""Random numbers by counter: each is a function of a seed and an offset, in any thread and in any order.

Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011): ten rounds of two
products of 32 bits turn a counter of 128 bits into four words, under a key of 64 bits. The counter's low half is the
offset and the key is the seed. Integers and uniform numbers have the same bits on every backend; normal ones differ
by what the target's logarithm, sine and cosine differ.
"""

from __future__ import annotations

import math
from typing import Any

from tilewright.arguments import shown
from tilewright.dtypes import float32, int32, int64, uint32, uint64
from tilewright.errors import LanguageError
from tilewright.instructions.approximate import cos_approx, sin_approx, sqrt_approx
from tilewright.instructions.philox import Words, philox_words
from tilewright.instructions.products import mul_hi
from tilewright.tensors.arithmetic import elementwise, refuse_tensors
from tilewright.trace.mathematics import as_integer, as_word, fma, log
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import current

_ROUNDS = 10


def philox(seed: Any, counter: Any, rounds: int = _ROUNDS) -> Words:
    """Return the four uint32 that Philox 4x32 gives for a seed and a counter.

    The seed is an integer of 32 or 64 bits. So is the counter, or it is a tuple of up to four words of 32 bits, the
    lowest first. Signed numbers are sign-extended: an int32 of -1 equals an int64 of -1. `rounds` is 10; 7 are the
    fewest known to pass the statistical tests.
    """
    current("tw.philox")
    refuse_tensors("tw.philox", seed, *(counter if isinstance(counter, (tuple, list)) else (counter,)))
    if type(rounds) is not int or not 1 <= rounds <= 16:
        raise LanguageError(f"the rounds of tw.philox are 1 to 16, known while tracing, got {shown(rounds)}")
    return philox_words(_halves(seed, "the seed of tw.philox"), _counter(counter), rounds)


@elementwise(4)
def randint(seed: Any, offset: Any, low: Any = None, high: Any = None) -> Scalar:
    """Return a random uint32; with `low` and `high` a random integer from `low` to `high - 1`, int32.

    With bounds it is int32, or uint32 where both bounds are or where they do not fit into int32. Of the 2 ** 64 values
    that a range of n numbers is drawn from, each number gets 2 ** 64 / n, rounded up or down. Where a range that the
    device computes is empty, the number is `low`.
    """
    words = philox(seed, offset)
    return words[0] if low is None and high is None else _within(low, high, words[0], words[1])


def randint4x(seed: Any, offset: Any) -> Words:
    """Return the four random uint32 of an offset, of which `randint` gives the first."""
    refuse_tensors("tw.randint4x", seed, offset)
    return philox(seed, offset)


@elementwise(2)
def rand(seed: Any, offset: Any) -> Scalar:
    """Return a random float32 from [0, 1), one of the 2 ** 24 multiples of 2 ** -24."""
    return _uniform(philox(seed, offset)[0])


def rand4x(seed: Any, offset: Any) -> Words:
    """Return four random float32 from [0, 1), of which `rand` gives the first."""
    refuse_tensors("tw.rand4x", seed, offset)
    a, b, c, d = (_uniform(word) for word in philox(seed, offset))
    return a, b, c, d


@elementwise(2)
def randn(seed: Any, offset: Any) -> Scalar:
    """Return a random float32 of the normal distribution with mean 0 and deviation 1.

    By Box and Muller's method from two words; at most 6.8 from 0. The backends agree within 1e-5.
    """
    words = philox(seed, offset)
    return _normal(words[0], words[1])[0]


def randn4x(seed: Any, offset: Any) -> Words:
    """Return four random float32 of the normal distribution, of which `randn` gives the first."""
    refuse_tensors("tw.randn4x", seed, offset)
    words = philox(seed, offset)
    return *_normal(words[0], words[1]), *_normal(words[2], words[3])


# --- what they are made of -------------------------------------------------------------------------------


def _halves(x: Any, what: str) -> tuple[Scalar, Scalar]:
    """Return the words of an integer as one of 64 bits, the low one first."""
    if isinstance(x, int) and not isinstance(x, bool) and int64.lowest <= x <= uint64.highest:
        return as_scalar(x & uint32.highest, uint32), as_scalar(x >> 32 & uint32.highest, uint32)
    number = as_integer(x, what, 8, 16, 32, 64)
    if number.dtype.bits < 64:
        number = number if number.dtype.bits == 32 else number.to(int32)
        low = number.to(uint32)
        if number.dtype is uint32 or number.facts.non_negative:
            return low, as_scalar(0, uint32)
        return low, (number >> 31).to(uint32)
    wide = number.to(uint64)
    return wide.to(uint32), (wide >> 32).to(uint32)


def _counter(counter: Any) -> Words:
    if isinstance(counter, (tuple, list)):
        if len(counter) > 4:
            raise LanguageError(f"a counter of tw.philox has up to four words, got {len(counter)}")
        words = [as_word(x, "a counter of tw.philox") for x in counter]
    else:
        words = list(_halves(counter, "the offset of a random number"))
    a, b, c, d = words + [as_scalar(0, uint32)] * (4 - len(words))
    return a, b, c, d


def _uniform(word: Scalar) -> Scalar:
    uniform: Scalar = (word >> 8).to(int32).to(float32) * 2.0**-24  # both exact
    return uniform


def _normal(a: Scalar, b: Scalar) -> tuple[Scalar, Scalar]:
    """Return sqrt(-2 log(u)) times the cosine and the sine of an angle, for u from (0, 1].

    The logarithm is that of full accuracy, also under fastmath: near u = 1 an approximate one has no correct digit. The
    angle lies between -pi and pi, where the approximate sine and cosine are within 2 ** -20.5.
    """
    with current("tw.randn").computing(fastmath=False):
        distance = sqrt_approx(-2.0 * log(fma(a.to(float32), 2.0**-32, 2.0**-33)))
    angle = b.to(int32).to(float32) * (math.pi * 2.0**-31)
    return distance * cos_approx(angle), distance * sin_approx(angle)


def _within(low: Any, high: Any, a: Scalar, b: Scalar) -> Scalar:
    """Return low + the whole part of n * x, where x from [0, 1) has the bits of both words and n = high - low."""
    what = "a bound of tw.randint"
    if low is None or high is None:
        raise LanguageError("tw.randint takes both bounds, or none", help="write tw.randint(seed, offset, 0, high)")
    known = isinstance(low, int) and isinstance(high, int)
    if known and not 0 < high - low <= uint32.highest:
        raise LanguageError(f"tw.randint takes a range of 1 to 2 ** 32 - 1 numbers, got {shown(low)} to {shown(high)}")
    if known and low < 0 and high - 1 > int32.highest:
        raise LanguageError(f"neither int32 nor uint32 has the numbers from {low} to {high - 1}")
    type = uint32 if all(_is_unsigned(x) for x in (low, high)) or (known and high - 1 > int32.highest) else int32
    first = as_word(low, what)
    count = as_scalar(high - low, uint32) if known else as_word(high, what) - first
    product = a.to(uint64) * count.to(uint64) + mul_hi(b, count).to(uint64)
    number: Scalar = first + (product >> 32).to(uint32)
    return number.to(type)


def _is_unsigned(x: Any) -> bool:
    return getattr(x, "dtype", None) == uint32
