"""`tw.torch.op`: what torch asks of an operator, of operators whose work is done by kernels."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")

from tests.helpers import operators_in_c  # noqa: E402
from tests.torch import operators  # noqa: E402
from tests.torch.operators import (  # noqa: E402
    add_in_place,
    cubed,
    launches,
    product,
    scaled,
    square_and_double,
    without_gradient,
)

import tilewright as tw  # noqa: E402  # after the skip

X, Y = torch.arange(6.0).reshape(2, 3) - 2, torch.arange(6.0).reshape(2, 3) + 1


def double(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        (product, (X, Y)),
        (product, (X.clone().requires_grad_(), Y.clone().requires_grad_())),
        (product, (X.T, Y.T)),
        (scaled, (X.clone().requires_grad_(), 3.0)),
        (scaled, (X,)),
        (square_and_double, (X.clone().requires_grad_(),)),
        (add_in_place, (X.clone(), 2.0)),
        (without_gradient, (X,)),
        (cubed, (X.clone().requires_grad_(),)),
        (product, (torch.empty(0, 3), torch.empty(0, 3))),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_torch_finds_nothing_wrong(operator, args) -> None:
    assert set(operator.check(*args).values()) == {"SUCCESS"}


def test_a_call() -> None:
    assert torch.equal(product(X, Y), X * Y)
    assert torch.equal(product(X.T, Y.T), (X * Y).T)  # of other strides
    assert torch.equal(scaled(x=X), 2 * X) and torch.equal(scaled(X, factor=3.0), 3 * X)
    assert repr(scaled) == "<operator tests::scaled(Tensor x, float factor=2.) -> Tensor>"
    assert scaled.__name__ == "scaled"
    square, twice = square_and_double(X)
    assert torch.equal(square, X * X) and torch.equal(twice, 2 * X)
    x = X.clone()
    assert add_in_place(x, 2.0) is None and torch.equal(x, X + 2)


def test_gradients() -> None:
    x, y = double(2, 3), double(2, 3)
    torch.autograd.gradcheck(product, (x, y))
    torch.autograd.gradgradcheck(product, (x, y))
    torch.autograd.gradcheck(scaled, (x, 3.0))
    torch.autograd.gradcheck(square_and_double, (x,))
    torch.autograd.gradcheck(cubed, (x,))


def test_only_gradients_that_are_asked_for_are_computed() -> None:
    x = X.clone().requires_grad_()
    launches.clear()
    product(x, Y).sum().backward()  # the gradient of the sum has strides of 0
    assert torch.equal(x.grad, Y) and launches == ["product"] * 2


def test_what_has_no_gradient_says_so_as_torch_does() -> None:
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        without_gradient(X.clone().requires_grad_()).sum().backward()


@pytest.mark.parametrize("way", ["call", "overload", "compiled", "traced"])
def test_forward_derivatives_are_refused(way: str) -> None:
    from torch.autograd import forward_ad

    run = product.overload if way == "overload" else product
    if way in ("compiled", "traced"):
        run = torch.compile(product, backend="eager" if way == "compiled" else "aot_eager")
    with forward_ad.dual_level():
        assert torch.equal(run(X, Y), X * Y)
        for args in ((X, forward_ad.make_dual(Y, Y)), (forward_ad.make_dual(X, X), Y)):
            with pytest.raises(NotImplementedError, match="forward AD with .*::product"):
                run(*args)


def test_writes_in_place_to_what_was_saved_are_found() -> None:
    x, y = X.clone().requires_grad_(), Y.clone()
    found = product(x, y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()
    saved = x * 1
    found = product(saved, y)
    add_in_place(saved.detach(), 1.0)  # by a kernel
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product(saved, found).sum().backward()


def test_empty_tensors_launch_nothing() -> None:
    launches.clear()
    x = torch.empty(0, 3, requires_grad=True)
    found = product(x, torch.empty(0, 3))
    found.sum().backward()
    assert found.shape == (0, 3) and x.grad.shape == (0, 3) and launches == []


def test_fake_and_meta_tensors_launch_nothing() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    launches.clear()
    assert scaled(torch.empty(4, 5, device="meta")).shape == (4, 5)
    with FakeTensorMode() as mode:
        found = product(mode.from_tensor(X), mode.from_tensor(Y))
        assert found.shape == (2, 3) and type(found).__name__ == "FakeTensor"
    assert launches == []


def test_a_launch_refuses_fake_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.ones(4)
    operators.multiply[1, 32](torch.empty(4), x, x)  # known by now
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        with refused("it is a FakeTensor, which torch traces with and which has no memory"):
            operators.multiply[1, 32](fake, fake, fake)
        with refused("it is a FakeTensor"):
            tw.matmul(fake.view(2, 2), fake.view(2, 2))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_functions_have_no_breaks(backend: str, dynamic: bool) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        square, twice = square_and_double(product(x, y) + 1)
        return scaled(square, 3.0) - twice

    compiled = torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic)
    for rows in (2, 5, 3):
        x, y = (torch.randn(rows, 4, requires_grad=True) for _ in range(2))
        gradients = [torch.autograd.grad(f(x, y).sum(), (x, y)) for f in (compiled, function)]
        assert torch.allclose(compiled(x, y), function(x, y))
        assert all(map(torch.allclose, *gradients))


def test_exported_programs_hold_the_operator() -> None:
    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return product(x, y) + 1

    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(Module(), (X, Y), dynamic_shapes={"x": {0: rows}, "y": {0: rows}})
    assert "torch.ops.tests.product.default" in program.graph_module.code
    x, y = torch.randn(7, 3), torch.randn(7, 3)
    assert torch.equal(program.module()(x, y), x * y + 1)


def test_batches_of_vmap() -> None:
    x, y = torch.randn(5, 2, 3), torch.randn(2, 3)
    launches.clear()
    assert torch.equal(torch.vmap(product, (0, None))(x, y), x * y) and launches == ["product"]
    assert torch.equal(
        torch.vmap(product, (2, 1), out_dims=1)(X.expand(5, 2, 3).permute(1, 2, 0), x.transpose(0, 1)),
        (X * x).transpose(0, 1),
    )
    launches.clear()
    assert torch.equal(torch.vmap(lambda v: scaled(v, 3.0))(x), 3 * x) and launches.count("scaled") == 5
    square, twice = torch.vmap(square_and_double)(x)
    assert torch.equal(square, x * x) and torch.equal(twice, 2 * x)
    gradients = torch.vmap(torch.func.grad(lambda v, w: product(v, w).sum()), (0, None))(x, y)
    assert torch.equal(gradients, y.expand_as(x))
    of_weights = torch.vmap(torch.func.grad(lambda w, v: product(v, w).sum()), (None, 0))(y, x)
    assert torch.equal(of_weights, x)
    outside = torch.func.grad(lambda w: torch.vmap(lambda v: scaled(product(v, w), 3.0))(x).sum())(y)
    assert torch.allclose(outside, 3 * x.sum(0))
    hessian = torch.func.jacrev(torch.func.jacrev(lambda v: product(product(v, v), v).sum()))(y[0])
    assert torch.allclose(hessian, torch.diag(6 * y[0]))
    with pytest.raises(RuntimeError, match="must implement the jvp function"):
        torch.func.jvp(lambda v: product(v, y), (y,), (y,))
    assert torch.equal(torch.vmap(without_gradient)(x), x * x)  # by torch itself, one by one


def test_autocast_is_as_the_operator_says() -> None:
    with torch.autocast("cpu", dtype=torch.float16):
        assert product(X, Y).dtype == torch.float16
        assert product(X.half(), Y).dtype == torch.float16
        assert product(X.double(), Y.double()).dtype == torch.float64
        assert scaled(X.half()).dtype == torch.float32
        assert square_and_double(X.half())[0].dtype == torch.float16
        x = X.clone().requires_grad_()
        product(x, Y).sum().backward()
        assert x.grad.dtype == torch.float32 and torch.equal(x.grad, Y)
    with torch.autocast("cpu"):
        assert product(X, Y).dtype == torch.bfloat16


@pytest.mark.parametrize("is_compiled", [False, True])
def test_backward_passes_are_compiled(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of calls that are made in Python; test_calls_in_c.py has the others."""
    from torch._dynamo import compiled_autograd

    operators_in_c.leave_to_python(monkeypatch, product)
    x, function = X.clone().requires_grad_(), lambda v: product(v, v)
    found = torch.compile(function, backend="eager")(x) if is_compiled else function(x)
    with compiled_autograd._enable(torch.compile(backend="eager")):
        found.sum().backward()
    assert torch.equal(x.grad, 2 * X)


