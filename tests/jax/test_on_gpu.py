"""Operators inside of programs of JAX on a GPU: values, gradients, maps, order on the stream, and what fails."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from tests.jax.test_operators import CASES, added, every, normal, slopes  # noqa: E402  # after the skip

import tilewright as tw  # noqa: E402

jnp = jax.numpy
pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def products_in_full() -> Iterator[None]:
    """Let references be exact enough: JAX rounds float32 to tf32 on a GPU unless asked."""
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU")
    with jax.default_matmul_precision("highest"):
        yield


def near(found: jax.Array, expected: jax.Array, bound: float = 1e-4) -> None:
    assert isinstance(found, jax.Array) and found.dtype == expected.dtype and found.shape == expected.shape
    assert found.devices() == expected.devices()
    np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(expected, np.float64), atol=bound, rtol=bound)


@every
def test_values_gradients_and_maps_are_those_of_jax(name: str) -> None:
    case = CASES[name]
    near(case.function(*case.inputs), case.reference(*case.inputs))
    near(jax.jit(case.function)(*case.inputs), case.reference(*case.inputs))
    found = jax.jit(lambda *x: slopes(case.function, x))(*case.inputs)
    for ours, theirs in zip(found, slopes(case.reference, case.inputs), strict=True):
        near(ours, theirs, 5e-4)
    batch = tuple(jnp.stack((x, 2 * x, x - 1)) for x in case.inputs)
    near(jax.jit(jax.vmap(case.function))(*batch), jax.vmap(case.reference)(*batch))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_layers_of_16_bits(dtype: str) -> None:
    """Shapes that take Hopper's families, in one program with functions of JAX between."""
    x, w = normal(0, 512, 1024, dtype=dtype), normal(1, 1024, 768, dtype=dtype) / 32
    q, k, v = (normal(n, 2, 4, 256, 64, dtype=dtype) for n in range(3))

    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        return tw.jax.softmax(jnp.tanh(tw.jax.matmul(tw.jax.rms_norm(x), w)))

    def plain(x: jax.Array, w: jax.Array) -> jax.Array:
        x, w = x.astype(jnp.float32), w.astype(jnp.float32)
        x = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)
        return jax.nn.softmax(jnp.tanh(x @ w))

    near(jax.jit(layer)(x, w).astype(jnp.float32), plain(x, w), 1e-2)
    wide = [y.astype(jnp.float32) for y in (q, k, v)]
    found, expected = (
        slopes(lambda q, k, v: f(q, k, v).astype(jnp.float32), given)
        for f, given in (
            (jax.jit(lambda q, k, v: tw.jax.attention(q, k, v, causal=True)), (q, k, v)),
            (CASES["attention"].reference, wide),
        )
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert jnp.abs(ours.astype(jnp.float32) - theirs).max() <= 0.05 * jnp.abs(theirs).max()


def test_work_keeps_its_order_on_the_stream() -> None:
    """A chain of operators and of XLA's own kernels, each of which takes what the one before wrote."""
    x = normal(0, 4096, 2048)

    def chain(f, x):
        for _ in range(20):
            x = f(x) * 100 + jnp.flip(x, 0) / 2
        return x

    near(jax.jit(lambda x: chain(tw.jax.softmax, x))(x), chain(jax.nn.softmax, x), 1e-3)
    looped = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, x: tw.jax.softmax(x) * 100 + jnp.flip(x, 0) / 2, x))
    near(looped(x), chain(jax.nn.softmax, x), 1e-3)


def test_an_operator_of_ones_own() -> None:
    x, y = normal(0, 4000), normal(1, 4000)
    near(added(x, y), x + 2 * y)
    near(jax.jit(lambda x, y: added(x, y, 3.0))(x, y), x + 3 * y)
    near(jax.jit(jax.grad(lambda y: added(x, y, 5.0).sum()))(y), jnp.full(4000, 5.0))
    with ThreadPoolExecutor(4) as pool:
        step = jax.jit(lambda x: added(x, y, 7.0))
        for n, found in enumerate(pool.map(lambda n: step(x + n), range(32))):
            near(found, x + n + 7 * y)


@tw.jax.op(shape="x")
def refused(x):
    return tw.softmax(x.reshape(2, -1))


@tw.jax.op(shape="x")
def copied(x):
    """Return what lies elsewhere than the result: a view of the argument."""
    return x


def test_what_is_refused_and_what_is_copied() -> None:
    x = normal(0, 64)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"result 0 is float32 of shape \(2, 32\)"):
        jax.block_until_ready(jax.jit(refused)(x))
    near(jax.jit(lambda x: copied(x + 1))(x), x + 1)


def test_a_model_learns() -> None:
    from tests.jax.test_operators import test_a_model_learns

    test_a_model_learns()
