"""The hard cases of composition: steps that do not divide an extent, and digits that carry. All values static.

With `A(x) = d_0 * x + sum of c_k * (x // p_k)` (see composer.py) and `b_k = r mod p_k`,

    f(i) = A(r * i) = i * f(1) + sum of c_k * (b_k * i // p_k)

is linear but for *jumps* of weight c_k where `b_k * i // p_k` goes up, at `i = ceil(m * p_k / b_k)` for m = 1, 2, ...
Since b_k < p_k, each term jumps by at most one at a time. f on [0, n) is a layout if and only if its first jump
n_0 divides n, all jumps fall on multiples of n_0, and `j -> f(n_0 * j)` is a layout on [0, n / n_0).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from itertools import product as all_of
from typing import Any

from tilewright.errors import LayoutError
from tilewright.layout.coordinates import Offset, _times, add_offsets, offset_of
from tilewright.layout.ints import Basis, scale

# A sum of modes that carries may still be right, because carries cancel. Deciding that goes through the digits that
# take part; past this number of them the composition is refused.
_MOST_DIGITS = 1 << 18

Terms = list[tuple[int, int, Any]]
"""The jumping terms: (b_k, p_k, weight c_k)."""


def compose_with_carries(
    shape: Sequence[Any], stride: Sequence[Any], n: int, r: int
) -> list[tuple[Any, Any, Any]] | None:
    """Return the modes (extent, step, stride) of `i -> A(r * i)` on [0, n), or None when it is not a layout."""
    known = [s if type(s) is int else None for s in shape[:-1]]
    if None in known:
        raise LayoutError(
            "composition(A, B): a step that does not divide an extent needs all extents of A to be static",
            help="make the shape of A static",
        )
    terms = _terms(known, stride, r)  # type: ignore[arg-type]
    regular = _regular_jumps(terms, n)
    if regular is None:
        return _compose_irregular(shape, stride, terms, n, r)
    if not regular:
        bounds = [1, n]
    else:
        bounds = [1, *regular, n]
    parts = []
    for low, high in pairwise(bounds):
        if high % low:
            return None
        value = offset_of(r * low, tuple(shape), tuple(stride))
        step = _as_stride(value)
        if step is None:
            return None
        parts.append((high // low, r * low, step))
    return parts


def _terms(shape: list[int], stride: Sequence[Any], r: int) -> Terms:
    terms: Terms = []
    p = 1
    for k, s in enumerate(shape):
        p *= s
        if r % p:
            terms.append((r % p, p, _Weight(stride[k + 1], s, stride[k])))
    return terms


class _Weight:
    """The weight `d - s * e` of a carry; strides that are not all integers only compare with nothing."""

    __slots__ = ("opaque", "value")

    def __init__(self, d: Any, s: int, e: Any) -> None:
        self.opaque = type(d) is not int or type(e) is not int
        self.value = 0 if self.opaque else d - s * e


def _vanish(weights: Sequence[_Weight]) -> bool:
    """Say whether weights add up to nothing; a dynamic or basis stride never cancels."""
    return not any(w.opaque for w in weights) and sum([w.value for w in weights]) == 0


def _regular_jumps(terms: Terms, n: int) -> list[int] | None:
    """Return the periods of the jumps in [1, n), least first; None when some term does not jump periodically."""
    periods: dict[int, list[_Weight]] = {}
    for b, p, weight in terms:
        jumps = b * (n - 1) // p
        if jumps == 0:
            continue
        period = -(-p // b)
        if -(-p * jumps // b) != period * jumps:
            return None
        periods.setdefault(period, []).append(weight)
    return sorted([q for q, weights in periods.items() if not _vanish(weights)])


def _compose_irregular(
    shape: Sequence[Any], stride: Sequence[Any], terms: Terms, n: int, r: int
) -> list[tuple[Any, Any, Any]] | None:
    first = 0
    for i in _candidates(terms, n):
        if _vanish([w for b, p, w in terms if b * i // p != b * (i - 1) // p]):
            continue
        if first == 0:
            first = i
            if n % first:
                return None
            if _breaks_early(terms, n, first):
                return None
        elif i % first:
            return None
    step = _as_stride(offset_of(r, tuple(shape), tuple(stride)))
    if step is None:
        return None
    if first == 0:
        return [(n, r, step)]
    rest = compose_with_carries(shape, stride, n // first, r * first)
    return None if rest is None else [(first, r, step), *rest]


def _candidates(terms: Terms, n: int) -> Any:
    """Yield in order the indices in [1, n) where some term jumps."""
    counts = [1] * len(terms)
    while terms:
        places = [-(-p * m // b) for (b, p, _), m in zip(terms, counts, strict=True)]
        i = min(places)
        if i >= n:
            return
        yield i
        counts = [m + (place == i) for m, place in zip(counts, places, strict=True)]


def _breaks_early(terms: Terms, n: int, first: int) -> bool:
    """Say whether the first irregular jump of some term is off the multiples of `first`: spares a long walk."""
    for b, p, _ in terms:
        period = -(-p // b)
        lag = period * b - p  # after b / lag jumps the term is one index early
        if lag == 0:
            continue
        i = period * -(-b // lag) - 1
        if i < n and i % first and not _vanish([w for c, q, w in terms if c * i // q != c * (i - 1) // q]):
            return True
    return False


def _as_stride(value: Offset) -> Any:
    """Return an offset as a stride: an integer, or one scaled basis vector; None when it is a sum of those."""
    if not isinstance(value, tuple):
        return value
    found = _single(value, ())
    return found


def _single(value: Offset, path: tuple[int, ...]) -> Any:
    if not isinstance(value, tuple):
        return Basis(value, path)
    inner = [_single(v, (*path, i)) for i, v in enumerate(value) if not _is_zero(v)]
    return inner[0] if len(inner) == 1 else (0 if not inner else None)


def _is_zero(value: Offset) -> bool:
    if isinstance(value, tuple):
        return all(_is_zero(v) for v in value)
    return type(value) is int and value == 0


def leaves_add_up(shape: Sequence[Any], stride: Sequence[Any], parts: Sequence[tuple[Any, Any, Any]]) -> bool:
    """Say whether A(sum of i_j * step_j) == sum of i_j * stride_j for all digits i_j of the parts.

    Without a carry it does. A carry at extent k is possible if the residues of the steps modulo p_k can reach p_k.
    """
    signs = {step < 0 for n, step, _ in parts if n > 1 and step}
    if len(signs) > 1:  # forward and back: any two may borrow from one another
        return _check_digits(tuple(shape), tuple(stride), list(parts))
    if signs == {True}:  # A(-x) == -A(x)
        parts = [(n, -step, scale(d, -1)) for n, step, d in parts]
    p = 1
    carrying: set[int] = set()
    for s in shape[:-1]:
        p *= s
        residues = [(j, (n - 1) * (step % p)) for j, (n, step, _) in enumerate(parts)]
        if sum([rest for _, rest in residues]) >= p:
            carrying.update([j for j, rest in residues if rest])
    if not carrying:
        return True
    taking_part = [parts[j] for j in sorted(carrying)]
    return _check_digits(tuple(shape), tuple(stride), taking_part)


def _check_digits(shape: tuple[Any, ...], stride: tuple[Any, ...], parts: list[tuple[Any, Any, Any]]) -> bool:
    def fits(digits: Sequence[int]) -> bool:
        index = sum([i * step for i, (_, step, _) in zip(digits, parts, strict=True)])
        expected: Offset = 0
        for i, (_, _, d) in zip(digits, parts, strict=True):
            expected = add_offsets(expected, _times(i, d))
        actual = offset_of(index, shape, stride)
        if isinstance(actual, tuple) or isinstance(expected, tuple):
            return _same_offset(actual, expected)
        return type(actual) is int and type(expected) is int and actual == expected

    count = 1
    for n, _, _ in parts:
        count *= n
    # Most sums that carry are wrong, and wrong at a corner: look there first.
    if not fits([n - 1 for n, _, _ in parts]):
        return False
    for x in range(len(parts)):
        for y in range(x):
            for top in (True, False):
                if not fits([(n - 1 if top else 1) if j in (x, y) else 0 for j, (n, _, _) in enumerate(parts)]):
                    return False
    if count > _MOST_DIGITS:
        return False
    return all(fits(digits) for digits in all_of(*[range(n) for n, _, _ in parts]))


def _same_offset(a: Offset, b: Offset) -> bool:
    x, y = (v if isinstance(v, tuple) else (v,) for v in (a, b))
    length = max(len(x), len(y))
    for u, v in zip(x + (0,) * (length - len(x)), y + (0,) * (length - len(y)), strict=True):
        if isinstance(u, tuple) or isinstance(v, tuple):
            if not _same_offset(u, v):
                return False
        elif not (type(u) is int and type(v) is int and u == v):
            return False
    return True
