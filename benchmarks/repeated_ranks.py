"""Products over several GPUs again and again, with ranks that are late by chance; results have the first one's bits.

    torchrun --nproc-per-node 2 -m benchmarks.repeated_ranks [--seconds S] [--only WORD ...] [--small] [--json FILE]

A rank that is late finds flags that others have set long ago, and one that is early waits for them; in a benchmark,
where all ranks keep step, neither happens. Before every other call a rank, chosen by chance, rests for up to 200
microseconds. The first result is compared with that of float64, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import torch  # NCCL reads the environment
import torch.distributed as dist
from benchmarks.repeated import Repeated
from benchmarks.timing import machine

import tilewright as tw

LONGEST = 400_000  # clocks that a rank rests
ROWS = (64, 512, 1000, 4096)
Named = tuple[str, Callable[[], Any], torch.Tensor]  # what is called, and what it gives in float64


class Products:
    """The products of a rank; of a matrix that is divided each rank has its own part."""

    def __init__(self, device: torch.device, small: bool) -> None:
        self.device, self.short = device, 64 if small else 1
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def tensor(self, *shape: int) -> torch.Tensor:
        found = torch.randn(*shape, device=self.device) / shape[-1] ** 0.25
        return found.to(torch.bfloat16)

    def gathered(self, x: torch.Tensor) -> torch.Tensor:
        """Return the parts of all ranks, one behind the other."""
        found = [torch.empty_like(x) for _ in range(self.ranks)]
        dist.all_gather(found, x)
        return torch.cat(found)

    def added(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' numbers."""
        dist.all_reduce(x)
        return x

    def all(self) -> Iterator[Named]:
        """Yield the products."""
        for rows in ROWS:
            m, n, k = (max(extent // self.short, 8) for extent in (rows, 2048, 4096))
            m = -(-m // self.ranks) * self.ranks
            x, w = self.tensor(m // self.ranks, k), self.tensor(k, n)
            yield (
                f"all_gather_matmul {m} x {n} x {k}",
                lambda x=x, w=w: tw.torch.all_gather_matmul(x, w),
                self.gathered(x).double() @ w.double(),
            )
            x, w = self.tensor(m, k // self.ranks), self.tensor(k // self.ranks, n)
            whole = self.added(x.double() @ w.double())
            yield (
                f"matmul_reduce_scatter {m} x {n} x {k}",
                lambda x=x, w=w: tw.torch.matmul_reduce_scatter(x, w),
                whole.chunk(self.ranks)[self.rank],
            )
            yield f"matmul_all_reduce {m} x {n} x {k}", lambda x=x, w=w: tw.torch.matmul_all_reduce(x, w), whole


def rest(device: torch.device, draw: random.Random) -> None:
    """Let the rank be late, if it is chosen."""
    if draw.random() < 0.5 / dist.get_world_size():
        if device.type == "cuda":
            torch.cuda._sleep(draw.randrange(LONGEST))
        else:
            time.sleep(draw.random() / 1000)


def repeat(call: Callable[[], Any], seconds: float, device: torch.device, draw: random.Random) -> dict[str, Any]:
    """Call for so many seconds; return the calls, and how many of them differed on the ranks together, and how far."""
    repeated, end, goes_on = Repeated(call), time.monotonic() + seconds, torch.ones((), device=device)
    while goes_on:
        for _ in range(repeated.batch):
            rest(device, draw)
            repeated.again()
        goes_on = torch.full((), float(time.monotonic() < end), device=device)
        dist.broadcast(goes_on, 0)  # or a rank would leave the others
    dist.all_reduce(repeated.differing)
    dist.all_reduce(repeated.farthest, dist.ReduceOp.MAX)
    return repeated.found()


def main() -> int:
    """Run the products and print those that differ; return 1 where one does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2, help="of each product")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="WORD", help="products with one of these in the name"
    )
    parser.add_argument("--small", action="store_true", help="small products, to check the program")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    torch.manual_seed(dist.get_rank())
    draw, found = random.Random(dist.get_rank()), {}
    for name, call, expected in Products(device, options.small or not on_gpu).all():
        if any(word in name for word in options.only):
            error = float((call().double() - expected).abs().max() / expected.abs().max())
            found[name] = repeat(call, options.seconds, device, draw) | {"error": error}
            if dist.get_rank() == 0:
                print(f"\r{len(found)} products", end="", file=sys.stderr, flush=True)
    wrong = {name: each for name, each in found.items() if any(each["differing"]) or each["error"] > 2e-2}
    if dist.get_rank() == 0:
        print(f"\n{len(found)} products, {sum(x['calls'] for x in found.values())} calls, {len(wrong)} differ")
        for name, each in wrong.items():
            print(f"  {name}: {each}")
        if options.json:
            report = {"machine": machine() if on_gpu else {}, "ranks": dist.get_world_size(), "products": found}
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    dist.destroy_process_group()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
