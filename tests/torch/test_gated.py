"""`tw.torch.matmul` of weights with the columns of a gate and of what it multiplies: results and gradients are torch's."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402  # after the skip

import tilewright as tw  # noqa: E402
from tilewright.torch.products import gated_matmul_operator  # noqa: E402

FUNCTIONS = {"swiglu": F.silu, "silu": F.silu, "relu": torch.relu, "gelu": F.gelu}
PAIRS = ("halves", "interleaved")


def numbers(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0, grad: bool = True) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype).requires_grad_(grad)


def by_torch(a: Any, b: Any, pairs: str, epilogue: str = "swiglu", bias: Any = 0, residual: Any = 0) -> torch.Tensor:
    product = torch.matmul(a, b) + bias
    gate, up = product.chunk(2, -1) if pairs == "halves" else (product[..., ::2], product[..., 1::2])
    return FUNCTIONS[epilogue](gate) * up + residual


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize(
    ("epilogue", "left"), [("swiglu", (3, 4)), ("gelu", (2, 3, 4)), ("relu", (4,)), ("silu", (0, 4))]
)
def test_results_and_gradients(epilogue: Any, left: tuple[int, ...], pairs: Any) -> None:
    a, b, bias, residual = numbers(*left), numbers(10, 4).T, numbers(10, seed=2), numbers(*left[:-1], 5, seed=3)
    options = {"bias": bias, "residual": residual, "epilogue": epilogue, "pairs": pairs}
    expected = by_torch(a, b, **options)
    with torch.no_grad():
        assert torch.allclose(tw.torch.matmul(a, b, **options), expected)
    ways = [tw.torch.matmul(a, b, **options)]
    if len(left) > 1 and epilogue != "swiglu":  # what is not kept is computed again
        ways.append(gated_matmul_operator(a, b, bias, residual, epilogue, pairs)[0])
    gradient, inputs = torch.randn_like(expected), (a, b, bias, residual)
    known = torch.autograd.grad(expected, inputs, gradient)
    for found in ways:
        assert found.shape == expected.shape and torch.allclose(found, expected)
        assert all(map(torch.allclose, torch.autograd.grad(found, inputs, gradient), known))


@pytest.mark.parametrize("pairs", PAIRS)
def test_gradients_of_gradients(pairs: Any) -> None:
    given = numbers(2, 3), numbers(3, 4), numbers(4, seed=2)

    def function(a, b, bias):
        return tw.torch.matmul(a, b, bias=bias, epilogue="swiglu", pairs=pairs)

    assert torch.autograd.gradcheck(function, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, given, fast_mode=True)


def test_one_kernel_stores_what_the_backward_pass_needs() -> None:
    a, b = numbers(3, 4), numbers(4, 10)
    y, gate, up = gated_matmul_operator(a, b, None, None, "silu", "halves", True)
    assert torch.allclose(gate, (a @ b)[:, :5]) and torch.allclose(up, (a @ b)[:, 5:]) and y.shape == (3, 5)
    with torch.no_grad():
        assert [x.numel() for x in gated_matmul_operator(a, b)] == [15, 0, 0]


@pytest.mark.parametrize("keeps", [True, False])
def test_what_torch_finds(keeps: bool) -> None:
    given = numbers(3, 4), numbers(4, 10), numbers(10), None, "silu", "interleaved", keeps
    assert set(gated_matmul_operator.check(*given).values()) == {"SUCCESS"}
    batch, b = numbers(2, 3, 4), numbers(4, 10)
    found = torch.vmap(lambda a: tw.torch.matmul(a, b, epilogue="swiglu", pairs="halves"))(batch)
    assert torch.allclose(found, by_torch(batch, b, "halves"))


def test_dropout_and_types() -> None:
    a, b = numbers(6, 4, dtype=torch.float32), numbers(4, 20, dtype=torch.float32)
    y = tw.torch.matmul(a, b, epilogue="swiglu", pairs="halves", dropout=0.5, seed=7)
    plain = by_torch(a, b, "halves")
    expected = tw.torch.dropout(plain, 0.5, seed=7)
    assert torch.allclose(y, expected, atol=1e-5)
    slope = torch.randn_like(expected)
    pairs = (torch.autograd.grad(x, (a, b), slope) for x in (y, expected))
    assert all(torch.allclose(*pair, atol=1e-5) for pair in zip(*pairs, strict=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert tw.torch.matmul(a, b, epilogue="swiglu", pairs="halves").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"gate": numbers(3, 5)}, "and gate= is another"),
        ({"epilogue": None}, "goes with an epilogue"),
        ({"b": numbers(4)}, "b is a vector"),
        ({"b": numbers(4, 9)}, "9 columns"),
        ({"pairs": "thirds"}, "'thirds'"),
        ({"bias": numbers(5)}, "product's"),
    ],
)
def test_refused(change: dict[str, Any], text: str) -> None:
    call = {"a": numbers(3, 4), "b": numbers(4, 10), "epilogue": "swiglu", "pairs": "halves", **change}
    with pytest.raises((tw.ArgumentError, RuntimeError)) as caught:
        tw.torch.matmul(**call)
    assert text in str(caught.value), str(caught.value)


@pytest.mark.gpu
@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("rows", [1, 16, 300])
def test_on_a_gpu(rows: int, dtype: torch.dtype, pairs: Any) -> None:
    a, w = (
        numbers(*shape, dtype=dtype, grad=False).cuda().requires_grad_() for shape in ((rows, 512), (2 * 1000, 512))
    )
    y = tw.torch.matmul(a, w.T, epilogue="swiglu", pairs=pairs, precision="ieee")
    expected = by_torch(a.double(), w.T.double(), pairs)
    slope = torch.randn_like(expected)
    ours, known = (torch.autograd.grad(x, (a, w), slope.to(x.dtype)) for x in (y, expected))
    for found, by in ((y, expected), *zip(ours, known, strict=True)):
        assert (found.double() - by.double()).abs().max() <= (2e-2 if dtype != torch.float32 else 1e-4) * by.abs().max()
