"""What users do with operators and their results works as with torch's own, or is refused in torch's words."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any, Optional

import pytest

torch = pytest.importorskip("torch")

from tests.helpers import operators_in_c  # noqa: E402

import tilewright as tw  # noqa: E402


@pytest.fixture(autouse=True, params=["python", "c++"])
def made_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who makes calls that were met before: all of this holds for both."""
    if request.param == "python":
        operators_in_c.leave_to_python(monkeypatch, shifted)
    else:
        operators_in_c.built()


@tw.kernel
def add(out, x, number):
    i = tw.block_idx.x * 32 + tw.thread_idx.x
    if i < x.shape[0]:
        out[i] = x[i] + number


def in_order(x: torch.Tensor, number: float = 0.0) -> torch.Tensor:
    out = torch.empty_like(x)
    add[tw.ceil_div(x.numel(), 32), 32](out.view(-1), x.view(-1), number)
    return out


@tw.torch.op("like_torch::shifted", shape="x")
def shifted(x: torch.Tensor, number: int, numbers: list[int]) -> torch.Tensor:
    return in_order(x, float(number + sum(numbers)))


shifted.backward(lambda grad: 3 * grad)
COUNT = 0


def made(function: Callable[..., Any], backward: Any = None, **options: Any) -> Any:
    """Return an operator with a name of its own."""
    global COUNT
    COUNT += 1
    operator = tw.torch.op(f"like_torch::made_{COUNT}", **options)(function)
    if backward is not None:
        operator.backward(backward)
    return operator


