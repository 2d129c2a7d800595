"""Operators are run at once where nothing is between, and by the dispatcher wherever something is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from tests.helpers import operators_in_c  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.torch import operators  # noqa: E402
from tilewright.torch.eager import is_plain  # noqa: E402
from tilewright.torch.rows import softmax_operator  # noqa: E402


class Counting:
    """Stands for the overload of an operator, and counts its calls."""

    def __init__(self, overload: Any) -> None:
        self.overload, self.calls = overload, 0

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        self.calls += 1
        return self.overload(*args, **keywords)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.overload, name)


class Pair(NamedTuple):
    one: Any
    two: Any


@pytest.fixture(autouse=True, params=["python", "c++"])
def made_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who makes calls that were met before: all of this holds for both."""
    if request.param == "python":
        operators_in_c.leave_to_python(monkeypatch, softmax_operator)
    else:
        operators_in_c.built()
    return str(request.param)


@pytest.fixture
def dispatched(monkeypatch: pytest.MonkeyPatch) -> Counting:
    found = Counting(softmax_operator.overload)
    monkeypatch.setattr(softmax_operator, "overload", found)
    return found


def values(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


class Nothing(TorchDispatchMode):  # type: ignore[misc]
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class NoFunction(TorchFunctionMode):  # type: ignore[misc]
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "context", [contextlib.nullcontext, torch.no_grad, torch.inference_mode, lambda: torch.autocast("cuda", enabled=False)],
    ids=["eager", "no_grad", "inference_mode", "autocast off"],
)  # fmt: skip
@pytest.mark.parametrize(
    "kind", [torch.nn.Parameter, lambda x: x, lambda x: x.t()], ids=["parameter", "tensor", "view"]
)
def test_nothing_is_between(
    dispatched: Counting, made_by: str, context: Callable[[], Any], kind: Callable[[Any], Any]
) -> None:
    x = kind(values(3, 8))
    with context():
        found = tw.torch.softmax(x)
        made = tw.torch.softmax(torch.ones(2, 4))  # of inference mode
    assert not dispatched.calls and (softmax_operator._calls is not None) == (made_by == "c++")
    torch.testing.assert_close(found, torch.softmax(x, -1))
    torch.testing.assert_close(made, torch.full((2, 4), 0.25))


@contextlib.contextmanager
def level() -> Iterator[None]:
    with forward_ad.dual_level():
        yield


@pytest.mark.parametrize(
    "context",
    [
        lambda: torch.autocast("cpu"), Nothing, NoFunction, level, lambda: torch.device("cpu"),
        lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
    ],
    ids=["autocast", "dispatch mode", "function mode", "forward derivatives", "device", "profiler"],
)  # fmt: skip
def test_modes_see_the_operator(dispatched: Counting, context: Callable[[], Any]) -> None:
    x = values(3, 8)
    with context():
        found = tw.torch.softmax(x)
    calls = dispatched.calls
    assert calls in (1, 2)  # autocast calls it once more, without autocast
    torch.testing.assert_close(found, torch.softmax(x, -1))
    tw.torch.softmax(x)
    assert dispatched.calls == calls


def test_fake_tensors_and_tensors_without_memory(dispatched: Counting) -> None:
    with FakeTensorMode() as mode:
        fake = torch.empty(3, 8)
        assert tw.torch.softmax(fake).shape == (3, 8)
    assert isinstance(tw.torch.softmax(mode.from_tensor(values(3, 8))), torch._subclasses.FakeTensor)
    assert tw.torch.softmax(torch.empty(3, 8, device="meta")).device.type == "meta"
    assert dispatched.calls == 3


def test_views_whose_memory_holds_something_else(dispatched: Counting) -> None:
    """The imaginary part of a conjugate view is negative in memory."""
    z = torch.complex(values(3, 8), values(3, 8)).conj()
    x = z.imag
    assert x.is_neg() and not is_plain(x)
    torch.testing.assert_close(tw.torch.softmax(x), torch.softmax(x, -1))
    assert dispatched.calls == 1


def test_classes_of_tensors_have_a_say(dispatched: Counting) -> None:
    class Named(torch.Tensor):  # type: ignore[misc]
        pass

    assert type(tw.torch.softmax(values(3, 8).as_subclass(Named))) is Named
    assert dispatched.calls == 1


def test_transforms() -> None:
    x = values(2, 3, 8)
    torch.testing.assert_close(torch.func.vmap(tw.torch.softmax)(x), torch.softmax(x, -1))
    found = torch.func.grad(lambda x: (tw.torch.softmax(x) ** 2).sum())(x)
    torch.testing.assert_close(found, torch.func.grad(lambda x: (torch.softmax(x, -1) ** 2).sum())(x))


def test_gradients_are_those_of_the_dispatcher(dispatched: Counting) -> None:
    x = values(3, 8)
    results = []
    for context in (contextlib.nullcontext, Nothing):
        given = x.clone().requires_grad_()
        with context():
            y = tw.torch.softmax(given)
        (first,) = torch.autograd.grad((y**3).sum(), given, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), given)
        results.append((y, first, second))
    assert dispatched.calls == 1
    for direct, through in zip(*results, strict=True):
        assert torch.equal(direct, through) and direct.requires_grad == through.requires_grad


