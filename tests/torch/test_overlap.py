"""`tw.torch.overlap_products`: graphs with communication under the products, and what is left as it is."""

from __future__ import annotations

from collections import Counter
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

Tensor = Any
GATHERED, SCATTERED = "tilewright.gathered_products.default", "tilewright.scattered_products.default"
EXCHANGES = ("_c10d_functional.all_gather_into_tensor.default", "_c10d_functional.reduce_scatter_tensor.default")


class Seen:
    """A backend that applies the pass to the graphs of both passes, and keeps what they call then."""

    def __init__(self) -> None:
        self.overlap = tw.torch.overlap_products()
        self.graphs: list[Counter[str]] = []

    def compile(self, function: Any, **options: Any) -> Any:
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd
        from torch._inductor.decomposition import select_decomp_table

        def compiler(module: Any, inputs: Any) -> Any:
            for node in module.graph.nodes:  # as inductor does before its passes
                if node.target is torch.ops.aten.view.default:
                    node.target = torch.ops.aten.reshape.default
            self.overlap(module.graph)
            module.graph.lint()
            module.recompile()
            self.graphs.append(Counter(str(n.target) for n in module.graph.nodes if n.op == "call_function"))
            return make_boxed_func(module.forward)

        torch._dynamo.reset()
        backend = aot_autograd(fw_compiler=compiler, decompositions=select_decomp_table())
        return torch.compile(function, backend=backend, fullgraph=True, **options)

    def count(self, *names: str) -> list[int]:
        return [sum(graph[name] for name in names) for graph in self.graphs]


