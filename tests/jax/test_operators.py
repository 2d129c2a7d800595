"""Operators inside of programs of JAX: jit, gradients, vmap, checkpoints, shard_map; what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError

jax = pytest.importorskip("jax")
from tilewright.jax import foreign  # noqa: E402

jnp = jax.numpy
Array = Any


def normal(n: int, *shape: int, dtype: Any = np.float32) -> Array:
    return jnp.asarray(np.random.default_rng(n).normal(size=shape).astype(np.float32)).astype(dtype)


@dataclass(frozen=True)
class Case:
    function: Callable[..., Array]
    reference: Callable[..., Array]
    inputs: tuple[Array, ...]
    twice: bool = True  # its gradients have gradients


def norm(x: Array, weight: Array, eps: float = 1e-6) -> Array:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def layer(x: Array, weight: Array, bias: Array) -> Array:
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight + bias


def turned(x: Array, cos: Array, sin: Array) -> Array:
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate((a * cos - b * sin, b * cos + a * sin), -1)


def attended(q: Array, k: Array, v: Array) -> Array:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jax.nn.softmax(scores) @ v


COS, SIN = normal(8, 3, 2), normal(9, 3, 2)
LABELS = jnp.asarray([1, 4, -100, 0])
CASES = {
    "softmax": Case(tw.jax.softmax, jax.nn.softmax, (normal(0, 3, 5),)),
    "softmax of columns": Case(lambda x: tw.jax.softmax(x, 0), lambda x: jax.nn.softmax(x, 0), (normal(0, 3, 5),)),
    "log_softmax": Case(tw.jax.log_softmax, jax.nn.log_softmax, (normal(1, 2, 3, 5),)),
    "rms_norm": Case(tw.jax.rms_norm, norm, (normal(2, 3, 6), normal(3, 6)), twice=False),
    "layer_norm": Case(tw.jax.layer_norm, layer, (normal(2, 3, 6), normal(3, 6), normal(4, 6)), twice=False),
    "rope": Case(lambda x: tw.jax.rope(x, COS, SIN), lambda x: turned(x, COS, SIN), (normal(5, 2, 3, 4),)),
    "rope of angles": Case(tw.jax.rope, turned, (normal(5, 2, 3, 4), COS, SIN)),
    "rope of neighbours": Case(
        lambda x, cos, sin: tw.jax.rope(x, cos, sin, True, True),
        lambda x, cos, sin: turned(x.reshape(2, 3, 2, 2).mT.reshape(2, 3, 4), cos, -sin)
        .reshape(2, 3, 2, 2).mT.reshape(2, 3, 4),
        (normal(5, 2, 3, 4), COS, SIN[:1]),
    ),
    "permute": Case(lambda x: tw.jax.permute(x, (2, 0, -2)), lambda x: x.transpose(2, 0, 1), (normal(6, 2, 3, 4),)),
    "cross_entropy": Case(
        lambda x: tw.jax.cross_entropy(x, LABELS),
        lambda x: jnp.where(LABELS >= 0, -jax.nn.log_softmax(x)[jnp.arange(4), LABELS.clip(0)], 0),
        (normal(7, 4, 5),), twice=False,
    ),
    "attention": Case(
        lambda q, k, v: tw.jax.attention(q, k, v, causal=True), attended,
        tuple(normal(n, 1, 2, 3, 8) for n in range(3)), twice=False,
    ),
    "matmul": Case(tw.jax.matmul, jnp.matmul, (normal(0, 2, 3, 4), normal(1, 4, 5))),
    "matmul, batches": Case(tw.jax.matmul, jnp.matmul, (normal(0, 2, 1, 3, 4), normal(1, 3, 4, 5))),
    "matmul, vectors": Case(tw.jax.matmul, jnp.matmul, (normal(0, 4), normal(1, 3, 4, 5))),
}  # fmt: skip
every = pytest.mark.parametrize("name", CASES)


def near(found: Array, expected: Array, bound: float = 2e-5) -> None:
    assert isinstance(found, jax.Array) and found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(expected, np.float64), atol=bound, rtol=bound)


def slopes(function: Callable[..., Array], inputs: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return gradients of a sum with weights, so that each element counts by itself."""

    def total(*inputs: Array) -> Array:
        found = function(*inputs)
        return (found * jnp.cos(jnp.arange(found.size, dtype=found.dtype)).reshape(found.shape)).sum()

    return jax.grad(total, tuple(range(len(inputs))))(*inputs)