def values(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


# --- results -------------------------------------------------------------------------------------------------------


def transposed(x: torch.Tensor) -> torch.Tensor:
    return in_order(x).t()


def both_transposed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return in_order(x).t(), in_order(x).t()


def as_empty(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape).t()


def heads(x: torch.Tensor) -> torch.Tensor:
    """Attention whose result has the modes of the query in another order."""
    q = x.view(1, 2, 4, 2).transpose(1, 2)
    found: torch.Tensor = tw.torch.attention(q, values(1, 4, 2, 2), values(1, 4, 2, 2))
    return found


OPERATORS = {
    "one": made(transposed, lambda grad: grad.t(), shape=as_empty),
    "two": made(both_transposed, lambda a, b: a.t() + b.t(), shape=lambda x: (as_empty(x), as_empty(x))),
    "attention": heads,
    "dropout": lambda x: tw.torch.dropout(x, 0.5, seed=1),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_results_can_be_written_to(name: str) -> None:
    """Also those that the function made as a view."""
    for wants_gradient in (False, True):
        for _ in range(2):
            x = values(2, 8).requires_grad_(wants_gradient)
            w = torch.tensor(2.0, requires_grad=True)
            first = OPERATORS[name](x)
            y = first[0] if isinstance(first, tuple) else first
            assert not y._is_view()
            before, total = y.detach().clone(), y.detach().sum().item()
            if name == "attention" and wants_gradient:  # whose backward pass reads it, as that of torch does
                y = y + 0
            y.mul_(w)
            torch.testing.assert_close(y.detach(), 2 * before)
            y.sum().backward()
            assert w.grad is not None and w.grad.item() == pytest.approx(total, abs=1e-5)
            if name in ("one", "two"):
                assert not wants_gradient or (x.grad == 2).all()


def test_results_without_elements_can_be_written_to() -> None:
    y = OPERATORS["one"](torch.empty(0, 8))
    assert not y._is_view()
    y.mul_(torch.ones(1, requires_grad=True))


@pytest.mark.parametrize(
    ("ours", "known"),
    [
        (lambda x: tw.torch.rms_norm(x, 8), lambda x: torch.nn.functional.rms_norm(x, (8,))),
        (lambda x: tw.torch.layer_norm(x, 8), lambda x: torch.nn.functional.layer_norm(x, (8,))),
        (
            lambda x: tw.torch.cross_entropy(x, torch.tensor([1, 2]), reduction="none"),
            lambda x: torch.nn.functional.cross_entropy(x, torch.tensor([1, 2]), reduction="none"),
        ),
        (
            lambda x: tw.torch.matmul(x, values(8, 8), epilogue="swiglu", pairs="halves"),
            lambda x: torch.nn.functional.silu(x @ values(8, 8)[:, :4]) * (x @ values(8, 8)[:, 4:]),
        ),
    ],
    ids=["rms_norm", "layer_norm", "cross_entropy", "gated"],
)
def test_a_result_that_no_gradient_needs_is_not_kept(ours: Any, known: Any) -> None:
    """So it may be scaled in place, and its memory is free for others."""
    found = []
    for function in (ours, known):
        x = values(2, 8).requires_grad_()
        function(x).mul_(3).sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_rms_norm_adds_by_default(kind: torch.dtype) -> None:
    """In torch it is small enough for float32, also for 16-bit numbers, whose own is seen in small ones."""
    x = (values(2, 8) / 64).to(kind)
    found = tw.torch.rms_norm(x, 8)
    torch.testing.assert_close(found, torch.nn.functional.rms_norm(x, (8,)))
    assert not found._is_view() and not tw.torch.layer_norm(x, 8)._is_view()


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("wants_gradient", [False, True])
def test_results_of_another_number_are_refused(count: int, wants_gradient: bool) -> None:
    """In torch's dispatcher, three in place of two are a crash."""

    def returns(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(in_order(x) for _ in range(count))  # type: ignore[return-value]

    operator = made(returns, lambda a, b: a + b, shape=("x", "x"))
    for _ in range(2):
        with pytest.raises(tw.ArgumentError, match=f"returned {count} results, and its annotation has 2"):
            operator(values(4).requires_grad_(wants_gradient))


def test_results_in_a_list_become_a_tuple() -> None:
    def returns(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return [in_order(x), in_order(x, 1.0)]  # type: ignore[return-value]

    operator = made(returns, lambda a, b: a + b, shape=("x", "x"))
    for wants_gradient in (False, False, True):
        found = operator(values(4).requires_grad_(wants_gradient))
        assert type(found) is tuple and torch.equal(found[1].detach(), values(4) + 1)


def doubled_and_trebled(x: torch.Tensor) -> list[torch.Tensor]:
    return [in_order(x), in_order(x, 1.0)]


def with_a_list(x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    return in_order(x), [in_order(x, 1.0)]


LISTS = {
    "list": made(
        doubled_and_trebled, lambda grads: 2 * grads[0] + 3 * grads[1], vmap="loop",
        shape=lambda x: [torch.empty_like(x)] * 2,
    ),
    "and more": made(
        with_a_list, lambda grad, grads: 2 * grad + 3 * grads[0], vmap="loop",
        shape=lambda x: (torch.empty_like(x), [torch.empty_like(x)]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_results_in_lists_have_gradients(name: str) -> None:
    operator = LISTS[name]
    for _ in range(3):
        x = values(4).requires_grad_()
        first, rest = operator(x)
        (sum(rest) if isinstance(rest, list) else rest).sum().backward(retain_graph=True)
        assert (x.grad == 3).all()
        (found,) = torch.autograd.grad(first.sum() + x.sum(), x)
        assert (found == 3).all()
    first, rest = torch.vmap(operator)(values(2, 4))
    torch.testing.assert_close((first, rest[0] if isinstance(rest, list) else rest), (values(2, 4), values(2, 4) + 1))
    with pytest.raises(RuntimeError, match="autograd.Function with functorch transforms"):  # torch's own refusal
        torch.func.grad(lambda x: operator(x)[0].sum())(values(4))


def test_results_that_are_not_tensors_are_refused() -> None:
    def number(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return in_order(x), 1

    with pytest.raises(tw.ArgumentError, match="returns what is not a tensor"):
        made(number, shape=lambda x: (torch.empty_like(x), 1))


def test_gradients_that_nothing_uses_are_none_where_that_is_allowed() -> None:
    def twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return in_order(x), in_order(x)

    def backward(a: Optional[torch.Tensor], b: Optional[torch.Tensor]) -> torch.Tensor:  # noqa: UP045
        seen.append((a is None, b is None))
        return b if a is None else a  # type: ignore[return-value]

    seen: list[tuple[bool, bool]] = []
    operator = made(twice, backward, shape=("x", "x"))
    for place in (0, 1, 0):
        operator(values(4).requires_grad_())[place].sum().backward()
    assert seen == [(False, True), (True, False), (False, True)]


# --- gradients -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("returned", [2.0, "text", [None]], ids=["a number", "a text", "a list"])
def test_gradients_that_are_no_tensors_are_refused(returned: Any) -> None:
    def copied(x: torch.Tensor) -> torch.Tensor:
        return in_order(x)

    operator = made(copied, lambda grad: {"x": returned}, shape="x")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=f"expected Variable or None .got {type(returned).__name__}."):
            operator(values(4).requires_grad_()).sum().backward()


def test_gradients_of_lists_under_transforms() -> None:
    """torch looks for tensors among the inputs of a function, and not in lists: the gradients were zeros."""

    def weighted(xs: list[torch.Tensor], y: torch.Tensor, factor: float) -> torch.Tensor:
        return in_order(xs[0]) + factor * xs[1] * y

    def weighted_backward(
        grad: torch.Tensor, xs: list[torch.Tensor], y: torch.Tensor, factor: float, needs: frozenset[str]
    ) -> dict[str, Any]:
        found: dict[str, Any] = {"xs": [grad, factor * grad * y]} if "xs" in needs else {}
        return {**found, "y": factor * grad * xs[1]} if "y" in needs else found

    operator = made(weighted, weighted_backward, shape=lambda xs, y, factor: torch.empty_like(xs[0]))
    a, b, y = values(3, 4), values(3, 4) + 1, values(3, 4) - 1

    def ours(a: Any, b: Any, y: Any) -> Any:
        return operator([a, b], y, 2.0).square().sum()

    def known(a: Any, b: Any, y: Any) -> Any:
        return (a + 2.0 * b * y).square().sum()

    for arguments in ((0, 1, 2), (1,), (2,)):
        pairs = [torch.func.grad(each, argnums=arguments)(a, b, y) for each in (ours, known)]
        torch.testing.assert_close(*pairs)
        pairs = [torch.func.vmap(torch.func.grad(each, argnums=arguments))(a, b, y) for each in (ours, known)]
        torch.testing.assert_close(*pairs)


@pytest.mark.parametrize("way", ["call", "overload", "compiled"])
def test_gradients_of_lists_that_have_none_in_them(way: str) -> None:
    """torch takes such a list for no tensors: it left out their gradients, and said nothing."""

    def added(xs: list[Optional[torch.Tensor]], y: torch.Tensor) -> torch.Tensor:  # noqa: UP045
        return sum((x for x in xs if x is not None), in_order(y))

    def added_backward(grad: torch.Tensor, xs: list[Any], needs: frozenset[str]) -> dict[str, Any]:
        return {"xs": [None if x is None else grad * 1 for x in xs], "y": grad}

    operator = made(added, added_backward, shape="y")
    torch._dynamo.reset()
    compiled = torch.compile(operator, fullgraph=True, backend="aot_eager")
    run = {"call": operator, "overload": operator.overload, "compiled": compiled}[way]
    for xs in ([None, 1], (1, None, 2)):
        for wants_gradient in (False, True):
            x, y = values(3).requires_grad_(), values(3).requires_grad_(wants_gradient)
            given = type(xs)(None if x_of is None else x * x_of for x_of in xs)
            run(given, y=y).sum().backward()
            torch.testing.assert_close(x.grad, torch.full((3,), float(sum(n or 0 for n in xs))))
            assert torch.equal(y.grad, torch.ones(3)) if wants_gradient else y.grad is None


def test_gradients_of_lists_that_have_none_in_them_are_refused_where_the_result_is_a_list() -> None:
    def twice(xs: list[Optional[torch.Tensor]]) -> list[torch.Tensor]:  # noqa: UP045
        return [2 * x for x in xs if x is not None]

    operator = made(twice, lambda grads, xs: {"xs": [2 * g for g in grads]}, shape=twice)
    x = values(3).requires_grad_()
    operator([x, 3 * x])[1].sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 6.0))
    assert torch.equal(operator([None, x.detach()])[0], 2 * x.detach())
    with torch.no_grad():
        assert torch.equal(operator([None, x])[0], 2 * x)
    with pytest.raises(NotImplementedError, match="no gradients where None is beside tensors in a list"):
        operator([None, x])


def test_transforms_by_items_where_there_is_no_rule() -> None:
    x = values(3, 4)
    torch.testing.assert_close(torch.func.vmap(lambda x: shifted(x, 1, [2]))(x), x + 3)
    found = torch.func.vmap(torch.func.grad(lambda x: shifted(x, 1, [2]).sum()))(x)
    assert (found == 3).all()


def test_transforms_of_overloads() -> None:
    """These are what graphs hold."""
    x = values(2, 3, 4)
    softmax = torch.ops.tilewright.softmax
    once = torch.func.vmap(lambda x: softmax(x, -1))
    torch.testing.assert_close(once(x), torch.softmax(x, -1))
    torch.testing.assert_close(torch.func.vmap(once)(x), torch.softmax(x, -1))
    graph = torch.compile(torch.func.vmap(lambda x: tw.torch.softmax(x)), fullgraph=True, backend="eager")
    torch.testing.assert_close(graph(x), torch.softmax(x, -1))


def test_negatives_are_not_taken_for_what_they_are_of() -> None:
    x = torch.ones(4, dtype=torch.complex64).mul(1j)
    for y in (x.imag, x.conj().imag):  # of one memory, and the latter is -1
        torch.testing.assert_close(tw.torch.softmax(y * torch.arange(4)), torch.softmax(y * torch.arange(4), 0))
        torch.testing.assert_close(shifted(y, 1, [2]), y + 3)
    out = torch.empty(4)
    add[1, 32](out, x.imag, 0.0)
    with pytest.raises(tw.ArgumentError, match="its memory has its numbers with the other sign"):
        add[1, 32](out, x.conj().imag, 0.0)
    add[1, 32](out[:1], torch.ones(1), 0.0)  # a plan of arrays of one element, all of which are contiguous
    with pytest.raises(tw.ArgumentError, match="its memory has its numbers with the other sign"):
        add[1, 32](out[:1], x[:1].conj().imag, 0.0)


def test_functionalized() -> None:
    found = torch.func.functionalize(lambda x: shifted(x, 1, [2]).mul_(2))(values(4))
    torch.testing.assert_close(found, 2 * (values(4) + 3))


def test_inference_mode_has_no_gradients() -> None:
    """Not even with gradients enabled within."""
    x = values(4).requires_grad_()
    for _ in range(3):
        shifted(x, 1, [2]).sum().backward()
        with torch.inference_mode(), torch.enable_grad():
            y = shifted(x, 1, [2])
        assert y.is_inference() and not y.requires_grad


def test_writes_to_what_requires_a_gradient_are_refused() -> None:
    """Else its gradient would be that of what it was before."""

    def write(x: torch.Tensor, ys: list[torch.Tensor]) -> None:
        add[1, 32](x, ys[0], 1.0)

    operator = made(write, mutates="x")
    x, y = values(4), values(4).requires_grad_()
    for target, source in ((y, x), (x, y), (y * 1, x)):
        with pytest.raises(tw.ArgumentError, match=r"writes to its inputs, so it has no gradients.*\(4,\) requires"):
            operator(target, [source])
        with torch.no_grad():
            operator(target, [source])
    operator(x, ys=[y.detach()])
    torch.testing.assert_close(x, y.detach() + 1)
    graph = torch.compile(lambda x, y: operator(x, [y]), fullgraph=True, backend="eager")
    graph(x, values(4))
    torch.testing.assert_close(x, values(4) + 1)


@pytest.mark.parametrize("vmap", ["loop", "elementwise", None])
def test_batches_of_what_is_written(vmap: str | None) -> None:
    def write(x: torch.Tensor, y: torch.Tensor) -> None:
        x.copy_(in_order(y.contiguous(), 1.0))

    def write_one_or_two(x: torch.Tensor, y: torch.Tensor, z: Optional[torch.Tensor] = None) -> None:  # noqa: UP045
        for target in (x, z):
            if target is not None:
                write(target, y)

    operator = made(write, mutates="x", vmap=vmap)
    x, y = torch.zeros(4, 3), values(4, 3)
    torch.vmap(lambda x, y: operator(x, y) or x, (1, 1))(x, y)
    torch.testing.assert_close(x, y + 1)
    with pytest.raises(tw.ArgumentError, match="writes to an input without a batch"):
        torch.vmap(lambda y: operator(x[0], y) or y)(y)
    optional = made(write_one_or_two, mutates=("x", "z"), vmap=vmap)
    for more in ((), (None,), (torch.zeros(4, 3),)):
        torch.vmap(lambda x, y, *more: optional(x, y, *more) or x, (0, 0, *[m if m is None else 0 for m in more]))(
            x.zero_(), y, *more
        )
        assert all(torch.equal(written, y + 1) for written in (x, *more) if written is not None)


# --- arguments and operators ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1])
def test_integers_that_torch_has_not_are_refused(number: int) -> None:
    x = values(4)
    for wants_gradient in (False, True):
        for _ in range(2):
            torch.testing.assert_close(shifted(x.requires_grad_(wants_gradient), 1, [2]).detach(), values(4) + 3)
            with pytest.raises(RuntimeError, match="xpected a value of type 'int' for argument 'number'"):
                shifted(x, number, [2])
            with pytest.raises(RuntimeError, match=r"xpected a value of type 'List\[int\]' for argument 'numbers'"):
                shifted(x, 1, [2, number])
    assert shifted(x, (1 << 63) - 1, [-(1 << 63)]).shape == (4,)


def test_operators_are_copied_and_pickled_as_functions() -> None:
    class Module(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.operator, self.weight = shifted, torch.nn.Parameter(values(4))

    module = copy.deepcopy(Module())
    assert module.operator is shifted and copy.copy(shifted) is shifted
    assert pickle.loads(pickle.dumps(shifted)) is shifted
    assert pickle.loads(pickle.dumps(tw.torch.matmul_operator)) is tw.torch.matmul_operator


def test_an_operator_that_is_defined_again() -> None:
    """Whoever has the earlier one gets the new one, with and without gradients, as torch does it."""

    def define(number: float) -> Any:
        @tw.torch.op("like_torch::defined_again", shape="x")
        def defined(x: torch.Tensor) -> torch.Tensor:
            return in_order(x, number)

        defined.backward(lambda grad: number * grad)
        return defined

    x = values(4).requires_grad_()
    earlier = define(2.0)
    for _ in range(2):
        torch.testing.assert_close(earlier(x.detach()), x.detach() + 2)
        earlier(x)
    between = define(3.0)
    later = define(5.0)
    for operator in (earlier, between, later):
        assert operator.overload is later.overload  # torch has freed what the others called
        torch.testing.assert_close(operator(x.detach()), x.detach() + 5)
        (found,) = torch.autograd.grad(operator(x).sum(), x)
        assert (found == 5).all()


def test_tensors_around_others_are_sent_to_operators() -> None:
    class Around(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError

    x = torch.Tensor._make_wrapper_subclass(Around, (4,), dtype=torch.float32)
    for call in (lambda x: tw.softmax(x), lambda x: add[1, 32](torch.empty(4), x, 0.0)):
        with pytest.raises(tw.ArgumentError, match=r"it is a Around, which has no memory(.*\n)*.*tw\.torch\.matmul"):
            call(x)
        with pytest.raises(tw.ArgumentError, match="no memory of its own"):
            torch.vmap(call)(torch.ones(2, 4))
