"""`tw.torch.cross_entropy` gives torch's losses and gradients, for all that torch takes as labels of classes."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402  # after the skip
from tests.torch.test_ready import numbers  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.torch.losses import cross_entropy_backward_operator, cross_entropy_operator  # noqa: E402

LABELS = torch.tensor([2, -100, 0, 4])
OPTIONS: list[dict[str, Any]] = [
    {},
    {"reduction": "sum"},
    {"reduction": "none", "label_smoothing": 0.2},
    {"label_smoothing": 0.1},
    {"ignore_index": 0},
    {"weight": torch.arange(1.0, 6.0).double()},
    {"weight": torch.arange(1.0, 6.0).double(), "reduction": "none"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_losses_and_gradients_are_those_of_torch(options: dict[str, Any]) -> None:
    x = numbers(4, 5)
    labels = LABELS if "ignore_index" not in options else LABELS.clamp(min=0)
    found, expected = (f(x, labels, **options) for f in (tw.torch.cross_entropy, F.cross_entropy))
    assert found.shape == expected.shape and torch.allclose(found, expected)
    gradient = torch.randn_like(expected)
    assert torch.allclose(*(torch.autograd.grad(y, x, gradient)[0] for y in (found, expected)))


@pytest.mark.parametrize("shape", [(5,), (2, 5, 3), (2, 5, 3, 2), (0, 5)], ids=str)
def test_shapes(shape: tuple[int, ...]) -> None:
    x = numbers(*shape)
    rest = shape[:1] * (len(shape) > 1) + shape[2:]
    labels = torch.arange(int(torch.tensor(rest).prod())).reshape(rest) % 5 if rest else torch.tensor(3)
    found, expected = (f(x, labels, reduction="sum") for f in (tw.torch.cross_entropy, F.cross_entropy))
    assert torch.allclose(found, expected)
    assert torch.allclose(*(torch.autograd.grad(y, x)[0] for y in (found, expected)))


def test_gradients_and_theirs() -> None:
    for smoothing in (0.0, 0.3):
        x = numbers(4, 5)
        run = lambda x, e=smoothing: tw.torch.cross_entropy(x, LABELS, reduction="none", label_smoothing=e)  # noqa: E731
        assert torch.autograd.gradcheck(run, x)
        assert torch.autograd.gradgradcheck(run, x, fast_mode=True)


def test_torch_finds_nothing_wrong() -> None:
    x = numbers(4, 5, dtype=torch.float32)
    assert set(cross_entropy_operator.check(x, LABELS, -100, 0.1).values()) == {"SUCCESS"}
    ones = torch.ones(4)
    found = cross_entropy_backward_operator.check(ones, x.detach(), LABELS, ones, ones, -100, 0.0)
    assert set(found.values()) == {"SUCCESS"}


def test_compiled() -> None:
    x = numbers(4, 5)
    compiled = torch.compile(tw.torch.cross_entropy, fullgraph=True, backend="aot_eager", dynamic=True)
    pairs = [f(x, LABELS) for f in (compiled, F.cross_entropy)]
    assert torch.allclose(*pairs)
    assert torch.allclose(*(torch.autograd.grad(y, x)[0] for y in pairs))


def test_types_and_autocast() -> None:
    x = numbers(4, 5, dtype=torch.bfloat16)
    expected = F.cross_entropy(x.float(), LABELS)
    found = tw.torch.cross_entropy(x, LABELS.int())
    assert found.dtype == torch.bfloat16 and torch.allclose(found.float(), expected, 1e-2)
    assert torch.autograd.grad(found, x)[0].dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert tw.torch.cross_entropy(x, LABELS).dtype == torch.float32
    assert tw.torch.cross_entropy(x, torch.full((4,), -100)).isnan()


def test_tensors_without_memory() -> None:
    x = torch.empty(4, 5, device="meta", requires_grad=True)
    found = tw.torch.cross_entropy(x, torch.empty(4, dtype=torch.int64, device="meta"), torch.empty(5, device="meta"))
    assert found.shape == () and torch.autograd.grad(found, x)[0].shape == (4, 5)


def test_batches_of_vmap() -> None:
    x = numbers(3, 4, 5).detach()
    found = torch.vmap(tw.torch.cross_entropy, (0, None))(x, LABELS)
    assert torch.allclose(found, torch.stack([F.cross_entropy(v, LABELS) for v in x]))


def test_gradients_of_each_sample() -> None:
    """Labels that a transform wraps, however often, are looked at as any."""
    x, labels = numbers(3, 4, 5).detach(), torch.stack([LABELS, LABELS, LABELS.flip(0)])
    inner: Any = torch.func.grad
    for transform in (inner, torch.func.functionalize, lambda f: inner(lambda x, t: inner(f)(x, t).square().sum())):
        found, known = (torch.vmap(transform(f))(x, labels) for f in (tw.torch.cross_entropy, F.cross_entropy))
        assert torch.allclose(found, known, atol=1e-6)
    for call in (tw.torch.cross_entropy, inner(tw.torch.cross_entropy)):
        for given in ((call, x[0], labels[0] + 5), (torch.vmap(call), x, labels + 5)):
            with pytest.raises(IndexError, match="Target 7 is out of bounds"):
                given[0](*given[1:])


def test_what_is_ignored_or_impossible_is_as_in_torch() -> None:
    inf, nan = torch.inf, torch.nan
    calls = [
        ((torch.tensor([[-inf, 0.0, 1.0]]), torch.tensor([0])), {"label_smoothing": 0.3}),
        ((torch.tensor([[0.0, -inf, 1.0]]), torch.tensor([0])), {"label_smoothing": 0.3}),
        ((torch.zeros(2, 3), torch.tensor([1, -100]), torch.tensor([nan, 1, 1])), {}),
        ((torch.zeros(2, 3), torch.tensor([1, -100]), torch.tensor([inf, 1, 1])), {"reduction": "none"}),
        ((torch.zeros(2, 3), torch.tensor([0, 1], dtype=torch.uint8)), {"reduction": "sum"}),
    ]
    for given, options in calls:
        torch.testing.assert_close(
            tw.torch.cross_entropy(*given, **options), F.cross_entropy(*given, **options), equal_nan=False
        )


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: tw.torch.cross_entropy(torch.ones(2, 3), torch.ones(2, 3)), tw.ArgumentError, "numbers of classes"),
        (lambda: tw.torch.cross_entropy(torch.ones(2, 3), torch.tensor([0])), tw.ArgumentError, "target has the shape"),
        (
            lambda: tw.torch.cross_entropy(torch.ones(2, 3), torch.tensor([0, 3])),
            IndexError,
            "Target 3 is out of bounds",
        ),
        (lambda: tw.torch.cross_entropy(torch.ones(3), torch.tensor(0), reduction="max"), tw.ArgumentError, "'max'"),
        (lambda: tw.torch.cross_entropy(torch.ones(3), torch.tensor(0), label_smoothing=2.0), tw.ArgumentError, "2.0"),
        (lambda: tw.torch.cross_entropy([1.0], torch.tensor(0)), tw.ArgumentError, "input is a list"),
        (lambda: tw.torch.cross_entropy(torch.ones(()), torch.tensor(0)), tw.ArgumentError, "input is one number"),
        (
            lambda: tw.torch.cross_entropy(torch.ones(2, 3), torch.tensor([0, 1]), torch.ones(4)),
            tw.ArgumentError,
            "weight has the shape (4,), and there are 3 classes",
        ),
        (
            lambda: tw.torch.cross_entropy(torch.ones(2, 3, 5), torch.ones(2, 5).long(), torch.ones(3, 1)),
            tw.ArgumentError,
            "weight has the shape (3, 1), and there are 3 classes",
        ),
    ],
)
def test_refused(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
