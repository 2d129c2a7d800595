"""Modules over several processes: what torch's own modules compute, with their placements, and their communication."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch.distributed is not there", allow_module_level=True)

import torch.distributed as dist  # noqa: E402  # after the skip
from tests.torch import ranks  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.debug import CommDebugMode  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

import tilewright as tw  # noqa: E402

functional = torch.nn.functional


class Block(torch.nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.first, self.last = torch.nn.RMSNorm(width), torch.nn.LayerNorm(width)
        self.w1, self.w2 = torch.nn.Linear(width, hidden), torch.nn.Linear(hidden, width)
        self.mlp = torch.nn.Sequential(self.w1, torch.nn.ReLU(), self.w2)
        self.out = torch.nn.Linear(width, 2 * width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.last(x + self.mlp(self.first(x))))


PLAN = {
    "w1": ColwiseParallel(use_local_output=False),
    "w2": RowwiseParallel(),
    "out": ColwiseParallel(use_local_output=False),
}
SEQUENCE_PLAN = {
    "first": SequenceParallel(),
    "last": SequenceParallel(),
    "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    "w1": ColwiseParallel(use_local_output=False),
    "w2": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    "out": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
}


def full(x: torch.Tensor) -> torch.Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


def shown(x: torch.Tensor) -> object:
    return (x.placements, tuple(x.to_local().shape)) if isinstance(x, DTensor) else tuple(x.shape)


def outcome(prepare: Callable[[torch.nn.Module], object], x: torch.Tensor, hidden: int) -> tuple[Any, dict]:
    """Return placements of all outputs and gradients and the number of collectives; and all values."""
    torch.manual_seed(0)
    model = Block(x.shape[-1], hidden)
    prepare(model)
    places: dict[str, object] = {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda module, inputs, out, name=name: places.__setitem__(name, shown(out)))
    x = x.detach().requires_grad_()
    with CommDebugMode() as communication:
        y = model(x)
        (y * y).sum().backward()
    values = {"y": y.detach(), "x": x.grad, **{name: p.grad for name, p in model.named_parameters()}}
    places |= {f"gradient of {name}": shown(v) for name, v in values.items()}
    return (places, dict(communication.get_comm_counts())), {name: full(v) for name, v in values.items()}


def compare(mesh: Any, plan: dict, x: torch.Tensor, hidden: int, patch_first: bool) -> None:
    def by_torch(model: torch.nn.Module) -> None:
        parallelize_module(model, mesh, plan)

    def ours(model: torch.nn.Module) -> None:
        if not patch_first:
            parallelize_module(model, mesh, plan)
        assert len(tw.torch.patch(model).swapped) == 5
        if patch_first:
            parallelize_module(model, mesh, plan)

    (expected, values), (found, ours_values) = outcome(by_torch, x, hidden), outcome(ours, x, hidden)
    assert found == expected
    for name, value in values.items():
        assert torch.allclose(ours_values[name], value, rtol=1e-4, atol=1e-4), name


@contextmanager
def collectives(number: int) -> Iterator[None]:
    with CommDebugMode() as communication:
        yield
    assert communication.get_total_counts() == number, communication.get_comm_counts()


def operators_take_dtensors(mesh: Any) -> None:
    """Decisions depend on what is not a tensor too, as on the epilogue; and results are those of whole tensors."""
    a, b = torch.randn(4, 6), torch.randn(6, 2)
    parts = distribute_tensor(a, mesh, [Shard(1)]), distribute_tensor(b, mesh, [Shard(0)])
    with collectives(0):
        product = tw.torch.matmul(*parts, precision="ieee")
    assert product.placements == (Partial(),) and torch.allclose(product.full_tensor(), a @ b, atol=1e-5)
    rectified = tw.torch.matmul(*parts, epilogue="relu", precision="ieee")  # as many arguments, another decision
    assert not rectified.placements[0].is_partial()
    assert torch.allclose(rectified.full_tensor(), (a @ b).relu(), atol=1e-5)
    half = tw.torch.matmul(*parts, out_dtype=torch.float16)
    assert half.dtype == torch.float16 == half.to_local().dtype

    given = [distribute_tensor(x, mesh, [Shard(0)]).requires_grad_() for x in (a, b)]
    dropped = tw.torch.matmul(*given, dropout=0.5, seed=1, precision="ieee")
    dropped.sum().backward()  # the mask of the whole result, forward and backward
    mask = (dropped.full_tensor() != 0) * 2.0
    assert torch.allclose(dropped.full_tensor(), a @ b * mask, atol=1e-5)
    assert torch.allclose(given[0].grad.full_tensor(), mask @ b.T, atol=1e-5)

    x = torch.randn(1, 2, 4, 8)
    expected = functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    for place, became in ((Shard(1), Shard(1)), (Shard(2), Replicate())):  # DTensor gathers tokens that see others
        query = distribute_tensor(x, mesh, [place])
        mixed = tw.torch.attention(query, query, query, causal=True)
        assert mixed.placements == (became,) and torch.allclose(mixed.full_tensor(), expected, atol=1e-5)
    every = tw.torch.attention(
        query, distribute_tensor(x, mesh, [Replicate()]), distribute_tensor(x, mesh, [Replicate()])
    )
    assert every.placements == (Shard(2),)
    assert torch.allclose(every.full_tensor(), functional.scaled_dot_product_attention(x, x, x), atol=1e-5)


def a_batch_of_one_is_not_divided(mesh: Any) -> None:
    """Each device has the whole of it: sums over a result that were placed as parts would count it several times."""
    x, w = torch.randn(1, 3, 4), torch.randn(4, 6)
    for given in ({}, {"epilogue": "relu", "pairs": "halves"}):
        parts = [distribute_tensor(t, mesh, [Replicate()]).requires_grad_() for t in (x, w)]
        y = tw.torch.matmul(*parts, precision="ieee", **given)
        assert y.placements == (Replicate(),)
        assert torch.allclose(full(y.sum()), tw.torch.matmul(x, w, precision="ieee", **given).sum(), atol=1e-5)
        y.sum().backward()
        assert parts[0].grad.placements == (Replicate(),)


def uneven_parts_and_modes_of_one_are_gathered(mesh: Any) -> None:
    """DTensor flattens no uneven parts, and expands no mode that is divided."""
    x, w, b = torch.randn(3, 5, 4), torch.randn(5, 4), torch.randn(5, 4)
    for places in ((Shard(1), Shard(0), Replicate()), (Shard(2), Replicate(), Shard(1))):
        parts = [distribute_tensor(t, mesh, [p]).requires_grad_() for t, p in zip((x, w, b), places, strict=True)]
        whole = [t.clone().requires_grad_() for t in (x, w, b)]
        for ours, theirs, count in (
            (tw.torch.rms_norm, functional.rms_norm, 2), (tw.torch.layer_norm, functional.layer_norm, 3),
        ):  # fmt: skip
            found, expected = (f(v[0], (5, 4), *v[1:count]) for f, v in ((ours, parts), (theirs, whole)))
            assert torch.allclose(full(found), expected, atol=1e-5)
            slopes = [torch.autograd.grad((y**2).sum(), v[:count]) for y, v in ((found, parts), (expected, whole))]
            assert all(torch.allclose(full(one), other, atol=1e-4) for one, other in zip(*slopes, strict=True))
    a, b, column = torch.randn(4, 6), torch.randn(6, 2), torch.randn(4, 1)
    for given in ({"residual": column, "epilogue": "relu"}, {"gate": column, "epilogue": "swiglu"}):
        name = next(iter(given))
        parts = [distribute_tensor(t, mesh, [p]).requires_grad_()
                 for t, p in ((a, Replicate()), (b, Replicate()), (column, Shard(1)))]  # fmt: skip
        whole = [t.clone().requires_grad_() for t in (a, b, column)]
        found, expected = (
            tw.torch.matmul(v[0], v[1], **{**given, name: v[2]}, precision="ieee") for v in (parts, whole)
        )
        assert torch.allclose(full(found), expected, atol=1e-5)
        slopes = [torch.autograd.grad((y**2).sum(), v) for y, v in ((found, parts), (expected, whole))]
        assert all(torch.allclose(full(one), other, atol=1e-4) for one, other in zip(*slopes, strict=True))


def devices_drop_the_same(mesh: Any) -> None:
    """Seeds come from one device of the mesh, whatever the others' generators are set to."""
    torch.manual_seed(dist.get_rank())
    x, w = (distribute_tensor(torch.ones(4, 4), mesh, [place]) for place in (Shard(0), Replicate()))
    for y in (tw.torch.dropout(x, 0.5), tw.torch.matmul(x, w, dropout=0.5)):
        assert y.placements == (Replicate(),)
        others = torch.empty(2, *y.shape)
        dist.all_gather(list(others.unbind()), y.to_local(), group=mesh.get_group())
        assert 0 < others.count_nonzero() < others.numel() and torch.equal(others[0], others[1])
    torch.manual_seed(1)


