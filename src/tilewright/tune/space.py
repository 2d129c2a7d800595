"""A space of candidates, and the order in which they are tried.

The values of each parameter and the constraints that a candidate has to meet. A strategy is a generator of batches. It
looks at the times found so far, which its user fills in between two batches, and draws all that is random from one
seed: the same seed with the same times gives the same candidates.
"""

from __future__ import annotations

import inspect
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tilewright.arguments import function, given, hashable, instance, shown
from tilewright.errors import ArgumentError
from tilewright.tune.configs import LAUNCH_OPTIONS, Config

Point: TypeAlias = tuple[Any, ...]  # Any: a value for each axis, in order

_ENUMERABLE = 1 << 16  # points that are looked at one by one
_TRIES = 200  # random points drawn for each one that is wanted


@dataclass(frozen=True)
class Constraint:
    """A condition on some axes, named by its parameters, and why it has to hold.

    `places` are the axes that it takes by place alone, `keywords` the others.
    """

    holds: Callable[..., object]
    places: tuple[str, ...]
    keywords: tuple[str, ...]
    reason: str


@dataclass(frozen=True, init=False)
class Space:
    """All combinations of values that meet the constraints.

    Order the values of an axis so that neighbours behave alike, such as by size: the search steps from one to the next.
    `where` adds a constraint, a function whose parameters are names of axes::

        tw.Space(BM=(64, 128, 256), BN=(64, 128, 256), TM=(4, 8), TN=(4, 8)).where(
            lambda BM, BN, TM, TN: BM * BN // (TM * TN) in (128, 256), "a block has 128 or 256 threads"
        )

    An axis called min_blocks that the tuned function does not take is a launch option. Raises
    `ArgumentError` for an axis without values or with one twice.

    >>> space = Space(BM=(64, 128), TM=(4, 8)).where(lambda BM, TM: BM // TM <= 16, "at most 16 threads")
    >>> list(space), space.rejection({"BM": 128, "TM": 4})
    ([(64, 4), (64, 8), (128, 8)], 'at most 16 threads')
    """

    axes: tuple[tuple[str, tuple[Any, ...]], ...]
    constraints: tuple[Constraint, ...]

    def __init__(self, axes: Mapping[str, Sequence[Any]] | None = None, **more: Sequence[Any]) -> None:
        instance("Space", "axes", axes, (Mapping, type(None)), "a dict of the values of each axis by name")
        lists = {**(axes or {}), **more}
        if not lists:
            raise ArgumentError("a space has at least one axis: tw.Space(BM=(64, 128))")
        for name, values in lists.items():
            if isinstance(values, (str, bytes)) or not hasattr(values, "__getitem__") or not len(values):
                raise ArgumentError(f"axis {name} of a space takes a sequence of values, got {values!r}")
            if not all(map(hashable, values)):
                raise ArgumentError(f"the values of axis {name} of a space have to be hashable, got {tuple(values)!r}")
            if any(a == b for a, b in itertools.combinations(values, 2)):
                raise ArgumentError(f"axis {name} of a space has a value twice: {tuple(values)!r}")
        object.__setattr__(self, "axes", tuple((name, tuple(values)) for name, values in lists.items()))
        object.__setattr__(self, "constraints", ())

    def where(self, holds: Callable[..., object], reason: str | None = None) -> Space:
        """Return the space with one more constraint; `reason` (by default its docstring or name) says why it must hold.

        Raises `ArgumentError` for a parameter that is neither an axis nor has a default.
        """
        function("Space.where", "holds", holds)
        instance("Space.where", "reason", reason, (str, type(None)), "a text")
        try:
            parameters = inspect.signature(holds).parameters.values()
        except ValueError:  # of a class such as bool
            raise ArgumentError(f"a constraint has parameters that are axes, got {given(holds)}") from None
        taken = [p for p in parameters if p.default is p.empty or p.name in self.names]
        for p in taken:
            if p.name not in self.names or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                asked = str(p).split(":")[0]
                raise ArgumentError(f"a constraint asks for {asked}; the axes are {', '.join(self.names)}")
        places = tuple(p.name for p in taken if p.kind is p.POSITIONAL_ONLY)
        keywords = tuple(p.name for p in taken if p.kind is not p.POSITIONAL_ONLY)
        text = reason or inspect.getdoc(holds) or str(getattr(holds, "__name__", repr(holds)))
        result = Space(dict(self.axes))
        object.__setattr__(result, "constraints", (*self.constraints, Constraint(holds, places, keywords, text)))
        return result

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.axes)

    @property
    def combinations(self) -> int:
        """The number of combinations, including those that violate constraints."""
        return math.prod(len(values) for _, values in self.axes)

    def as_dict(self, point: Point) -> dict[str, Any]:
        """Return a point as values by name. Raises `ArgumentError` for anything but a tuple of one value per axis."""
        self._check_point("as_dict", point)
        return dict(zip(self.names, point, strict=True))

    def rejection(self, values: Mapping[str, Any]) -> str | None:
        """Return why a combination is not in the space: the first constraint's reason; None where it is.

        Raises `ArgumentError` where an axis that a constraint asks for has no value.
        """
        for constraint in self.constraints:
            try:
                places = [values[name] for name in constraint.places]
                keywords = {name: values[name] for name in constraint.keywords}
            except (KeyError, TypeError):
                axes = ", ".join(constraint.places + constraint.keywords)
                raise ArgumentError(f"Space.rejection: values is a dict with {axes}, got {given(values)}") from None
            if not constraint.holds(*places, **keywords):
                return constraint.reason
        return None

    def __contains__(self, point: object) -> bool:
        if not isinstance(point, tuple) or len(point) != len(self.axes):
            return False
        inside = all(value in values for value, (_, values) in zip(point, self.axes, strict=True))
        return inside and self.rejection(self.as_dict(point)) is None

    def __iter__(self) -> Iterator[Point]:
        """Return the points in order, the last axis fastest."""
        for point in itertools.product(*(values for _, values in self.axes)):
            if self.rejection(self.as_dict(point)) is None:
                yield point

    def sample(self, source: random.Random, count: int, without: set[Point]) -> list[Point]:
        """Return up to `count` different points drawn at random, none of `without`."""
        if self.combinations <= _ENUMERABLE:
            left = [point for point in self if point not in without]
            return source.sample(left, min(count, len(left)))
        found: dict[Point, None] = {}
        for _ in range(count * _TRIES):
            point = tuple(source.choice(values) for _, values in self.axes)
            if point not in found and point not in without and self.rejection(self.as_dict(point)) is None:
                found[point] = None
                if len(found) == count:
                    break
        return list(found)

    def neighbours(self, point: Point) -> list[Point]:
        """Return the points that differ in one axis by one step.

        Raises `ArgumentError` for a point that is not one of the space.
        """
        self._check_point("neighbours", point)
        found = []
        for n, (name, values) in enumerate(self.axes):
            if not any(point[n] is value or point[n] == value for value in values):
                raise ArgumentError(f"Space.neighbours: {name} is one of {shown(values)}, got {given(point[n])}")
            at = values.index(point[n])
            for step in (-1, 1):
                if 0 <= at + step < len(values):
                    other = (*point[:n], values[at + step], *point[n + 1 :])
                    if self.rejection(self.as_dict(other)) is None:
                        found.append(other)
        return found

    def _check_point(self, method: str, point: object) -> None:
        if not isinstance(point, tuple) or len(point) != len(self.axes):
            axes = ", ".join(self.names)
            raise ArgumentError(f"Space.{method}: point is a tuple of a value for each of {axes}, got {given(point)}")

    def complain_if_empty(self) -> None:
        """Raise `ArgumentError` if no point of a space that can be enumerated meets the constraints."""
        if self.combinations > _ENUMERABLE or next(iter(self), None) is not None:
            return
        counts: dict[str, int] = {}
        for point in itertools.product(*(values for _, values in self.axes)):
            reason = self.rejection(self.as_dict(point))
            assert reason is not None, point
            counts[reason] = counts.get(reason, 0) + 1
        raise ArgumentError(
            f"none of the {self.combinations} combinations of this space meets its constraints",
            details=[f"{count} fail: {reason}" for reason, count in counts.items()],
        )


