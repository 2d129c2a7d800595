"""Products over several processes: values and gradients of one process, bad input, and ranks that die."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
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
from tilewright.torch import exchange  # noqa: E402

Tensor = Any


def numbers(*shape: int, seed: int, dtype: Any = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def parts(count: int, rows: int, *middle: int, dtype: Any = torch.float64) -> tuple[list[Tensor], list[Tensor]]:
    """Return x and w of each rank: all ranks know all of them, to compare with. Ranks' columns differ, and w's layout."""
    x = [numbers(rows, *middle, 6, seed=n, dtype=dtype) for n in range(count)]
    w = [numbers(6, 3 + n, seed=9 + n, dtype=dtype) for n in range(count)]
    return x, [each if n % 2 else each.mT.contiguous().mT for n, each in enumerate(w)]


def near(found: Tensor, expected: Tensor, bound: float = 1e-12) -> None:
    assert found.shape == expected.shape and found.dtype == expected.dtype, (found.shape, expected.shape)
    assert torch.allclose(found, expected, atol=bound, rtol=bound), (found - expected).abs().max()


def gathers(rank: int, size: int, group: Any) -> None:
    """Rows of all ranks times the columns of each, and gradients that sum up what all ranks make of one's rows."""
    for middle in ((), (2,)):
        x, w = parts(size, 3, *middle)
        if middle:
            w[0] = w[0][:, :0]  # others want the rank's rows all the same
        for t in (*x, *w):
            t.requires_grad_()
        y = tw.torch.all_gather_matmul(x[rank], w[rank], group)
        results = [torch.cat(x) @ each for each in w]
        near(y, results[rank])
        slopes = [numbers(*result.shape, seed=20 + n) for n, result in enumerate(results)]
        found = torch.autograd.grad(y, (x[rank], w[rank]), slopes[rank])
        total = sum((result * slope).sum() for result, slope in zip(results, slopes, strict=True))
        for ours, expected in zip(found, torch.autograd.grad(total, (x[rank], w[rank])), strict=True):
            near(ours, expected)
        assert found[1].stride() == w[rank].stride() or not found[1].numel()
        near(
            torch.autograd.grad(tw.torch.all_gather_matmul(x[rank], w[rank], group), w[rank], slopes[rank])[0], found[1]
        )


def scatters(rank: int, size: int, group: Any) -> None:
    """Parts of K of each rank, of different length, and of one rank none."""
    for middle in ((), (2,)):
        depth = [0 if n == 1 else 4 + n for n in range(size)]
        x = [numbers(2 * size, *middle, k, seed=n).requires_grad_() for n, k in enumerate(depth)]
        w = [numbers(k, 5, seed=9 + n).requires_grad_() for n, k in enumerate(depth)]
        whole = sum(a @ b for a, b in zip(x, w, strict=True))
        y = tw.torch.matmul_reduce_scatter(x[rank], w[rank], group)
        near(y, whole.chunk(size)[rank])
        more = numbers(*y.shape, seed=31 + rank).requires_grad_()
        sums = tw.torch.matmul_reduce_scatter(x[rank], w[rank], group, residual=more)
        near(sums, y + more)
        for inputs in ((x[rank], more), (more,)):  # without x and w nothing is exchanged
            near(torch.autograd.grad(sums, inputs, torch.ones_like(sums), retain_graph=True)[-1], torch.ones_like(more))
        slopes = numbers(*whole.shape, seed=30)
        found = torch.autograd.grad(y, (x[rank], w[rank]), slopes.chunk(size)[rank])
        expected = torch.autograd.grad(whole, (x[rank], w[rank]), slopes, retain_graph=True)
        for ours, theirs in zip(found, expected, strict=True):
            near(ours, theirs)
        for rows in (2 * size, 2 * size + 1):  # the ranks divide these, and not those
            a = [torch.cat((t, t[:1]))[:rows] for t in x]
            y = tw.torch.matmul_all_reduce(a[rank], w[rank], group)
            near(y, sum(s @ t for s, t in zip(a, w, strict=True)))
        near(*(torch.autograd.grad(s, w[rank], torch.ones_like(y))[0] for s in (y, a[rank] @ w[rank])))