@every
def test_values_and_gradients(name: str) -> None:
    case = CASES[name]
    expected = case.reference(*case.inputs)
    near(case.function(*case.inputs), expected)
    near(jax.jit(case.function)(*case.inputs), expected)
    wanted = slopes(case.reference, case.inputs)
    for found in (slopes(case.function, case.inputs), jax.jit(lambda *x: slopes(case.function, x))(*case.inputs)):
        for ours, theirs in zip(found, wanted, strict=True):
            near(ours, theirs, 1e-4)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.twice])
def test_gradients_of_gradients(name: str) -> None:
    case = CASES[name]

    def total(function: Callable[..., Array]) -> Callable[..., Array]:
        return lambda *x: sum((jnp.sin(s) * (1 + s)).sum() for s in slopes(function, x))

    for ours, theirs in zip(
        *(slopes(lambda *x: total(f)(*x)[None], case.inputs) for f in (case.function, case.reference)), strict=True
    ):
        near(ours, theirs, 2e-4)


@every
def test_maps_and_checkpoints(name: str) -> None:
    case = CASES[name]
    batch = tuple(jnp.stack((x, 2 * x, x - 1)) for x in case.inputs)
    near(jax.vmap(case.function)(*batch), jax.vmap(case.reference)(*batch))
    first = (0, *[None] * (len(case.inputs) - 1))
    near(
        jax.jit(jax.vmap(case.function, first))(batch[0], *case.inputs[1:]),
        jax.vmap(case.reference, first)(batch[0], *case.inputs[1:]),
    )
    for ours, theirs in zip(
        slopes(jax.checkpoint(case.function), case.inputs), slopes(case.reference, case.inputs), strict=True
    ):
        near(ours, theirs, 1e-4)


def test_types_of_16_bits_and_empty_arrays() -> None:
    x = normal(0, 4, 64, dtype=jnp.bfloat16)
    near(jax.jit(tw.jax.softmax)(x), jax.nn.softmax(x), 1e-2)
    near(jax.jit(tw.jax.matmul)(x, x.T), x @ x.T, 5e-2)
    assert jax.grad(lambda x: tw.jax.rms_norm(x).astype(jnp.float32).sum())(x).dtype == jnp.bfloat16
    assert jax.jit(tw.jax.softmax)(jnp.zeros((0, 4))).shape == (0, 4)
    assert jax.jit(tw.jax.matmul)(jnp.zeros((2, 0)), jnp.zeros((0, 3))).tolist() == [[0, 0, 0]] * 2
    for norm in (tw.jax.rms_norm, tw.jax.layer_norm):
        assert jax.jit(norm)(jnp.zeros((2, 0))).shape == norm(np.zeros((2, 0)), jnp.ones(0)).shape == (2, 0)
        found = jax.grad(lambda *x: norm(*x).sum(), (0, 1))(jnp.zeros((2, 0)), jnp.ones(0))
        assert [x.shape for x in found] == [(2, 0), (0,)]
        with pytest.raises(jax.errors.JaxRuntimeError, match="rows of x have 0 elements"):
            norm(jnp.zeros((2, 0)), jnp.ones(1))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float8_e4m3fn", "float8_e5m2"])
def test_products_of_8_bits(dtype: str) -> None:
    x = (jnp.arange(16).reshape(4, 4) % 5).astype(dtype)
    found = jax.jit(tw.jax.matmul)(x, x)
    assert found.dtype == tw.matmul(x, x).dtype
    near(found.astype(np.float32), x.astype(np.float32) @ x.astype(np.float32))
    if dtype.startswith("float"):
        with pytest.raises(ArgumentError, match="have no gradient"):
            jax.grad(lambda x: tw.jax.matmul(x, x).astype(np.float32).sum())(x)