BATCH = 8
_PARENTS = 4

# Times in milliseconds by config; None for what failed or is wrong.
Times = Mapping[Config, float | None]


def listed(configs: Sequence[Config]) -> Iterator[list[Config]]:
    """Give all configs in their order."""
    for first in range(0, len(configs), BATCH):
        yield list(configs[first : first + BATCH])


def searched(space: Space, parameters: Sequence[str], times: Times, *, seed: int, limit: int) -> Iterator[list[Config]]:
    """Give at most `limit` points of a space: all of a small space in random order, else by evolution.

    The evolution begins with random points. Then each batch holds the untried neighbours of the best point (one axis,
    one step: coordinate descent) and children of the best few: each axis from one of two parents, sometimes a step
    further. Where these are all tried, random points keep it from ending in a local optimum.
    """
    source = random.Random(seed)
    made: dict[Point, Config] = {}

    def make(points: Sequence[Point]) -> list[Config]:
        fresh = [p for p in dict.fromkeys(points) if p not in made][: limit - len(made)]
        made.update({p: config_of(space, p, parameters) for p in fresh})
        return [made[p] for p in fresh]

    if space.combinations <= limit:
        points = list(space)
        source.shuffle(points)
        yield from listed(make(points))
        return
    batch = make(space.sample(source, min(limit, 2 * BATCH), set()))
    while batch:
        yield batch
        measured = [(t, p) for p, c in made.items() if (t := times.get(c)) is not None]
        ranked = [p for _, p in sorted(measured, key=lambda item: item[0])]
        proposed: list[Point] = []
        if ranked:
            proposed += [p for p in space.neighbours(ranked[0]) if p not in made]
            source.shuffle(proposed)
            proposed = proposed[: BATCH // 2]
            proposed += [p for p in _children(space, ranked[:_PARENTS], source) if p not in made]
        proposed += space.sample(source, max(0, BATCH - len(proposed)), set(made) | set(proposed))
        batch = make(proposed[:BATCH])


def _children(space: Space, parents: Sequence[Point], source: random.Random) -> list[Point]:
    found = []
    for _ in range(BATCH):
        mother, father = source.choice(parents), source.choice(parents)
        child = tuple(source.choice(pair) for pair in zip(mother, father, strict=True))
        if source.random() < 0.5 and (steps := space.neighbours(child)):
            child = source.choice(steps)
        if child in space:
            found.append(child)
    return found[: BATCH // 4]


def config_of(space: Space, point: Point, parameters: Sequence[str]) -> Config:
    """Return the config of a point: axes that the function does not take are launch options."""
    values = space.as_dict(point)
    options = {name: values.pop(name) for name in LAUNCH_OPTIONS if name in values and name not in parameters}
    return Config(values, **options)
