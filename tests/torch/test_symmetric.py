"""Products over symmetric memory: on simulated ranks, on several GPUs, and what is refused."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch.distributed is not there", allow_module_level=True)

import torch.distributed as dist  # noqa: E402  # after the skip

import tilewright as tw  # noqa: E402
from tilewright.backends.sim import Rank  # noqa: E402
from tilewright.errors import ArgumentError  # noqa: E402
from tilewright.torch import exchange, symmetric  # noqa: E402


class Simulated:
    """A group of symmetric memory made of a simulated rank."""

    def __init__(self, rank: Rank) -> None:
        self.rank, self.size, self._of = rank.rank, rank.size, rank
        self._buffers: dict[Any, Any] = {}

    def buffer(self, kind: str, shape: tuple[int, int], dtype: Any) -> Any:
        key = kind, shape, dtype
        if key not in self._buffers:
            self._buffers[key] = tw.distributed.ExchangeBuffer(self._of, shape, str(dtype).removeprefix("torch."))
        return self._buffers[key]


def numbers(seed: int, *shape: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).to(torch.float16)  # every sum of them is exact


@pytest.mark.parametrize("columns", [(5, 8), (0, 8)], ids=str)
def test_gathered_products_of_simulated_ranks(columns: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank without columns of its own sends its rows all the same."""
    monkeypatch.setattr(symmetric, "_group", lambda x, group: group)
    x = [numbers(n, 4, 2, 24) for n in range(2)]
    w = [numbers(9 + n, 24, count) for n, count in enumerate(columns)]

    def main(rank: Rank) -> bool:
        y = symmetric.gathered(x[rank.rank], w[rank.rank], Simulated(rank))
        return y is not None and torch.equal(y, torch.cat(x) @ w[rank.rank])

    assert tw.simulate(ranks=2).run(main) == [True, True]


