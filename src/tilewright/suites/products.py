"""Matrices for C = alpha A B + beta C: random data, the library's product, and the check of a result."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.bench.ceilings import free_bytes
from tilewright.bench.checking import read
from tilewright.demo.arrays import array_library, put
from tilewright.demo.examples import Array, Backend
from tilewright.demo.products import ALPHA, BETA
from tilewright.dtypes import DType, float32
from tilewright.dtypes import dtype as dtype_of
from tilewright.errors import ArgumentError

DTYPES = ("float32", "tfloat32", "float16", "bfloat16", "float64")
RESERVED = 512 << 20  # bytes of the GPU for the flush of the L2 cache and the library's workspace
_WHOLE = 1 << 32  # products with fewer operations are compared element by element
_LARGEST = 2**31 - 1  # an extent of a product that is measured
_MOST_CHARACTERS = 60  # of the text of a size
_SAMPLED_ROWS = 64
_VECTORS = 2
_ROUNDING = {"float32": 2.0**-24, "tfloat32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}


@dataclass(frozen=True)
class Shape:
    """The extents of a product: A is m x k, B k x n, C m x n."""

    m: int
    n: int
    k: int

    @staticmethod
    def parse(text: str) -> Shape:
        """Return the shape that a text names: "4096" for a cube, "512x256x64" for m, n and k.

        >>> Shape.parse("512x256x64")
        Shape(m=512, n=256, k=64)

        Raises `ArgumentError` for any other text.
        """
        try:
            extents = [int(part) for part in text[:_MOST_CHARACTERS].lower().split("x")]
        except ValueError:
            extents = []
        if len(extents) not in (1, 3) or not all(1 <= extent <= _LARGEST for extent in extents):
            raise ArgumentError(
                f"a size is N or MxNxK in positive integers up to {_LARGEST}, got {text[:_MOST_CHARACTERS]!r}"
            )
        return Shape(*(extents if len(extents) == 3 else extents * 3))

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    def bytes(self, element: int) -> int:
        """Return the bytes of A, B and C."""
        return element * (self.m * self.k + self.k * self.n + self.m * self.n)

    def __str__(self) -> str:
        return str(self.m) if self.m == self.n == self.k else f"{self.m} x {self.n} x {self.k}"


@dataclass
class Product:
    """One problem with its data in place: normal random A, B and C where the backend computes."""

    shape: Shape
    dtype: str
    backend: Backend
    alpha: float = ALPHA
    beta: float = BETA

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ArgumentError(f"the element type is one of {', '.join(DTYPES)}, got {self.dtype!r}")
        s, random = self.shape, np.random.default_rng(0)
        element = element_of(self.dtype).numpy
        wide = np.float64 if self.dtype == "float64" else np.float32
        # Rounded to the element type once, so that every side computes with the same numbers.
        numbers = [random.standard_normal(shape, dtype=wide) for shape in ((s.m, s.k), (s.k, s.n), (s.m, s.n))]
        self.a: np.ndarray[Any, Any]
        self.b: np.ndarray[Any, Any]
        self.c: np.ndarray[Any, Any]
        self.a, self.b, self.c = (x.astype(element) for x in numbers)
        self.A, self.B, self.C = (put(x, self.backend) for x in (self.a, self.b, self.c))

    def reset(self) -> None:
        """Give C its first contents back."""
        if self.backend == "sim":
            self.C[...] = self.c
            return
        fresh = put(self.c, self.backend)
        if hasattr(self.C, "copy_"):
            self.C.copy_(fresh)
        elif hasattr(self.C, "fill_from"):
            self.C.fill_from(self.c)
        else:
            self.C[...] = fresh

    def error(self) -> float:
        """Return the greatest error of what C holds, in units of what rounding explains: at most 1 where it is right.

        Small products are compared element by element with one in float64. Of large ones some rows are, and the whole
        by random signs x: C x = alpha A (B x) + beta C x up to rounding (Freivalds).
        """
        computed = read(self.C).astype(np.float64)
        if not np.isfinite(computed).all():
            return float("inf")
        rows = self._rows
        worst = float(np.abs(computed[rows] - self._expected).max(initial=0.0)) / self._limit
        if len(rows) == self.shape.m:
            return worst
        limit = self._limit * np.sqrt(self.shape.n)
        return max(worst, *(float(np.abs(computed @ x - y).max() / limit) for x, y in self._probes))

    @cached_property
    def _rows(self) -> Array:
        if self.shape.flops <= _WHOLE:
            return np.arange(self.shape.m)
        random = np.random.default_rng(1)
        chosen = random.choice(self.shape.m, min(_SAMPLED_ROWS, self.shape.m), replace=False)
        return np.unique(np.concatenate([chosen, [0, self.shape.m - 1]]))

    @cached_property
    def _expected(self) -> Array:
        rows = self._rows
        product = self.a[rows].astype(np.float64) @ self.b.astype(np.float64)
        result: Array = self.alpha * product + self.beta * self.c[rows].astype(np.float64)
        return result

    @cached_property
    def _probes(self) -> list[tuple[Array, Array]]:
        random = np.random.default_rng(2)
        a, b, c = (x.astype(np.float64) for x in (self.a, self.b, self.c))
        signs = [random.choice([-1.0, 1.0], self.shape.n) for _ in range(_VECTORS)]
        return [(x, self.alpha * (a @ (b @ x)) + self.beta * (c @ x)) for x in signs]

    @cached_property
    def _limit(self) -> float:
        """What rounding can make of one element, with room for its luckless tail.

        A sum of k products of normal numbers in precision u is off by about u k; inputs cut to TF32 lose up to 2^-10
        of each product; the result is rounded to its own type.
        """
        k = self.shape.k
        u = 2.0**-53 if self.dtype == "float64" else 2.0**-24
        inputs = 6 * 2.0**-10 * np.sqrt(2 * k) if self.dtype == "tfloat32" else 0.0
        values = 6 * (self.alpha * np.sqrt(k) + self.beta)
        return float(8 * u * k + 2 * _ROUNDING[self.dtype] * values + inputs)


def element_of(name: str) -> DType:
    """Return the type in which elements are stored: TF32 products are of float32 matrices."""
    return float32 if name == "tfloat32" else dtype_of(name)


def check_memory(shape: Shape, dtype: str, backend: Backend) -> None:
    """Raise `ArgumentError` where the matrices do not fit into the memory that is free."""
    needed = shape.bytes(element_of(dtype).bytes)
    free: int | None
    if backend == "cuda":
        free, where = free_bytes() - RESERVED, "of the GPU"
    else:
        free, where = _host_bytes(), "of this machine"
        needed *= 4  # the check computes in float64
    if free is not None and needed > free:
        raise ArgumentError(
            f"a product of {shape} in {dtype} takes {needed / 2**30:.1f} GiB, and {max(free, 0) / 2**30:.1f} GiB "
            f"{where} are free",
            help="choose a smaller --size",
        )


def library_product(product: Product) -> tuple[str, Callable[[], object]] | None:
    """Return the name and the call of cuBLAS for a product on the GPU, by PyTorch or CuPy; None without either."""
    if product.backend != "cuda":
        return None
    A, B, C, alpha, beta = product.A, product.B, product.C, product.alpha, product.beta
    match array_library():
        case "torch":
            return "cuBLAS (torch)", lambda: C.addmm_(A, B, beta=beta, alpha=alpha)
        case "cupy":
            import cupy

            return "cuBLAS (CuPy, beta 0)", lambda: cupy.matmul(A, B, out=C)
    return None


@contextlib.contextmanager
def full_precision(dtype: str) -> Iterator[None]:
    """Keep TF32 out of the library's float32 products for the body of a `with`, and let it in for tfloat32."""
    if array_library() != "torch":
        yield  # CuPy computes in float32 unless CUPY_TF32 says otherwise
        return
    import torch

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tfloat32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _host_bytes() -> int | None:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows, macOS
        return None
