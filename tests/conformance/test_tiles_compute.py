"""Operations on whole tensors: both backends give the bits of NumPy, for every value of the 16-bit floats."""

from __future__ import annotations

import operator

import ml_dtypes
import numpy as np
import pytest
from tests.conformance.harness import Backend, assert_same_bits, edge_values

import tilewright as tw

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ROW = 16
HALVES = (tw.float16, tw.bfloat16)


@tw.kernel
def tiles(out, x, z, function: tw.constexpr):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    out[i, :] = function(x[i, :], z[i, :])


@tw.kernel
def one_by_one(out, x, z, function: tw.constexpr):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    for j in tw.static_range(ROW):
        out[i, j] = function(x[i, j], z[i, j])


def least(x, z):
    """The documented rule: the other operand where one is NaN, and -0 is less than +0."""
    chosen = np.fmin(x, z)
    return np.where((x == 0) & (z == 0), np.where(np.signbit(x), x, z), chosen).astype(x.dtype)


def greatest(x, z):
    return (-least(-x, -z)).astype(x.dtype)


FUNCTIONS = {
    "add": (operator.add, operator.add),
    "sub": (operator.sub, operator.sub),
    "mul": (operator.mul, operator.mul),
    "minimum": (tw.minimum, least),
    "maximum": (tw.maximum, greatest),
    # Rounded after the product and after the sum: a multiply-add of 16-bit floats would round once.
    "product and sum": (lambda x, z: x * z + x, lambda x, z: (x * z).astype(x.dtype) + x),
    "product and difference": (lambda x, z: z - x * 3, lambda x, z: z - (x * x.dtype.type(3)).astype(x.dtype)),
}


