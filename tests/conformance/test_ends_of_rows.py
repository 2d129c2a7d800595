"""What lies behind the rows of results stays as it was, whatever their length: of every operator, on both backends.

TMA writes whole 16 bytes at the end of a row. The simulator refuses such stores, a GPU makes them: so on the one a store
that is not guarded is an error, and on the other one the padding changes. Padding holds what no result does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.conformance import test_grouped_hopper as of_groups
from tests.conformance import test_matmul_hopper as of_products
from tests.conformance.harness import Backend
from tests.helpers.slow import rest_is_slow

import tilewright as tw

BF16 = ml_dtypes.bfloat16
UNIT, LEFT = 16, -77.0
RESIDUES = [*range(8)]


def behind(backend: Backend, shape: tuple[int, ...], dtype: Any) -> tuple[Any, Any]:
    """Return an array whose rows end at multiples of 16 bytes, 16 behind, and the view of it that a result goes to."""
    each = UNIT // np.dtype(dtype).itemsize
    memory = backend.put(np.full((*shape[:-1], (-(-shape[-1] // each) + 1) * each), LEFT, dtype))
    return memory, memory[..., : shape[-1]]


def assert_left(backend: Backend, memory: Any, columns: int) -> None:
    found = backend.get(memory).astype(np.float64)
    assert not (found[..., :columns] == LEFT).all(), "nothing was written"
    assert (found[..., columns:] == LEFT).all(), "what lies behind the rows was written"


# --- products by TMA -----------------------------------------------------------------------------------------

Product = of_products.Case
PING_PONG, CLUSTER, IN_CLUSTER = of_products.PING_PONG, of_products.CLUSTER, of_products.IN_CLUSTER
PRODUCTS: dict[str, dict[str, Any]] = {
    "one after another": {"tile": (128, 64, 64), "blocks": 2},
    "ping-pong": {"tile": (64, 64, 64), "blocks": 1, "more": PING_PONG},
    "cluster": {"tile": (128, 64, 64), "blocks": 2, "more": CLUSTER},
    "swapped": {"tile": (64, 128, 64), "blocks": 1, "more": of_products.SWAPPED},
    "splits": {"tile": (128, 64, 64), "blocks": 2, "more": {"splits": 2}},
    "splits in a cluster": {"tile": (128, 64, 64), "blocks": 1, "more": {"splits": 2} | IN_CLUSTER},
    "stream-K": {"tile": (128, 64, 64), "blocks": 4, "more": of_products.STREAM},
    "bytes": {"tile": (128, 64, 128), "blocks": 1, "types": ("e4m3", "e4m3")},
}


@pytest.mark.parametrize("residue", RESIDUES)
@pytest.mark.parametrize("out", [BF16, np.float32], ids=["bf16", "float32"])
@pytest.mark.parametrize("name", rest_is_slow(PRODUCTS, *(PRODUCTS.keys() - {"stream-K"})))
@pytest.mark.spread(32)
def test_products(backend: Backend, name: str, out: Any, residue: int) -> None:
    is_long = "splits" in name or "stream" in name
    extents = (260 if "stream" in name else 70, 64 + residue, 1040 if is_long else 144 if name == "bytes" else 72)
    case = Product(extents, **PRODUCTS[name])
    a, b = of_products.operands(case)
    memory, view = behind(backend, extents[:2], out)
    of_products.same(of_products.compute(backend, case, a, b, out=view), of_products.product(a, b))
    assert_left(backend, memory, extents[1])


@pytest.mark.parametrize("residue", RESIDUES)
@pytest.mark.parametrize("out", [BF16, np.float32], ids=["bf16", "float32"])
@pytest.mark.parametrize("name", ["rows, weights along K", "rows, ping-pong of two instructions", "K", "K, ping-pong"])
@pytest.mark.spread(32)
def test_products_of_groups(backend: Backend, name: str, out: Any, residue: int) -> None:
    known, columns = of_groups.CASES[name], 64 + residue
    extents = (known.extents[0], *((columns, 72) if known.mode == "M" else (72, columns)))
    case = replace(known, extents=extents, out=out)
    a, b = of_groups.operands(case)
    rows = extents[:1] if known.mode == "M" else (len(known.ends), 72)
    memory, view = behind(backend, (*rows, columns), out)
    of_groups.compute(backend, case, a, b, case.ends, out=view)
    assert_left(backend, memory, columns)


def test_sums_of_splits_have_whole_rows(backend: Backend) -> None:
    """They leave by TMA for memory of their own, whose rows it may fill."""
    case = Product((70, 69, 520), (128, 64, 64), 2, more={"splits": 2})
    a, b = of_products.operands(case)
    of_products.same(of_products.compute(backend, case, a, b), of_products.product(a, b))


# --- everything else -----------------------------------------------------------------------------------------


def numbers(backend: Backend, *shape: int, dtype: Any = BF16) -> Any:
    return backend.put(np.random.default_rng(shape[-1]).uniform(0.5, 1, shape).astype(dtype))


def _gradients_of_attention(backend: Backend, n: int, out: tuple[Any, ...]) -> None:
    q, k, v, grad = (numbers(backend, 1, 2, 9, n) for _ in range(4))
    result, lse = tw.attention(q, k, v, statistics=True)
    tw.attention_backward(grad, q, k, v, result, lse, dq=out[0], dk=out[1], dv=out[2])


def _gradients_of_losses(backend: Backend, n: int, out: tuple[Any, ...]) -> None:
    x, labels = numbers(backend, 5, n), backend.put(np.arange(5))
    losses, top, total = tw.cross_entropy(x, labels, statistics=True)
    tw.cross_entropy_backward(losses, x, labels, top, total, out=out[0])


def _gradients_of_norms(backend: Backend, n: int, out: tuple[Any, ...]) -> None:
    x, grad = numbers(backend, 5, n), numbers(backend, 5, n)
    _, mean, scale = tw.layer_norm(x, statistics=True)
    tw.layer_norm_backward(grad, x, mean, scale, out=out[0])
    _, scale = tw.rms_norm(x, statistics=True)
    tw.rms_norm_backward(grad, x, scale, out=out[1])


def _gradients_of_softmax(backend: Backend, n: int, out: tuple[Any, ...]) -> None:
    grad, result = numbers(backend, 5, n), numbers(backend, 5, n)
    tw.softmax_backward(grad, result, out=out[0])
    tw.log_softmax_backward(grad, result, out=out[1])


def _rows(backend: Backend, n: int, out: tuple[Any, ...]) -> None:
    x = numbers(backend, 5, n)
    for operator, result in zip((tw.softmax, tw.log_softmax, tw.layer_norm, tw.rms_norm), out, strict=True):
        operator(x, out=result)


def _product(backend: Backend, n: int, out: tuple[Any, ...], **options: Any) -> None:
    tw.matmul(numbers(backend, 5, 40), numbers(backend, 40, n * (2 if options else 1)), out=out[0], **options)


def _product_of_weights(backend: Backend, n: int, out: tuple[Any, ...]) -> None:
    weights = np.random.default_rng(0).standard_normal((64, n)).astype(np.float32)
    tw.matmul(numbers(backend, 5, 64), tw.quantize(backend.put(weights), group=32), out=out[0])


OPERATORS: dict[str, tuple[Callable[..., None], tuple[tuple[int, ...], ...]]] = {
    "rows": (_rows, ((5,),) * 4),
    "gradients of softmax": (_gradients_of_softmax, ((5,),) * 2),
    "gradients of norms": (_gradients_of_norms, ((5,),) * 2),
    "gradients of losses": (_gradients_of_losses, ((5,),)),
    "permute": (lambda backend, n, out: tw.permute(numbers(backend, n, 40), (1, 0), out=out[0]), ((40,),)),
    "attention": (
        lambda backend, n, out: tw.attention(*(numbers(backend, 1, 2, 9, n) for _ in range(3)), out=out[0]),
        ((1, 2, 9),),
    ),
    "gradients of attention": (_gradients_of_attention, ((1, 2, 9),) * 3),
    "product": (_product, ((5,),)),
    "gated product": (
        lambda *given: _product(*given, epilogue=tw.gated(lambda x, y: x * tw.maximum(y, 0))),
        ((5,),),
    ),
    "product with dropout": (
        lambda backend, n, out: tw.matmul(
            numbers(backend, 5, 40), numbers(backend, 40, n), out=out[0], epilogue=tw.dropout(0.5, 7)
        ),
        ((5,),),
    ),
    "product of weights": (_product_of_weights, ((5,),)),
}


@pytest.mark.parametrize("residue", RESIDUES)
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.spread(16)
def test_operators(backend: Backend, name: str, residue: int) -> None:
    """By what is chosen for the shape: on a Hopper GPU by its kernels."""
    operator, rows = OPERATORS[name]
    results = [behind(backend, (*shape, 64 + residue), BF16) for shape in rows]
    operator(backend, 64 + residue, tuple(view for _, view in results))
    for memory, _ in results:
        assert_left(backend, memory, 64 + residue)
