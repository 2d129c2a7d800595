"""Packed weights in PyTorch: results, gradients, graphs, transforms, and the module."""

from __future__ import annotations

import copy
import dataclasses
import io
from typing import Any

import pytest
import torch

import tilewright as tw
from tilewright.errors import ArgumentError
from tilewright.torch import quantized

F16, BF16 = torch.float16, torch.bfloat16


def weights_of(k: int = 40, n: int = 20, bits: int = 4, group: int = 32, symmetric: bool = False) -> Any:
    w = torch.randn(k, n, generator=torch.Generator().manual_seed(bits))
    return tw.quantize(w, bits, group, symmetric=symmetric)


def x_of(*shape: int, dtype: torch.dtype = F16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5)).to(dtype).requires_grad_()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 128, -1])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.spread(4)
def test_results_and_gradients(bits: int, group: int, symmetric: bool, dtype: torch.dtype) -> None:
    """Those of the product with the matrix that the weights stand for, within roundings to 16 bits."""
    weights = weights_of(140, 20, bits, group, symmetric)
    full = torch.from_numpy(weights.dequantised()).double()
    x, bias = x_of(2, 3, 140, dtype=dtype), x_of(20, dtype=dtype)
    y = tw.torch.quantized_matmul(x, weights, bias)
    expected = x.double() @ full + bias.double()
    near = {"atol": 0.02, "rtol": 2e-2}
    assert y.dtype is dtype and torch.allclose(y.double(), expected, **near)
    slope = x_of(2, 3, 20, dtype=dtype).detach()
    found = torch.autograd.grad(y, (x, bias), slope)
    assert torch.allclose(found[0].double(), slope.double() @ full.t(), atol=0.1, rtol=2e-2)
    assert torch.allclose(found[1].double(), slope.double().sum((0, 1)), **near)


