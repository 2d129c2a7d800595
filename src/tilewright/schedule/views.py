"""How one array is seen as another: where the elements of a view lie in what it views, and sizes made of sizes.

A `Projection` is affine, so that an access of a view is an access of the array that it views: whatever is asked of
accesses is answered for the memory itself. What no projection says (elements of another size, a mode that is split by a
size of the launch) has coordinates of its own, and steps that are products of sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, Union

from tilewright.schedule.affine import Affine, Dimension, Size

Product: TypeAlias = tuple[Size, ...]  # of sizes that are multiplied; () is 1
Extent: TypeAlias = Union[Size, Affine, None]  # None where it is neither a size nor affine


class Derived(Dimension):
    """A size that follows from others: product of `factors` // product of `divisors`.

    >>> M, N = Dimension("M"), Dimension("N")
    >>> Derived((M, N), (4,)), Derived((M, N), (4,)).value({M: 6, N: 2})
    (M * N // 4, 3)
    """

    def __init__(self, factors: Product, divisors: Product = ()) -> None:
        text = " * ".join(map(str, factors)) or "1"
        below = " * ".join(map(str, divisors))
        under = f" // {below}" if len(divisors) == 1 else f" // ({below})" if divisors else ""
        super().__init__(text + under)
        self.factors: Product = factors
        self.divisors: Product = divisors

    def value(self, sizes: Mapping[Any, Any]) -> Any:  # Any: numbers of host or device
        """Return the size for given values of those that it follows from."""
        found, below = product(self.factors, sizes), product(self.divisors, sizes)
        if isinstance(below, int) and below < 2:
            return found if below else 0  # `divides` says what 0 divides
        return found // below

    def divides(self, sizes: Mapping[Any, int]) -> bool:
        """Whether nothing is left over."""
        found, below = product(self.factors, sizes), product(self.divisors, sizes)
        return bool(found % below == 0 if below else found == 0)

    def key(self) -> tuple[Any, ...]:
        """Return what is equal for equal sizes."""
        return tuple(map(key_of, self.factors)), tuple(map(key_of, self.divisors))

    def roots(self) -> tuple[Dimension, ...]:
        """Return the sizes of the launch that it follows from."""
        found: dict[Dimension, None] = {}
        for size in (*self.factors, *self.divisors):
            if isinstance(size, Dimension):
                found.update(dict.fromkeys(size.roots() if isinstance(size, Derived) else (size,)))
        return tuple(found)


class Computed(Derived):
    """A size that is an affine expression of others, such as N // 16, rounded down.

    >>> N = Dimension("N")
    >>> Computed(N // 16 + 1), Computed(N // 16 + 1).value({N: 40})
    (N // 16 + 1, 3)
    """

    def __init__(self, expression: Affine) -> None:
        Dimension.__init__(self, str(expression))
        self.factors: Product = ()  # not a product that another one could take in
        self.divisors: Product = (1,)
        self.expression = expression

    def value(self, sizes: Mapping[Any, Any]) -> Any:  # Any: numbers of host or device
        """Return the size for given values of those that it follows from."""
        return self.expression.evaluate({size: value_of(size, sizes) for size in self._sizes()})

    def divides(self, sizes: Mapping[Any, int]) -> bool:
        """Whether nothing is left over: what is rounded down is meant to be."""
        return True

    def key(self) -> tuple[Any, ...]:
        """Return what is equal for equal sizes."""
        return tuple((key_of(s) if isinstance(s, Dimension) else s, c) for s, c in self.expression.terms), (
            self.expression.constant,
        )

    def roots(self) -> tuple[Dimension, ...]:
        """Return the sizes of the launch that it follows from."""
        sizes = self._sizes()
        return tuple(dict.fromkeys(r for x in sizes for r in (x.roots() if isinstance(x, Derived) else (x,))))

    def _sizes(self) -> list[Dimension]:
        sizes = [symbol for symbol in self.expression.symbols() if isinstance(symbol, Dimension)]
        return sorted(sizes, key=lambda size: size.number)


def key_of(size: Size) -> Any:  # Any: compares as the size does
    """Return what is equal for equal sizes."""
    if isinstance(size, Derived):
        return size.key()
    return size.number if isinstance(size, Dimension) else size  # in a nest's logic, == of sizes is an expression


def product(sizes: Product, values: Mapping[Any, Any]) -> Any:  # Any: numbers of host or device
    """Return the product of sizes for given values of those that the launch knows."""
    found: Any = 1
    for size in sizes:
        factor = value_of(size, values) if isinstance(size, Dimension) else size
        found = factor if isinstance(found, int) and found == 1 else found * factor
    return found


def value_of(size: Dimension, values: Mapping[Any, Any]) -> Any:  # Any: numbers of host or device
    """Return a size for given values of those of the launch."""
    if size in values:
        return values[size]
    return size.value(values) if isinstance(size, Derived) else values[size]


def as_size(factors: Product, divisors: Product = ()) -> Size:
    """Return a product over a product as a size: a number where it is one.

    >>> as_size((6, 4), (8,)), as_size((Dimension("N"), 4), (2,))
    (3, N * 2)
    """
    factors = flat(factors)
    number = math.prod(x for x in factors if isinstance(x, int))
    below = math.prod(x for x in divisors if isinstance(x, int))
    common = math.gcd(number, below)
    number, below = number // common, below // common
    left = [x for x in factors if not isinstance(x, int)]
    under = []
    for x in divisors:
        if isinstance(x, int):
            continue
        same = [n for n, y in enumerate(left) if key_of(y) == key_of(x)]
        if same:
            del left[same[0]]
        else:
            under.append(x)
    if below > 1:
        under.append(below)  # type: ignore[arg-type]  # a number among sizes
    if not left and not under:
        return number
    if not under and len(left) == 1 and number == 1:
        return left[0]
    return Derived((*left, *((number,) if number != 1 or not left else ())), tuple(under))


def flat(factors: Product) -> Product:
    """Return a product whose sizes are none that are products themselves."""
    found: list[Size] = []
    for x in factors:
        found += flat(x.factors) if isinstance(x, Derived) and not x.divisors else (x,)
    return tuple(found)


def plain(factors: Product) -> int | None:
    """Return a product of numbers as a number, None where a size of the launch is among them."""
    numbers = [x for x in factors if isinstance(x, int)]
    return math.prod(numbers) if len(numbers) == len(factors) else None


@dataclass(frozen=True, eq=False)
class Projection:
    """Where the elements of a view lie: mode m of the base at offsets[m] + sum of factor * index for modes[m].

    `modes` has, for each mode of the base, the modes of the view that move along it and by how much each does.

    >>> from tilewright.schedule.affine import as_affine
    >>> one, two, three = map(as_affine, (1, 2, 3))
    >>> rows = Projection.whole(2).part((one, two), (2, 3))
    >>> rows.place((two, three))
    (5, 11)
    >>> rows.split(1, 8).place((two, one, three))
    (5, 35)
    """

    offsets: tuple[Affine, ...]
    modes: tuple[tuple[tuple[int, int], ...], ...]

    @staticmethod
    def whole(rank: int) -> Projection:
        """Return the projection of an array onto itself."""
        return Projection((Affine((), 0),) * rank, tuple(((mode, 1),) for mode in range(rank)))

    def place(self, indices: Sequence[Affine]) -> tuple[Affine, ...]:
        """Return where an element of the view is in the base."""
        found = []
        for offset, moves in zip(self.offsets, self.modes, strict=True):
            place = offset
            for mode, factor in moves:
                place = place + factor * indices[mode]
            found.append(place)
        return tuple(found)

    def part(self, offsets: Sequence[Affine], strides: Sequence[int]) -> Projection:
        """Return the projection of a part that begins at an element of the view and takes every so many."""
        modes = tuple(tuple((m, f * strides[m]) for m, f in moves) for moves in self.modes)
        return Projection(self.place(offsets), modes)

    def split(self, dim: int, size: int) -> Projection:
        """Return the projection with a mode of the view cut into rows of `size` elements."""

        def moved(moves: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
            found: list[tuple[int, int]] = []
            for m, f in moves:
                found += [(m, f * size), (m + 1, f)] if m == dim else [(m + (m > dim), f)]
            return tuple(found)

        return Projection(self.offsets, tuple(map(moved, self.modes)))

    def fixed(self, at: Mapping[int, Affine], rank: int) -> Projection:
        """Return the projection of the elements at which some modes of the view, which has `rank`, are fixed."""
        kept = {mode: n for n, mode in enumerate(m for m in range(rank) if m not in at)}
        start = self.place([at.get(mode, Affine((), 0)) for mode in range(rank)])
        modes = tuple(tuple((kept[m], f) for m, f in moves if m in kept) for moves in self.modes)
        return Projection(start, modes)

    def reordered(self, order: Sequence[int]) -> Projection:
        """Return the projection with the modes of the view in another order: mode n is mode order[n] of it."""
        back = {mode: n for n, mode in enumerate(order)}
        return Projection(self.offsets, tuple(tuple((back[m], f) for m, f in moves) for moves in self.modes))

    def steps(self, steps: Sequence[Product], rank: int) -> tuple[Product, ...]:
        """Return how far apart in memory neighbours along each mode of the view are, by the steps of the base."""
        found: list[Product] = [(0,)] * rank
        for step, moves in zip(steps, self.modes, strict=True):
            for mode, factor in moves:
                found[mode] = step if factor == 1 else (factor, *step)
        return tuple(found)
