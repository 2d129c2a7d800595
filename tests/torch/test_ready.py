"""Ready operators give what torch's give, with gradients, and torch finds nothing wrong with them.

A row of READY is a function, torch's, and inputs; all tests go through all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402  # after the skip

import tilewright as tw  # noqa: E402
from tilewright.torch import moves, rows  # noqa: E402


def numbers(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype).requires_grad_()


class Ready(NamedTuple):
    """A function, torch's own, shapes of tensors, and the operator's call on them."""

    function: Callable[..., torch.Tensor]
    by_torch: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    operator: Any
    arguments: Callable[..., tuple[Any, ...]]


COS, SIN = (f(torch.arange(6.0).reshape(3, 2)).float() for f in (torch.cos, torch.sin))


def turned(x: torch.Tensor) -> torch.Tensor:
    """Return neighbours turned by angles."""
    a, b, c, s = x[..., ::2], x[..., 1::2], COS.to(x.device), SIN.to(x.device)
    return torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2)


READY = {
    "softmax": Ready(tw.torch.softmax, lambda x: F.softmax(x, -1), ((3, 5),), rows.softmax_operator, lambda x: (x, -1)),
    "softmax of columns": Ready(
        lambda x: tw.torch.softmax(x, 0), lambda x: F.softmax(x, 0), ((4, 3),), rows.softmax_operator, lambda x: (x, 0)
    ),
    "log_softmax": Ready(
        tw.torch.log_softmax, lambda x: F.log_softmax(x, -1), ((2, 2, 5),), rows.log_softmax_operator,
        lambda x: (x, -1),
    ),
    "rms_norm": Ready(
        lambda x, w: tw.torch.rms_norm(x, 5, w, 1e-3), lambda x, w: F.rms_norm(x, (5,), w, 1e-3), ((3, 5), (5,)),
        rows.rms_norm_operator, lambda x, w: (x, w, 1e-3),
    ),
    "rms_norm without weight": Ready(
        lambda x: tw.torch.rms_norm(x, (2, 3)), lambda x: F.rms_norm(x, (2, 3)), ((4, 2, 3),), rows.rms_norm_operator,
        lambda x: (x, None, 1e-3),
    ),
    "layer_norm": Ready(
        lambda x, w, b: tw.torch.layer_norm(x, (2, 3), w, b), lambda x, w, b: F.layer_norm(x, (2, 3), w, b),
        ((4, 2, 3), (2, 3), (2, 3)), rows.layer_norm_operator, lambda x, w, b: (x.flatten(1), w.view(6), b.view(6), 0.1),
    ),
    "layer_norm without vectors": Ready(
        lambda x: tw.torch.layer_norm(x, 4), lambda x: F.layer_norm(x, (4,)), ((4,),), rows.layer_norm_operator,
        lambda x: (x, None, None, 1e-5),
    ),
    "rope": Ready(
        lambda x: tw.torch.rope(x, COS.to(x.device), SIN.to(x.device), True), turned, ((2, 3, 4),),
        rows.rope_operator, lambda x: (x, COS, SIN, False, True),
    ),
    "permute": Ready(
        lambda x: tw.torch.permute(x, (2, 0, -2)), lambda x: x.permute(2, 0, 1), ((2, 3, 4),), moves.permute_operator,
        lambda x: (x, [2, 0, -2]),
    ),
}  # fmt: skip
every = pytest.mark.parametrize("name", READY)
QUICK = ("softmax", "rms_norm", "layer_norm", "permute")
some = pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in READY])


def inputs_of(name: str, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [numbers(*shape, dtype=dtype, seed=n) for n, shape in enumerate(READY[name].shapes)]


@every
def test_results_and_gradients_are_those_of_torch(name: str) -> None:
    case, inputs = READY[name], inputs_of(name)
    found, expected = (f(*inputs) for f in (case.function, case.by_torch))
    assert found.shape == expected.shape and found.is_contiguous() and torch.allclose(found, expected)
    for gradient in (torch.randn_like(expected), torch.ones(()).double().expand(expected.shape)):
        pairs = [torch.autograd.grad(y, inputs, gradient, retain_graph=True) for y in (found, expected)]
        assert all(map(torch.allclose, *pairs))


@some
def test_gradients_and_theirs(name: str) -> None:
    case, inputs = READY[name], inputs_of(name)
    assert torch.autograd.gradcheck(case.function, inputs, fast_mode=name != "softmax")
    assert torch.autograd.gradgradcheck(case.function, inputs, fast_mode=True)


@some
def test_torch_finds_nothing_wrong(name: str) -> None:
    case = READY[name]
    arguments = case.arguments(*inputs_of(name, torch.float32))
    assert set(case.operator.check(*arguments).values()) == {"SUCCESS"}


def test_torch_finds_nothing_wrong_with_gradients() -> None:
    x, w, scale = numbers(3, 5, dtype=torch.float32), numbers(5, dtype=torch.float32), torch.ones(3)
    for operator, arguments in (
        (rows.softmax_backward_operator, (x, x, -1)),
        (rows.log_softmax_backward_operator, (x, x, 0)),
        (rows.rms_norm_backward_operator, (x, x, scale, w, 1e-5)),
        (rows.rms_norm_backward_operator, (x, x, scale, None, 1e-5)),
        (rows.layer_norm_backward_operator, (x, x, scale, scale, w, 1e-5, True)),
        (rows.layer_norm_backward_operator, (x, x, scale, scale, None, 1e-5, False)),
    ):
        given = [v.detach() if isinstance(v, torch.Tensor) else v for v in arguments]
        assert set(operator.check(*given).values()) == {"SUCCESS"}


@some
def test_compiled(name: str) -> None:
    case, inputs = READY[name], inputs_of(name)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *args: case.function(*args) * 2, fullgraph=True, backend="aot_eager", dynamic=True)
    gradient = torch.randn_like(case.by_torch(*inputs))
    pairs = [
        torch.autograd.grad(f(*inputs), inputs, g) for f, g in ((compiled, gradient), (case.function, 2 * gradient))
    ]
    assert all(map(torch.allclose, *pairs))


@some
def test_batches_of_vmap(name: str) -> None:
    case = READY[name]
    inputs = [x.detach() for x in inputs_of(name)]
    batch = torch.stack([inputs[0], 2 * inputs[0]], 1)
    expected = torch.stack([case.by_torch(x, *inputs[1:]) for x in batch.unbind(1)])
    assert torch.allclose(torch.vmap(case.function, (1, *[None] * (len(inputs) - 1)))(batch, *inputs[1:]), expected)


@some
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_element_types(name: str, dtype: torch.dtype) -> None:
    case, inputs = READY[name], inputs_of(name, dtype)
    found = case.function(*inputs)
    assert found.dtype == dtype
    exact = case.by_torch(*(x.double() for x in inputs)) if "without weight" not in name else case.by_torch(*inputs)
    slack = 8 * torch.finfo(dtype).eps
    assert torch.allclose(found.double(), exact.double(), slack, slack)
    gradients = torch.autograd.grad(found, inputs, torch.ones_like(found))
    assert [g.dtype for g in gradients] == [dtype] * len(inputs)


@some
def test_autocast(name: str) -> None:
    case, inputs = READY[name], inputs_of(name, torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert case.function(*inputs).dtype == (torch.bfloat16 if name in ("permute", "rope") else torch.float32)


@every
def test_batches_without_rows(name: str) -> None:
    if name == "layer_norm without vectors":
        pytest.skip("a vector has one row")
    case = READY[name]
    shapes = [(0, *case.shapes[0][1:]) if "columns" not in name else (4, 0), *case.shapes[1:]]
    inputs = [torch.ones(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    found = case.function(*inputs)
    assert found.shape == case.by_torch(*inputs).shape
    gradients = torch.autograd.grad(found.sum(), inputs)
    assert [g.shape for g in gradients] == [x.shape for x in inputs]
    assert all((g == 0).all() for g in gradients)


def test_special_values_are_those_of_torch() -> None:
    inf, nan = torch.inf, torch.nan
    x = torch.tensor([[0, inf, 1], [-inf, -inf, -inf], [nan, 0, 1], [-inf, 0, 1], [3e38, -3e38, 0], [0, 0, 0]])
    for name in ("softmax", "log_softmax"):
        found, expected = getattr(tw.torch, name)(x), getattr(F, name)(x, -1)
        assert torch.allclose(found, expected, equal_nan=True), name
    for eps in (1e-5, 0.0):
        found, expected = tw.torch.rms_norm(x, 3, eps=eps), F.rms_norm(x, (3,), eps=eps)
        assert torch.allclose(found, expected, equal_nan=True)
        found, expected = (f(x[[0, 1, 2, 3, 5]], (3,), eps=eps) for f in (tw.torch.layer_norm, F.layer_norm))
        assert torch.equal(found.isnan(), expected.isnan()) or eps == 0.0


def test_what_is_converted_first_may_have_any_type() -> None:
    for name in ("softmax", "log_softmax"):
        found = getattr(tw.torch, name)(torch.arange(3), -1, torch.float32)
        torch.testing.assert_close(found, getattr(F, name)(torch.arange(3), -1, dtype=torch.float32))


@pytest.mark.parametrize("dims", [(2, 1), (-3, 0)])
def test_dims_that_are_not_there(dims: tuple[int, int]) -> None:
    for function in (tw.torch.permute, torch.permute):
        with pytest.raises(IndexError, match="Dimension out of range"):
            function(torch.ones(2, 3), dims)


def test_vmap_of_an_empty_batch() -> None:
    x = torch.empty(0, 3, requires_grad=True)
    for function in (tw.torch.softmax, lambda x: tw.torch.layer_norm(x, 3)):
        found = torch.vmap(function)(x)
        assert found.shape == (0, 3) and torch.autograd.grad(found.sum(), x)[0].shape == (0, 3)


def test_a_write_to_what_is_saved_is_found() -> None:
    x = numbers(2, 3)
    y = tw.torch.softmax(x)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: tw.torch.softmax([1.0]), "input is a list, and tw.torch.softmax takes tensors"),
        (lambda: tw.torch.softmax(torch.ones(2, dtype=torch.int32)), "input is torch.int32, and softmax takes"),
        (lambda: tw.torch.softmax(torch.ones(2), 1), "axis is 1, and the array has 1 modes"),
        (
            lambda: tw.torch.rms_norm(torch.ones(2, 3), 2),
            "normalized_shape is (2,), and the last modes of input, (2, 3)",
        ),
        (lambda: tw.torch.rms_norm(torch.ones(2, 3), ()), "normalized_shape is ()"),
        (lambda: tw.torch.rms_norm(torch.ones(2, 3), 3, torch.ones(2)), "weight has the shape (2,)"),
        (lambda: tw.torch.permute(torch.ones(2, 3), (0, 0)), ""),
        (lambda: tw.torch.rope(torch.ones(4), numbers(2), torch.ones(2)), "cos requires a gradient, and rope has none"),
        (lambda: tw.torch.permute(1, (0, 0)), "input is a int, and tw.torch.permute takes tensors"),
        (lambda: tw.softmax(torch.ones(2, requires_grad=True)), "gradients flow through tw.torch.softmax"),
    ],
)
def test_refused(call: Any, text: str) -> None:
    with pytest.raises((tw.ArgumentError, RuntimeError)) as caught:
        call()
    assert text in str(caught.value)
