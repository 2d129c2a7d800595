"""Dropout of `tw.torch`: one mask for products, tensors and gradients; torch's generator; compiling, vmap and modules."""

from __future__ import annotations

import numpy as np
import pytest
from tests.helpers.dropout import dropped, kept

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402  # after the skip

import tilewright as tw  # noqa: E402
from tilewright.torch.activations import dropout_operator  # noqa: E402
from tilewright.torch.products import matmul_operator  # noqa: E402

FUNCTIONS = {None: lambda x: x, "relu": torch.relu, "gelu": F.gelu, "swiglu": lambda x: x}


def numbers(*shape: int, dtype: torch.dtype = torch.float64, grad: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype).requires_grad_(grad)


@pytest.mark.parametrize("shape", [(), (1,), (33,), (3, 0), (0, 4), (5, 41), (2, 3, 64), (70, 2)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.spread(3)
def test_tensors(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = numbers(*shape, dtype=dtype)
    found = tw.torch.dropout(x, 0.3, seed=-5)
    expected = torch.from_numpy(dropped(x.double().numpy().reshape(shape or (1,)), 0.3, -5)).reshape(shape)
    assert found.dtype == dtype and torch.equal(found == 0, expected == 0)
    assert torch.allclose(found.double(), expected, rtol=1e-15 if dtype is torch.float64 else 1e-2)


def test_strides_and_no_dropout() -> None:
    x = numbers(40, 30)
    seed = torch.tensor(7)
    for y in (x.t(), x[:, ::2], x[3:, 1:], x[:1].expand(40, 30)):
        assert torch.equal(tw.torch.dropout(y, 0.5, seed=seed), tw.torch.dropout(y.clone(), 0.5, seed=7))
    assert tw.torch.dropout(x, 0.5, training=False) is x and tw.torch.dropout(x, 0.0) is x
    assert not tw.torch.dropout(x, 1.0).any()


SHAPES = [((5, 8), (8, 37)), ((2, 5, 8), (8, 36)), ((2, 1, 5, 8), (3, 8, 7)), ((5, 8), (8,)), ((8,), (8, 9))]


@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
@pytest.mark.parametrize("epilogue", FUNCTIONS)
@pytest.mark.spread(3)
def test_products_and_gradients(left: tuple[int, ...], right: tuple[int, ...], epilogue: str | None) -> None:
    """The mask of the backward pass is that of the forward pass, in one kernel or three."""
    a, b = numbers(*left, grad=True), numbers(*right, grad=True)
    shape = torch.matmul(a, b).shape
    residual, gate, inputs = numbers(*shape, grad=True), numbers(*shape, grad=True), [a, b]
    columns = shape if b.ndim > 1 else (*shape, 1)
    mask = torch.from_numpy(kept(tuple(columns), 0.25, 9)).reshape(shape).double() / 0.75
    product = torch.matmul(a, b)
    expected = (F.silu(gate) * product if epilogue == "swiglu" else FUNCTIONS[epilogue](product)) * mask + residual
    options = {"epilogue": epilogue, "residual": residual, "dropout": 0.25, "seed": 9}
    if epilogue == "swiglu":
        options["gate"] = gate
        inputs.append(gate)
    found = tw.torch.matmul(a, b, **options)
    with torch.no_grad():
        alone = tw.torch.matmul(a, b, **options)
    assert torch.allclose(found, expected) and torch.allclose(alone, expected)
    gradient = torch.randn_like(expected)
    pairs = (torch.autograd.grad(y, (*inputs, residual), gradient) for y in (found, expected))
    assert all(map(torch.allclose, *pairs))


@pytest.mark.slow
def test_gradients_of_gradients() -> None:
    a, b, bias = numbers(3, 4, grad=True), numbers(4, 9, grad=True), numbers(9, grad=True)

    def function(a, b, bias):
        return tw.torch.matmul(a, b, bias=bias, epilogue="gelu", dropout=0.5, seed=1)

    assert torch.autograd.gradcheck(function, (a, b, bias), fast_mode=True)
    assert torch.autograd.gradgradcheck(function, (a, b, bias), fast_mode=True)


def test_torchs_generator_gives_the_seed() -> None:
    x, w = numbers(20, 8), numbers(8, 30)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append([tw.torch.matmul(x, w, dropout=0.5) for _ in range(2)])
    (first, second), again, other = results
    assert torch.equal(first, again[0]) and torch.equal(second, again[1])
    assert not torch.equal(first, second) and not torch.equal(first, other[0])


def test_checkpoints_draw_the_same_mask() -> None:
    from torch.utils.checkpoint import checkpoint

    x, w = numbers(20, 8, grad=True), numbers(8, 30, grad=True)
    gradients = []
    for run in (lambda f, *args: f(*args), lambda f, *args: checkpoint(f, *args, use_reentrant=False)):
        torch.manual_seed(3)
        y = run(lambda a, b: tw.torch.matmul(a, b, epilogue="gelu", dropout=0.5), x, w)
        gradients.append(torch.autograd.grad(y.square().sum(), (x, w)))
    assert all(map(torch.equal, *gradients))


def test_compiled() -> None:
    x, w = numbers(20, 8, grad=True), numbers(8, 30, grad=True)

    def function(x, w):
        return tw.torch.matmul(x, w, epilogue="relu", dropout=0.5)

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    results = []
    for f in (function, compiled):
        torch.manual_seed(5)
        y = f(x, w)
        results.append((y, *torch.autograd.grad(y.sum(), (x, w))))
    assert all(map(torch.allclose, *results))


@pytest.mark.parametrize("batched", [(0, None), (0, 1), (None, 0)], ids=str)
def test_each_example_of_vmap_has_the_mask_of_one(batched: tuple[int | None, int | None]) -> None:
    a, b = numbers(3, 5, 8), numbers(8, 3, 9) if batched[1] == 1 else numbers(3, 8, 9)
    a, b = a if batched[0] is not None else a[0], b if batched[1] is not None else b[0]
    seed = torch.tensor(4)

    def function(a, b):
        y = tw.torch.matmul(a, b, dropout=0.5, seed=seed)
        return tw.torch.dropout(y, 0.25, seed=seed)

    found = torch.func.vmap(function, batched)(a, b)
    one = [
        function(*(x if at is None else x.select(at, n) for x, at in zip((a, b), batched, strict=True)))
        for n in range(3)
    ]
    assert torch.allclose(found, torch.stack(one))
    gradient = torch.func.vmap(torch.func.grad(lambda a, b: function(a, b).sum()), batched)(a, b)
    assert gradient.shape == (3, 5, 8)


def test_torch_finds_nothing_wrong_with_the_operators() -> None:
    x, seed = numbers(5, 40, grad=True), torch.tensor(3)
    dropout_operator.check(x, seed, 0.5)
    b = numbers(40, 6, grad=True)
    matmul_operator.check(x, b, None, None, None, "", None, "ieee", 0.5, seed)
    matmul_operator.check(x, b, None, None, None, "relu", None, "ieee", 0.5, seed)


def test_dropout_is_not_divided_over_devices() -> None:
    given = (numbers(3, 4), numbers(4, 5), None, None, None, "", None, "ieee", 0.5, torch.tensor(1))
    assert matmul_operator.ways is not None
    assert matmul_operator.ways(*given) == [] and matmul_operator.ways(*given[:8]) != []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: tw.torch.dropout(x, 1.5), "from 0 to 1, got 1.5"),
        (lambda x: tw.torch.matmul(x, x, dropout=-1.0), "from 0 to 1, got -1"),
        (lambda x: tw.torch.matmul(x, x, dropout=float("nan")), "dropout is a number, got"),
        (lambda x: tw.torch.dropout(x, 0.5, seed=torch.zeros(2, dtype=torch.int64)), "one int64"),
        (lambda x: tw.torch.matmul(x, x, dropout=0.5, seed=torch.tensor(1.0)), "one int64"),
        (lambda x: tw.torch.dropout(x, 0.5, seed=1.5), "seed is a float"),
        (lambda x: tw.torch.dropout(x.int(), 0.5), "x is torch.int32, and dropout takes"),
        (lambda x: tw.torch.dropout([1.0], 0.5), "x is a list, and tw.torch.dropout takes tensors"),
        (lambda x: tw.torch.matmul(x.to(torch.int8), x.to(torch.int8), dropout=0.5), "integers"),
    ],
)
def test_what_is_refused(call, message: str) -> None:
    with pytest.raises(tw.ArgumentError, match=message):
        call(numbers(4, 4))


def test_how_many_are_dropped() -> None:
    zeros = (tw.torch.dropout(torch.ones(256, 512), 0.2) == 0).numpy()
    assert abs(zeros.mean() - 0.2) < 5 * (0.16 / zeros.size) ** 0.5 and np.unique(zeros).size == 2