@pytest.mark.parametrize("out", [F16, BF16, torch.float32])
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_unpacked(bits: int, out: torch.dtype) -> None:
    """Law: a kernel unpacks what NumPy unpacks, rounded once; also with an order of rows, and what no group fills."""
    for k, n, group in ((300, 40, 64), (5, 3, 128), (0, 3, 128)):
        weights = weights_of(k, n, bits, group)
        found = weights.to_matrix(out)
        assert found.dtype is out and found.shape == (k, n)
        assert torch.equal(found, torch.from_numpy(weights.dequantised()).to(out))
    qweight, g_idx = torch.randint(-9999, 9999, (64 * bits // 32, 8), dtype=torch.int32), torch.arange(64) % 2
    ordered = tw.quantized.from_gptq(qweight, None, torch.tensor([[0.5], [0.25]]).expand(2, 8), g_idx, bits=bits)
    assert ordered.order is not None
    assert torch.equal(ordered.to_matrix(out), torch.from_numpy(ordered.dequantised()).to(out))


def test_rounding_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tw.matmul` is told of it by function and module, and refuses other precisions; gradients need not know."""
    told, product = [], tw.matmul
    told_of = lambda *args, **more: told.append(more.get("precision")) or product(*args, **more)  # noqa: E731
    monkeypatch.setattr(tw, "matmul", told_of)
    weights, x = weights_of(), x_of(2, 40)
    layer = tw.torch.nn.QuantizedLinear(weights)
    exact = layer(x)
    layer.precision = "rounded"
    for y in (layer(x), tw.torch.quantized_matmul(x, weights, precision="rounded")):
        assert torch.equal(y, exact)  # few rows are not rounded
        assert torch.equal(
            torch.autograd.grad(y.sum(), x)[0], torch.autograd.grad(exact.sum(), x, retain_graph=True)[0]
        )
    assert [p for p in told if p] == ["rounded"] * 2
    with pytest.raises(ArgumentError, match="precision='tf32', and a is multiplied by packed weights"):
        tw.torch.quantized_matmul(x, weights, precision="tf32")


def test_an_order_of_rows() -> None:
    """GPTQ's act-order: columns of x are taken in the weights' order, and their gradients go back."""
    qweight, g_idx = torch.randint(-9999, 9999, (8, 8), dtype=torch.int32), torch.arange(64) % 2
    weights = tw.quantized.from_gptq(qweight, None, torch.tensor([[0.5], [0.25]]).expand(2, 8).half(), g_idx)
    x = x_of(3, 64)
    y = tw.torch.quantized_matmul(x, weights)
    full = torch.from_numpy(weights.dequantised())
    assert torch.allclose(y.float(), x.float() @ full, atol=0.1, rtol=1e-2)
    (found,) = torch.autograd.grad(y.sum(), x)
    assert torch.allclose(found.float(), full.sum(1).expand(3, -1), atol=0.1, rtol=1e-2)


def test_vectors_empty_batches_and_gradients_of_gradients() -> None:
    weights = weights_of()
    x = x_of(40)
    y = tw.torch.quantized_matmul(x, weights)
    assert y.shape == (20,) and torch.equal(y, tw.torch.quantized_matmul(x[None], weights)[0])
    empty = x_of(0, 40)
    assert torch.autograd.grad(tw.torch.quantized_matmul(empty, weights).sum(), empty)[0].shape == (0, 40)
    slope = x_of(20)
    (first,) = torch.autograd.grad(y, x, slope, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), slope)
    assert torch.allclose(second.float(), torch.from_numpy(weights.dequantised()).sum(0), atol=0.1, rtol=1e-2)


def test_torch_finds_nothing_wrong() -> None:
    w = weights_of()
    f = w.format
    arguments = (x_of(3, 40), w.packed, w.scales, w.zeros, x_of(20), f.bits, f.group, f.k, f.n, -1)
    assert set(quantized.quantized_matmul_operator.check(*arguments).values()) == {"SUCCESS"}
    arguments = (w.packed, w.scales, w.zeros, f.bits, f.group, f.k, f.n, -1, BF16)
    assert set(quantized.unpacked_operator.check(*arguments).values()) == {"SUCCESS"}


def test_compiled_mapped_and_under_autocast() -> None:
    layer = tw.torch.nn.QuantizedLinear(weights_of(), torch.ones(20, dtype=F16))
    x = x_of(3, 40)
    expected = layer(x)
    gradient = torch.autograd.grad(expected.sum(), x)[0]
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (3, 2):
        found = compiled(x[:rows])
        assert torch.equal(found, expected[:rows])
    assert torch.equal(torch.autograd.grad(compiled(x).sum(), x)[0], gradient)
    assert torch.equal(torch.vmap(layer)(x), expected)
    with torch.autocast("cpu", BF16):
        found = layer(x.float())
    assert found.dtype is BF16 and torch.allclose(found.float(), expected.float(), atol=0.2, rtol=0.05)


def test_module_keeps_its_state() -> None:
    """As buffers: what `state_dict`, `torch.save`, `deepcopy` and `to` carry; only the bias is learned."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(256, 24)
    layer = tw.torch.nn.QuantizedLinear.from_linear(linear, bits=8, group=64)
    assert [name for name, _ in layer.named_parameters()] == ["bias"]
    x = torch.randn(5, 256, dtype=F16)
    layer.bias.data = layer.bias.data.half()
    expected = layer(x)
    assert torch.allclose(expected.float(), linear(x.float()), atol=0.02, rtol=0.01)
    other = tw.torch.nn.QuantizedLinear.from_linear(torch.nn.Linear(256, 24), bits=8, group=64).half()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), expected)
    memory = io.BytesIO()
    torch.save(layer, memory)
    memory.seek(0)
    for same in (copy.deepcopy(layer), torch.load(memory, weights_only=False)):
        assert torch.equal(same(x), expected)
    with pytest.raises(
        RuntimeError, match=r"packed has bits, group, K and N of \[8, 64, 256, 24\], and \[4, 64, 256, 24\]"
    ):
        tw.torch.nn.QuantizedLinear.from_linear(torch.nn.Linear(256, 24), bits=4, group=64).load_state_dict(
            layer.state_dict()
        )
    on_meta = copy.deepcopy(layer).to("meta")
    assert on_meta(x.to("meta")).shape == (5, 24)


def test_a_state_says_what_is_zero() -> None:
    """In an array where groups differ, and one number where they do not, as it is by chance; groups are as many."""
    make = tw.torch.nn.QuantizedLinear
    codes, x = torch.arange(60, dtype=torch.uint8).reshape(30, 2) % 16, x_of(3, 30)
    zeros = [None, torch.full((1, 2), 3), torch.full((1, 2), 9), torch.tensor([[4, 5]])]
    layers = [make(tw.quantized(codes, torch.ones(1, 2, dtype=F16), zero, group=-1)) for zero in zeros]
    for ours in layers:
        for theirs in layers:
            layer = copy.deepcopy(ours)
            layer.load_state_dict(theirs.state_dict())
            assert torch.equal(layer(x), theirs(x))
    wide = [make(tw.quantize(torch.ones(768, 16), group=group)) for group in (384, 512)]
    with pytest.raises(RuntimeError, match=r"\[4, 384, 768, 16\], and \[4, 512, 768, 16\]"):
        wide[1].load_state_dict(wide[0].state_dict())


def test_scales_stay_a_type_that_products_take() -> None:
    layer = tw.torch.nn.QuantizedLinear.from_linear(torch.nn.Linear(64, 8, bias=False), group=32)
    x = x_of(2, 64)
    near = layer(x)
    x = x.requires_grad_()
    found = layer.double()(x)
    found.sum().backward()
    assert layer.weights.format.scale is tw.float32 and torch.equal(found, near) and x.grad is not None


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("packed", lambda x: x.to(torch.int16)), ("packed", lambda x: x[:-1]), ("packed", lambda x: x.float()),
        ("scales", lambda x: x[:, :-1]), ("zeros", lambda x: x[:-1]),
    ],
)  # fmt: skip
def test_arrays_of_weights_are_checked(name: str, changed: Any) -> None:
    weights = weights_of()
    odd = dataclasses.replace(weights, **{name: changed(getattr(weights, name))})
    with pytest.raises(ArgumentError, match=r"is \w+ of shape .*, and 4-bit weights .* row by row"):
        tw.torch.quantized_matmul(x_of(2, 40), odd)


def test_scales_of_another_type() -> None:
    """`to` rounds scales, and the module goes by the type that they have."""
    layer = tw.torch.nn.QuantizedLinear.from_linear(torch.nn.Linear(64, 8, bias=False), group=32)
    x = torch.randn(2, 64).to(BF16)
    near = layer(x)
    assert layer.weights.format.scale is tw.float16 and layer.to(BF16).weights.format.scale is tw.bfloat16
    assert torch.allclose(layer(x).float(), near.float(), atol=0.05, rtol=0.05)


def learned_scales() -> torch.Tensor:
    layer = tw.torch.nn.QuantizedLinear(weights_of())
    layer.scales.requires_grad_()
    return layer(x_of(2, 40))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tw.torch.quantized_matmul(x_of(2, 40), torch.ones(40, 20)), "weights is a Tensor"),
        (lambda: tw.torch.quantized_matmul(torch.ones(2, 40), weights_of()), "a is float32"),
        (
            lambda: tw.torch.quantized_matmul(x_of(2, 41), weights_of()),
            r"the shapes \(2, 41\) and \(40, 20\) have no product",
        ),
        (lambda: tw.torch.quantized_matmul(x_of(2, 40), tw.quantize(torch.ones(40, 20).numpy())), "takes tensors"),
        (learned_scales, "the scales require a gradient"),
        (lambda: tw.torch.nn.QuantizedLinear(torch.ones(2)), "QuantizedLinear takes packed weights"),
        (lambda: tw.torch.nn.QuantizedLinear.from_linear(torch.nn.ReLU()), "layer is a ReLU"),
        (lambda: tw.quantize(torch.ones(40, 20, device="meta")), "w cannot be used: it is on the device meta"),
        (lambda: weights_of().to_matrix(torch.float64), "dtype is one of float16, bfloat16, float32"),
    ],
)
def test_what_is_refused(call: Any, message: str) -> None:
    with pytest.raises((ArgumentError, RuntimeError), match=message):
        call()
