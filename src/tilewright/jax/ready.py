"""The operators of Tilewright as functions of JAX, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: arrays of JAX, tracers and NumPy's

import jax.numpy as jnp

import jax
import tilewright
from tilewright.errors import ArgumentError
from tilewright.jax.operators import op
from tilewright.kernels.permute import order_of
from tilewright.runtime.arrays import describe
from tilewright.runtime.views import view

Array = Any


def _struct(x: Array, shape: Sequence[int] | None = None, dtype: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape if shape is None else tuple(shape), x.dtype if dtype is None else dtype)


def _wide(x: Array) -> Any:
    return jnp.float64 if x.dtype == jnp.float64 else jnp.float32


# --- rows ----------------------------------------------------------------------------------------------------------


@op(shape="x")
def softmax(x: Array, axis: int = -1) -> Array:
    """Compute softmax along an axis, exp(x - max) / sum(exp(x - max)), with gradients; see `tw.softmax`.

    >>> import jax, tilewright as tw
    >>> jax.jit(tw.jax.softmax)(jax.numpy.zeros((1, 4))).tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """
    return tilewright.softmax(x, axis)


@op(shape="result")
def _softmax_slope(grad: Array, result: Array, axis: int) -> Array:
    return tilewright.softmax_backward(grad, result, axis)


@softmax.backward
def _softmax_backward(grad: Array, axis: int, result: Array) -> dict[str, Array]:
    return {"x": _softmax_slope(grad, result, axis)}


@_softmax_slope.backward
def _softmax_backward_backward(second: Array, grad: Array, result: Array, axis: int) -> dict[str, Array]:
    # of y (g - sum(g y)), which is linear in g and symmetric
    along = (grad * result).sum(axis, keepdims=True), (second * result).sum(axis, keepdims=True)
    return {"grad": _softmax_slope(second, result, axis), "result": second * (grad - along[0]) - along[1] * grad}


@op(shape="x")
def log_softmax(x: Array, axis: int = -1) -> Array:
    """Compute the logarithm of softmax along an axis, with gradients; see `tw.log_softmax`.

    >>> import jax, tilewright as tw
    >>> jax.jit(tw.jax.log_softmax)(jax.numpy.zeros((1, 1))).tolist()
    [[0.0]]
    """
    return tilewright.log_softmax(x, axis)


@op(shape="result")
def _log_softmax_slope(grad: Array, result: Array, axis: int) -> Array:
    return tilewright.log_softmax_backward(grad, result, axis)


@log_softmax.backward
def _log_softmax_backward(grad: Array, axis: int, result: Array) -> dict[str, Array]:
    return {"x": _log_softmax_slope(grad, result, axis)}


@_log_softmax_slope.backward
def _log_softmax_backward_backward(second: Array, grad: Array, result: Array, axis: int) -> dict[str, Array]:
    powers = jnp.exp(result)
    total = (second * powers).sum(axis, keepdims=True)
    return {"grad": second - total, "result": -second * powers * grad.sum(axis, keepdims=True)}


def _rms_shapes(x: Array, weight: Array, eps: float) -> Any:
    return _struct(x), _struct(x, x.shape[:-1], _wide(x))


@op(shape=_rms_shapes)
def _rms_norm(x: Array, weight: Array, eps: float) -> Any:
    return tilewright.rms_norm(x, weight, eps=eps, statistics=True)


@op(shape=("x", "weight"))
def _rms_norm_slope(grad: Array, x: Array, scale: Array, weight: Array) -> Any:
    return tilewright.rms_norm_backward(grad, x, scale, weight)


@_rms_norm.backward
def _rms_norm_backward(grad: Array, of_scale: Array, x: Array, weight: Array, results: Any) -> dict[str, Array]:
    return dict(zip(("x", "weight"), _rms_norm_slope(grad, x, results[1], weight), strict=True))


def rms_norm(x: Array, weight: Array | None = None, *, eps: float = 1e-6) -> Array:
    """Compute x / sqrt(mean(x^2) + eps) * weight along the last axis, with gradients; see `tw.rms_norm`.

    >>> import jax, tilewright as tw
    >>> jax.jit(lambda x: tw.jax.rms_norm(x, eps=0.0))(jax.numpy.array([[4.0, 0.0, 0.0, 0.0]])).tolist()
    [[2.0, 0.0, 0.0, 0.0]]
    """
    weight = jnp.ones_like(x, shape=x.shape[-1:]) if weight is None else weight
    if x.shape[-1:] == weight.shape == (0,):  # rows without elements have no statistics, and nothing to compute
        return jnp.asarray(x)
    return _rms_norm(x, weight, float(eps))[0]


def _layer_shapes(x: Array, weight: Array, bias: Array, eps: float) -> Any:
    return _struct(x), *[_struct(x, x.shape[:-1], _wide(x))] * 2


@op(shape=_layer_shapes)
def _layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Any:
    return tilewright.layer_norm(x, weight, bias, eps=eps, statistics=True)


@op(shape=("x", "weight", "weight"))
def _layer_norm_slope(grad: Array, x: Array, mean: Array, scale: Array, weight: Array) -> Any:
    return tilewright.layer_norm_backward(grad, x, mean, scale, weight)


@_layer_norm.backward
def _layer_norm_backward(
    grad: Array, of_mean: Array, of_scale: Array, x: Array, weight: Array, results: Any
) -> dict[str, Array]:
    found = _layer_norm_slope(grad, x, results[1], results[2], weight)
    return dict(zip(("x", "weight", "bias"), found, strict=True))


def layer_norm(x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: float = 1e-5) -> Array:
    """Compute (x - mean) / sqrt(variance + eps) * weight + bias along the last axis, with gradients.

    >>> import jax, tilewright as tw
    >>> jax.jit(lambda x: tw.jax.layer_norm(x, eps=0.0))(jax.numpy.array([[1.0, 3.0]])).tolist()
    [[-1.0, 1.0]]
    """
    ones = jnp.ones_like(x, shape=x.shape[-1:])
    weight, bias = ones if weight is None else weight, 0 * ones if bias is None else bias
    if x.shape[-1:] == weight.shape == bias.shape == (0,):  # as above
        return jnp.asarray(x)
    return _layer_norm(x, weight, bias, float(eps))[0]


# --- moves, losses, attention --------------------------------------------------------------------------------------


def _permuted(x: Array, axes: Sequence[int]) -> Any:
    return _struct(x, [x.shape[axis] for axis in axes])


@op(shape=_permuted)
def _permute(x: Array, axes: tuple[int, ...]) -> Array:
    return tilewright.permute(x, axes)


@_permute.backward
def _permute_backward(grad: Array, axes: tuple[int, ...]) -> dict[str, Array]:
    return {"x": _permute(grad, tuple(sorted(range(len(axes)), key=axes.__getitem__)))}


def permute(x: Array, axes: Sequence[int]) -> Array:
    """Return x with its axes in another order, contiguous, with gradients: `jax.numpy.transpose(x, axes)`.

    >>> import jax, tilewright as tw
    >>> jax.jit(lambda x: tw.jax.permute(x, (1, 0)))(jax.numpy.ones((2, 3))).shape
    (3, 2)
    """
    return _permute(x, order_of(axes, x.ndim))


@op(shape="x")
def rope(x: Array, cos: Array, sin: Array, interleaved: bool = False, inverse: bool = False) -> Array:
    """Rotate pairs of elements of the last axis by angles, with gradients; see `tw.rope`.

    >>> import jax, tilewright as tw
    >>> x, zero, one = (jax.numpy.full(2, v) for v in (3.0, 0.0, 1.0))
    >>> jax.jit(tw.jax.rope)(x, zero[:1], one[:1]).tolist()
    [-3.0, 3.0]
    """
    return tilewright.rope(x, cos, sin, interleaved=interleaved, inverse=inverse)


@rope.backward
def _rope_backward(grad: Array, x: Array, cos: Array, sin: Array, interleaved: bool, inverse: bool) -> dict[str, Array]:
    n, found = cos.shape[-1], {"x": rope(grad, cos, sin, interleaved, not inverse)}
    turned = rope(x, jnp.zeros_like(cos), jnp.ones_like(sin), interleaved, inverse)
    for name, angle, factor in (("cos", cos, x), ("sin", sin, turned)):
        pairs = (grad * factor.astype(_wide(x))).reshape(*x.shape[:-1], *((n, 2) if interleaved else (2, n)))
        found[name] = _summed(pairs.sum(-1 if interleaved else -2), angle)
    return found


def _loss_shapes(logits: Array, labels: Array, **others: Any) -> Any:
    return tuple(_struct(logits, logits.shape[:-1], _wide(logits)) for _ in range(3))


@op(shape=_loss_shapes)
def _cross_entropy(logits: Array, labels: Array, ignore_index: int, label_smoothing: float) -> Any:
    return tilewright.cross_entropy(
        logits, labels, ignore_index=ignore_index, label_smoothing=label_smoothing, statistics=True
    )


@op(shape="logits")
def _cross_entropy_slope(
    grad: Array, logits: Array, labels: Array, top: Array, total: Array, ignore_index: int, label_smoothing: float
) -> Array:
    return tilewright.cross_entropy_backward(
        grad, logits, labels, top, total, ignore_index=ignore_index, label_smoothing=label_smoothing
    )


@_cross_entropy.backward
def _cross_entropy_backward(
    grad: Array, of_top: Array, of_total: Array, logits: Array, labels: Array, ignore_index: int,
    label_smoothing: float, results: Any,
) -> dict[str, Array]:  # fmt: skip
    _, top, total = results
    return {"logits": _cross_entropy_slope(grad, logits, labels, top, total, ignore_index, label_smoothing)}


def cross_entropy(logits: Array, labels: Array, *, ignore_index: int = -100, label_smoothing: float = 0.0) -> Array:
    """Return -log(softmax(logits)[label]) of each row, with the gradient of the logits; see `tw.cross_entropy`.

    >>> import jax, tilewright as tw
    >>> jax.jit(tw.jax.cross_entropy)(jax.numpy.zeros((1, 1)), jax.numpy.array([0])).tolist()
    [0.0]
    """
    return _cross_entropy(logits, labels, int(ignore_index), float(label_smoothing))[0]


def _attention_shapes(q: Array, k: Array, v: Array, **others: Any) -> Any:
    return _struct(q, (*q.shape[:-1], v.shape[-1])), _struct(q, q.shape[:-1], _wide(q))


@op(shape=_attention_shapes)
def _attention(q: Array, k: Array, v: Array, causal: bool, window: Any, scale: float | None) -> Any:
    return tilewright.attention(q, k, v, causal=causal, window=window, scale=scale, statistics=True)


@op(shape=("q", "k", "v"))
def _attention_slope(
    grad: Array, q: Array, k: Array, v: Array, result: Array, lse: Array, causal: bool, window: Any, scale: Any
) -> Any:
    return tilewright.attention_backward(grad, q, k, v, result, lse, causal=causal, window=window, scale=scale)


@_attention.backward
def _attention_backward(
    grad: Array, of_lse: Array, q: Array, k: Array, v: Array, causal: bool, window: Any, scale: Any, results: Any
) -> dict[str, Array]:
    found = _attention_slope(grad, q, k, v, *results, causal, window, scale)
    return dict(zip(("q", "k", "v"), found, strict=True))


def attention(
    q: Array, k: Array, v: Array, *, causal: bool = False, window: Any = None, scale: float | None = None
) -> Array:
    """Compute softmax(scale q k^T) v of each head, with gradients; see `tw.attention`.

    >>> import jax, tilewright as tw
    >>> q = jax.numpy.ones((1, 1, 3, 8))
    >>> jax.jit(lambda q: tw.jax.attention(q, q, q, causal=True))(q)[0, 0, :, 0].tolist()
    [1.0, 1.0, 1.0]

    Gradients are not differentiable.
    """
    return _attention(q, k, v, bool(causal), window, scale)[0]


# --- products ------------------------------------------------------------------------------------------------------


def _product(a: Array, b: Array, precision: str | None, turned: tuple[bool, bool]) -> Any:
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    is_short, is_whole = a.dtype.itemsize == 1, jnp.issubdtype(a.dtype, jnp.integer)
    kind = None if not is_short else jnp.int32 if is_whole else jnp.bfloat16
    return _struct(a, (*batch, a.shape[-1 if turned[0] else -2], b.shape[-2 if turned[1] else -1]), kind)


@op(shape=_product)
def _matmul(a: Array, b: Array, precision: str | None, turned: tuple[bool, bool]) -> Array:
    """Multiply matrices, where `turned` their transposes, which are read in place."""
    left, right = (_transposed(x) if turn else x for x, turn in zip((a, b), turned, strict=True))
    return tilewright.matmul(left, right, precision=precision)


def _transposed(x: Array) -> Array:
    """Return an array of NumPy, or of XLA's on a GPU, with its last two modes exchanged."""
    info = describe(x)
    assert info is not None, type(x)
    *outer, m, n = info.shape
    *steps, row, column = info.strides
    return view(x, (*outer, n, m), (*steps, column, row))


