"""A multilayer perceptron over several processes, one of its matrices by columns, the next by rows.

    torchrun --nproc-per-node 2 mlp.py

Without a GPU the processes form a group over gloo, and kernels run in the simulator. With one for each process the same
program runs there, over NCCL.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tilewright as tw


class MLP(torch.nn.Module):
    """Compute w2(silu(w1(x)) * w3(x))."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1 = tw.torch.nn.Linear(width, hidden, bias=False)
        self.w2 = tw.torch.nn.Linear(hidden, width, bias=False)
        self.w3 = tw.torch.nn.Linear(width, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the result, with the input's shape."""
        return self.w2(torch.nn.functional.silu(self.w1(x)) * self.w3(x))


def main() -> None:
    """Train for a few steps, by all processes and by each alone, and compare the losses."""
    ranks, local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    kind = "cuda" if torch.cuda.device_count() >= ranks else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(local)
    mesh = init_device_mesh(kind, (ranks,))

    torch.manual_seed(0)
    alone, together = MLP(8, 16).to(kind), MLP(8, 16).to(kind)
    together.load_state_dict(alone.state_dict())
    plan = {"w1": ColwiseParallel(), "w3": ColwiseParallel(), "w2": RowwiseParallel()}
    parallelize_module(together, mesh, plan)
    assert isinstance(together.w1.weight, DTensor)

    losses: list[list[float]] = []
    x = torch.randn(4, 8, device=kind)
    for model in (alone, together):
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        found = []
        for _ in range(3):
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(found)
    assert torch.allclose(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-4)
    if dist.get_rank() == 0:
        share = tuple(together.w1.weight.to_local().shape)
        print(f"{ranks} ranks on {kind}, w1 is {share} of (16, 8); the losses are those of one process")
    dist.barrier()  # gloo's threads may still hold tensors, and a program that ends then is aborted
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
