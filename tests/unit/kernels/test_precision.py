"""Float32 in parts: the bits of the definition, errors against float64, and what IEEE gives for what has no parts."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.arch import Arch
from tilewright.atoms.arithmetic import round_tf32, truncate_tf32
from tilewright.kernels._multistage_kernel import matmul_tiles
from tilewright.kernels.multistage import Multistage
from tilewright.kernels.multistage_plan import plan_for
from tilewright.kernels.precision import CHUNK, PARTS, Parts
from tilewright.kernels.problem import Operand, Problem
from tilewright.runtime.memory import DeviceArray

Array = np.ndarray[Any, Any]
UNIT = 2.0**-24
INFINITY, NAN, GREATEST = np.float32("inf"), np.float32("nan"), np.finfo(np.float32).max
precisions = pytest.mark.parametrize("how", PARTS.values(), ids=str)


# --- the definition, in NumPy --------------------------------------------------------------------------------


def parts_of(x: Array, how: Parts) -> list[Array]:
    """Return the parts of finite float32 numbers."""
    parts: list[Array] = []
    for _ in range(how.count):
        part = round_tf32(x) if how.part is tw.tfloat32 else x.astype(ml_dtypes.bfloat16).astype(np.float32)
        parts.append(part)
        x = x - part
    if how.part is tw.tfloat32:
        last = x + parts[-1]
        parts[-1] = truncate_tf32(last)
    return parts


def width_of(how: Parts) -> int:
    """Return how much of K an instruction takes."""
    return 8 if how.part is tw.tfloat32 else 16


def to_nearest(products: Array, addend: Array) -> Array:
    """Add products (M, N, K) and an addend as the simulator does: exactly, rounded once."""
    return (products.sum(-1) + addend).astype(np.float32)


def cut(products: Array, addend: Array) -> Array:
    """Add them as a poor tensor core does: cut below 24 bits of the largest, and the sum cut to float32."""
    terms = np.concatenate([products, addend[..., None].astype(np.float64)], -1)
    largest = np.abs(terms).max(-1, keepdims=True)
    unit = 2.0 ** (np.floor(np.log2(np.where(largest > 0, largest, 1))) - 23)
    total = (np.trunc(terms / unit) * unit).sum(-1)
    nearest = total.astype(np.float32)
    return np.where(np.abs(nearest) > np.abs(total), np.nextafter(nearest, np.float32(0)), nearest)


def product(a: Array, b: Array, how: Parts, add: Callable[[Array, Array], Array] = to_nearest) -> Array:
    """Return a @ b of finite numbers as `precision` defines it."""
    parts_a, parts_b = parts_of(a, how), parts_of(b, how)
    sums = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for first in range(0, a.shape[1], CHUNK):
        chunk = np.zeros_like(sums)
        for k in range(first, min(first + CHUNK, a.shape[1]), width_of(how)):
            step = slice(k, k + width_of(how))
            for i, j in how.products:
                terms = parts_a[i][:, None, step].astype(np.float64) * parts_b[j].T[None, :, step]
                chunk = add(terms, chunk)
        sums = sums + chunk
    return sums


def ieee(a: Array, b: Array) -> Array:
    """Return a @ b by additions that round as fused multiply-adds do, nearly: of products rounded to float64."""
    sums = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        sums = (sums + a[:, k, None].astype(np.float64) * b[None, k]).astype(np.float32)
    return sums


# --- inputs --------------------------------------------------------------------------------------------------


def normal(random: np.random.Generator, m: int, n: int, k: int) -> tuple[Array, Array]:
    return random.standard_normal((m, k)).astype(np.float32), random.standard_normal((k, n)).astype(np.float32)


def positive(random: np.random.Generator, m: int, n: int, k: int) -> tuple[Array, Array]:
    return random.random((m, k), np.float32), random.random((k, n), np.float32)


def wide(random: np.random.Generator, m: int, n: int, k: int) -> tuple[Array, Array]:
    """Exponents from 1e-30 to 1e30 in both, such that all products of a k are about as large as another's."""
    a, b = normal(random, m, n, k)
    scale = 10.0 ** random.uniform(-30, 30, k)
    return (a * scale).astype(np.float32), (b / scale[:, None]).astype(np.float32)