def test_a_model_learns() -> None:
    """Two layers and attention, by gradients through jit: the losses of jax.numpy's own functions."""
    weights = {name: 0.3 * normal(n, 8, 8) for n, name in enumerate(("q", "k", "v", "out"))} | {"norm": jnp.ones(8)}
    tokens, labels = normal(9, 2, 6, 8), jnp.asarray(np.random.default_rng(0).integers(0, 8, (2, 6)))

    def loss(w: dict[str, Array], ours: bool) -> Array:
        product, rows = (tw.jax.matmul, tw.jax.rms_norm) if ours else (jnp.matmul, norm)
        x = rows(tokens, w["norm"])
        q, k, v = (product(x, w[name])[:, None] for name in "qkv")
        mixed = tw.jax.attention(q, k, v, causal=True) if ours else attended(q, k, v)
        logits = product(tokens + mixed[:, 0], w["out"])
        if ours:
            return tw.jax.cross_entropy(logits, labels).mean()
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1).mean()

    losses = []
    for ours in (True, False):
        step = jax.jit(jax.value_and_grad(lambda w, ours=ours: loss(w, ours)))
        now, found = weights, []
        for _ in range(4):
            value, gradient = step(now)
            found.append(float(value))
            now = jax.tree.map(lambda w, g: w - 0.5 * g, now, gradient)
        losses.append(found)
    assert losses[0][-1] < losses[0][0]
    np.testing.assert_allclose(*losses, rtol=1e-4)


SHARDED = """
import jax, numpy as np, tilewright as tw
from jax.sharding import AxisType, PartitionSpec as P
mesh = jax.make_mesh((4,), ("rows",), axis_types=(AxisType.Auto,))
x, w = jax.numpy.arange(32.0).reshape(8, 4) / 10, jax.numpy.ones((4, 3))
parts = jax.shard_map(lambda x, w: tw.jax.softmax(tw.jax.matmul(x, w)), mesh=mesh, in_specs=(P("rows"), P()), out_specs=P("rows"))
y = jax.jit(parts)(x, w)
assert len(y.sharding.device_set) == 4 and np.allclose(y, jax.nn.softmax(x @ w))
g = jax.jit(jax.grad(lambda w: (parts(x, w) * x[:, :3]).sum()))(w)
assert np.allclose(g, jax.grad(lambda w: (jax.nn.softmax(x @ w) * x[:, :3]).sum())(w), atol=1e-5)
if hasattr(jax, "set_mesh"):
    with jax.set_mesh(jax.make_mesh((4,), ("rows",), axis_types=(AxisType.Explicit,))) as explicit:
        ours, known = (jax.jit(jax.grad(lambda x: jax.numpy.sin(f(x)).sum())) for f in (tw.jax.softmax, jax.nn.softmax))
        placed = jax.device_put(x, jax.sharding.NamedSharding(jax.sharding.get_mesh(), P("rows")))
        assert jax.typeof(ours(placed)) == jax.typeof(placed) and np.allclose(ours(placed), known(placed), atol=1e-6)
late = jax.jit(tw.jax.softmax)(jax.device_put(x, jax.sharding.NamedSharding(mesh, P("rows"))))  # Python waits for it
"""


def test_shard_map() -> None:
    """Over four devices of the CPU, in a process of its own: their number is fixed when JAX begins."""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", SHARDED], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr


# --- operators of one's own ----------------------------------------------------------------------------------------


@tw.kernel
def add_scaled(out, x, y, factor):
    i = tw.block_idx.x * 32 + tw.thread_idx.x
    if i < x.shape[0]:
        out[i] = x[i] + factor * y[i]


@tw.jax.op(shape="x", vmap="sequential")
def added(x, y, out, factor=2.0):
    add_scaled[tw.ceil_div(x.size, 32), 32](out, x, y, factor)


@added.backward
def _added_backward(grad, factor):
    return {"x": grad, "y": factor * grad}


@tw.jax.op(shape=lambda x: (jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((), np.int32)))
def counted(x):
    return np.array(x), np.array(x.size, np.int32)


