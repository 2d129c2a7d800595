"""Float32 in parts on Hopper: the kernels that cut and multiply, on both backends, in the simulator under all checks.

The bits in the simulator are those of the definition, with a tile of K as the chunk. On a GPU sums are cut otherwise,
and errors against float64 stay within the bound that the documentation states.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import Backend
from tests.helpers.one_family import OneHopperParts, only
from tests.helpers.slow import rest_is_slow
from tests.unit.kernels.test_precision import INPUTS, parts_of, to_nearest

import tilewright as tw
from tilewright.kernels.hopper_plan import HopperConfiguration
from tilewright.kernels.precision import PARTS

Array = np.ndarray[Any, Any]
UNIT = 2.0**-24


@dataclass(frozen=True)
class Case:
    """A product (M, N, K) by a precision, how it is cut up, and by how many blocks; `majors` are those of A and B."""

    precision: str
    extents: tuple[int, int, int]
    tile: tuple[int, int, int]
    blocks: int = 1
    majors: str = "KK"
    batch: tuple[int, ...] = ()
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def configuration(self) -> HopperConfiguration:
        return HopperConfiguration(self.tile, (8, 1), 2, 2, **self.more)


CASES = {
    "tf32x3, whole tiles": Case("tf32x3", (128, 128, 64), (128, 128, 32)),
    "tf32x3, edges, more tiles than blocks": Case("tf32x3", (130, 68, 70), (128, 64, 32), 2),
    "tf32x3, rows of odd length, M and N contiguous": Case("tf32x3", (67, 71, 35), (128, 64, 32), majors="MM"),
    "tf32x3, one element": Case("tf32x3", (1, 1, 1), (128, 64, 32)),
    "bf16x6, rows of 64 bytes": Case("bf16x6", (70, 72, 60), (128, 64, 32), majors="KM"),
    "bf16x9, whole rows of 128 bytes": Case("bf16x9", (130, 136, 133), (128, 128, 64), majors="MK"),
    "bf16x9, wide tiles": Case("bf16x9", (129, 193, 36), (128, 192, 32)),
    "tf32x3, cluster": Case("tf32x3", (257, 72, 65), (128, 64, 32), 2, more={"cluster": 2}),
    "bf16x9, cluster": Case("bf16x9", (257, 136, 65), (128, 128, 64), 2, more={"cluster": 2}),
    "bf16x6, a batch": Case("bf16x6", (40, 24, 40), (128, 64, 32), 2, batch=(3,)),
}


def defined(a: Array, b: Array, case: Case) -> Array:
    """Return a @ b as `precision` defines it: chunks are tiles of K, instructions 8 or 16 of K in order."""
    how, tile = PARTS[case.precision], case.tile[2]
    width = 8 if how.part is tw.tfloat32 else 16
    parts_a, parts_b = parts_of(a, how), parts_of(b, how)
    sums = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for first in range(0, a.shape[1], tile):
        chunk = np.zeros_like(sums)
        for i, j in how.products:
            for k in range(first, min(first + tile, a.shape[1]), width):
                step = slice(k, min(k + width, first + tile))
                chunk = to_nearest(parts_a[i][:, None, step].astype(float) * parts_b[j].T[None, :, step], chunk)
        sums = sums + chunk
    return sums


def compute(backend: Backend, case: Case, a: Array, b: Array, **options: Any) -> Array:
    """Return a @ b by the case's configuration; in the simulator without any finding."""

    def put(x: Array, major: str) -> Any:
        return (
            backend.put(np.ascontiguousarray(x.swapaxes(-1, -2))).swapaxes(-1, -2) if major == "M" else backend.put(x)
        )

    x, y = put(a, case.majors[0]), put(b.swapaxes(-1, -2), case.majors[1]).swapaxes(-1, -2)
    with only(case.configuration, case.blocks, OneHopperParts) as family:
        if backend.name != "sim":
            result = tw.matmul(x, y, precision=case.precision, **options)
        else:
            with tw.simulate(raise_errors=False) as run:
                result = tw.matmul(x, y, precision=case.precision, **options)
            assert not run.findings, run.findings
    assert family.launched, "another family computed it"
    return np.asarray(backend.get(result))


