"""A layer as Llama has it over several processes: heads and hidden units are divided, and tokens between them.

    torchrun --nproc-per-node 2 llama_block.py

Between the parts a process has some tokens (`Shard(1)`). Before attention and before the perceptron the tokens are
gathered, and behind them the sums of all processes are scattered over tokens: `SequenceParallel`.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import tilewright as tw

WIDTH, HEADS, TOKENS = 16, 4, 8


class Attention(torch.nn.Module):
    """Attention with rotary embedding over the heads that this process has."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (tw.torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        angles = torch.outer(torch.arange(TOKENS), torch.tensor([1.0, 0.01]))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the tokens take from those before them."""
        # How many heads there are follows from the width that comes: a part of it, after parallelize_module.
        q, k, v = (part(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = (tw.torch.rope(part, self.cos, self.sin) for part in (q, k))
        mixed = tw.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(mixed.transpose(1, 2).flatten(-2))


class MLP(torch.nn.Module):
    """Compute w2(silu(w1(x)) * w3(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = (tw.torch.nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.w2 = tw.torch.nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the result, with the input's shape."""
        return self.w2(torch.nn.functional.silu(self.w1(x)) * self.w3(x))


class Block(torch.nn.Module):
    """Attention and perceptron, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = tw.torch.nn.RMSNorm(WIDTH), tw.torch.nn.RMSNorm(WIDTH)
        self.attention, self.mlp = Attention(), MLP()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tokens, each with what was added to it."""
        x = x + self.attention(self.before(x))
        return x + self.mlp(self.after(x))


GATHER = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
COLUMNS = ColwiseParallel()
SUMS = RowwiseParallel(output_layouts=Shard(1), use_local_output=False)
PLAN = {
    **{"before": SequenceParallel(), "after": SequenceParallel(), "attention": GATHER, "mlp": GATHER},
    **dict.fromkeys(("attention.q", "attention.k", "attention.v", "mlp.w1", "mlp.w3"), COLUMNS),
    **dict.fromkeys(("attention.o", "mlp.w2"), SUMS),
}


def main() -> None:
    """Compute the layer and its gradients, by all processes and by each alone, and compare."""
    ranks, local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    kind = "cuda" if torch.cuda.device_count() >= ranks else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(local)
    mesh = init_device_mesh(kind, (ranks,))

    torch.manual_seed(0)
    alone, together = Block().to(kind), Block().to(kind)
    together.load_state_dict(alone.state_dict())
    parallelize_module(together, mesh, PLAN)

    x = torch.randn(1, TOKENS, WIDTH, device=kind)
    expected, found = alone(x), together(distribute_tensor(x, mesh, [Shard(1)]))
    expected.square().sum().backward()
    found.square().sum().backward()
    assert isinstance(found, DTensor) and found.placements == (Shard(1),)
    assert torch.allclose(found.full_tensor(), expected, atol=1e-4)
    for name, parameter in together.named_parameters():
        assert torch.allclose(parameter.grad.full_tensor(), alone.get_parameter(name).grad, atol=1e-3), name
    if dist.get_rank() == 0:
        print(
            f"{ranks} ranks on {kind}, tokens are {found.placements[0]}; values and gradients are those of one process"
        )
    dist.barrier()  # gloo's threads may still hold tensors, and a program that ends then is aborted
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
