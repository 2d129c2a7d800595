"""The matrix products of examples/kernels: odd extents against float64, on both backends.

A result is sums of float32 and one rounding to the element type of the result. Each of the K additions of a sum may lose
a unit in the last place of the greatest partial sum, which is at most the sum of the absolute products.
"""

from __future__ import annotations

from types import ModuleType

import ml_dtypes
import numpy as np
import pytest
from tests.conformance.harness import assert_same_bits

import tilewright as tw
from tilewright.demo.examples import examples_folder, load_example

BF16 = ml_dtypes.bfloat16


def example(name: str) -> ModuleType:
    return load_example(examples_folder() / "kernels" / f"{name}.py")


INT4, GROUPED, SPLITK = (example(f"{name}_matmul") for name in ("int4", "grouped", "splitk"))


def normal(random: np.random.Generator, *shape: int, dtype=BF16) -> np.ndarray:
    return random.standard_normal(shape, dtype=np.float32).astype(dtype)


def rows_at_16_bytes(backend, matrix: np.ndarray):
    """Put a matrix whose rows begin at multiples of 16 bytes, with NaN between them."""
    m, k = matrix.shape
    filled = np.full((m, -(-k // 8) * 8), np.nan, matrix.dtype)
    filled[:, :k] = matrix
    return backend.strided(backend.put(filled.reshape(-1)), (m, k), (filled.shape[1], 1))


def assert_close(actual: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """Compare with A B^T in float64."""
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    terms = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T
    limit = np.abs(exact) * float(ml_dtypes.finfo(actual.dtype).eps) + terms * a.shape[1] * 2.0**-23
    wrong = ~(np.abs(actual.astype(np.float64) - exact) <= limit)  # NaN is wrong too
    assert not wrong.any(), (np.argwhere(wrong)[:3], actual[wrong][:3], exact[wrong][:3])


# --- 4-bit weights ---------------------------------------------------------------------------------------


def unpacked(packed: np.ndarray) -> np.ndarray:
    """Return the weights of packed ones (N, K), place by place as `pack` says."""
    n, words = packed.shape
    weights = np.empty((n, words * 8), np.uint8)
    for at in range(words * 8):
        group, k = divmod(at, 128)
        j, inside = divmod(k, 32)
        step, half, q, neighbour = inside // 16, inside // 8 % 2, inside % 8 // 2, inside % 2
        nibble = 2 * step + half + 4 * neighbour
        weights[:, at] = packed.view(np.uint32)[:, group * 16 + q * 4 + j] >> (4 * nibble) & 15
    return weights


@pytest.mark.parametrize("k", [128, 384, 1, 130])
def test_pack_as_documented(k):
    weights = np.random.default_rng(k).integers(0, 16, (3, k), np.uint8)
    found = unpacked(INT4.pack(weights))
    np.testing.assert_array_equal(found[:, :k], weights)
    assert found.shape[1] == -(-k // 128) * 128
    assert not found[:, k:].any()


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 64, 1024),
        (1, 1, 8),
        (7, 72, 1160),
        (8, 130, 128),
        (9, 65, 2056),
        (16, 64, 264),
        (33, 63, 136),
        (130, 66, 520),
    ],
)
@pytest.mark.spread(4)
def test_4_bit_weights(backend, m, n, k):
    random = np.random.default_rng(m * n * k)
    weights, scales, zeros = INT4.random_weights(random, n, k)
    a = normal(random, m, k)
    c = backend.put(np.full((m, n), np.nan, BF16))
    INT4.launch(c, backend.put(a), *(backend.put(np.ascontiguousarray(x)) for x in (INT4.pack(weights), scales, zeros)))
    assert_close(backend.get(c), a, INT4.dequantised(weights, scales, zeros))


def test_4_bit_weights_of_any_number_and_zero(backend):
    """One weight a column, so that a wrong place, nibble or zero shows in every bit: all 16 numbers, zeros to 127."""
    k = 128
    weights = np.zeros((k, k), np.uint8)
    zeros = np.arange(k, dtype=np.uint8)[:, None]
    for row in range(k):
        weights[row] = (np.arange(k) * 7 + row) % 16
    a, scales = np.eye(k, dtype=BF16), np.full((k, 1), 0.5, BF16)
    c = backend.put(np.full((k, k), np.nan, np.float32))
    INT4.launch(c, *(backend.put(x) for x in (a, INT4.pack(weights), scales, zeros)))
    assert_same_bits(backend.get(c), ((weights.astype(np.float32) - zeros) * np.float32(0.5)).T)


def test_what_lies_beyond_k_is_not_used(backend):
    """Rows of A that go on with NaN, and a last group whose unused nibbles are 15 instead of 0."""
    random = np.random.default_rng(0)
    m, n, k = 5, 40, 200
    weights, scales, zeros = INT4.random_weights(random, n, k)
    a = normal(random, m, k)
    packed = INT4.pack(np.pad(weights, ((0, 0), (0, 56)), constant_values=15))
    c = backend.put(np.full((m, n), np.nan, np.float32))
    arguments = (backend.put(np.ascontiguousarray(x)) for x in (packed, scales, zeros))
    INT4.launch(c, rows_at_16_bytes(backend, np.pad(a, ((0, 0), (0, 3)), constant_values=np.nan))[:, :k], *arguments)
    assert_close(backend.get(c), a, INT4.dequantised(weights, scales, zeros))


def test_4_bit_weights_that_do_not_fit_are_refused():
    for number in (16, -1):
        with pytest.raises(tw.ArgumentError, match=f"from 0 to 15, got .*{number}"):
            INT4.pack(np.full((1, 128), number, np.int32))
    m, n, k = 4, 8, 200
    weights, scales, zeros = INT4.random_weights(np.random.default_rng(0), n, k)
    arrays = [np.zeros((m, n), BF16), np.zeros((m, k), BF16), INT4.pack(weights), scales, zeros]
    INT4.launch(*arrays)
    for i, name in enumerate(("A", "packed", "scales", "zeros"), 1):
        wrong = [x[:-1] if i == j else x for j, x in enumerate(arrays)]
        with pytest.raises(tw.ArgumentError, match=f"expected {name} of"):
            INT4.launch(*wrong)


# --- many products by one launch -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "n", "k", "dtype"),
    [
        ([5], 1, 8, BF16),
        ([0, 3, 0, 65, 1, 0], 129, 72, BF16),
        ([1] * 300, 8, 16, np.float16),  # more products than a block has threads
        ([0, 0], 16, 16, BF16),
        ([129, 0, 160], 257, 136, np.float16),
    ],
    ids=["one", "uneven", "many", "empty", "tall"],
)
@pytest.mark.spread(3)
def test_products_of_uneven_rows(backend, rows, n, k, dtype):
    random = np.random.default_rng(n)
    xs = [normal(random, m, k, dtype=dtype) for m in rows]
    ws = [normal(random, n, k, dtype=dtype) for _ in rows]
    outs = [backend.put(np.full((m, n), np.nan, dtype)) for m in rows]
    GROUPED.launch(outs, [backend.put(x) for x in xs], [backend.put(w) for w in ws])
    for out, x, w in zip(outs, xs, ws, strict=True):
        assert_close(backend.get(out), x, w)


def test_products_that_do_not_fit_are_refused():
    def launch(m=4, n=8, k=16, out=None, x=None):
        w = np.zeros((n, k), BF16)
        GROUPED.launch(
            [np.zeros((m, n), BF16) if out is None else out], [np.zeros((m, k), BF16) if x is None else x], [w]
        )

    launch()
    with pytest.raises(tw.ArgumentError, match=r"product 0: expected .* got"):
        launch(out=np.zeros((5, 8), BF16))
    with pytest.raises(tw.ArgumentError, match="K a multiple of 8"):
        launch(k=12)
    with pytest.raises(tw.ArgumentError, match="rows without gaps"):
        launch(x=np.zeros((4, 32), BF16)[:, ::2])


# --- K in parts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "n", "k", "splits", "out"),
    [
        (1, 1, 64, 1, BF16),
        (128, 128, 640, 10, np.float32),
        (3, 130, 200, 2, BF16),
        (129, 5, 77, 3, np.float32),
        (40, 50, 1000, 7, BF16),
        (16, 16, 100, 9, np.float32),  # parts without any of K
    ],
)
@pytest.mark.spread(4)
def test_k_in_parts(backend, m, n, k, splits, out):
    random = np.random.default_rng(k)
    a, b = normal(random, m, k), normal(random, n, k)
    c = backend.put(np.full((m, n), np.nan, out))
    SPLITK.launch(c, rows_at_16_bytes(backend, a), rows_at_16_bytes(backend, b), splits)
    assert_close(backend.get(c), a, b)