def near(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape and found.dtype == expected.dtype, (found.shape, expected.shape)
    assert torch.allclose(found, expected, atol=1e-10), (found - expected).abs().max()


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- what is taken -------------------------------------------------------------------------------------------------


class MLP(torch.nn.Module):
    def __init__(self, kind: Any, bias: bool) -> None:
        super().__init__()
        self.w1, self.w3 = (kind(6, 8, bias=bias, dtype=torch.float64) for _ in range(2))
        self.w2 = kind(8, 6, bias=bias, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(torch.tanh(self.w1(x)) * self.w3(x))


def divided(kind: Any, bias: bool, mode: int) -> Any:
    """Return a perceptron whose tokens are divided along a mode outside of the products."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(1)
    gather = PrepareModuleInput(input_layouts=(Shard(mode),), desired_input_layouts=(Replicate(),))
    sums = RowwiseParallel(output_layouts=Shard(mode))
    plan = {"0": gather, "0.w1": ColwiseParallel(), "0.w3": ColwiseParallel(), "0.w2": sums}
    return parallelize_module(torch.nn.Sequential(MLP(kind, bias)), mesh, plan)


def perceptrons(folder: Path) -> None:
    """Gathers and scatters of both passes are under products: values and gradients are those without the pass."""
    size, rank = dist.get_world_size(), dist.get_rank()
    cases = [(torch.nn.Linear, True, 1), (tw.torch.nn.Linear, True, 0)]
    for kind, bias, mode in cases:
        model, seen = divided(kind, bias, mode), Seen()
        shape = (2 * size, 6) if mode == 0 else (3, 2 * size, 6)
        x = numbers(*shape).chunk(size, mode)[rank].requires_grad_()
        outcomes = []
        for forward in (model, seen.compile(model)):
            y = forward(x)
            gradients = torch.autograd.grad(y.square().sum(), [x, *model.parameters()])
            outcomes.append([y, *(g.to_local() if hasattr(g, "to_local") else g for g in gradients)])
        for ours, expected in zip(*reversed(outcomes), strict=True):
            near(ours, expected)
        # Backward, the gradients of two products are added before their sum is scattered.
        assert seen.count(GATHERED) == [1, 1] and seen.count(SCATTERED) == [1, 1], (kind, seen.graphs)
        assert seen.count(*EXCHANGES) == [0, 0] and seen.overlap.replaced == 4


# --- what is left, and what else reads ------------------------------------------------------------------------------


def gathered(x: Tensor, mode: int = 0, group: Any = None) -> Tensor:
    import torch.distributed._functional_collectives as collectives

    gather = getattr(collectives, "all_gather_single", None) or collectives.all_gather_tensor  # before torch 2.13
    return gather(x, mode, dist.group.WORLD if group is None else group)


def scattered(x: Tensor, mode: int = 0, operation: str = "sum", group: Any = None) -> Tensor:
    import torch.distributed._functional_collectives as collectives

    scatter = getattr(collectives, "reduce_scatter_single", None) or collectives.reduce_scatter_tensor
    return scatter(x, operation, mode, dist.group.WORLD if group is None else group)


def _read_twice(x: Tensor, w: Tensor) -> Any:
    rows = gathered(x)
    return rows @ w, rows + 1, rows.T @ rows


def _dependent(x: Tensor, w: Tensor) -> Any:
    rows = gathered(x)
    return rows @ (w * rows.sum()), rows @ w, rows @ rows.T


def _late_weight(x: Tensor, w: Tensor) -> Any:
    rows = gathered(x, 1)
    scaled = rows * 2
    return scaled, rows.flatten(0, 1) @ (w.exp() + 1), torch.ops.tilewright.matmul(rows, w, w[0])


def _product_read_twice(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    return scattered(y), y.sum()


def _of_parts(x: Tensor, w: Tensor) -> Any:
    y = (x.flatten(0, 1) @ w).unflatten(0, x.shape[:2])
    return scattered(y, 1, "avg") + 1


def _plus(x: Tensor, w: Tensor) -> Any:
    """Sums of products and biases, each in its own shape; with two biases for one product, and with what is none."""
    y = (x.clone().flatten(0, 1) @ w).unflatten(0, x.shape[:2])
    z = torch.ops.tilewright.matmul(x * 2, w, w[2])
    rows = gathered(x, 1).clone()
    return (
        *(rows @ w, scattered(w[0] + (y + z), 1)),
        *(
            scattered(torch.addmm(w[1], x[0], w) + w[0]),
            scattered(x[0] @ w + x[1, :1] @ w),
            scattered(x[1] @ w + x[1, :, :4]),
        ),
    )


def _with(operand: str, value: Any) -> Any:
    def function(x: Tensor, w: Tensor) -> Any:
        given = {"bias": None, "gate": None, "residual": None, "epilogue": "", "out_dtype": None, "precision": ""}
        y = torch.ops.tilewright.matmul(gathered(x), w, **{**given, operand: value})
        z = torch.ops.tilewright.matmul(x, w, **{**given, operand: value})
        return y, scattered(z)

    return function


def _integers(x: Tensor, w: Tensor) -> Any:
    return gathered(x.int()) @ w.int()


#  Each with the shape of x, and how many exchanges are replaced and how many are left.
CASES = {
    "read twice": (_read_twice, (4, 6), 1, 0),
    "dependent": (_dependent, (4, 6), 1, 0),
    "late weight": (_late_weight, (3, 2, 6), 1, 0),
    "product read twice": (_product_read_twice, (4, 6), 0, 1),
    "average": (_of_parts, (3, 4, 6), 1, 0),
    "bias behind": (_plus, (3, 4, 6), 2, 3),
    "nothing behind": (lambda x, w: (gathered(x) + 1, scattered(x)), (4, 6), 0, 2),
    "last mode": (lambda x, w: (gathered(x, 1) @ torch.cat((w, w)), scattered(x @ w, 1)), (4, 6), 0, 2),
    "maximum": (lambda x, w: scattered(x @ w, 0, "max"), (4, 6), 0, 1),
    "epilogue": (_with("epilogue", "relu"), (4, 6), 0, 2),
    "type": (_with("out_dtype", torch.float32), (4, 6), 0, 2),
    "no other type": (_with("out_dtype", torch.float64), (4, 6), 2, 0),
    "integers": (_integers, (4, 6), 0, 1),
    "scaled": (lambda x, w: torch.addmm(w[0], gathered(x), w, beta=2), (4, 6), 0, 1),
}


def functions(folder: Path) -> None:
    alone = [dist.new_group([n]) for n in range(dist.get_world_size())][dist.get_rank()]
    cases = {
        **CASES,
        "a group of one": (lambda x, w: (gathered(x, 0, alone) @ w, scattered(x @ w, 0, "sum", alone)), (4, 6), 0, 2),
    }
    for name, (function, shape, replaced, left) in cases.items():
        x, w = numbers(*shape, seed=dist.get_rank()), numbers(6, 4, seed=9)
        seen = Seen()
        found, expected = seen.compile(function)(x, w), function(x, w)
        for ours, theirs in zip(*(y if isinstance(y, tuple) else (y,) for y in (found, expected)), strict=True):
            near(ours, theirs)
        assert (seen.overlap.replaced, sum(seen.count(*EXCHANGES))) == (replaced, left), (name, seen.graphs)
        if name == "no other type":  # one product, which nothing else needs, has the operator of the function
            assert seen.count("tilewright.all_gather_matmul.default", "tilewright.matmul_reduce_scatter.default") == [2]
    _dynamic()


def _dynamic() -> None:
    """Rows without a number, in one graph for all: 3D products whose rows are joined, and parts of them."""
    layer = torch.nn.Linear(6, 4, dtype=torch.float64)

    def function(x: Tensor) -> Any:
        return layer(gathered(x, 1)), scattered(layer(x), 1)

    seen = Seen()
    compiled = seen.compile(function, dynamic=True)
    with torch.no_grad():
        for rows in (8, 10, 12):
            x = numbers(3, rows, 6, seed=dist.get_rank())
            for ours, theirs in zip(compiled(x), function(x), strict=True):
                near(ours, theirs)
    assert seen.overlap.replaced == 2 and len(seen.graphs) == 1, seen.graphs


def by_inductor(folder: Path) -> None:
    """As users have it, with a pass of their own before it."""
    graphs = []
    overlap = tw.torch.overlap_products(graphs.append)
    assert overlap.uuid() is None and tw.torch.overlap_products().uuid() == tw.torch.overlap_products().uuid()
    model = divided(tw.torch.nn.Linear, True, 1)
    x = numbers(3, 4, 6).chunk(2, 1)[dist.get_rank()].requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(model, options={"post_grad_custom_pre_pass": overlap})
    outcomes = []
    for forward in (model, compiled):
        y = forward(x)
        outcomes.append([y, *torch.autograd.grad(y.square().sum(), [x, *model.parameters()])])
    for ours, expected in zip(*reversed(outcomes), strict=True):
        near(*(t.to_local() if hasattr(t, "to_local") else t for t in (ours, expected)))
    assert overlap.replaced == 4 and len(graphs) == 2


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_perceptrons(count: int) -> None:
    ranks.run(perceptrons, count)


def test_what_is_taken_and_what_is_left() -> None:
    ranks.run(functions, 2)


@pytest.mark.slow  # a C++ compiler runs for each graph
def test_by_inductor() -> None:
    ranks.run(by_inductor, 2)


def test_refused() -> None:
    with pytest.raises(ArgumentError, match="a pass is a str, and functions of a graph are expected"):
        tw.torch.overlap_products("reorder")