@pytest.mark.parametrize("depths", [(24, 16), (0, 16)], ids=str)
def test_scattered_sums_of_simulated_ranks(depths: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank without a part of K gets its rows of the sum all the same."""
    monkeypatch.setattr(symmetric, "_group", lambda x, group: group)
    x = [numbers(n, 4, 2, depth) for n, depth in enumerate(depths)]
    w = [numbers(9 + n, depth, 8) for n, depth in enumerate(depths)]
    expected = sum((a @ b for a, b in zip(x, w, strict=True)), torch.zeros(4, 2, 8, dtype=torch.float16))

    def main(rank: Rank) -> bool:
        own, more = Simulated(rank), numbers(20 + rank.rank, 2, 2, 8)
        found = [symmetric.scattered(x[rank.rank], w[rank.rank], own, residual) for residual in (None, more)]
        mine = expected.chunk(2)[rank.rank]
        return torch.equal(found[0], mine) and torch.equal(found[1], mine + more)

    assert tw.simulate(ranks=2).run(main) == [True, True]


Call = tuple[Any, Any, Any]  # of each rank: the gradient of its result, x and w


def gathered_calls(number: int, counts: tuple[int, int]) -> tuple[list[Call], list[tuple[Any, Any]]]:
    """Return arguments and results for w with that many columns; slots of 3 x 2 x 10 halves have a rest."""
    x = [numbers(n, 3, 2, 10) for n in range(2)]
    calls = [
        (numbers(20 + 2 * number + n, 6, 2, count), x[n], numbers(9 + n, count, 10).mT)
        for n, count in enumerate(counts)
    ]
    of_x = sum((slope @ w.mT for slope, _, w in calls), torch.zeros(6, 2, 10, dtype=torch.float16)).chunk(2)
    return calls, [
        (of_x[n], torch.cat(x).flatten(0, -2).mT @ slope.flatten(0, -2)) for n, (slope, _, _) in enumerate(calls)
    ]


def scattered_calls(number: int, counts: tuple[int, int]) -> tuple[list[Call], list[tuple[Any, Any]]]:
    """Return arguments and results for x of that many columns."""
    slopes = [numbers(20 + 2 * number + n, 3, 2, 10) for n in range(2)]
    whole = torch.cat(slopes)
    calls = [(slopes[n], numbers(n, 6, 2, count), numbers(9 + n, 10, count).mT) for n, count in enumerate(counts)]
    return calls, [(whole @ w.mT, x.flatten(0, -2).mT @ whole.flatten(0, -2)) for _, x, w in calls]


@pytest.mark.parametrize(
    ("calls", "operator"),
    [
        (gathered_calls, exchange.all_gather_gradients_operator),
        (scattered_calls, exchange.reduce_scatter_gradients_operator),
    ],
    ids=["all_gather", "reduce_scatter"],
)
def test_gradients_of_simulated_ranks(calls: Any, operator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of all ranks are read where they arrived, in slots that alternate, and nothing goes another way.

    A rank whose weight is empty sends its rows all the same.
    """
    groups: dict[str, Simulated] = {}
    monkeypatch.setattr(symmetric, "_group", lambda x, group: group)
    monkeypatch.setattr(exchange, "group_of", groups.__getitem__)
    monkeypatch.delattr(exchange, "_gathered_products")

    def main(rank: Rank) -> int:
        groups[f"{rank.rank}"] = Simulated(rank)
        compared = 0
        for number, asked in enumerate(((True, True), (False, True), (True, True), (True, False))):
            arguments, results = calls(number, (5, 0))
            found = operator.__wrapped__(*arguments[rank.rank], f"{rank.rank}", *asked)
            expected = [t for t, is_asked in zip(results[rank.rank], asked, strict=True) if is_asked]
            for ours, theirs in zip(found, expected, strict=True):
                assert torch.equal(ours, theirs)
                compared += 1
            if asked[1]:  # as w lies, or torch would copy it
                assert found[-1].stride() == arguments[rank.rank][2].stride()
        return compared

    assert tw.simulate(ranks=2).run(main) == [6, 6]


@pytest.mark.parametrize("are_read", [True, False])
def test_several_products_of_graphs_by_simulated_ranks(are_read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With biases or without, and rows that stay when the next call has written the slots; nothing goes another way."""
    groups: dict[str, Simulated] = {}
    monkeypatch.setattr(symmetric, "_group", lambda x, group: group)
    monkeypatch.setattr(exchange, "group_of", groups.__getitem__)
    for name in ("_gathered_products", "_scattered_products"):
        monkeypatch.delattr(exchange, name)
    x, more = ([numbers(n + seed, 4, 2, 24) for n in range(2)] for seed in (0, 40))
    gather, scatter = exchange.gathered_products_operator, exchange.scattered_products_operator

    def main(rank: Rank) -> bool:
        name, n = f"{rank.rank}", rank.rank
        groups[name] = Simulated(rank)
        weights, biases = [numbers(9 + n, 24, 8), numbers(11 + n, 24, 5)], [numbers(13 + n, 16)[::2], None]
        calls = [gather.__wrapped__(each[n], weights, biases, name, are_read) for each in (x, more, more)]
        for (rows, *found), each in zip(calls, (x, more, more), strict=True):
            whole = torch.cat(each)
            assert torch.equal(rows, whole) if are_read else rows.numel() == 0
            assert torch.equal(found[0], whole @ weights[0] + biases[0]) and torch.equal(found[1], whole @ weights[1])
        downs, offsets = [numbers(20 + n, 24, 8), numbers(22 + n, 24, 8)], [None, numbers(24 + n, 8)]
        y = scatter.__wrapped__([x[n], more[n]], downs, offsets, name)
        sums = [x[r] @ numbers(20 + r, 24, 8) + more[r] @ numbers(22 + r, 24, 8) + numbers(24 + r, 8) for r in range(2)]
        return torch.equal(y, sum(sums).chunk(2)[n])

    assert tw.simulate(ranks=2).run(main) == [True, True]


def test_groups_without_gpus_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="takes a process group, and there is none"):
        tw.torch.use_symmetric_memory()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        with pytest.raises(ArgumentError, match="processes that have a GPU each, in a group with the backend nccl"):
            tw.torch.use_symmetric_memory()
        with pytest.raises(ArgumentError, match="group is 3, and a process group is expected"):
            tw.torch.SymmetricGroup(3)
    finally:
        dist.destroy_process_group()


def test_switching_does_not_look_at_a_known_group_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is refused here where it is looked at. Names come again with new groups, which are not known."""

    def switch(group: Any, enabled: bool) -> bool:
        tw.torch.use_symmetric_memory(group, enabled)
        return str(dist.group.WORLD.group_name) in symmetric._enabled

    monkeypatch.setattr(symmetric, "_enabled", set())
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        world = dist.group.WORLD
        monkeypatch.setattr(symmetric, "_groups", {world.group_name: SimpleNamespace(group=world)})
        assert [switch(*each) for each in ((None, True), (world, True), (None, False), (world, False))] == [
            True, True, False, False,
        ]  # fmt: skip
        monkeypatch.setattr(symmetric, "_groups", {world.group_name: SimpleNamespace(group=object())})
        with pytest.raises(ArgumentError, match="in a group with the backend nccl"):
            switch(None, True)
        assert not symmetric._enabled
    finally:
        dist.destroy_process_group()
    monkeypatch.setattr(symmetric, "_groups", {"None": SimpleNamespace(group=None)})
    with pytest.raises(ArgumentError, match="takes a process group, and there is none"):
        switch(None, True)


# --- on GPUs -------------------------------------------------------------------------------------------------


def near(found: Any, expected: Any) -> None:
    error = float((found.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-30))
    assert found.shape == expected.shape and error < 1e-2, (tuple(found.shape), error)


def through(function: Any, x: Any, w: Any) -> tuple[Any, ...]:
    """Return the result and its gradients: both of one backward pass, then that of w alone."""
    found = []
    for given in ((x, w), (x.detach(), w)):
        y = function(*given)
        slope = torch.ones_like(y) * (1 + dist.get_rank())
        found += [y.detach(), *torch.autograd.grad(y, [t for t in given if t.requires_grad], slope)]
    return tuple(found)


def compare(rank: int, size: int, shape: tuple[int, int, int], dtype: Any, compiles: bool = False) -> None:
    """Compare values and gradients of both products with those by NCCL, several times as slots alternate."""
    rows, columns, depth = shape
    functions = [lambda x, w, f=f: f(x, w.mT) for f in (tw.torch.all_gather_matmul, tw.torch.matmul_reduce_scatter)]
    ours = [torch.compile(function, fullgraph=True) for function in functions] if compiles else functions
    for call in range(3):
        generator = torch.Generator("cuda").manual_seed(10 * call + rank)

        def normal(*extents: int, generator: Any = generator) -> Any:
            return torch.randn(*extents, generator=generator, device="cuda").to(dtype).requires_grad_()

        inputs = [(normal(n * rows, depth), normal(columns, depth)) for n in (1, size)]
        tw.torch.use_symmetric_memory(enabled=False)
        expected = [through(function, *given) for function, given in zip(functions, inputs, strict=True)]
        tw.torch.use_symmetric_memory()
        by_group, exchange._gathered_products = exchange._gathered_products, None  # type: ignore[assignment]
        torch.cuda._sleep((rank + call) % size * 10_000_000)  # ranks are at different places
        found = [through(function, *given) for function, given in zip(ours, inputs, strict=True)]
        exchange._gathered_products = by_group
        for one, other in zip(sum(found, ()), sum(expected, ()), strict=True):
            near(one, other)


def on_gpus(rank: int, size: int, folder: str) -> None:
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{folder}/group", rank=rank, world_size=size)
    for dtype in (torch.bfloat16, torch.float16):
        for shape in (
            (512, 512, 1024),
            (2560, 1024, 512),
            (4096, 1024, 2048),
            (129, 264, 200),
            (64, 65, 72),
            (16, 40, 20),
            (3000, 264, 64),
        ):
            compare(rank, size, shape, dtype)
    compare(rank, size, (512, 512, 1024), torch.bfloat16, compiles=True)
    for extent in range(64, 64 * 20, 64):  # more kinds than are kept
        compare(rank, size, (extent, 64, 64), torch.bfloat16)
    dist.destroy_process_group()


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_products_on_gpus_are_those_by_nccl() -> None:
    size = torch.cuda.device_count()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(on_gpus, args=(size, folder), nprocs=size)