def test_an_operator_of_ones_own() -> None:
    x, y = normal(0, 40), normal(1, 40)
    near(jax.jit(added)(x, y), x + 2 * y, 1e-6)
    near(jax.jit(lambda x, y: added(x, y, factor=3.0))(x, y), x + 3 * y, 1e-6)
    near(jax.grad(lambda y: added(x, y, 5.0).sum())(y), jnp.full(40, 5.0))
    near(added(np.ones(3, np.float32), np.ones(3, np.float32)), jnp.full(3, 3.0))
    assert [int(v.size) for v in jax.jit(counted)(x)] == [40, 1] and int(jax.jit(counted)(x)[1]) == 40
    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.grad(lambda x: counted(x)[0].sum())(x)


def test_arrays_of_numpy_have_the_types_that_jax_gives_them() -> None:
    assert counted(np.ones(3))[0].dtype == np.float32 and counted(np.arange(3))[0].dtype == np.int32
    near(tw.jax.rms_norm(np.ones((2, 4))), jnp.ones((2, 4)), 1e-5)


def test_arguments_that_are_equal_and_not_the_same() -> None:
    @tw.jax.op(shape="x")
    def described(x, number):
        return np.full(x.shape, sum(map(ord, str(number))), np.float32)

    for number in (1, 1.0, True, 0.0, -0.0, (1, 2), (1, 2.0)):
        assert described(jnp.ones(1, np.float32), number).item() == sum(map(ord, str(number)))


def test_programs_that_another_process_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """They call what they called there, or say that this process does not know it; here the other is one before."""
    x = normal(0, 3, 3)
    program = jax.jit(lambda x: tw.jax.permute(x, (1, 0))).lower(x).compile()
    near(program(x), x.T)
    monkeypatch.setattr(foreign, "_known", type(foreign._known)())
    near(tw.jax.op(shape="x")(lambda x: -x)(x), -x)  # the first one that is known now
    with pytest.raises(ValueError, match=r"_permute\('x',\).*\(1, 0\).* has not been called in this process"):
        program(x)


def gradient_by(backward: Callable[[Array], object]) -> Array:
    """Return the gradient of a copy whose backward function is the one given."""
    operator = tw.jax.op(shape="x")(lambda x: np.array(x))
    operator.backward(backward)
    return jax.grad(lambda x: operator(x).sum())(normal(0, 4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gradient_by(lambda grad: {"z": grad}), r"<lambda> returned gradients of \['z'\]"),
        (lambda: gradient_by(lambda grad: grad), "<lambda> returned a"),
        (lambda: tw.jax.op(shape="z")(lambda x: x), "shape names 'z'"),
        (lambda: tw.jax.op(shape="x", vmap="fast")(lambda x: x), "vmap of <lambda> is 'fast'"),
        (lambda: added.backward(lambda factor, grad: {}), "first the gradients of the results"),
        (lambda: jax.jit(lambda x: added(x, x, [1.0]))(normal(0, 4)), "pass tuples in place of lists"),
        (lambda: tw.jax.permute(normal(0, 2, 3), (0, 0)), "x has 2 modes"),
        (
            lambda: jax.jit(lambda x: tw.jax.permute(x, (0, 3)))(normal(0, 2, 3)),
            r"axes are \(0, 3\), and x has 2 modes",
        ),
        (lambda: tw.jax.permute(normal(0, 2, 3), (-3, 1)), r"axes are \(-3, 1\), and x has 2 modes"),
        (lambda: tw.jax.permute(normal(0, 2, 3), 0), "axes are 0, and numbers of modes are expected"),
        (lambda: tw.jax.op(shape="x")(lambda x, *more: x), r"the parameter \*more of <lambda> has no name"),
        (lambda: tw.jax.op(shape="x")(lambda x, **more: x), r"the parameter \*\*more of <lambda> has no name"),
        (lambda: tw.jax.op(shape="x")(lambda x, /: x), "the parameter x of <lambda> has no name"),
        (lambda: added(normal(0, 4), wrong=1), "added: "),
        (lambda: jax.jit(tw.jax.matmul)(normal(0, 2, 3), normal(0, 2, 3)), "have no product"),
    ],
)
def test_what_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()