def other_types(rank: int, size: int, group: Any) -> None:
    """Sums of bfloat16 are rounded once from parts that were; autocast; float32 as torch is set."""
    x, w = parts(size, 2 * size, dtype=torch.bfloat16)
    shared = numbers(6, 8, seed=1, dtype=torch.bfloat16)
    products = [(a.double() @ shared.double()).to(torch.bfloat16) for a in x]
    y = tw.torch.matmul_reduce_scatter(x[rank], shared, group)
    expected = torch.stack(products).double().sum(0).to(torch.bfloat16).chunk(size)[rank]
    assert (y.double() - expected.double()).abs().max() < 0.1 and y.dtype is torch.bfloat16
    again = tw.torch.matmul_reduce_scatter(x[rank], shared, group)
    assert torch.equal(y, again)
    with torch.autocast("cpu", torch.bfloat16):
        found = tw.torch.all_gather_matmul(x[rank].float(), shared.float(), group)
    assert found.dtype is torch.bfloat16
    assert torch.equal(found, tw.torch.all_gather_matmul(x[rank], shared, group))
    assert tw.torch.all_gather_matmul(x[rank][:0], w[rank], group).shape == (0, 3 + rank)


def compiled(rank: int, size: int, group: Any) -> None:
    x, w = parts(size, 3)

    def block(x: Tensor, w: Tensor) -> Tensor:
        y = torch.relu(tw.torch.all_gather_matmul(x, w, group))
        return tw.torch.matmul_reduce_scatter(y, w.t(), group, residual=x)

    a = x[rank].requires_grad_()
    w = w[0].requires_grad_()
    expected = block(a, w)
    found = torch.compile(block, fullgraph=True, backend="aot_eager")(a, w)
    near(found, expected)
    for ours, theirs in zip(*(torch.autograd.grad(y.sum(), (a, w)) for y in (found, expected)), strict=True):
        near(ours, theirs)


def refused(rank: int, size: int, group: Any) -> None:
    x = torch.ones(2 * size, 4)

    def fails(message: str, call: Callable[[], object]) -> None:
        with pytest.raises(ArgumentError) as caught:
            call()
        assert message in str(caught.value), str(caught.value)

    fails("x has the shape (4, 4) and w (3, 4)" if size == 2 else "and w (3, 4)",
          lambda: tw.torch.all_gather_matmul(x, torch.ones(3, 4), group))  # fmt: skip
    fails("ranks do not divide", lambda: tw.torch.matmul_reduce_scatter(x[1:], torch.ones(4, 3), group))
    fails("residual is (4, 3) of torch.float32, and the result (2, 3)",
          lambda: tw.torch.matmul_reduce_scatter(x[:1].repeat(2 * size, 1), x[:1, :3].repeat(4, 1), group,
                                                 residual=torch.ones(4, 3)))  # fmt: skip
    fails("residual is a list, and a tensor is expected",
          lambda: tw.torch.matmul_reduce_scatter(torch.ones(4, 2), torch.ones(2, 3), residual=[1.0]))  # fmt: skip
    fails("x is torch.int32", lambda: tw.torch.matmul_all_reduce(x.int(), torch.ones(4, 3), group))
    fails("x is torch.float32 and w is torch.float16", lambda: tw.torch.all_gather_matmul(x, x.T.half(), group))
    fails("group is 'mesh'", lambda: tw.torch.all_gather_matmul(x, x.T, "mesh"))
    for function in (tw.torch.all_gather_matmul, tw.torch.matmul_reduce_scatter, tw.torch.matmul_all_reduce):
        fails("with different shapes", lambda: function(x.repeat(1 + (rank == 1), 1), torch.ones(4, 3), group))
        fails("or types", lambda: function(*(t.to((torch.float32, torch.float64)[rank % 2]) for t in (x, x.T)), group))
    # What one rank alone can see, and an error on all.
    gather, scatter, w = tw.torch.all_gather_matmul, tw.torch.matmul_reduce_scatter, torch.ones(4, 3)
    last = rank == size - 1
    for message, function, given in (
        ("and w (3, 4)", gather, (x, torch.ones(3, 4))),
        ("x is torch.int32", gather, (x.int(), w)),
        ("x is a list", gather, ([x], w)),
        ("x is torch.float32 and w is torch.float16", gather, (x, w.half())),
        ("residual is (5, 3)", scatter, (x, w, group, torch.ones(5, 3))),
    ):
        if last:
            fails(message, lambda function=function, given=given: function(*given[:2], group, *given[3:]))
        else:
            told = f"{function.__name__} is refused on rank {size - 1}, which says why"
            fails(told, lambda function=function: function(x, w, group))
    if size > 1:
        fails("with different shapes", lambda: scatter(torch.ones(2 * size + last, 4), w, group))
    near(tw.torch.all_gather_matmul(x, x.T, group), x.repeat(size, 1) @ x.T, 1e-6)  # the group is as it was