def test_checkpoints_compute_again() -> None:
    from torch.utils.checkpoint import checkpoint

    x = X.clone().requires_grad_()
    launches.clear()
    checkpoint(lambda v: product(v, v), x, use_reentrant=False).sum().backward()
    assert torch.equal(x.grad, 2 * X) and launches.count("product") == 4


def test_inference_mode() -> None:
    with torch.inference_mode():
        found = product(X, Y)
        assert found.is_inference() and torch.equal(found, X * Y)


def refused(text: str):
    return pytest.raises(tw.ArgumentError, match=re.escape(text))


def test_what_an_operator_cannot_be() -> None:
    def good(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    with refused("""the operator's name is 'good', without a namespace\n  help: write "mylib::good\""""):
        tw.torch.op("good", shape="x")(good)
    with refused("tests::bad returns tensors, and nothing says of what shape"):
        tw.torch.op("tests::bad")(good)
    with refused("shape of tests::bad names 'y', which is not a parameter\n  help: its parameters are x"):
        tw.torch.op("tests::bad", shape="y")(good)
    with refused("mutates of tests::bad names 'out', which is not a parameter"):
        tw.torch.op("tests::bad", shape="x", mutates="out")(good)
    with refused("vmap of tests::bad is 'rows'"):
        tw.torch.op("tests::bad", shape="x", vmap="rows")(good)
    with refused("autocast of tests::bad is 16"):
        tw.torch.op("tests::bad", shape="x", autocast=16)(good)
    with refused("no schema follows from the annotations of tests::bad"):
        tw.torch.op("tests::bad", shape="x")(lambda x: x)
    with refused("the parameter *x of tests::bad is not an ordinary one"):
        tw.torch.op("tests::bad", shape="x")(lambda *x: x)
    with refused("tests::add_in_place mutates its inputs, and torch gives such operators no gradients"):
        add_in_place.backward(lambda grad: None)
    with refused("the backward function of tests::product takes (grad, z), and 'z' names nothing"):
        product.backward(lambda grad, z: None)
    with refused("the backward function of tests::square_and_double takes (grad), and there are 2 results"):
        square_and_double.backward(lambda grad: None)


def test_a_backward_function_answers_for_inputs() -> None:
    made = tw.torch.op("tests::two", shape="x")(operators.product.__wrapped__)
    made.backward(lambda grad: grad)
    x = X.clone().requires_grad_()
    with refused("the backward function of tests::two returned a Tensor, and it has the tensors x, y"):
        made(x, Y).sum().backward()
    made = tw.torch.op("tests::three", shape="x")(operators.product.__wrapped__)
    made.backward(lambda grad: {"z": grad})
    with refused("the backward function of tests::three names 'z', which is not a parameter"):
        made(x, Y).sum().backward()


@pytest.mark.parametrize("order", ["first", "second"])
def test_tensors_on_meta_beside_others_are_refused(order: str) -> None:
    x, other = torch.ones(3), torch.ones(3, device="meta")
    pair = (other, x) if order == "first" else (x, other)
    with pytest.raises(tw.ArgumentError, match="tensors of tests::product are on different devices: argument 0 is on"):
        product(*pair)
    assert product(other, other).device.type == "meta"