def gradients_of_attention(mesh: Any) -> None:
    """Of two results one is unused, and autograd makes zeros for it that are no DTensor."""
    whole = [torch.randn(1, 2, 4, 8).requires_grad_() for _ in range(3)]
    slope = torch.randn(1, 2, 4, 8)
    functional.scaled_dot_product_attention(*whole, is_causal=True).backward(slope)
    parts = [distribute_tensor(x.detach(), mesh, [Shard(1)]).requires_grad_() for x in whole]
    tw.torch.attention(*parts, causal=True).backward(distribute_tensor(slope, mesh, [Shard(1)]))
    for part, x in zip(parts, whole, strict=True):
        assert part.grad.placements == (Shard(1),) and torch.allclose(part.grad.full_tensor(), x.grad, atol=1e-5)


def losses_of_parts(mesh: Any) -> None:
    logits, labels = torch.randn(4, 6), torch.tensor([5, 0, -100, 2])
    leaf = logits.clone().requires_grad_()
    expected = functional.cross_entropy(leaf, labels)
    expected.backward()
    whole = distribute_tensor(labels, mesh, [Replicate()])
    for place, target, is_parallel in (
        (Shard(0), distribute_tensor(labels, mesh, [Shard(0)]), False),
        (Shard(1), whole, True),
    ):
        given = distribute_tensor(logits, mesh, [place]).requires_grad_()
        if is_parallel:
            with loss_parallel():
                loss = tw.torch.cross_entropy(given, target)
                loss.backward()
        else:
            loss = tw.torch.cross_entropy(given, target)
            loss.backward()
        assert torch.allclose(loss.full_tensor(), expected, atol=1e-5)
        assert given.grad.placements == (place,) and torch.allclose(given.grad.full_tensor(), leaf.grad, atol=1e-5)
    outside = tw.torch.cross_entropy(given, target)
    assert torch.allclose(full(outside), expected, atol=1e-5)


