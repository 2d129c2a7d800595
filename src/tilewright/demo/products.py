"""Cases for matrix products: what `examples/sgemm` and `examples/schedule` share and their readers need not see."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from tilewright.demo.arrays import fetch, put
from tilewright.demo.examples import Array, Backend, Case, Trial
from tilewright.dtypes import DType, float32, tfloat32
from tilewright.schedule.arrays import Array as Declared
from tilewright.schedule.arrays import Role
from tilewright.schedule.scheduled import ScheduledKernel

# Any: arrays of any library. The arguments are C, A, B, alpha and beta.
Matmul: TypeAlias = Callable[[Any, Any, Any, float, float], None]

# beta below 1 in size, so that C stays bounded however often a kernel runs; both far from 0 and 1.
ALPHA, BETA = 0.5, 0.25


def product_cases(functions: Mapping[str, Matmul], backend: Backend, quick: bool, dtype: DType = float32) -> list[Case]:
    """Return one case for each function, which computes C = alpha A B + beta C in place.

    A, B and C are row-major matrices of `dtype` (tfloat32: of float32) with normal random elements. The extents are
    not multiples of any tile on the simulator, and powers of two on a GPU.
    """
    extents = (130, 150, 70) if quick else (2048, 2048, 2048)
    return [_case(name, function, extents, backend, dtype) for name, function in functions.items()]


def _case(name: str, function: Matmul, extents: tuple[int, int, int], backend: Backend, dtype: DType) -> Case:
    m, n, k = extents

    def prepare() -> Trial:
        random = np.random.default_rng(0)
        a, b, c = (
            random.standard_normal(shape, dtype=np.float32).astype(dtype.storage.numpy)
            for shape in ((m, k), (k, n), (m, n))
        )
        A, B, C = (put(x, backend) for x in (a, b, c))
        expected = ALPHA * (a.astype(np.float64) @ b.astype(np.float64)) + BETA * c.astype(np.float64)
        library = (lambda: C.addmm_(A, B, beta=BETA, alpha=ALPHA)) if hasattr(A, "data_ptr") else None
        return Trial(lambda: function(C, A, B, ALPHA, BETA), lambda: _wide(C), expected, _limit(k, dtype), library)

    return Case(name, f"{m} x {n} x {k} {dtype}", prepare, flops=2 * m * n * k)


def _limit(k: int, dtype: DType) -> float:
    """Return how far rounding can take an element: of k products, of the operands, and of the result."""
    accumulation = k * 2.0**-23 * 4
    if dtype is float32:
        return accumulation
    # TF32 keeps 10 bits of each operand; each other type was rounded before both sides computed.
    operands = 2.0**-10 * k**0.5 * 8 if dtype is tfloat32 else 0.0
    result = 0.0 if dtype is tfloat32 else 2.0**-8 * 4 * k**0.5
    return accumulation * 4 + operands + result


def _wide(array: Any) -> Array:
    """Return an array's elements on the host as a type that NumPy knows: torch gives it no bfloat16."""
    found = fetch(array.float() if hasattr(array, "float") else array)
    return found.astype(np.float32)


def scheduled_case(name: str, kernel: ScheduledKernel, backend: Backend) -> Case:
    """Return the case of a kernel of (A, B, C) that computes C = A B, or C += A B where C is INPUT_OUTPUT.

    The matrices have the types, extents and layouts that were declared, and normal random elements. A kernel for a
    target without GPU here, an AMD target, is simulated on every machine, and its name says so.
    """
    A, B, C = kernel.arguments
    (m, k), n = _extents(A), _extents(C)[1]
    adds = C.role is Role.INPUT_OUTPUT
    arch = kernel.plan.target.arch
    where: Backend = "sim" if arch.is_amd else backend

    def prepare() -> Trial:
        random = np.random.default_rng(0)
        a, b, c = (_filled(x, random) for x in (A, B, C))
        expected = a.astype(np.float64) @ b.astype(np.float64) + (c if adds else 0)
        held = [put(x, where) for x in (a, b, c)]
        comparable = hasattr(held[0], "data_ptr") and A.element_type is C.element_type  # torch has one type for all
        library = (lambda: _by_library(*held, adds=adds)) if comparable else None
        return Trial(lambda: kernel(*held), lambda: fetch(held[2]), expected, _scheduled_limit(k, C), library)

    size = f"{m} x {n} x {k} {A.element_type}"
    if arch.is_amd:
        return Case(f"{name} ({arch.name}, simulated)", size, prepare, simulated=True)
    return Case(name, size, prepare, flops=2 * m * n * k)


def _filled(array: Declared, random: np.random.Generator) -> Array:
    """Return normal random elements as they are declared to lie in memory; nothing but NaN in what is only written."""
    elements: Array = random.standard_normal(_extents(array)).astype(array.element_type.numpy)
    if array.role is Role.OUTPUT:
        elements[...] = np.nan
    return elements if array.layout is Declared.Layout.FIRST_MAJOR else np.asfortranarray(elements)


def _extents(array: Declared) -> tuple[int, ...]:
    assert array.is_static, array
    return tuple(int(extent) for extent in array.shape)  # type: ignore[arg-type]  # no Dimension is static


def _scheduled_limit(k: int, C: Declared) -> float:
    """Return how far rounding can take an element: k products accumulated in float32, and the result in C's type."""
    accumulation = k * 2.0**-23 * 16
    return accumulation if C.element_type.bits == 32 else accumulation + 2.0**-11 * 8 * k**0.5


def _by_library(a: Any, b: Any, c: Any, *, adds: bool) -> None:  # Any: tensors of torch
    if adds:
        c.addmm_(a, b)
    else:
        importlib.import_module("torch").matmul(a, b, out=c)
