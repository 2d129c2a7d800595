"""Random systems over the integers, ordinary ones and such as are hard for one method or another, from a seed each."""

from __future__ import annotations

import random
from collections.abc import Callable

from tilewright.schedule.integers import System

SIZES = (20, 20, 1000, 10**6, 10**12)  # of coefficients


class Maker:
    """Draws a system of 2 to 6 variables; `size` is that of its coefficients."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = "abcdef"[: self.random.randint(2, 6)]
        self.size = self.random.choice(SIZES)

    def number(self, size: int | None = None) -> int:
        size = self.size if size is None else size
        return self.random.randint(-size, size)

    def terms(self, size: int | None = None, chance: float = 1.0) -> dict[str, int]:
        return {v: self.number(size) for v in self.names if self.random.random() <= chance}

    def point(self, size: int) -> dict[str, int]:
        return {v: self.number(size) for v in self.names}

    def box(self, system: System[str], extents: tuple[int, ...]) -> System[str]:
        for v in self.names:
            system = band(system, {v: 1}, 0, self.random.choice(extents) - 1)
        return system

    # Classes of systems

    def mixed(self) -> System[str]:
        """Equations and bands of small coefficients, with and without a box."""
        size = self.random.choice((3, 8, 20, 20, 20))
        many = len(self.names) + 1
        system = System[str]()
        for _ in range(self.random.randint(0, many if self.random.random() < 0.2 else 3)):
            system = system.equal(self.terms(size, 0.7), self.number(3 * size))
        for _ in range(self.random.randint(0, many)):
            terms, low, chance = self.terms(size, 0.7), self.number(3 * size), self.random.random()
            if chance < 0.8:
                system = system.at_least_zero(terms, -low)
            if chance > 0.2:
                system = system.at_least_zero(negative(terms), low + self.random.choice((0, 2, 8, 20, 60)))
        return self.box(system, (4, 8, 16, 100)) if self.random.random() < 0.6 else system

    def nearly_parallel(self) -> System[str]:
        system, terms = System[str](), self.terms()
        for _ in range(self.random.randint(2, len(self.names) + 1)):
            factor = self.random.randint(1, 5)
            tilted = {v: factor * c + self.random.choice((0, 0, 0, 1, -1)) for v, c in terms.items()}
            if self.random.random() < 0.6:
                system = system.equal(tilted, self.number())
            else:
                low = self.number()
                system = band(system, tilted, low, low + self.random.randint(0, self.size))
        return system

    def large_coefficients(self) -> System[str]:
        system = System[str]()
        for _ in range(self.random.randint(1, 3)):
            system = system.equal(self.terms(), self.number())
        for _ in range(self.random.randint(0, 3)):
            low = self.number()
            system = band(system, self.terms(), low, low + self.random.randint(0, self.size))
        return system

    def many_equations(self) -> System[str]:
        """More equations than variables, all true at one point, or all but one."""
        system, point = System[str](), self.point(50)
        for _ in range(self.random.randint(len(self.names) - 1, 3 * len(self.names))):
            terms = self.terms(20)
            system = system.equal(terms, -value(terms, point))
        return system.equal(self.terms(20), self.number(100)) if self.random.random() < 0.3 else system

    def unbounded(self) -> System[str]:
        system = System[str]()
        for _ in range(self.random.randint(1, len(self.names))):
            system = system.at_least_zero(self.terms(), self.number())
        low = self.number()
        return band(system, self.terms(20), low, low + self.random.randint(0, 5))

    def one_fraction(self) -> System[str]:
        """As many equations as variables, whose one rational point is mostly none of integers."""
        system, divisor, point = System[str](), self.random.randint(2, 9), self.point(60)
        for _ in self.names:
            terms = self.terms(20)
            system = system.equal({v: divisor * c for v, c in terms.items()}, -value(terms, point))
        return system

    def thin_bands(self) -> System[str]:
        """As many thin bands as variables, and no box around."""
        system = System[str]()
        for _ in self.names:
            low = self.number()
            system = band(system, self.terms(), low, low + self.random.randint(0, 3))
        return system

    def flat(self) -> System[str]:
        """Inequalities that add up to an equation, which none of them shows."""
        one, other, c, d = self.terms(20), self.terms(20), self.number(50), self.number(50)
        last = {v: -one[v] - other[v] for v in self.names}
        system = System[str]().at_least_zero(one, c).at_least_zero(other, d)
        system = system.at_least_zero(last, self.random.choice((0, 0, 1)) - c - d)
        for v in self.names:
            system = band(system, {v: 1}, -self.random.randint(0, 100), self.random.randint(0, 100))
        return system

    def skewed(self) -> System[str]:
        """A box cut by an equation and a band of other slopes, as tiled and skewed loops are."""
        system = self.box(System[str](), (7, 100, 10**6)).equal(self.terms(20), self.number(100))
        low = self.number(100)
        return band(system, self.terms(300), low, low + 5)

    def planted(self) -> System[str]:
        """Equations and thin bands around a point of large numbers."""
        system, point = System[str](), self.point(10**6)
        for _ in range(self.random.randint(0, 3)):
            terms = self.terms()
            system = system.equal(terms, -value(terms, point))
        for _ in range(self.random.randint(0, 8)):
            terms = self.terms()
            at = value(terms, point)
            system = band(system, terms, at - self.random.randint(0, 5), at + self.random.randint(0, 5))
        return system

    def one_sided(self) -> System[str]:
        system = System[str]()
        for _ in range(8):
            system = system.at_least_zero(self.terms(), self.number(5 * self.size))
        return system


CLASSES: tuple[Callable[[Maker], System[str]], ...] = (
    Maker.mixed,
    Maker.nearly_parallel,
    Maker.large_coefficients,
    Maker.many_equations,
    Maker.unbounded,
    Maker.one_fraction,
    Maker.thin_bands,
    Maker.flat,
    Maker.skewed,
    Maker.planted,
    Maker.one_sided,
)


def random_system(seed: int) -> System[str]:
    """Return the system of a seed: every other one is an ordinary one, the rest go through the classes."""
    make = Maker.mixed if seed % 2 else CLASSES[seed // 2 % len(CLASSES)]
    return make(Maker(seed))


def negative(terms: dict[str, int]) -> dict[str, int]:
    return {v: -c for v, c in terms.items()}


def value(terms: dict[str, int], point: dict[str, int]) -> int:
    return sum(c * point[v] for v, c in terms.items())


def band(system: System[str], terms: dict[str, int], low: int, high: int) -> System[str]:
    return system.at_least_zero(terms, -low).at_least_zero(negative(terms), high)
