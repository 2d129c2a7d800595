"""`tw.torch.matmul`: its results and gradients are torch's, and torch finds nothing wrong with its operators."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402  # after the skip

import tilewright as tw  # noqa: E402
from tilewright.torch.activations import activation, both_of, gate_backward  # noqa: E402
from tilewright.torch.products import EPILOGUES, matmul_operator  # noqa: E402

FUNCTIONS = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


def numbers(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0, grad: bool = True) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype).requires_grad_(grad)


def by_torch(a, b, bias=None, epilogue=None, gate=None, residual=None):
    found = torch.matmul(a, b)
    found = found if bias is None else found + bias
    if epilogue == "swiglu":
        found = F.silu(gate) * found
    elif epilogue is not None:
        found = FUNCTIONS[epilogue](found)
    return found if residual is None else found + residual


SHAPES = [
    ((3, 4), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 3, 4), (4, 5)),
    ((2, 1, 3, 4), (2, 4, 5)),
    ((3, 4), (2, 4, 5)),
    ((4,), (2, 4, 5)),
    ((0, 4), (4, 5)),
    ((3, 0), (0, 5)),
    ((0, 3, 4), (4, 5)),
    ((2, 3, 0), (0, 5)),
    ((2, 3, 4), (4, 0)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_shapes_and_gradients_are_those_of_torch(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = numbers(*left), numbers(*right, seed=1)
    found, expected = tw.torch.matmul(a, b), torch.matmul(a, b)
    assert found.shape == expected.shape and torch.allclose(found, expected)
    gradient = torch.randn_like(expected)
    pairs = (torch.autograd.grad(y, (a, b), gradient) for y in (found, expected))
    assert all(map(torch.allclose, *pairs))


CASES = [*itertools.product([None, *EPILOGUES], [(3, 4)]), ("swiglu", (2, 3, 4)), ("relu", (4,)), (None, (2, 3, 4))]


@pytest.mark.parametrize(("epilogue", "left"), CASES, ids=str)
def test_epilogues_in_one_kernel_and_in_two(epilogue: str | None, left: tuple[int, ...]) -> None:
    a, b, bias, residual = numbers(*left), numbers(4, 5), numbers(5, seed=2), numbers(*left[:-1], 5, seed=3)
    gate = numbers(*left[:-1], 5, seed=4) if epilogue == "swiglu" else None
    options = {"bias": bias, "epilogue": epilogue, "gate": gate, "residual": residual}
    expected = by_torch(a, b, **options)
    inputs = [x for x in (a, b, bias, residual, gate) if x is not None]
    with torch.no_grad():
        assert torch.allclose(tw.torch.matmul(a, b, **options), expected)
    fused = (bias, gate, residual, epilogue or "") if len(left) > 1 else None
    ways = [tw.torch.matmul(a, b, **options), *([matmul_operator(a, b, *fused)] if fused else [])]
    gradient = torch.randn_like(expected)
    known = torch.autograd.grad(expected, inputs, gradient)
    for found in ways:
        assert torch.allclose(found, expected)
        assert all(map(torch.allclose, torch.autograd.grad(found, inputs, gradient), known))


@pytest.mark.parametrize(
    "epilogue",
    [None, pytest.param("gelu_tanh", marks=pytest.mark.slow), pytest.param("swiglu", marks=pytest.mark.slow)],
)
def test_gradients_of_gradients(epilogue: str | None) -> None:
    a, b, bias, residual = numbers(2, 3), numbers(3, 2), numbers(2, seed=2), numbers(2, 2, seed=3)
    gate = (numbers(2, 2, seed=4),) if epilogue == "swiglu" else ()

    def function(a, b, bias, residual, gate=None):
        return tw.torch.matmul(a, b, bias=bias, epilogue=epilogue, gate=gate, residual=residual)

    assert torch.autograd.gradcheck(function, (a, b, bias, residual, *gate), fast_mode=True)
    assert torch.autograd.gradgradcheck(function, (a, b, bias, residual, *gate), fast_mode=True)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_derivatives_up_to_the_third(function: str) -> None:
    x, factor = numbers(5), numbers(5, seed=1)
    for order in range(3):
        assert torch.autograd.gradcheck(lambda x, f: activation(x, f, x, function, order), (x, factor), fast_mode=True)
    with pytest.raises(tw.ArgumentError, match="derivatives up to the third here, got one of order 4"):
        activation(x, None, None, function, 4)


@pytest.mark.parametrize("pairs", ["", "halves", "interleaved"])
@pytest.mark.parametrize("function", ["silu", "gelu"])
def test_gradients_of_a_gate_in_one_pass(function: str, pairs: str) -> None:
    grad, x, factor = numbers(2, 3, 5), numbers(2, 3, 5, seed=1), numbers(2, 3, 5, seed=2)
    known = torch.autograd.grad(getattr(F, function)(x) * factor, (x, factor), grad)
    both = gate_backward(grad, x, factor, function, 0, pairs)
    assert both.shape == ((2, 3, 10) if pairs else (2, 2, 3, 5)) and both.is_contiguous()
    assert all(map(torch.allclose, both_of(both, pairs), known))
    strided = [v.transpose(0, 1).contiguous().transpose(0, 1) for v in (grad, x, factor)]
    assert torch.equal(gate_backward(*strided, function, 0, pairs), both)
    call = (grad, x, factor, function, 0, pairs)
    assert set(gate_backward.check(*call).values()) == {"SUCCESS"}
    assert torch.autograd.gradcheck(lambda *v: gate_backward(*v, function, 0, pairs), call[:3], fast_mode=True)


def test_relu_of_what_is_no_number() -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0], requires_grad=True)
    one = torch.eye(4)
    found = tw.torch.matmul(one[:1, :1], x[None, :], epilogue="relu")
    assert torch.equal(found.isnan(), torch.relu(x)[None].isnan()) and found[0, 2] == 0
    for way in (activation(x), torch.relu(x)):
        assert torch.equal(torch.autograd.grad(way.sum(), x)[0], torch.tensor([1.0, 1.0, 0.0, 0.0]))


def test_relu_has_no_gradient_below_zero_whatever_comes_back() -> None:
    x = torch.tensor([[-1.0, 0.0, 2.0, -3.0]], requires_grad=True)
    grad = torch.tensor([[torch.inf, -torch.inf, 1.0, torch.nan]])
    found = tw.torch.matmul(x, torch.eye(4), epilogue="relu")
    assert torch.equal(torch.autograd.grad(found, x, grad)[0], torch.tensor([[0.0, 0.0, 1.0, 0.0]]))
    factor = torch.full((1, 4), 2.0)
    for pairs in ("halves", "interleaved"):
        both = torch.stack([x.detach(), factor], -1 if pairs == "interleaved" else 1).reshape(1, 8).requires_grad_()
        y = tw.torch.matmul(torch.ones(1, 1), both, epilogue="relu", pairs=pairs)
        slopes = torch.autograd.grad(y, both, grad)[0]
        of_gate = slopes[0, ::2] if pairs == "interleaved" else slopes[0, :4]
        assert torch.equal(of_gate, torch.tensor([0.0, 0.0, 2.0, 0.0])), pairs


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gelu_of_16_bits_adds_half_a_rounding_at_most(dtype: torch.dtype) -> None:
    x = torch.cat([torch.linspace(-9, 9, 1001), torch.tensor([-3e4, 3e4, 6e4, 1e-7])]).to(dtype)
    found = tw.torch.matmul(x[:, None], torch.ones(1, 8, dtype=dtype), epilogue="gelu")[:, 3].double()
    exact, unit = F.gelu(x.double()), torch.finfo(dtype).eps / 2
    absolute = 1e-7 * x.double().abs() + torch.finfo(dtype).smallest_normal * unit
    assert ((found - exact).abs() <= 1.5 * unit * exact.abs() + absolute).all()
    special = torch.tensor([[float("nan"), float("inf"), 0.0]], dtype=dtype)
    found = tw.torch.matmul(torch.ones(1, 1, dtype=dtype), special, epilogue="gelu")
    assert found[0, 0].isnan() and found[0, 1:].tolist() == [float("inf"), 0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_element_types(dtype: torch.dtype) -> None:
    a, b = (numbers(*shape, dtype=dtype) for shape in ((4, 16), (16, 8)))
    for out in (None, torch.float32) if dtype == torch.float16 else (None,):
        found = tw.torch.matmul(a, b, epilogue="silu", out_dtype=out)
        assert found.dtype == (out or dtype)
        expected = F.silu(a.double() @ b.double())
        slack = 4 * torch.finfo(dtype).eps
        assert torch.allclose(found.double(), expected, slack, 4 * slack)
        gradients = torch.autograd.grad(found.sum(), (a, b))
        assert [g.dtype for g in gradients] == [dtype, dtype]
        for g, k in zip(gradients, torch.autograd.grad(expected.sum(), (a, b)), strict=True):
            assert torch.allclose(g.double(), k.double(), 4 * slack, 16 * slack)


def test_integers_and_bytes_of_floats() -> None:
    a = torch.arange(-8, 8, dtype=torch.int8).reshape(4, 4)
    assert torch.equal(tw.torch.matmul(a, a, epilogue="relu"), torch.relu(a.int() @ a.int()))
    narrow = a.to(torch.float8_e4m3fn)
    assert tw.torch.matmul(narrow, narrow).dtype == torch.bfloat16
    with pytest.raises(tw.ArgumentError, match="a is torch.float8_e4m3fn and requires a gradient"):
        tw.torch.matmul(narrow.requires_grad_(), narrow)
    with pytest.raises(tw.ArgumentError, match="silu is a function of floats, and a is torch.int8"):
        tw.torch.matmul(a, a, epilogue="silu")


def test_strides_of_operands_and_gradients() -> None:
    a, b = numbers(8, 6)[::2, ::2], numbers(5, 3).T
    expected = torch.matmul(a, b)
    found = tw.torch.matmul(a, b, epilogue="relu")
    for gradient in (
        torch.ones(()).double().expand(4, 5),
        torch.randn(5, 4).double().T,
        torch.randn(4, 10).double()[:, ::2],
    ):
        pairs = (torch.autograd.grad(y, (a, b), gradient, retain_graph=True) for y in (found, torch.relu(expected)))
        assert all(map(torch.allclose, *pairs))


def test_gradients_of_weights_lie_as_these_do() -> None:
    """Other ones would be copied into the layout of the parameter."""
    for shape in ((5, 4), (2, 5, 4)):
        x, w = numbers(2, 3, 4), numbers(*shape)
        found = torch.autograd.grad(tw.torch.matmul(x, w.mT).square().sum(), w)[0]
        assert found.is_contiguous()
        assert torch.allclose(found, torch.autograd.grad((x @ w.mT).square().sum(), w)[0])


CALLS = {
    "plain": (numbers(3, 4), numbers(4, 5)),
    "batch": (
        numbers(2, 3, 4, dtype=torch.float32),
        numbers(4, 5, dtype=torch.float32),
        numbers(5, dtype=torch.float32),
    ),
    "swiglu": (numbers(3, 4), numbers(4, 5), None, numbers(3, 5), numbers(3, 5), "swiglu"),
    "without numbers": (numbers(0, 4), numbers(4, 5)),
}


@pytest.mark.parametrize("call", CALLS)
def test_torch_finds_nothing_wrong(call: str) -> None:
    assert set(matmul_operator.check(*CALLS[call]).values()) == {"SUCCESS"}


def test_torch_finds_nothing_wrong_with_functions() -> None:
    x = numbers(2, 3, dtype=torch.float32)
    for args in ((x,), (x, x.detach(), x.detach(), "silu", 1), (x.detach().T, None, None, "gelu")):
        assert set(activation.check(*args).values()) == {"SUCCESS"}


@pytest.mark.parametrize(
    ("backend", "dynamic"),
    [("aot_eager", False), ("aot_eager", True), pytest.param("inductor", True, marks=pytest.mark.slow)],
)
def test_compiled(backend: str, dynamic: bool) -> None:
    def function(x, w, gate):
        return tw.torch.matmul(x, w, epilogue="swiglu", gate=x @ gate, residual=x[:, :1]) * 2

    torch._dynamo.reset()  # what other backends compiled of this function counts, too
    compiled = torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic)
    w, gate = numbers(4, 5), numbers(4, 5, seed=1)
    for rows in (3, 6, 4):
        x = numbers(rows, 4)
        pairs = [torch.autograd.grad(f(x, w, gate).sum(), (x, w, gate)) for f in (compiled, function)]
        assert all(map(torch.allclose, *pairs))
        with torch.no_grad():
            assert torch.allclose(compiled(x, w, gate), function(x, w, gate))


def test_batches_of_vmap() -> None:
    a, b, bias = numbers(2, 3, 4, grad=False), numbers(4, 5, grad=False), numbers(2, 5, grad=False)
    both = numbers(2, 4, 5, grad=False)

    def function(a, b, bias):
        return tw.torch.matmul(a, b, bias=bias, epilogue="gelu")

    expected = F.gelu(a @ b + bias[:, None])
    assert torch.allclose(torch.vmap(function, (0, None, 0))(a, b, bias), expected)
    assert torch.allclose(
        torch.vmap(function, (None, 2, None))(a[0], both.movedim(0, 2), bias[0]), F.gelu(a[0] @ both + bias[0])
    )
    assert torch.allclose(torch.vmap(function, (None, None, 0))(a[0], b, bias), F.gelu(a[0] @ b + bias[:, None]))
    inner = torch.vmap(torch.vmap(function, (None, 0, None)), (0, None, 0))(a, both, bias)
    assert torch.allclose(inner, F.gelu(a[:, None] @ both + bias[:, None, None]))
    batch = torch.randn(2, 3, 3, 4).double()
    assert torch.allclose(torch.vmap(function, (0, None, None))(batch, b, bias[0]), F.gelu(batch @ b + bias[0]))
    of_samples = torch.vmap(torch.func.grad(lambda w, x: function(x, w, bias[0]).sum()), (None, 0))(b, a)
    by_hand = torch.stack([torch.func.grad(lambda w, x: F.gelu(x @ w + bias[0]).sum())(b, x) for x in a])
    assert torch.allclose(of_samples, by_hand)


def test_autocast_is_that_of_torch() -> None:
    a, b = numbers(3, 4, dtype=torch.float32), numbers(4, 5, dtype=torch.float32)
    for dtype, epilogue in ((torch.bfloat16, None), (torch.float16, "silu")):
        with torch.autocast("cpu", dtype=dtype):
            found = tw.torch.matmul(a, b.half(), bias=b[0], epilogue=epilogue)
            assert found.dtype == dtype
            assert tw.torch.matmul(a.double(), b.double()).dtype == torch.float64
        gradients = torch.autograd.grad(found.float().sum(), (a, b))
        assert [g.dtype for g in gradients] == [torch.float32, torch.float32]


def test_precision_follows_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    a = 1 + torch.full((1, 1), 2.0**-14)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert tw.torch.matmul(a, a).item() == 1.0  # ten bits of fraction
    assert tw.torch.matmul(a, a, precision="ieee").item() > 1.0
    monkeypatch.undo()
    assert tw.torch.matmul(a, a).item() > 1.0


@pytest.mark.parametrize("precision", ["tf32x3", "bf16x9"])
def test_float32_in_parts_has_gradients_in_parts(precision: str) -> None:
    a = (1 + torch.full((8, 8), 2.0**-14)).requires_grad_()
    b = torch.eye(8)
    y = tw.torch.matmul(a, b, precision=precision)
    assert torch.equal(y, a) and not torch.equal(tw.torch.matmul(a, b, precision="tf32"), a)
    slope = a.detach().clone()
    assert torch.equal(torch.autograd.grad(y, a, slope)[0], slope)


def test_sums_of_8_bit_floats_that_stay_in_tensor_cores() -> None:
    a = torch.ones(8, 32, dtype=torch.float8_e4m3fn)
    assert (tw.torch.matmul(a, a.t(), precision="fp8_fast") == 32).all()
    with pytest.raises(tw.ArgumentError, match="is for 8-bit floats"):
        tw.torch.matmul(a.float(), a.t().float(), precision="fp8_fast")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"epilogue": "tanh"}, "epilogue is 'tanh', and has a name here"),
        ({"epilogue": lambda acc: acc}, "tw.matmul takes functions, without gradients"),
        ({"epilogue": "swiglu"}, 'epilogue="swiglu" goes with gate='),
        ({"gate": numbers(3, 5)}, 'epilogue="swiglu" goes with gate='),
        ({"a": numbers(3, 4).detach().numpy()}, "a is a ndarray, and tw.torch.matmul takes tensors"),
        ({"a": numbers()}, "a has no mode, and a matrix has two"),
        ({"bias": numbers(4)}, "bias"),
        ({"b": numbers(5, 5)}, "5"),
        ({"b": numbers(4, 5, dtype=torch.float32)}, "float32"),
        ({"a": numbers(3, 4).to(torch.complex64), "b": numbers(4, 5).to(torch.complex64)}, "complex64"),
        ({"precision": "half"}, "half"),
    ],
)
def test_refused(change: dict, text: str) -> None:
    call = {"a": numbers(3, 4, dtype=torch.float32 if "precision" in change else torch.float64), "b": numbers(4, 5)}
    if "precision" in change:
        call["b"] = call["b"].float()
    with pytest.raises((tw.ArgumentError, RuntimeError)) as caught:
        tw.torch.matmul(**{**call, **change})
    assert text in str(caught.value), str(caught.value)


def test_matmul_without_gradients_says_where_they_flow() -> None:
    a = numbers(3, 3)
    with pytest.raises(tw.ArgumentError, match=r"gradients flow through tw\.torch\.matmul"):
        tw.matmul(a, a)