def test_what_was_saved_and_changed_is_told(dispatched: Counting) -> None:
    x = values(3, 8).requires_grad_()
    y = tw.torch.softmax(x)
    y.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    assert not dispatched.calls


def test_inputs_that_torch_converts_go_to_torch(dispatched: Counting) -> None:
    x = values(3, 8)
    assert softmax_operator(x, dim=-1).shape == (3, 8) and not dispatched.calls
    with pytest.raises(RuntimeError, match="expected a value of type 'int'|Expected a value of type 'int'"):
        softmax_operator(x, "1")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="missing value for argument 'dim'"):
        softmax_operator(x)  # type: ignore[call-arg]
    assert dispatched.calls == 2


@pytest.mark.parametrize(
    "returned", [lambda x: x, lambda x: x[1:], lambda x: x.detach()], ids=["input", "view", "detached"]
)
def test_results_that_share_memory_with_inputs_are_refused(returned: Callable[[Any], Any]) -> None:
    name = f"eager::returns_{abs(hash(returned))}"

    @tw.torch.op(name, shape=lambda x: torch.empty_like(returned(x)))
    def returns(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = returned(x)
        return found

    with pytest.raises(RuntimeError, match="must not also be an input"):
        returns(values(4))


def test_results_that_share_memory_with_each_other_are_refused() -> None:
    @tw.torch.op("eager::returns_twice", shape=("x", "x"))
    def returns(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = x + 1
        return found, found[:]

    with pytest.raises(RuntimeError, match="must not also be|may not alias"):
        returns(values(4))


@pytest.mark.parametrize("kind", [list, Pair._make], ids=["list", "named tuple"])
def test_several_results_are_a_tuple(made_by: str, kind: Callable[[Any], Any]) -> None:
    """A function is called once for them, whatever holds them."""
    calls = []

    @tw.torch.op(f"eager::pair_{kind.__name__}_{len(made_by)}", shape=("x", "x"))
    def pair(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(1)
        return kind([x + 1, x + 2])  # type: ignore[no-any-return]

    pair.backward(lambda one, two: one + two)
    for x in (values(4), values(4).requires_grad_()):
        for _ in range(3):
            calls.clear()
            found = pair(x)
            assert type(found) is tuple and torch.equal(found[1], x + 2) and len(calls) == 1


def test_graphs_of_functions_are_no_results(made_by: str) -> None:
    """Gradients are the operator's, also where a function enables its own."""

    @tw.torch.op(f"eager::tracked_{len(made_by)}", shape="x")
    def tracked(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return 2 * x.detach().requires_grad_()

    tracked.backward(lambda grad: 3 * grad)
    x = values(4)
    for _ in range(3):
        assert not tracked(x).requires_grad and torch.equal(tracked(x), 2 * x)
        given = x.clone().requires_grad_()
        tracked(given).sum().backward()
        assert torch.equal(given.grad, torch.full_like(x, 3))


@pytest.mark.parametrize("is_known", [False, True])
def test_kernels_that_users_register_are_called(made_by: str, is_known: bool) -> None:
    """Such as one for the CPU, in place of the simulator."""
    name = f"eager::replaced_{len(made_by)}_{is_known}"

    @tw.torch.op(name, shape="x")
    def replaced(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    replaced.backward(lambda grad: 3 * grad)
    x, wanted = values(4), values(4).requires_grad_()
    if is_known:
        assert torch.equal(replaced(x), 2 * x) and torch.equal(replaced(wanted), 2 * x)
    torch.library.register_kernel(name, "cpu", lambda x: 5 * x)
    for given in (x, wanted, x, wanted):
        assert torch.equal(replaced(given), 5 * x)
    replaced(wanted).sum().backward()
    assert torch.equal(wanted.grad, torch.full_like(x, 3))


@tw.kernel
def double_all(x):
    if tw.thread_idx.x < x.size:
        x[tw.thread_idx.x] = 2 * x[tw.thread_idx.x]


def test_inputs_that_are_written_are_told_to_autograd() -> None:
    """A kernel's writes are none that torch would see."""

    @tw.torch.op("eager::doubled_in_place", mutates="x")
    def double(x: torch.Tensor) -> None:
        double_all[1, 32](x)

    x, w = torch.ones(3), torch.ones(3, requires_grad=True)
    y = w * x
    double(x)
    assert x.tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_every_operator_is_known() -> None:
    """Law: none of our own operators always takes the long way."""
    found = [x for x in vars(operators).values() if isinstance(x, operators.Operator)]
    modules = [
        tw.torch.softmax,
        tw.torch.matmul,
        tw.torch.permute,
        tw.torch.attention,
        tw.torch.rope,
        tw.torch.cross_entropy,
    ]
    for function in modules:
        found += [x for x in function.__globals__.values() if isinstance(x, operators.Operator)]
    assert len(found) > 10 and all(x._inputs.is_known for x in found)
