"""A generated kernel with its arguments: made by a seed, run on a backend, and compared to the bit or within a bound."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tests.conformance.harness import Array, Backend, bits_of, edge_values, ulps
from tests.fuzz import threads
from tests.property.test_language import compiled

import tilewright as tw


@dataclass(frozen=True)
class Argument:
    """An array or a scalar (shape None) of a kernel."""

    name: str
    dtype: tw.DType
    shape: tuple[int, ...] | None
    content: str = "edges"  # "edges": any numbers, the awkward ones more often; "zeros"; "count": 1 to 3, a scalar
    ulps: float = 0.0  # how far two results may lie apart; 0: the same bits
    distance: float = 0.0  # the same as a distance, where results cancel
    is_static: bool = False

    def make(self, random: np.random.Generator) -> Any:
        if self.content == "zeros":
            return np.zeros(self.shape or (), self.dtype.numpy)
        if self.shape is None:
            return self.dtype.numpy.type(
                random.integers(1, 4) if self.content == "count" else random.choice(POOLS[self.dtype])
            )
        if self.content == "small":
            return random.integers(-4, 5, self.shape).astype(self.dtype.numpy)
        if self.content == "unit":
            numbers = random.integers(-128, 129, self.shape) / 128  # tensor cores read all bits of them
            return (numbers * 2.0 ** -random.integers(0, 8, self.shape)).astype(self.dtype.numpy)
        return random.choice(POOLS[self.dtype], self.shape)


def _pool(dtype: tw.DType) -> Array:
    """Return edge values, small numbers and random ones of a type, in about equal parts."""
    edges = edge_values(dtype)
    if dtype is tw.bool_:
        return edges
    random = np.random.default_rng(1)
    small = random.integers(0, 20, edges.size)
    if dtype.is_float:
        others = (random.standard_normal(edges.size) * 10).astype(dtype.numpy)
    else:
        others = random.integers(dtype.lowest, dtype.highest, edges.size, dtype.numpy, endpoint=True)
    return np.concatenate([edges, small.astype(dtype.numpy), others])


POOLS = {
    t: _pool(t)
    for t in (tw.bool_, tw.int8, tw.int16, tw.int32, tw.int64, tw.uint8, tw.uint16, tw.uint32, tw.uint64, tw.float16,
              tw.bfloat16, tw.float32, tw.float64)
}  # fmt: skip


@dataclass(frozen=True)
class Program:
    """The text of a kernel named `kernel`, its launch, and what its arguments are made of."""

    text: str
    grid: int | tuple[int, ...]
    block: int | tuple[int, int, int]
    arguments: tuple[Argument, ...]
    seed: int

    def make_arguments(self) -> list[Any]:
        random = np.random.default_rng(self.seed)
        return [a.make(random) for a in self.arguments]

    def run(self, backend: Backend) -> list[Array]:
        """Run on a backend, all of the simulator's checks on, and return the arrays."""
        given = [backend.put(a) if isinstance(a, np.ndarray) else a for a in self.make_arguments()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tw.TilewrightWarning)  # register arrays with dynamic indices are meant
            passed = [tw.static(x) if a.is_static else x for a, x in zip(self.arguments, given, strict=True)]
            variables = compiled(self.text)
            variables["kernel"][self.grid, self.block](*packed(variables, passed))
        return [backend.get(x) for x, a in zip(given, self.arguments, strict=True) if a.shape is not None]

    def meaning(self) -> list[Array]:
        """Run the text by Python, thread by thread."""
        assert isinstance(self.grid, int)
        given = self.make_arguments()
        threads.run(self.text, self.grid, self.block, given)
        return [x for x in given if isinstance(x, np.ndarray)]

    def compile(self, arch: str = "sm_90a") -> None:
        """Compile to machine code, which needs no GPU."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tw.TilewrightWarning)
            passed = [
                tw.static(x) if a.is_static else x for a, x in zip(self.arguments, self.make_arguments(), strict=True)
            ]
            variables = compiled(self.text)
            variables["kernel"][self.grid, self.block].resources(*packed(variables, passed), arch=arch)

    def assert_agree(self, names: tuple[str, str], first: Sequence[Array], second: Sequence[Array]) -> None:
        """Compare the arrays of two runs, each as closely as its argument says."""
        arrays = [a for a in self.arguments if a.shape is not None]
        for argument, x, y in zip(arrays, first, second, strict=True):
            bad = _differing(argument, x, y)
            if bad.any():
                where = tuple(int(n) for n in np.argwhere(bad)[0])
                raise AssertionError(
                    f"{argument.name}{list(where)} is {x[where]!r} by {names[0]} and {y[where]!r} by {names[1]}; "
                    f"{int(bad.sum())} of {bad.size} elements differ\n{self}"
                )

    def __str__(self) -> str:
        listed = "\n".join(f"    {a}," for a in self.arguments)
        return (
            f"seed of the arguments {self.seed}, grid {self.grid}, block {self.block}\n"
            f"arguments (\n{listed}\n)\n{self.text}"
        )


def packed(variables: dict[str, Any], arguments: Sequence[Any]) -> Sequence[Any]:
    """Return the arguments as the kernel takes them: some in a structure, where the text has a function that makes it."""
    return variables["pack"](*arguments) if "pack" in variables else arguments  # type: ignore[no-any-return]


def _differing(argument: Argument, x: Array, y: Array) -> Array:
    same = bits_of(x) == bits_of(y)
    if argument.dtype.is_float:
        same |= np.isnan(x) & np.isnan(y)
    if argument.ulps:
        wide = np.longdouble if argument.dtype is tw.float64 else np.float64
        same |= ulps(x, y.astype(wide)) <= argument.ulps
    if argument.distance:
        same |= np.abs(x.astype(np.float64) - y.astype(np.float64)) <= argument.distance
    bad: Array = ~same
    return bad
