"""Tensors whose memory was freed, as FSDP frees that of parameters: refused in every way in which a kernel gets them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright.backends.sim import Rank  # noqa: E402
from tilewright.errors import ArgumentError  # noqa: E402


@tw.kernel
def double(y, x):
    i = tw.thread_idx.x
    if i < y.size:
        y[i] = 2 * x[i]


@tw.kernel
def add(y, xs):
    i = tw.thread_idx.x
    y[i] = xs[0][i] + xs[1][i]


def ones(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.ones(shape, dtype=dtype)


def freed(*shape: int, dtype: Any = torch.float32) -> Any:
    """Return a tensor without memory, whose pointer is null."""
    made = ones(*shape, dtype=dtype)
    made.untyped_storage().resize_(0)
    assert made.data_ptr() == 0
    return made


def freed_view(*shape: int) -> Any:
    """Return a view of a tensor without memory: its pointer is its offset."""
    whole = ones(2, *shape)
    view = whole[1]
    whole.untyped_storage().resize_(0)
    assert view.data_ptr() == 4 * view.numel()
    return view


def gathered(rank: Rank, name: str) -> None:
    buffer = tw.distributed.ExchangeBuffer(rank, (8, 16), "float32")
    given = {"x": ones(8, 16), "w": ones(16, 8), "out": ones(16, 8), "bias": ones(8)}
    given[name] = freed(*given[name].shape)
    tw.distributed.all_gather_matmul(given["x"], given["w"], given["out"], buffer, given["bias"])


def after(function: Callable[..., Any], *args: Any, **changed: Any) -> Callable[[], Any]:
    """Return a call of a kind that was met before, of which arguments are others: those of a name or a place."""

    def call() -> Any:
        for _ in range(3):
            function(*args)
        places = [changed.pop(f"a{n}", x) for n, x in enumerate(args)]
        return function(*places, **changed)

    return call


def matmul(**options: Any) -> Callable[[], Any]:
    return lambda: tw.matmul(ones(32, 32), ones(32, 32), **options)


def ranks(name: str) -> Callable[[], Any]:
    return lambda: tw.simulate(ranks=2).run(lambda rank: gathered(rank, name))


launch, matrix = double[1, 32], ones(32, 32)
WAYS: dict[str, tuple[str, Callable[[], Any]]] = {
    "launch": ("argument 'x'", lambda: launch(ones(32), freed(32))),
    "launch that writes": ("argument 'y'", lambda: launch(freed(32), ones(32))),
    "launch of a view": ("argument 'x'", lambda: launch(ones(32), freed_view(32))),
    "launch of one element": ("argument 'x'", lambda: launch(ones(1), freed())),
    "launch that is repeated": ("argument 'x'", after(launch, ones(32), ones(32), a1=freed_view(32))),
    "prepared launch": ("argument 'x'", lambda: launch.prepare(ones(32), freed(32))),
    "static": ("argument 'x'", lambda: launch(ones(32), tw.static(freed(32)))),
    "list": ("argument 'xs[1]'", after(add[1, 32], ones(32), [ones(32), ones(32)], a1=[ones(32), freed_view(32)])),
    "addresses": ("tw.addresses: arrays[1]", lambda: tw.addresses([ones(4), freed(4)])),
    "source": ("x", lambda: double.source(ones(32), freed(32))),
    "analyze": ("x", lambda: launch.analyze(ones(32), x=freed(32))),
    "analyze, list": ("xs[1]", lambda: add[1, 32].analyze(ones(32), [ones(32), freed(32)])),
    "matmul": ("argument 'b'", lambda: tw.matmul(matrix, freed(32, 32))),
    "matmul that is repeated": ("argument 'b'", after(tw.matmul, matrix, matrix, a1=freed_view(32, 32))),
    "matmul, bias": ("argument 'bias'", matmul(bias=freed(32))),
    "matmul, out": ("argument 'out'", matmul(out=freed(32, 32))),
    "matmul, seed": ("seed", lambda: matmul(epilogue=tw.dropout(0.5, freed(1, dtype=torch.int64)))()),
    "matmul, captured": ('argument "the epilogue\'s x"', lambda x=freed(32): matmul(epilogue=lambda acc: acc * x)()),
    "prepared matmul": ("argument 'b'", lambda: tw.matmul.prepare(matrix, freed(32, 32))),
    "softmax that is repeated": ("x", after(tw.softmax, matrix, a0=freed_view(32, 32))),
    "attention": ("k", lambda: tw.attention(ones(1, 1, 16, 16), freed(1, 1, 16, 16), ones(1, 1, 16, 16))),
    "grouped": ("b", lambda: tw.grouped_matmul(ones(16, 16), freed(2, 16, 16), torch.tensor([8, 16]))),
    "grouped, offsets": (
        "offsets",
        lambda: tw.grouped_matmul(ones(16, 16), ones(2, 16, 16), freed(2, dtype=torch.int64)),
    ),
    "grouped list": ("b[1]", lambda: tw.grouped_matmul([ones(16, 16)] * 2, [ones(16, 16), freed_view(16, 16)])),
    "grouped list, out": ("out[0]", lambda: tw.grouped_matmul([ones(16, 16)], [ones(16, 16)], out=[freed(16, 16)])),
    "operator": ("argument 'b'", lambda: tw.torch.matmul(matrix, freed(32, 32))),
    "operator, gradient": ("argument 'b'", lambda: tw.torch.matmul(matrix, freed(32, 32).requires_grad_())),
    **{f"ranks, {name}": (f"all_gather_matmul: {name}", ranks(name)) for name in ("x", "w", "out", "bias")},
}


@pytest.mark.parametrize("way", WAYS)
def test_freed_memory_is_refused_by_name(way: str) -> None:
    name, call = WAYS[way]
    with pytest.raises(ArgumentError, match=f"^{re.escape(name)} cannot be used: its memory was freed: .* null"):
        call()


def test_tensors_without_elements_need_no_memory() -> None:
    for _ in range(3):
        launch(freed(0), freed(0, 3))
    assert tw.matmul(freed(8, 0), freed(0, 8)).tolist() == torch.zeros(8, 8).tolist()
    assert tw.softmax(freed(0, 32)).shape == (0, 32)


def test_memory_that_is_back_is_taken_again() -> None:
    x, y = freed(32), ones(32)
    with pytest.raises(ArgumentError):
        launch(y, x)
    x.untyped_storage().resize_(128)
    launch(y, x.fill_(3))
    assert y.tolist() == [6.0] * 32