@_matmul.backward
def _matmul_backward(
    grad: Array, a: Array, b: Array, precision: str | None, turned: tuple[bool, bool]
) -> dict[str, Array]:
    if a.dtype.itemsize == 1:
        raise ArgumentError(
            f"a is {a.dtype}, and products of 8-bit numbers have no gradient", help="convert them first"
        )
    # of C = A B it is dA = dC B^T and dB = A^T dC, and of transposes theirs
    first, second = turned
    left = (b, grad, precision, (second, True)) if first else (grad, b, precision, (False, not second))
    right = (grad, a, precision, (True, first)) if second else (a, grad, precision, (not first, False))
    return {"a": _summed(_matmul(*left), a), "b": _summed(_matmul(*right), b)}


def _summed(gradient: Array, x: Array) -> Array:
    """Return the gradient of what was broadcast."""
    if gradient.shape == x.shape:
        return gradient
    extra = gradient.ndim - x.ndim
    axes = [n for n in range(gradient.ndim) if n < extra or x.shape[n - extra] != gradient.shape[n]]
    return gradient.sum(axes, keepdims=True).reshape(x.shape)


def matmul(a: Array, b: Array, *, precision: str | None = None) -> Array:
    """Return a @ b, with gradients; shapes, types and `precision` are those of `tw.matmul`. Types of 8 bits have none.

    >>> import jax, tilewright as tw
    >>> a, b = jax.numpy.ones((1, 2)), jax.numpy.ones((2, 3))
    >>> jax.jit(jax.grad(lambda a: tw.jax.matmul(a, b).sum()))(a).tolist()
    [[3.0, 3.0]]

    Raises `ArgumentError` for arguments that do not fit together.
    """
    if a.ndim == 0 or b.ndim == 0 or a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        raise ArgumentError(f"the shapes {a.shape} and {b.shape} have no product")
    left, right = a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b
    found = _matmul(left, right, precision, (False, False))
    found = found.squeeze(-1) if b.ndim == 1 else found
    return found.squeeze(-1 if b.ndim == 1 else -2) if a.ndim == 1 else found