def bound(a: Array, b: Array, case: Case) -> Array:
    """Return the bound on the error that the documentation states, and what lies below the least of a part."""
    a, b = np.abs(a).astype(np.float64), np.abs(b).astype(np.float64)
    units = a.shape[-1] / 32 + (90 if case.precision == "tf32x3" else 150)
    tiny = 2.0**-132 * (a.sum(-1)[..., None] + b.sum(-2)[..., None, :]) + a.shape[-1] * 2.0**-148
    return np.asarray(units * UNIT * (a @ b) + tiny)


@pytest.mark.parametrize("name", rest_is_slow(CASES, *list(CASES)[1:3], list(CASES)[4]))
def test_products(backend: Backend, name: str) -> None:
    case = CASES[name]
    random, (m, n, k) = np.random.default_rng(1), case.extents
    a, b = (random.standard_normal((*case.batch, *s)).astype(np.float32) for s in ((m, k), (k, n)))
    result = compute(backend, case, a, b)
    assert (np.abs(result - a.astype(np.float64) @ b) <= bound(a, b, case)).all()
    if backend.name == "sim" and not case.batch:
        assert np.array_equal(result, defined(a, b, case))


@pytest.mark.parametrize("precision", ["tf32x3", pytest.param("bf16x9", marks=pytest.mark.slow)])
def test_hard_numbers(backend: Backend, precision: str) -> None:
    """Wide exponents, sums that cancel, subnormal numbers: a matrix of the batch each."""
    case = Case(precision, (20, 12, 68), (128, 64, 32))
    pairs = [inputs(np.random.default_rng(3), *case.extents) for inputs in INPUTS]
    a, b = np.stack([a for a, _ in pairs]), np.stack([b for _, b in pairs])
    result = compute(backend, case, a, b)
    assert np.isfinite(result).all() and (np.abs(result - a.astype(np.float64) @ b) <= bound(a, b, case)).all()


@pytest.mark.slow
def test_one_matrix_serves_a_batch(backend: Backend) -> None:
    """It is cut once."""
    case = Case("tf32x3", (70, 24, 40), (128, 64, 32), 2)
    random = np.random.default_rng(2)
    a, b = random.standard_normal((3, 70, 40)).astype(np.float32), random.standard_normal((40, 24)).astype(np.float32)
    wide = backend.put(np.ascontiguousarray(a.swapaxes(0, 1))).swapaxes(0, 1)  # a batch that does not fold into rows
    with only(case.configuration, case.blocks, OneHopperParts) as family:
        result = backend.get(tw.matmul(wide, backend.put(b), precision=case.precision))
    assert family.launched and (np.abs(result - a.astype(np.float64) @ b) <= bound(a, b, case)).all()


@pytest.mark.parametrize("precision", ["tf32x3", pytest.param("bf16x6", marks=pytest.mark.slow)])
def test_what_has_no_parts_is_computed_as_ieee_does(backend: Backend, precision: str) -> None:
    """Infinities, NaN and the greatest numbers, at edges of tiles too; the epilogue comes after, and reads `out`."""
    case = Case(precision, (130, 70, 40), (128, 64, 32), 2)
    random, (m, n, k) = np.random.default_rng(5), case.extents
    a, b = (random.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    a[0, 3], a[129, 39], a[64, 0] = np.inf, -np.inf, np.nan
    a[7], a[7, 4], b[4] = 0, np.finfo(np.float32).max, np.where(np.arange(n) % 2, 1, 0.25)
    b[5, 69], b[39, 3] = np.inf, np.nan
    c = random.standard_normal((m, n)).astype(np.float32)
    out = backend.put(c)
    result = compute(backend, case, a, b, alpha=2, beta=-1, out=out, epilogue=lambda acc: tw.maximum(acc, -3))
    expected = backend.put(c)
    tw.matmul(backend.put(a), backend.put(b), out=expected, alpha=2, beta=-1, epilogue=lambda acc: tw.maximum(acc, -3))
    expected = np.asarray(backend.get(expected))
    with np.errstate(invalid="ignore"):
        lost = ~np.isfinite(a.astype(np.float64) @ b) | (np.arange(m) == 7)[:, None]
    assert np.array_equal(result[lost], expected[lost], equal_nan=True) and lost.sum() > 3 * n
    np.testing.assert_allclose(result[~lost], expected[~lost], rtol=1e-5, atol=1e-5)
