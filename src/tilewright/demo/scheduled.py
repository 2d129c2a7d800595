"""Cases for matrix products of the scheduling layer: what `examples/schedule` shares and its readers need not see."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from tilewright.demo.arrays import fetch, put
from tilewright.demo.case import Array, Backend, Case, Trial
from tilewright.schedule.arrays import Array as Declared
from tilewright.schedule.arrays import Role
from tilewright.schedule.scheduled import ScheduledKernel


def scheduled_case(name: str, kernel: ScheduledKernel, backend: Backend) -> Case:
    """Return the case of a kernel of (A, B, C) that computes C = A B, or C += A B where C is INPUT_OUTPUT.

    The matrices have the types, extents and layouts that were declared, and normal random elements. A kernel for a
    target without GPU here, an AMD target, is simulated on every machine, and its name says so.
    """
    A, B, C = kernel.parameters
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
        return Trial(lambda: kernel(*held), lambda: fetch(held[2]), expected, _limit(k, C), library)

    size = f"{m} x {n} x {k} {A.element_type}"
    if arch.is_amd:
        return Case(f"{name} ({arch.name}, simulated)", size, prepare, simulated=True)
    return Case(name, size, prepare, flops=2 * m * n * k)


def _filled(array: Declared, random: np.random.Generator) -> Array:
    """Return normal random elements as they are declared to lie in memory; nothing but NaN in what is only written."""
    found: Array = random.standard_normal(_extents(array)).astype(array.element_type.numpy)
    if array.role is Role.OUTPUT:
        found[...] = np.nan
    return found if array.layout is Declared.Layout.FIRST_MAJOR else np.asfortranarray(found)


def _extents(array: Declared) -> tuple[int, ...]:
    assert array.is_static, array
    return tuple(int(extent) for extent in array.shape)  # type: ignore[arg-type]  # no Dimension is static


def _limit(k: int, C: Declared) -> float:
    """Return how far rounding can take an element: sums of k products in float32, and the result in C's type."""
    sums = k * 2.0**-23 * 16
    return sums if C.element_type.bits == 32 else sums + 2.0**-11 * 8 * k**0.5


def _by_library(a: Any, b: Any, c: Any, *, adds: bool) -> None:  # Any: tensors of torch
    if adds:
        c.addmm_(a, b)
    else:
        importlib.import_module("torch").matmul(a, b, out=c)