def a_wrong_label_of_one_rank_is_an_error_of_all(mesh: Any) -> None:
    logits, labels = torch.randn(4, 6), torch.tensor([5, 0, 6, 2])
    ways = ((Shard(0), Shard(0), False), (Shard(1), Shard(0), False), (Shard(1), Replicate(), True))
    for place, of_labels, is_parallel in ways:
        given, target = distribute_tensor(logits, mesh, [place]), distribute_tensor(labels, mesh, [of_labels])
        with pytest.raises(IndexError, match="Target 6 is out of bounds"):
            with loss_parallel() if is_parallel else contextlib.nullcontext():
                tw.torch.cross_entropy(given, target)


def torch_rings_take_the_operator(mesh: Any) -> None:
    """The ring that torch's context_parallel runs takes any attention: with ours, each rank has the tokens of its part."""
    from torch.distributed.tensor.experimental._context_parallel import _attention as ring  # it has no public name

    from tilewright.torch.fused_attention import attention_backward_operator

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False) -> Any:
        return tw.torch.attention(q, k, v, causal=is_causal, return_lse=True)

    def pull(query: Any, key: Any, value: Any, out: Any, logsumexp: Any, is_causal: bool, grad: Any) -> Any:
        window = (-1, 0 if is_causal else -1, None, None, None, None)
        return attention_backward_operator(
            grad, torch.zeros_like(logsumexp), query, key, value, out, logsumexp, *window
        )

    whole = [torch.randn(1, 2, 4, 8).requires_grad_() for _ in range(3)]
    expected = functional.scaled_dot_product_attention(*whole, is_causal=True)
    slope = torch.randn(expected.shape)
    expected.backward(slope)

    def part(x: torch.Tensor) -> torch.Tensor:
        return x.detach().chunk(2, 2)[dist.get_rank()].contiguous()

    ring._cp_options.enable_load_balance = False
    own, group = [part(x) for x in whole], mesh.get_group()
    out, lse = ring._templated_ring_attention(group, 2, attend, *own, is_causal=True)
    assert torch.allclose(out, part(expected), atol=1e-5)
    found = ring._templated_ring_attention_backward(group, 2, pull, part(slope), "grad", *own, out, lse, is_causal=True)
    for gradient, x in zip(found, whole, strict=True):
        assert torch.allclose(gradient, part(x.grad), atol=1e-5)


