"""Experts on several processes: values and gradients of one process, ragged extremes, bad input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch.distributed is not there", allow_module_level=True)

import torch.distributed as dist  # noqa: E402  # after the skip
from tests.torch import ranks  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.errors import ArgumentError  # noqa: E402
from tilewright.torch import experts  # noqa: E402

Tensor = Any
K, HIDDEN, N = 6, 5, 4


def numbers(*shape: int, seed: int, dtype: Any = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def near(found: Tensor, expected: Tensor, bound: float = 1e-12) -> None:
    assert found.shape == expected.shape and found.dtype == expected.dtype, (found.shape, expected.shape)
    assert torch.allclose(found, expected, atol=bound, rtol=bound), (found - expected).abs().max()


class Layer:
    """The layers of all ranks, of which each process knows all: what one process computes is compared with."""

    def __init__(
        self, counts: Sequence[Sequence[int]], count: int, behind: int = 0, dtype: Any = torch.float64
    ) -> None:
        self.counts, self.experts, size = [torch.tensor(row) for row in counts], count, len(counts)
        self.x = [
            numbers(int(sum(row)) + behind, K, seed=n, dtype=dtype).requires_grad_() for n, row in enumerate(counts)
        ]
        self.w1 = numbers(size * count, K, HIDDEN, seed=50, dtype=dtype).requires_grad_()
        self.w2 = numbers(size * count, HIDDEN, N, seed=51, dtype=dtype).requires_grad_()
        self.slopes = [numbers(len(x), N, seed=60 + n, dtype=dtype) for n, x in enumerate(self.x)]

    def own(self, w: Tensor, rank: int) -> Tensor:
        return w[rank * self.experts :][: self.experts]

    def by_torch(self) -> list[Tensor]:
        results = []
        for x, counts in zip(self.x, self.counts, strict=True):
            parts = x.split([*counts.tolist(), len(x) - int(counts.sum())])
            ys = [torch.relu(part @ w1) @ w2 for part, w1, w2 in zip(parts, self.w1, self.w2, strict=False)]
            results.append(torch.cat([*ys, parts[-1].new_zeros(len(parts[-1]), N)]))
        return results

    def call(self, rank: int, group: Any, x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        y, handle = tw.torch.dispatch_grouped_matmul(x, w1, self.counts[rank].cumsum(0), group)
        return tw.torch.grouped_matmul_combine(torch.relu(y), w2, handle, group, rows=len(x))

    def demand(self, rank: int, group: Any, bound: float = 1e-12, call: Callable[..., Tensor] | None = None) -> None:
        """Compare result and gradients of a rank with those of one process."""
        w1, w2 = (self.own(w.detach(), rank).clone().requires_grad_() for w in (self.w1, self.w2))
        y = (call or self.call)(rank, group, self.x[rank], w1, w2)
        results = self.by_torch()
        near(y, results[rank], bound)
        found = torch.autograd.grad(y, (self.x[rank], w1, w2), self.slopes[rank])
        total = sum((a * b).sum() for a, b in zip(results, self.slopes, strict=True))
        expected = torch.autograd.grad(total, (self.x[rank], self.w1, self.w2))
        near(found[0], expected[0], bound)
        for ours, theirs in zip(found[1:], expected[1:], strict=True):
            near(ours, self.own(theirs, rank), bound)


def layers(size: int) -> list[Layer]:
    """Return what is usual, and what is at the ends: all for one expert, nothing, ranks without rows."""
    random = torch.Generator().manual_seed(size)
    usual = torch.randint(0, 4, (size, 2 * size), generator=random).tolist()
    one = [[3 if e == 1 else 0 for e in range(2 * size)] for _ in range(size)]
    first_alone = [[1 if n == 0 else 0] * size for n in range(size)]
    last_receives = [[0] * (size - 1) + [n] for n in range(size)]
    none = [[0] * size for _ in range(size)]
    return [Layer(usual, 2), Layer(usual, 2, behind=2), Layer(one, 2), *(Layer(c, 1) for c in (first_alone, last_receives, none))]  # fmt: skip


def parts_and_handles(rank: int, size: int) -> None:
    """What comes between the two products: the parts of ranks in order, and in each those of experts."""
    layer = layers(size)[0]
    w = layer.own(layer.w1, rank)
    y, handle = tw.torch.dispatch_grouped_matmul(layer.x[rank], w, layer.counts[rank].cumsum(0).int())
    assert handle.dtype is torch.int64 and not handle.requires_grad
    assert torch.equal(handle[0].flatten(), layer.counts[rank].cumsum(0))
    own = torch.stack([layer.own(c, rank) for c in layer.counts])
    assert torch.equal(handle[1], own.cumsum(1))
    parts = [
        x.split(c.tolist())[rank * 2 + e] @ w[e] for x, c in zip(layer.x, layer.counts, strict=True) for e in (0, 1)
    ]
    near(y, torch.cat(parts))


def gradients_of_one_operand(rank: int, size: int) -> None:
    """A part of the gradients, as with frozen weights; on no rank it may leave out an exchange that others make."""
    for layer in (layers(size)[0], layers(size)[4]):
        x, w1, w2 = layer.x[rank].detach(), *(layer.own(w.detach(), rank).clone() for w in (layer.w1, layer.w2))
        for n in range(3):
            given = [t.clone().requires_grad_(n == place) for place, t in enumerate((x, w1, w2))]
            (found,) = torch.autograd.grad(layer.call(rank, None, *given), given[n], layer.slopes[rank])
            total = sum((a * b).sum() for a, b in zip(layer.by_torch(), layer.slopes, strict=True))
            (expected,) = torch.autograd.grad(total, (layer.x[rank], layer.w1, layer.w2)[n])
            near(found, expected if n == 0 else layer.own(expected, rank))


def other_types(rank: int, size: int) -> None:
    Layer([[2, 1] * size for _ in range(size)], 2, dtype=torch.float32).demand(rank, None, 1e-4)
    layer = Layer([[2, 1] * size for _ in range(size)], 2, dtype=torch.bfloat16)
    w1, w2 = (layer.own(w.detach(), rank).clone() for w in (layer.w1, layer.w2))
    y = layer.call(rank, None, layer.x[rank], w1, w2)
    assert y.dtype is torch.bfloat16 and (y.double() - layer.by_torch()[rank].double()).abs().max() < 0.2
    with torch.autocast("cpu", torch.bfloat16):
        again = layer.call(rank, None, layer.x[rank].float(), w1.float(), w2.float())
    assert torch.equal(again, y)


def refused(rank: int, size: int) -> None:
    x, w = torch.ones(4, K), torch.ones(1, K, N)
    ends = torch.arange(1, size + 1).clamp(max=4)

    def fails(message: str, call: Callable[[], object]) -> None:
        with pytest.raises(ArgumentError) as caught:
            call()
        assert message in str(caught.value), str(caught.value)

    dispatch, combine = tw.torch.dispatch_grouped_matmul, tw.torch.grouped_matmul_combine
    fails("x is torch.int64 of shape", lambda: dispatch(x.long(), w, ends))
    fails("x is a list, and", lambda: dispatch([x], w, ends))
    fails("w is torch.float32 of shape (6, 4)", lambda: dispatch(x, w[0], ends))
    fails("x has the shape (4, 5) and w (1, 6, 4)", lambda: dispatch(x[:, :5], w, ends))
    fails("x is torch.float32 and w is torch.float16", lambda: dispatch(x, w.half(), ends))
    fails("offsets is torch.float32 of shape", lambda: dispatch(x, w, ends.float()))
    fails("offsets is a list", lambda: dispatch(x, w, ends.tolist()))
    fails(f"there are {size - 1} offsets, and {size} ranks with 1 experts", lambda: dispatch(x, w, ends[1:]))
    fails("group is 'mesh'", lambda: dispatch(x, w, ends, "mesh"))
    # On one rank, and an error on all.
    last = rank == size - 1
    fails(f"rank {size - 1} has 4 rows, and its offsets decrease", lambda: dispatch(x, w, ends + 9 * last))
    fails(
        f"rank {size - 1} has 4 rows, and its offsets decrease", lambda: dispatch(x, w, ends.flip(0) if last else ends)
    )
    fails("different numbers of experts", lambda: dispatch(x, w.repeat(1 + last, 1, 1), ends.repeat(1 + last)))
    fails("or types", lambda: dispatch(*(t.to((torch.float32, torch.float64)[last]) for t in (x, w)), ends))
    y, handle = dispatch(x, w, ends)
    back = torch.ones(1, N, K)
    fails("handle is torch.int32", lambda: combine(y, back, handle.int()))
    fails("handle is torch.int64 of shape (2, 1, 1)" if size > 1 else "", lambda: combine(y, back, handle[:, :1]))
    fails("do not belong to one dispatch", lambda: combine(y, back, handle + last))
    fails(f"there are {len(y) + 1} rows that arrived", lambda: combine(torch.cat([y, y[:1]]), back, handle))
    fails("of this rank's own, and the handle is for", lambda: combine(y, back, handle, rows=0))

    # What one rank alone can see, and an error on all.
    def on_last(message: str, right: Callable[[], object], wrong: Callable[[], object], function: str) -> None:
        fails(
            message if last else f"{function} is refused on rank {size - 1}, which says why", wrong if last else right
        )

    for message, given in (
        ("offsets is torch.float32 of shape", (x, w, ends.float())),
        (f"there are {size - 1} offsets", (x, w, ends[1:])),
        ("x has the shape (4, 5) and w (1, 6, 4)", (x[:, :5], w, ends)),
        ("x is a list", ([x], w, ends)),
    ):
        on_last(message, lambda: dispatch(x, w, ends), lambda given=given: dispatch(*given), "dispatch_grouped_matmul")
    for message, rows, more in (
        (f"there are {len(y) + 1} rows that arrived", torch.cat([y, y[:1]]), {}),
        ("of this rank's own, and the handle is for", y, {"rows": 0}),
    ):
        if size > 1:
            on_last(message, lambda: combine(y, back, handle), lambda rows=rows, more=more: combine(rows, back, handle, **more),
                    "grouped_matmul_combine")  # fmt: skip
    assert combine(y, back, handle).shape == (size if size < 4 else 4, K)  # the group is as it was


def twice(rank: int, size: int) -> None:
    """Gradients of gradients with respect to weights are refused, and not wrong."""
    layer = layers(size)[0]
    w1, w2 = (layer.own(w.detach(), rank).clone().requires_grad_() for w in (layer.w1, layer.w2))
    y = layer.call(rank, None, layer.x[rank], w1, w2)
    (slope,) = torch.autograd.grad((y**2).sum(), w1, create_graph=True)
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.autograd.grad(slope.sum(), w2)


def main(folder: Path) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.use_deterministic_algorithms(True)  # then memory that nobody has written holds NaN, and not zeros by chance
    for layer in layers(size)[1::2]:
        layer.demand(rank, None)
    parts_and_handles(rank, size)
    refused(rank, size)


def main_of_more(folder: Path) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for layer in layers(size)[::2]:
        layer.demand(rank, None)
    for check in (gradients_of_one_operand, other_types, twice):
        check(rank, size)


def in_parts(folder: Path) -> None:
    """Two groups of two: ranks of a group are not those of all processes. And groups of one."""
    rank = dist.get_rank()
    groups = [dist.new_group([0, 2]), dist.new_group([3, 1])]
    group = groups[rank % 2]
    assert isinstance(group, dist.ProcessGroup)
    for layer in layers(2)[:2]:
        layer.demand(dist.get_rank(group), group)
    alone = [dist.new_group([n]) for n in range(4)][rank]
    for layer in layers(1):
        layer.demand(0, alone)


def compiled(folder: Path) -> None:
    """One graph for any number of rows that arrive; the number is a symbol, for which torch asks to be configured."""
    rank = dist.get_rank()
    torch._dynamo.config.capture_scalar_outputs = True
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    def block(x: Tensor, w1: Tensor, w2: Tensor, offsets: Tensor) -> Tensor:
        y, handle = tw.torch.dispatch_grouped_matmul(x, w1, offsets)
        return tw.torch.grouped_matmul_combine(torch.relu(y), w2, handle, rows=x.shape[0])

    fast = torch.compile(block, fullgraph=True, backend=backend)
    for counts in ([[1, 2, 0, 3], [4, 0, 1, 1]], [[0, 6, 0, 0], [0, 5, 1, 0]]):
        layer = Layer(counts, 2)
        offsets = layer.counts[rank].cumsum(0)
        layer.demand(rank, None, call=lambda rank, group, *given, offsets=offsets: fast(*given, offsets))
    assert len(graphs) == 1, len(graphs)


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_experts_of_ranks(count: int) -> None:
    ranks.run(main, count)


@pytest.mark.slow
def test_types_and_parts_of_gradients() -> None:
    ranks.run(main_of_more, 2)


@pytest.mark.slow
def test_compiled() -> None:
    ranks.run(compiled, 2)


@pytest.mark.slow
def test_groups_of_some_ranks() -> None:
    ranks.run(in_parts, 4)


def test_fake_tensors_transfer_nothing() -> None:
    x, w, handle = torch.ones(3, K, device="meta"), torch.ones(2, K, N, device="meta"), torch.zeros(2, 1, 2).long()
    y, received = experts._dispatched_shapes(x, w, handle, 7, "")
    assert (y.shape, received.shape, y.device.type) == ((7, N), (7, K), "meta")


def test_without_a_group() -> None:
    with pytest.raises(ArgumentError, match="there is none"):
        tw.torch.dispatch_grouped_matmul(torch.ones(2, 2), torch.ones(1, 2, 2), torch.tensor([2]))
