"""A Llama-shaped block divided over several GPUs, forward and backward, and how linear layers scale.

    torchrun --nproc-per-node 2 -m benchmarks.tensor_parallel [--json FILE] [--only block|scaling] [--small]

Tokens are divided between the parts of the block, heads and hidden units within them. `torch` is the block of torch's
modules under `parallelize_module`, as it is, compiled, and compiled with the pass that puts communication under
products (`_micro_pipeline_tp`). `tw` is the block of `tw.torch.all_gather_matmul`, `matmul_reduce_scatter`, `rms_norm`
and `attention`, compiled so that what lies between them is fused, by NCCL and by symmetric memory. All have the same
weights, are checked against one process in float32, and are timed interleaved; a time is that of the slowest rank. The
scaling is that of two linear layers, 4096 -> 14336 -> 4096: the time of one GPU over that of all, divided by their
number.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import torch  # NCCL reads the environment
import torch.distributed as dist
import torch.nn.functional as F
from benchmarks.timing import machine
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import tilewright as tw

Call = Callable[[], Any]
_TOLERANCE = 3e-2  # of the norm, in bfloat16


@dataclass(frozen=True)
class Sizes:
    """The extents of the block."""

    tokens: int = 4096
    batch: int = 4
    width: int = 4096
    heads: int = 32
    key_heads: int = 8
    hidden: int = 14336

    @property
    def head(self) -> int:
        return self.width // self.heads


class Attention(torch.nn.Module):
    """Causal attention over the heads that this process has."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        keys = s.key_heads * s.head
        self.head = s.head
        self.q, self.o = (torch.nn.Linear(s.width, s.width, bias=False) for _ in range(2))
        self.k, self.v = (torch.nn.Linear(s.width, keys, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(mixed.transpose(1, 2).flatten(-2))


class MLP(torch.nn.Module):
    """Compute w2(silu(w1(x)) * w3(x))."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.w1, self.w3 = (torch.nn.Linear(s.width, s.hidden, bias=False) for _ in range(2))
        self.w2 = torch.nn.Linear(s.hidden, s.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(torch.nn.Module):
    """Attention and perceptron, each behind a norm."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.before, self.after = torch.nn.RMSNorm(s.width), torch.nn.RMSNorm(s.width)
        self.attention, self.mlp = Attention(s), MLP(s)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.mlp(self.after(x))


class Pipelined(Block):
    """The same block with code of its own: what torch.compile made of the other one is not taken for it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.mlp(self.after(x))


def plan() -> dict[str, Any]:
    """Return how torch divides the block."""
    gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    sums = RowwiseParallel(output_layouts=Shard(1), use_local_output=False)
    columns = ("attention.q", "attention.k", "attention.v", "mlp.w1", "mlp.w3")
    return {
        **{"before": SequenceParallel(), "after": SequenceParallel(), "attention": gather, "mlp": gather},
        **dict.fromkeys(columns, ColwiseParallel()),
        **dict.fromkeys(("attention.o", "mlp.w2"), sums),
    }


class Overlapped(torch.nn.Module):
    """The same of this rank's columns and rows, on tokens (token, batch, width) of which it has some."""

    def __init__(self, block: Block, s: Sizes, rank: int, size: int) -> None:
        super().__init__()
        a, m = block.attention, block.mlp

        def columns(*layers: torch.nn.Linear) -> torch.nn.Parameter:
            parts = [layer.weight.detach().chunk(size)[rank] for layer in layers]
            return torch.nn.Parameter(torch.cat(parts).contiguous())

        def rows(layer: torch.nn.Linear) -> torch.nn.Parameter:
            return torch.nn.Parameter(layer.weight.detach().chunk(size, 1)[rank].contiguous())

        self.s, self.parts = s, [layer.weight.shape[0] // size for layer in (a.q, a.k, a.v)]
        self.qkv, self.gate_up = columns(a.q, a.k, a.v), columns(m.w1, m.w3)
        self.o, self.down = rows(a.o), rows(m.w2)
        self.before, self.after = (torch.nn.Parameter(x.weight.detach().clone()) for x in (block.before, block.after))
        self.eps = torch.finfo(block.before.weight.dtype).eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = tw.torch.all_gather_matmul(tw.torch.rms_norm(x, (self.s.width,), self.before, self.eps), self.qkv.mT)
        # Divided first: of gradients that are joined along heads, torch.compile makes two passes.
        q, k, v = (part.unflatten(-1, (-1, self.s.head)).permute(1, 2, 0, 3) for part in both.split(self.parts, -1))
        mixed = tw.torch.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = tw.torch.matmul_reduce_scatter(mixed.permute(2, 0, 1, 3).flatten(-2), self.o.mT, residual=x)
        hidden = tw.torch.all_gather_matmul(
            tw.torch.rms_norm(x, (self.s.width,), self.after, self.eps), self.gate_up.mT
        )
        gate, up = hidden.chunk(2, -1)
        return tw.torch.matmul_reduce_scatter(F.silu(gate) * up, self.down.mT, residual=x)


def ways(s: Sizes, on_gpu: bool) -> tuple[dict[str, Call], dict[str, Call]]:
    """Return calls that compute the block forward and backward, and such that return (result, gradient of x)."""
    rank, size = dist.get_rank(), dist.get_world_size()
    kind, dtype = ("cuda", torch.bfloat16) if on_gpu else ("cpu", torch.float32)
    mesh = init_device_mesh(kind, (size,))
    torch.manual_seed(0)
    alone = Block(s).to(kind, dtype)
    ours = Overlapped(alone, s, rank, size)

    def divided(made: Block) -> Block:
        made.load_state_dict(alone.state_dict())
        parallelize_module(made, mesh, plan())
        return made

    generator = torch.Generator(kind).manual_seed(1)
    whole = torch.randn(s.batch, s.tokens, s.width, generator=generator, device=kind).to(dtype)
    whole_slope = torch.randn(whole.shape, generator=generator, device=kind).to(dtype)
    theirs, their_slope = (distribute_tensor(t, mesh, [Shard(1)]) for t in (whole, whole_slope))
    own, own_slope = (t.transpose(0, 1).chunk(size)[rank].contiguous() for t in (whole, whole_slope))

    def pass_through(model: Callable[[Any], Any], x: Any, slope: Any) -> tuple[Any, Any]:
        x = x.detach().requires_grad_()
        y = model(x)
        y.backward(slope)
        return y.detach(), x.grad

    def of_torch(block: Block, model: Callable[[Any], Any]) -> Call:
        def call() -> tuple[Any, Any]:
            found = pass_through(model, theirs, their_slope)
            block.zero_grad(set_to_none=True)
            return found

        return call

    def of_ours(model: Callable[[Any], Any], symmetric: bool) -> Call:
        def call() -> tuple[Any, Any]:
            if symmetric:
                tw.torch.use_symmetric_memory()
            try:
                found = pass_through(model, own, own_slope)
            finally:
                if symmetric:
                    tw.torch.use_symmetric_memory(enabled=False)
            ours.zero_grad(set_to_none=True)
            return found

        return call

    block = divided(Block(s).to(kind, dtype))
    calls = {"torch": of_torch(block, block), "tw": of_ours(ours, symmetric=False)}
    if on_gpu:
        import torch._inductor.config as inductor
        import torch.distributed._symmetric_memory as memory

        memory.enable_symm_mem_for_group(dist.group.WORLD.group_name)
        pipelined, fused = divided(Pipelined(s).to(kind, dtype)), torch.compile(ours)
        through = of_torch(pipelined, torch.compile(pipelined))

        def by_pass() -> Any:
            with inductor.patch(_micro_pipeline_tp=True):
                return through()

        calls |= {
            "torch, compiled": of_torch(block, torch.compile(block)),
            "torch, async tensor parallel": by_pass,
            "tw, compiled": of_ours(fused, symmetric=False),
            "tw, compiled, symmetric memory": of_ours(fused, symmetric=True),
        }

    reference = alone.float()
    y, slope = pass_through(reference, whole.float(), whole_slope.float())
    expected = [t.transpose(0, 1).chunk(size)[rank] for t in (y, slope)]

    def error(call: Call) -> float:
        found = call()
        local = [t.to_local().transpose(0, 1) if hasattr(t, "to_local") else t for t in found]
        pairs = zip(local, expected, strict=True)
        return worst(max(float((a.float() - b).norm() / b.norm()) for a, b in pairs))

    checks: dict[str, Call] = {name: lambda call=call: error(call) for name, call in calls.items()}  # type: ignore[misc]
    return calls, checks


def worst(figure: float) -> float:
    """Return the greatest of all ranks' figures."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    shared = torch.tensor([figure], dtype=torch.float64, device=device)
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return float(shared)


def times(calls: dict[str, Call], rounds: int = 9, count: int = 4) -> dict[str, float]:
    """Return the microseconds of a call of each: medians of interleaved rounds."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    found: dict[str, list[float]] = {name: [] for name in calls}
    order, draw = list(calls), random.Random(0)  # the same order on all ranks
    for _ in range(rounds):
        draw.shuffle(order)
        for name in order:
            torch.cuda.synchronize()
            dist.barrier()
            begin.record()
            for _ in range(count):
                calls[name]()
            end.record()
            end.synchronize()
            found[name].append(worst(begin.elapsed_time(end) * 1e3 / count))
    return {name: statistics.median(each) for name, each in found.items()}


def scaling(tokens: int = 16384, width: int = 4096, hidden: int = 14336) -> dict[str, float]:
    """Return the microseconds of two linear layers on one GPU and divided over all, and the efficiency."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x, up, down = (
        torch.randn(*shape, generator=torch.Generator("cuda").manual_seed(n), device="cuda").bfloat16()
        for n, shape in enumerate(((tokens, width), (width, hidden), (hidden, width)))
    )
    own, columns, rows = x.chunk(size)[rank].contiguous(), up.chunk(size, 1)[rank].contiguous(), down.chunk(size)[rank]

    def divided(symmetric: bool) -> Call:
        def call() -> Any:
            tw.torch.use_symmetric_memory(enabled=symmetric)
            return tw.torch.matmul_reduce_scatter(tw.torch.all_gather_matmul(own, columns), rows)

        return call

    calls = {
        "one GPU": lambda: tw.torch.matmul(tw.torch.matmul(x, up), down),
        "all GPUs": divided(False),
        "all GPUs, symmetric memory": divided(True),
    }
    for call in calls.values():
        call()
    found = times(calls, count=10)
    found["efficiency"] = found["one GPU"] / (size * min(found["all GPUs"], found["all GPUs, symmetric memory"]))
    return found


def main() -> None:
    """Check all ways, and time them on GPUs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here, after each step")
    parser.add_argument("--small", action="store_true", help="a small block, to check the program")
    parser.add_argument("--only", choices=["block", "scaling"], help="default: both")
    asked = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    sizes = Sizes(16, 2, 32, 4, 2, 64) if asked.small or not on_gpu else Sizes()
    report: dict[str, Any] = {"machine": machine() if on_gpu else {}, "ranks": dist.get_world_size(), "block": {}}

    def write() -> None:
        if dist.get_rank() == 0 and asked.json:
            asked.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    calls, checks = ({}, {}) if asked.only == "scaling" else ways(sizes, on_gpu)
    right = {}
    for name, check in checks.items():
        try:
            error = check()
            report["block"][name] = {"error": error}
            if error <= _TOLERANCE:
                right[name] = calls[name]
        except Exception as exception:
            report["block"][name] = {"failure": f"{type(exception).__name__}: {exception}"[:500]}
        if dist.get_rank() == 0:
            print(name, report["block"][name], flush=True)
        write()
    if on_gpu:
        for name, us in times(right).items() if right else ():
            report["block"][name]["microseconds"] = us
            if dist.get_rank() == 0:
                print(f"{name}: {us:,.0f} us", flush=True)
        write()
    if on_gpu and asked.only != "block":
        report["scaling"] = scaling()
        if dist.get_rank() == 0:
            print(report["scaling"], flush=True)
        write()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