def unlike(random: np.random.Generator, m: int, n: int, k: int) -> tuple[Array, Array]:
    """Exponents of every element of its own."""
    a, b = normal(random, m, n, k)
    return (a * 10.0 ** random.uniform(-18, 18, (m, k))).astype(np.float32), (
        b * 10.0 ** random.uniform(-18, 18, (k, n))
    ).astype(np.float32)


def cancelling(random: np.random.Generator, m: int, n: int, k: int) -> tuple[Array, Array]:
    """Sums that are much smaller than what is added: the second half of K takes the first away, but for last bits."""
    a, b = normal(random, m, n, k // 2)
    nearly = a * (1 + random.integers(-2, 3, a.shape) * 2.0**-22)
    order = random.permutation(2 * (k // 2))
    return np.hstack([a, -nearly.astype(np.float32)])[:, order], np.vstack([b, b])[order]


def subnormal(random: np.random.Generator, m: int, n: int, k: int) -> tuple[Array, Array]:
    a, b = normal(random, m, n, k)
    return (a * 2.0**-128).astype(np.float32), (b * 2.0**60).astype(np.float32)


INPUTS = (normal, positive, wide, unlike, cancelling, subnormal)
TINY = {"tf32x3": 2.0**-136, "bf16x6": 2.0**-134, "bf16x9": 2.0**-134}  # of a number with parts below the least


def bound(a: Array, b: Array, how: Parts) -> Array:
    """Return the bound on the error that the documentation states."""
    a, b = np.abs(a).astype(np.float64), np.abs(b).astype(np.float64)
    k, width = a.shape[1], width_of(how)
    cut = (CHUNK // width - 1) * len(how.products) + 1  # instructions whose sums hold products of first parts
    units = -(-k // CHUNK) + 2 * cut * (width + 3) + {"tf32x3": 8, "bf16x6": 2, "bf16x9": 0}[how.name]
    tiny = 1.01 * TINY[how.name] * (a.sum(1)[:, None] + b.sum(0)[None])
    return units * UNIT * (a @ b) + tiny + (k + 1) * 2.0**-149


# --- tests ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "majors"), [("tf32x3", "KK"), ("tf32x3", "MN"), ("bf16x6", "KN"), ("bf16x9", "MK"), ("bf16x9", "KN")]
)
@pytest.mark.spread(4)
def test_bits_are_those_of_the_definition(name: str, majors: str) -> None:
    """Whatever the tile and whatever the order in which an instruction counts K: chunks are runs of K."""
    a, b = normal(np.random.default_rng(7), 37, 17, 70)
    a = np.asfortranarray(a) if majors[0] == "M" else a
    b = np.asfortranarray(b) if majors[1] == "K" else b
    assert np.array_equal(tw.matmul(a, b, precision=name), product(a, b, PARTS[name]))


@precisions
@pytest.mark.spread(3)
def test_errors_are_within_the_bound(how: Parts) -> None:
    """By the simulator, and by a tensor core that cuts its sums."""
    pairs = [inputs(np.random.default_rng(3), 20, 12, 100) for inputs in INPUTS]
    found = tw.matmul(np.stack([a for a, _ in pairs]), np.stack([b for _, b in pairs]), precision=how.name)
    for (a, b), simulated, inputs in zip(pairs, found, INPUTS, strict=True):
        exact = a.astype(np.float64) @ b
        for result in (simulated, product(a, b, how, cut)):
            assert np.isfinite(result).all(), inputs
            assert (np.abs(result - exact) <= bound(a, b, how)).all(), inputs


@precisions
@pytest.mark.parametrize("inputs", [normal, positive, wide, cancelling], ids=lambda f: f.__name__)
@pytest.mark.spread(4)
def test_errors_are_no_larger_than_those_of_multiply_adds(
    how: Parts, inputs: Callable[..., tuple[Array, Array]]
) -> None:
    """Of a K of 512, on a tensor core that cuts its sums too: the root of the mean square, over all elements."""
    a, b = inputs(np.random.default_rng(11), 24, 24, 512)
    exact, size = a.astype(np.float64) @ b, np.abs(a).astype(np.float64) @ np.abs(b)

    def error(result: Array) -> float:
        return float(np.sqrt(np.mean(((result - exact) / size) ** 2)))

    assert error(product(a, b, how)) <= error(ieee(a, b))
    assert error(product(a, b, how, cut)) <= error(ieee(a, b))


@precisions
@pytest.mark.spread(3)
def test_what_has_no_parts_is_computed_as_ieee_does(how: Parts) -> None:
    """Infinities, NaN, and numbers that round up to an infinity: the same bits as multiply-adds, the others as ever."""
    random = np.random.default_rng(5)
    a, b = normal(random, 40, 24, 24)
    a[0, 3] = INFINITY
    a[1, 5], a[1, 6], b[5:7] = INFINITY, -INFINITY, 1
    a[2, 0] = NAN
    a[3, 1], b[:, 0] = INFINITY, 1  # 1 is its first part, and its second is 0
    a[4, 2], b[2, 1] = INFINITY, 0
    a[5, 7], b[7, 2] = -INFINITY, INFINITY
    a[6] = 0
    a[6, 4] = GREATEST  # rounds up in bfloat16 and in tfloat32
    a[7], a[7, 4] = 0, np.float32(3.396e38)  # rounds up in bfloat16 alone
    a[8], a[8, 4] = 0, -GREATEST
    a[9, 9] = np.array([0x7F800001], np.uint32).view(np.float32)[0]  # NaN, and infinity if its low bits are cut
    b[4] = np.where(np.arange(24) % 2, 1, 0.25)
    b[9, 3] = np.array([0xFFFFFFFF], np.uint32).view(np.float32)[0]
    result, expected = tw.matmul(a, b, precision=how.name), tw.matmul(a, b)
    with np.errstate(all="ignore"):
        exact = a.astype(np.float64) @ b
    assert np.isnan(result[1]).all() and np.isnan(result[2]).all() and np.isnan(result[9]).all()
    assert result[3, 0] == INFINITY and np.isnan(result[4, 1]) and result[5, 2] == -INFINITY
    assert np.array_equal(result[:10], expected[:10], equal_nan=True)
    assert np.array_equal(np.isnan(result), np.isnan(exact)) and np.array_equal(np.isinf(result), np.isinf(exact))
    rows, columns = slice(10, None), [0, 1, *range(4, 24)]
    assert np.array_equal(result[rows][:, columns], product(a[rows], b[:, columns], how))
    assert np.array_equal(result[rows][:, 2:4], expected[rows][:, 2:4], equal_nan=True)


def test_addends_and_empty_sums() -> None:
    """alpha, beta, c and bias as ever: beta = 0 does not read c, and a K of 0 leaves the addends."""
    how = PARTS["tf32x3"]
    a, b = normal(np.random.default_rng(2), 6, 5, 20)
    c, bias = np.full((6, 5), NAN), np.arange(5, dtype=np.float32)
    plain = product(a, b, how)
    found = tw.matmul(a, b, precision=how.name, alpha=0.5, beta=0, c=c, bias=bias)
    assert np.array_equal(found, np.float32(0.5) * plain + bias)
    assert np.array_equal(tw.matmul(a[:, :0], b[:0], precision=how.name, c=bias, beta=2), np.tile(2 * bias, (6, 1)))
    assert tw.matmul(a[:0], b, precision=how.name).shape == (0, 5)


def test_parts_and_their_products() -> None:
    """The products that are listed are those whose parts' numbers add up to little, the smallest first."""
    assert PARTS["tf32x3"].products == ((1, 0), (0, 1), (0, 0))
    assert PARTS["bf16x6"].products == ((2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0))
    assert len(set(PARTS["bf16x9"].products)) == 9 and PARTS["bf16x9"].products[-6:] == PARTS["bf16x6"].products
    random = np.random.default_rng(1)
    bits = random.integers(0, 2**32, 10000, dtype=np.uint64).astype(np.uint32)
    x = bits.view(np.float32)
    x = x[(np.abs(x) < 3e38) & (np.abs(x) > 1e-32)]
    for how in PARTS.values():
        left = np.abs(x - np.sum(parts_of(x, how), 0, dtype=np.float64))
        assert (left <= (2.0**-23 * np.abs(x) if how.part is tw.tfloat32 else 0)).all()


@precisions
def test_where_there_is_no_such_precision(how: Parts) -> None:
    matrix = tw.spec(tw.float32, (256, 256))
    with pytest.raises(tw.ArgumentError, match=f"float32 and float32 by {how} on sm_75") as caught:
        tw.matmul.explain(matrix, matrix, precision=how.name, arch="sm_75")
    assert all("no matrix instruction" in line for line in caught.value.details)
    with pytest.raises(tw.ArgumentError, match=f"'{how}' is for float32, and a and b are float64"):
        tw.matmul(np.ones((2, 2)), np.ones((2, 2)), precision=how.name)
    found = tw.matmul.explain(matrix, matrix, precision=how.name, arch="sm_80")
    assert str(found).startswith(f"256 x 256 x 256, float32 by {how} with float32 accumulators, on sm_80")
    assert found.to_dict()["problem"]["parts"] == how.name
    assert tw.matmul.explain(matrix, matrix, arch="sm_80").to_dict()["problem"]["parts"] is None


@pytest.mark.parametrize(("name", "number"), [("tf32x3", 0), ("bf16x9", 1)])
def test_shared_memory_is_what_the_plan_says(name: str, number: int) -> None:
    """Sums that are mended take the place of stages, and results theirs."""
    extents, matrix = (4096, 4096, 4096), tw.spec(tw.float32, (4096, 4096, 1), stride=(4096, 1, 0))
    operand, arch = Operand(tw.float32, "K", 16), Arch.parse("sm_90a")
    d = Operand(tw.float32, "MN", 16)
    problem = Problem(*extents, 1, operand, operand, d, PARTS[name].part, tw.float32, parts=PARTS[name])
    plan = plan_for(problem, Multistage().configurations(problem, arch)[number], arch)
    one = np.float32(1)
    lowered = matmul_tiles.numbered(0)[1, plan.threads].lower(matrix, matrix, matrix, one, one, plan, arch="sm_90a")
    assert 0 <= plan.shared_bytes - lowered.kernel.shared_bytes < 128


@pytest.mark.gpu
@precisions
def test_random_problems_on_a_gpu(how: Parts) -> None:
    """200 problems of any shape, K along either mode, with a number here and there that has no parts."""
    random = np.random.default_rng(17)
    for number in range(200):
        m, n, k = (int(2 ** random.uniform(0, log)) for log in (8.5, 8.5, 11))
        a, b = INPUTS[number % len(INPUTS)](random, m, n, max(k, 2))
        device_a, device_b = (DeviceArray.from_numpy(np.ascontiguousarray(x)) for x in (a, b.T))
        exact, allowed = a.astype(np.float64) @ b, bound(a, b, how)
        found = DeviceArray((m, n))
        tw.matmul(device_a, _transposed(device_b), out=found, precision=how.name)
        assert (np.abs(found.numpy() - exact) <= allowed).all(), (m, n, k)
        if number % 4 == 0:
            a[random.integers(m), random.integers(a.shape[1])] = random.choice([INFINITY, NAN, GREATEST])
            ieee_found = DeviceArray((m, n))
            device_a.fill_from(a)
            for out, precision in ((found, how.name), (ieee_found, "ieee")):
                tw.matmul(device_a, _transposed(device_b), out=out, precision=precision)
            has_parts = np.isfinite(ieee_found.numpy()) & (np.abs(a).max(1) < 3e38)[:, None]
            assert np.array_equal(found.numpy()[~has_parts], ieee_found.numpy()[~has_parts], equal_nan=True)


def _transposed(array: DeviceArray) -> Any:
    """Return the transpose of a matrix on the device, as another library's array."""
    rows, columns = array.shape
    interface = {**array.__cuda_array_interface__, "shape": (columns, rows), "strides": (4, 4 * columns)}
    return SimpleNamespace(__cuda_array_interface__=interface, owner=array)