def pairs_of(dtype: tw.DType) -> tuple[np.ndarray, np.ndarray]:
    """Edge values against one another, and random bits: subnormals, zeros of both signs, infinities, NaN, ties."""
    rng = np.random.default_rng(1)
    edges = edge_values(dtype)
    bits = rng.integers(0, 1 << 16, (2, 1 << 13), dtype=np.uint16).view(dtype.numpy)
    near = rng.normal(size=(2, 1 << 12)).astype(dtype.numpy)
    a, b = (part.reshape(-1) for part in np.meshgrid(edges, edges))
    x, z = np.concatenate([a, bits[0], near[0]]), np.concatenate([b, bits[1], near[1]])
    count = -(-len(x) // (32 * ROW)) * 32 * ROW
    return np.resize(x, count).reshape(-1, ROW), np.resize(z, count).reshape(-1, ROW)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("kernel", [tiles, one_by_one], ids=["tiles", "one by one"])
@pytest.mark.spread(4)
def test_16_bit_floats_round_each_operation_once(
    backend: Backend, dtype: tw.DType, name: str, kernel: tw.Kernel
) -> None:
    device, host = FUNCTIONS[name]
    x, z = pairs_of(dtype)
    out = backend.zeros(x.shape, dtype)
    kernel[len(x) // 32, 32](*(tw.static(a) for a in (out, backend.put(x), backend.put(z))), device)
    with np.errstate(all="ignore"):
        expected = host(x, z).astype(dtype.numpy)
    assert_same_bits(backend.get(out), expected, name, (x, z))


def test_numpy_rounds_16_bit_operations_as_float32_does() -> None:
    # The oracle above: the same operation in float32, rounded.
    for dtype in (np.float16, ml_dtypes.bfloat16):
        x, z = pairs_of(tw.dtype(dtype))
        with np.errstate(all="ignore"):
            for f in (operator.add, operator.sub, operator.mul):
                wide = f(x.astype(np.float32), z.astype(np.float32)).astype(dtype)
                assert_same_bits(f(x, z), wide)


MIXED = {
    "float32": (tw.float32, lambda x, z: tw.where(x > z, x - z, 0.5) / (abs(z) + 1), False),
    "int32": (tw.int32, lambda x, z: (x * 3 ^ z) + (x // 5) - (-z) % 7 + (x << 2 >> 1) + (x & ~z), True),
    "uint8": (tw.uint8, lambda x, z: x * z + (x | 3), True),
    "float64": (tw.float64, lambda x, z: tw.maximum(x, z) ** 3 - z, False),
    "bool": (tw.int32, lambda x, z: (x < z) | (x == 3), True),
}


@pytest.mark.parametrize("name", MIXED)
def test_tiles_compute_what_their_elements_compute(backend: Backend, name: str) -> None:
    dtype, function, _ = MIXED[name]
    rng = np.random.default_rng(2)
    x, z = (rng.integers(1, 100, (64, ROW)).astype(dtype.numpy) for _ in range(2))
    results = []
    for kernel in (tiles, one_by_one):
        out = backend.zeros(x.shape, dtype)
        kernel[2, 32](*(tw.static(a) for a in (out, backend.put(x), backend.put(z))), function)
        results.append(backend.get(out))
    assert_same_bits(results[0], results[1], name)


@tw.kernel
def reductions(out, x):
    i = tw.thread_idx.x
    tile = tw.make_tensor(x[i, :].engine, tw.Layout((4, 2, 4), (2, 1, 8)))
    for k, op in enumerate(("add", "mul", "min", "max")):
        out[i, k] = tile.reduce(op)
        out[i, 4 + k] = tile.reduce(op, (0, 2))[1]
        out[i, 8 + k] = tile.reduce(op, 2).reduce(op, init=2)
    out[i, 12:16] = (tile - tile.reduce("max", 0, keep=True)).reduce("add", (0, 1))


@pytest.mark.parametrize("dtype", [tw.float32, *HALVES, tw.int32], ids=str)
@pytest.mark.spread(3)
def test_reductions_have_one_order(backend: Backend, dtype: tw.DType) -> None:
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(32, 32)) if dtype.is_float else rng.integers(-2, 3, (32, 32))).astype(dtype.numpy)
    out = backend.zeros((32, 16), dtype)
    reductions[1, 32](tw.static(out), tw.static(backend.put(x)))
    expected = np.zeros((32, 16), dtype.numpy)
    with np.errstate(all="ignore"):
        for i in range(32):
            tile = tw.tensor(x[i], tw.Layout((4, 2, 4), (2, 1, 8)))
            for k, op in enumerate(("add", "mul", "min", "max")):
                expected[i, k] = tile.reduce(op)
                expected[i, 4 + k] = tile.reduce(op, (0, 2))[1]
                expected[i, 8 + k] = tile.reduce(op, 2).reduce(op, init=2)
            expected[i, 12:16] = (tile - tile.reduce("max", 0, keep=True)).reduce("add", (0, 1)).to_numpy()
    assert_same_bits(backend.get(out), expected, dtype)


@tw.kernel
def softmax(y, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    row = x[i, :].to(tw.float32)
    e = tw.exp(row - row.reduce("max"))
    y[i, :] = e / e.reduce("add")


@pytest.mark.parametrize("dtype", [tw.float32, *HALVES], ids=str)
def test_softmax(backend: Backend, dtype: tw.DType) -> None:
    x = np.random.default_rng(4).normal(size=(256, 32)).astype(dtype.numpy)
    y = backend.zeros(x.shape, dtype)
    softmax[2, 128](tw.static(y), tw.static(backend.put(x)))
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(1, keepdims=True))
    expected = e / e.sum(1, keepdims=True)
    steps = {tw.float32: 2e-6, tw.float16: 1e-3, tw.bfloat16: 8e-3}[dtype]
    np.testing.assert_allclose(backend.get(y).astype(np.float64), expected, rtol=steps, atol=1e-7)


@tw.kernel
def slices(y, x, start: tw.int32):
    i = tw.thread_idx.x
    y[i, 0:4] = x[i, start : start + 8 : 2] + 1
    y[i, 4:8] = x[i, ::-1][start : start + 4]
    y[i, -4:] = x[i, -4:] * 2
    y[i, 8:12] -= x[i, 8:12]


@pytest.mark.parametrize("static", [False, True])
def test_slices(backend: Backend, static: bool) -> None:
    x = np.random.default_rng(5).normal(size=(32, 16)).astype(np.float32)
    old = np.random.default_rng(6).normal(size=(32, 16)).astype(np.float32)
    y, given = backend.put(old), backend.put(x)
    slices[1, 32](*(tw.static(a) if static else a for a in (y, given)), 5)
    expected = old.copy()
    expected[:, 0:4] = x[:, 5:13:2] + 1
    expected[:, 4:8] = x[:, ::-1][:, 5:9]
    expected[:, -4:] = x[:, -4:] * 2
    expected[:, 8:12] -= x[:, 8:12]
    assert_same_bits(backend.get(y), expected)