def summed_as_documented(parts: list[np.ndarray]) -> np.ndarray:
    """Add parts in the order of the example's table."""
    sums: dict[int, np.ndarray] = {}
    for number, part in enumerate(parts, 1):
        total, other = part, number - 1
        while other > (0 if number == len(parts) else number & (number - 1)):
            total = total + sums[other]
            other &= other - 1
        sums[number] = total
    return total


@pytest.mark.parametrize("splits", [1, 2, 3, 4, 7, 8, 13])
@pytest.mark.spread(4)
def test_parts_are_added_in_the_documented_order(backend, splits):
    """Each part has one product that is not 0, a float32 of few bits, so that only the sums of parts round."""
    k = 64 * splits
    a, b = np.zeros((1, k), np.float16), np.zeros((1, k), np.float16)
    random = np.random.default_rng(splits)
    a[0, ::64], b[0, ::64] = random.uniform(1, 2, splits), 2.0 ** random.integers(-12, 12, splits)
    c = backend.put(np.full((1, 1), np.nan, np.float32))
    SPLITK.launch(c, backend.put(a), backend.put(b), splits)
    products = a[0, ::64].astype(np.float32) * b[0, ::64].astype(np.float32)
    assert_same_bits(backend.get(c), summed_as_documented(list(products)).reshape(1, 1))


def test_a_workspace_is_used_again(backend):
    """Semaphores are 0 after a launch, with fewer parts than there is room for too, and stale sums are not read."""
    random = np.random.default_rng(0)
    a, b = normal(random, 130, 320), normal(random, 20, 320)
    c = backend.put(np.full((130, 20), np.nan, np.float32))
    workspace = SPLITK.make_workspace(c, 5)
    results = []
    for splits in (5, 5, 3):
        SPLITK.launch(c, backend.put(a), backend.put(b), splits, workspace=workspace)
        results.append(backend.get(c))
        assert not backend.get(workspace[1]).any()
        assert_close(results[-1], a, b)
    assert_same_bits(results[1], results[0])


def test_parts_that_do_not_fit_are_refused():
    a, c = np.zeros((8, 64), BF16), np.zeros((8, 8), np.float32)
    with pytest.raises(tw.ArgumentError, match="splits = 0"):
        SPLITK.launch(c, a, a, 0)
    with pytest.raises(tw.ArgumentError, match=r"got \(8, 8\), \(8, 64\), \(8, 32\)"):
        SPLITK.launch(c, a, a[:, :32], 1)
    with pytest.raises(tw.ArgumentError, match="expected a workspace"):
        SPLITK.launch(c, a, a, 3, workspace=SPLITK.make_workspace(c, 2))