def a_rank_that_died_is_an_error(mesh: Any) -> None:
    layer = parallelize_module(tw.torch.nn.Linear(4, 4), mesh, RowwiseParallel(input_layouts=Replicate()))
    layer(torch.ones(2, 4))
    if dist.get_rank() == 1:
        os._exit(0)
    begin = time.monotonic()
    with pytest.raises(RuntimeError):
        layer(torch.ones(2, 4)).sum().item()
    assert time.monotonic() - begin < ranks.SECONDS / 2
    os._exit(0)  # no good-bye to a group that is broken


def two_ranks(folder: Path) -> None:
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(1)
    compare(mesh, PLAN, torch.randn(2, 4, 8), 12, patch_first=True)
    compare(mesh, SEQUENCE_PLAN, distribute_tensor(torch.randn(2, 4, 8), mesh, [Shard(1)]), 12, patch_first=False)
    operators_take_dtensors(mesh)
    a_batch_of_one_is_not_divided(mesh)
    uneven_parts_and_modes_of_one_are_gathered(mesh)
    devices_drop_the_same(mesh)
    gradients_of_attention(mesh)
    losses_of_parts(mesh)
    a_wrong_label_of_one_rank_is_an_error_of_all(mesh)
    torch_rings_take_the_operator(mesh)
    alone = init_device_mesh("cpu", (2, 1), mesh_dim_names=("others", "alone"))["alone"]
    compare(alone, PLAN, torch.randn(2, 4, 8), 6, patch_first=True)  # parts as large as before: kernels are known
    a_rank_that_died_is_an_error(mesh)


def four_ranks(folder: Path) -> None:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (4,))
    torch.manual_seed(1)
    x = torch.randn(2, 4, 6)
    for hidden in (5, 3):  # of four parts the last has nothing; and fewer elements than there are ranks
        compare(mesh, PLAN, x, hidden, patch_first=False)

    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))

    def divided(model: torch.nn.Module, patch: bool) -> None:
        if patch:
            tw.torch.patch(model)
        parallelize_module(model, both["tensor"], PLAN)
        fully_shard(model, mesh=both["data"])

    some = DeviceMesh("cpu", [0, 1])
    outside = distribute_tensor(torch.ones(4, 6), some, [Shard(0)], src_data_rank=None)
    dropped = tw.torch.dropout(outside, 0.5)  # nothing where the rank has no part
    assert dropped.shape == outside.shape

    x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(both["data"].get_local_rank()))
    expected, found = (outcome(lambda model, p=p: divided(model, p), x, 12) for p in (False, True))
    assert found[0] == expected[0]
    for name, value in expected[1].items():
        assert torch.allclose(found[1][name], value, rtol=1e-4, atol=1e-4), name


def test_two_ranks() -> None:
    ranks.run(two_ranks, 2)


@pytest.mark.slow  # four processes trace kernels on two cores
def test_four_ranks_and_parameters_divided_twice() -> None:
    ranks.run(four_ranks, 4)