def main(folder: Path) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for check in (gathers, scatters, other_types, refused):
        check(rank, size, None)
    exchange._has_collectives = lambda x, group: True  # as with NCCL
    for check in (gathers, scatters, other_types):
        check(rank, size, None)


def main_compiled(folder: Path) -> None:
    compiled(dist.get_rank(), dist.get_world_size(), None)


def in_parts(folder: Path) -> None:
    """Two groups of two: ranks of a group are not those of all processes. And groups of one."""
    rank = dist.get_rank()
    groups = [dist.new_group([0, 2]), dist.new_group([3, 1])]
    group = groups[rank % 2]
    assert isinstance(group, dist.ProcessGroup)
    gathers(dist.get_rank(group), 2, group)
    scatters(dist.get_rank(group), 2, group)
    with pytest.raises(ArgumentError, match="group has other ranks than this one"):
        tw.torch.all_gather_matmul(torch.ones(2, 2), torch.ones(2, 2), groups[1 - rank % 2])
    alone = [dist.new_group([n]) for n in range(4)][rank]
    gathers(0, 1, alone)
    scatters(0, 1, alone)
    inputs = tuple(numbers(*shape, seed=7).requires_grad_() for shape in ((2, 3), (3, 2)))
    for function in (tw.torch.all_gather_matmul, tw.torch.matmul_reduce_scatter, tw.torch.matmul_all_reduce):
        assert torch.autograd.gradcheck(lambda x, w, f=function: f(x, w, alone), inputs, fast_mode=True)


def one_dies(folder: Path) -> None:
    x = torch.ones(2, 4)
    tw.torch.all_gather_matmul(x, x.T)
    if dist.get_rank() == 1:
        os._exit(0)
    begin = time.monotonic()
    dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))._set_default_timeout(
        datetime.timedelta(seconds=20)
    )
    with pytest.raises(RuntimeError):
        tw.torch.all_gather_matmul(x, x.T)
    assert time.monotonic() - begin < 120
    os._exit(0)


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_products_of_ranks(count: int) -> None:
    ranks.run(main, count)


@pytest.mark.slow
def test_compiled() -> None:
    ranks.run(main_compiled, 2)


def test_groups_of_some_ranks() -> None:
    ranks.run(in_parts, 4)


def test_a_rank_that_dies_is_an_error_on_the_others() -> None:
    ranks.run(one_dies, 2)


def test_without_a_group() -> None:
    with pytest.raises(ArgumentError, match="there is none"):
        tw.torch.matmul_all_reduce(torch.ones(2, 2), torch.ones(2, 2))
