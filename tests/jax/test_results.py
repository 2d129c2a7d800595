"""Arrays of JAX in calls from Python: results are JAX's, and the arguments stay as they are."""

import re

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError

jax = pytest.importorskip("jax")
jnp = jax.numpy
KEYS = jax.random.split(jax.random.key(0), 8)


@tw.kernel
def zero(y, x):
    y[tw.thread_idx.x] = 0


def normal(n, *shape, dtype=jnp.float32):
    return jax.random.normal(KEYS[n], shape).astype(dtype)


def close(found, expected, dtype=np.float32, bound=2e-5):
    assert isinstance(found, jax.Array)
    assert found.dtype == dtype and found.shape == expected.shape
    np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(expected, np.float64), atol=bound, rtol=bound)


@pytest.mark.parametrize(("dtype", "bound"), [(jnp.float32, 2e-5), (jnp.bfloat16, 1e-2), (jnp.float16, 2e-3)])
def test_products(dtype, bound):
    a, b = normal(0, 3, 17, 33, dtype=dtype), normal(1, 33, 20, dtype=dtype)
    before = np.asarray(a)
    expected = a.astype(jnp.float32) @ b.astype(jnp.float32)
    close(tw.matmul(a, b), expected, dtype, 8 * bound)
    close(tw.matmul(a, b), expected, dtype, 8 * bound)  # planned already
    close(tw.matmul(a[..., 1:], b[1:], epilogue=lambda acc: tw.maximum(acc, 0), out_dtype=tw.float32),
          jnp.maximum(a[..., 1:].astype(jnp.float32) @ b[1:].astype(jnp.float32), 0), np.float32, 8 * bound)  # fmt: skip
    np.testing.assert_array_equal(np.asarray(a), before)


def test_integers_and_empty_results():
    a, b = jnp.arange(-6, 6, dtype=jnp.int8).reshape(3, 4), jnp.ones((4, 2), jnp.int8)
    close(tw.matmul(a, b), np.asarray(a, np.int32) @ np.asarray(b, np.int32), np.int32)
    close(tw.matmul(jnp.ones((0, 4)), jnp.ones((4, 2))), np.ones((0, 2)))


def test_rows_and_their_gradients():
    x, grad, weight, bias = normal(0, 5, 40), normal(1, 5, 40), normal(2, 40), normal(3, 40)
    y, back = jax.vjp(lambda x: jax.nn.softmax(x, -1), x)
    close(tw.softmax(x), y)
    close(tw.softmax_backward(grad, y), back(grad)[0])
    close(tw.log_softmax(x), jax.nn.log_softmax(x, -1))
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    close(tw.layer_norm(x, weight, bias, eps=1e-5), (x - mean) / jnp.sqrt(var + 1e-5) * weight + bias)
    close(tw.rms_norm(x, weight, eps=1e-6), x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight)


def test_moves_losses_and_attention():
    x = normal(0, 3, 4, 5)
    close(tw.permute(x, (2, 0, 1)), x.transpose(2, 0, 1))
    logits, labels = normal(1, 6, 50), jnp.array([0, 3, 49, 7, 7, 20])
    losses = -jax.nn.log_softmax(logits, -1)[jnp.arange(6), labels]
    close(tw.cross_entropy(logits, labels), losses)
    q, k, v = (normal(n, 1, 2, 24, 32) for n in (2, 3, 4))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 32**0.5
    close(tw.attention(q, k, v), jax.nn.softmax(scores, -1) @ v, bound=1e-4)


def test_results_are_arrays_that_jax_may_do_anything_with():
    y = tw.matmul(normal(0, 8, 8), normal(1, 8, 8))
    again = jax.jit(lambda y: 2 * y, donate_argnums=0)(y + 0)
    close(again, 2 * np.asarray(y))
    assert y.block_until_ready() is y


def test_refused():
    x = normal(0, 4, 4)
    with pytest.raises(ArgumentError, match="outside of jax.jit"):
        jax.jit(tw.softmax)(x)
    with pytest.raises(ArgumentError, match="outside of jax.jit"):
        jax.vmap(lambda x: tw.matmul(x, x))(normal(0, 2, 4, 4))
    with pytest.raises(ArgumentError, match="read-only|cannot be written"):
        tw.matmul(x, x, out=x + 0)
    with pytest.raises(ArgumentError, match="never change"):
        tw.matmul.prepare(x, x)


def test_arrays_that_were_deleted_are_refused_by_name():
    calls = {
        "argument 'x'": lambda x: zero[1, 32](np.zeros(32, np.float32), x),
        "argument 'b'": lambda x: tw.matmul(normal(1, 4, 3), x),
        "b[0]": lambda x: tw.grouped_matmul([normal(1, 4, 3)], [x]),
        "x": tw.jax.softmax,
        "b": lambda x: tw.jax.matmul(normal(1, 4, 3), x),
    }
    for name, call in calls.items():
        x = normal(0, 3, 4)
        x.delete()
        with pytest.raises(
            ArgumentError, match=rf"^{re.escape(name)} cannot be used: its memory was freed: JAX deleted"
        ):
            call(x)


def test_a_result_in_memory_of_another_library():
    x, out = normal(0, 4, 4), np.zeros((4, 4), np.float32)
    assert tw.matmul(x, x, out=out) is out
    np.testing.assert_allclose(out, np.asarray(x) @ np.asarray(x), atol=1e-5)
