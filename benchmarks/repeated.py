"""Operators run again and again, one launch behind the other, and every result is compared with the bits of the first.

    PYTHONPATH=src python -m benchmarks.repeated [--seconds S] [--part I --of N] [--only WORD ...] [--json FILE]

What goes wrong in one of a thousand launches, as a read that comes late, is seen so, and by no other test. Several
processes at once (`--part 0 --of 4`, under MPS) have the GPU busy with other work, too. Of an operator that differs is
told in how many calls, in which results, and by how much at most.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import tilewright as tw

Call = Callable[[], Any]
Named = tuple[str, Callable[[], Iterator[tuple[str, Call]]]]  # what makes the calls of an operator
PRODUCTS = (
    (1, 4096, 4096), (30, 777, 1000), (64, 64, 65536), (100, 100, 20000), (500, 512, 16384), (1111, 1111, 1111),
    (2000, 3000, 700), (4096, 128, 512), (777, 4000, 64),
)  # fmt: skip
BATCH = 20  # calls between two looks at the clock
SHORT, HEADS = {"cuda": 1, "cpu": 20}, (64, 80, 96, 128, 160, 192, 256)


class Operators:
    """The operators, each with arrays of its own, which are made when its turn has come."""

    def __init__(self, device: str) -> None:
        self.device, self.short = device, SHORT[device]

    def tensor(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(*shape, device=self.device).to(dtype)

    def all(self) -> Iterator[Named]:
        """Yield names and what makes the calls of each."""
        for head in HEADS:
            for tokens, causal in ((1000, False), (777, True), (96, True)):
                yield self.attention(2, 4, tokens, head, causal=causal)
        yield self.attention(2, 8, 1500, 128, shared=2, causal=True)
        yield self.attention(2, 4, 900, 192, values=128, causal=True)
        yield self.attention(2, 8, 1000, 192, values=128, shared=2)
        yield self.attention(2, 4, 333, 160, values=64, causal=True)
        yield self.attention(1, 2, 4096, 64, causal=True)
        yield self.attention(2, 4, 700, 128, window=(100, 0))
        for rows, columns in ((4096, 4096), (777, 1111), (64, 131072), (5000, 64), (300, 16384), (2000, 8192)):
            for dtype in (torch.bfloat16, torch.float32):
                yield self.rows(rows, columns, dtype)
        yield self.loss(1000, 32000)
        yield self.loss(300, 128256)
        for shape, axes in (((64, 128, 64, 100), (0, 2, 1, 3)), ((64, 127, 64, 100), (3, 2, 1, 0))):
            yield self.permuted(shape, axes)
        for m in (1, 16, 64, 200, 1000, 3000):
            yield self.gated(m, 1024, 1000)
        for head in (64, 128, 192):
            for lengths in ((300, 1, 0, 517, 64), (50, 60, 70, 80), (1500, 20)):
                yield self.sequences(4, head, lengths)
            yield self.decoded(8, 16, 2, 3000, head)
            yield self.padded(3, 4, 500, head)
        for tokens, head in ((197, 64), (50, 64), (100, 96), (128, 128), (256, 32)):
            yield self.attention(4, 12, tokens, head)
        for rows in (3, 64, 700, 5000):
            yield self.experts(rows, 1024, 768)
        for m, n, k in PRODUCTS:
            yield self.product(m, n, k)
        for m in (1, 8, 40, 200, 1000):
            yield self.packed(m, 2048, 1024)

    def attention(
        self, batch: int, heads: int, tokens: int, head: int, shared: int = 0, values: int = 0, **options: Any
    ) -> Named:
        tokens = max(tokens // self.short, 1)

        def calls() -> Iterator[tuple[str, Call]]:
            q = self.tensor(batch, heads, tokens, head)
            k, v = (self.tensor(batch, shared or heads, tokens, each) for each in (head, values or head))
            out, lse = tw.attention(q, k, v, statistics=True, **options)
            grad = self.tensor(*out.shape)
            yield "forward", lambda: tw.attention(q, k, v, statistics=True, **options)
            yield "backward", lambda: tw.attention_backward(grad, q, k, v, out, lse, **options)

        return f"attention {batch} x {heads}/{shared or heads} x {tokens} x {head}/{values or head} {options}", calls

    def sequences(self, heads: int, head: int, lengths: tuple[int, ...]) -> Named:
        """Attention of sequences in one array, and its gradients."""
        lengths = tuple(-(-length // self.short) for length in lengths)

        def calls() -> Iterator[tuple[str, Call]]:
            ends = torch.tensor([0, *lengths], device=self.device).cumsum(0).int()
            q, k, v = (self.tensor(sum(lengths), heads, head) for _ in range(3))
            out, lse = tw.attention(q, k, v, causal=True, offsets=ends, statistics=True)
            grad = self.tensor(*out.shape)
            yield "forward", lambda: tw.attention(q, k, v, causal=True, offsets=ends, statistics=True)
            yield (
                "backward",
                lambda: tw.attention_backward(grad, q, k, v, out, lse, causal=True, offsets=ends),
            )

        return f"attention of sequences {lengths} x {heads} x {head}", calls

    def decoded(self, batch: int, heads: int, shared: int, keys: int, head: int) -> Named:
        """Attention of one new token, whose keys are divided into parts."""
        keys = keys // self.short

        def calls() -> Iterator[tuple[str, Call]]:
            q = self.tensor(batch, heads, 1, head)
            k, v = (self.tensor(batch, shared, keys, head) for _ in range(2))
            yield "forward", lambda: tw.attention(q, k, v, causal=True, statistics=True)

        return f"attention of one token, {batch} x {heads}/{shared} x {keys} x {head}", calls

    def padded(self, batch: int, heads: int, tokens: int, head: int) -> Named:
        """Attention of batches with fewer keys than the array has."""
        tokens = tokens // self.short

        def calls() -> Iterator[tuple[str, Call]]:
            q, k, v = (self.tensor(batch, heads, tokens, head) for _ in range(3))
            lengths = torch.randint(0, tokens + 1, (batch,), device=self.device).int()
            out, lse = tw.attention(q, k, v, key_lengths=lengths, statistics=True)
            grad = self.tensor(*out.shape)
            yield "forward", lambda: tw.attention(q, k, v, key_lengths=lengths, statistics=True)
            yield "backward", lambda: tw.attention_backward(grad, q, k, v, out, lse, key_lengths=lengths)

        return f"attention of padded batches {batch} x {heads} x {tokens} x {head}", calls

    def experts(self, rows: int, n: int, k: int) -> Named:
        """Grouped products of 5 experts, forward and both gradients."""
        rows, n, k = (-(-extent // self.short) for extent in (rows, n, k))

        def calls() -> Iterator[tuple[str, Call]]:
            ends = torch.tensor([rows // 7, rows // 7, rows // 2, rows - 1, rows], device=self.device).int()
            x, w, grad = self.tensor(rows, k), self.tensor(5, n, k).mT, self.tensor(rows, n)
            yield "forward", lambda: tw.grouped_matmul(x, w, ends)
            yield "of rows", lambda: tw.grouped_matmul(grad, w.mT, ends)
            yield "of weights", lambda: tw.grouped_matmul(x.t(), grad, ends)

        return f"experts {rows} x {n} x {k}", calls

    def product(self, m: int, n: int, k: int) -> Named:
        """Products of several types, and with sums beside the result."""
        m, n, k = (-(-extent // self.short) for extent in (m, n, k))

        def calls() -> Iterator[tuple[str, Call]]:
            x, w = self.tensor(m, k), self.tensor(n, k).t()
            wide, of_wide = x.float(), w.float()
            yield "bfloat16", lambda: tw.matmul(x, w)
            yield "sums", lambda: tw.matmul(x, w, also=[("sum", -2), ("amax", -1)], epilogue=lambda a: (a, a, a))
            for precision in ("ieee", "tf32", "tf32x3", "bf16x9"):
                yield precision, lambda precision=precision: tw.matmul(wide, of_wide, precision=precision)

        return f"product {m} x {n} x {k}", calls

    def packed(self, m: int, n: int, k: int) -> Named:
        """Products with weights of 4 and 8 bits."""
        m = -(-m // self.short)

        def calls() -> Iterator[tuple[str, Call]]:
            x, whole = self.tensor(m, k), torch.randn(k, n, device=self.device)
            for bits in (4, 8):
                weights = tw.quantize(whole, bits=bits, group=128, scale_dtype=tw.bfloat16)
                yield f"{bits} bits", lambda weights=weights: tw.matmul(x, weights)

        return f"packed weights {m} x {n} x {k}", calls

    def rows(self, rows: int, columns: int, dtype: torch.dtype) -> Named:
        rows = max(rows // self.short, 1)

        def calls() -> Iterator[tuple[str, Call]]:
            x, grad = (self.tensor(rows, columns, dtype=dtype) for _ in range(2))
            w, y = self.tensor(columns, dtype=dtype), tw.softmax(x)
            _, scale = tw.rms_norm(x, w, statistics=True)
            _, mean, deviation = tw.layer_norm(x, w, w, statistics=True)
            yield "softmax", lambda: tw.softmax(x)
            yield "softmax_backward", lambda: tw.softmax_backward(grad, y)
            yield "rms_norm", lambda: tw.rms_norm(x, w, statistics=True)
            yield "rms_norm_backward", lambda: tw.rms_norm_backward(grad, x, scale, w)
            yield "layer_norm", lambda: tw.layer_norm(x, w, w, statistics=True)
            yield "layer_norm_backward", lambda: tw.layer_norm_backward(grad, x, mean, deviation, w)

        return f"rows {rows} x {columns} {dtype}", calls

    def loss(self, rows: int, columns: int) -> Named:
        rows = max(rows // self.short, 1)

        def calls() -> Iterator[tuple[str, Call]]:
            logits, labels = self.tensor(rows, columns), torch.randint(0, columns, (rows,), device=self.device)
            _, top, total = tw.cross_entropy(logits, labels, statistics=True)
            grad = self.tensor(rows, dtype=torch.float32)
            yield "forward", lambda: tw.cross_entropy(logits, labels, statistics=True)
            yield "backward", lambda: tw.cross_entropy_backward(grad, logits, labels, top, total)

        return f"cross_entropy {rows} x {columns}", calls

    def permuted(self, shape: tuple[int, ...], axes: tuple[int, ...]) -> Named:
        shape = (max(shape[0] // self.short, 1), *shape[1:])

        def calls() -> Iterator[tuple[str, Call]]:
            x = self.tensor(*shape)
            yield "permute", lambda: tw.permute(x, axes)

        return f"permute {shape} by {axes}", calls

    def gated(self, m: int, n: int, k: int) -> Named:
        m = max(m // self.short, 1)

        def calls() -> Iterator[tuple[str, Call]]:
            x, w = self.tensor(m, k), self.tensor(2 * n, k).t()
            yield "gated", lambda: tw.matmul(x, w, epilogue=tw.gated(lambda a, b: a * b))

        return f"gated {m} x {n} x {k}", calls


def results_of(call: Call) -> list[torch.Tensor]:
    """Return the results of a call, without those that there are not."""
    found = call()
    return [x for x in (found if isinstance(found, tuple) else (found,)) if x is not None]


class Repeated:
    """A call made again and again: of each of its results how often it differed from the first one's, and how far."""

    def __init__(self, call: Call) -> None:
        self.call, self.calls = call, 0
        self.first = [x.clone() for x in results_of(call)]
        self.differing = torch.zeros(len(self.first), device=self.first[0].device, dtype=torch.int64)
        self.farthest = torch.zeros(len(self.first), device=self.first[0].device, dtype=torch.float64)
        self.batch = BATCH if self.first[0].is_cuda else 1

    def again(self) -> None:
        """Call once more, and compare without a wait for the GPU."""
        for n, (x, y) in enumerate(zip(self.first, results_of(self.call), strict=True)):
            differs = (x != y) & ~(x.isnan() & y.isnan())
            self.differing[n] += differs.any()
            far = (x.double() - y.double()).abs().where(differs, 0).max()
            self.farthest[n] = torch.maximum(self.farthest[n], far)
        self.calls += 1

    def found(self) -> dict[str, Any]:
        """Return the figures."""
        return {"calls": self.calls, "differing": self.differing.tolist(), "farthest": self.farthest.tolist()}


def repeat(call: Call, seconds: float) -> dict[str, Any]:
    """Call for so many seconds, and return what was found."""
    repeated, end = Repeated(call), time.monotonic() + seconds
    while repeated.calls == 0 or time.monotonic() < end:
        for _ in range(repeated.batch):
            repeated.again()
        repeated.differing.tolist()  # waits for all
    return repeated.found()


def main() -> int:
    """Run the operators and print those that differ; return 1 where one does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.4, help="of each operator")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--of", type=int, default=1, help="processes, each of which takes a part")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="WORD", help="operators with one of these in the name"
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="on a CPU the simulator runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(options.part)
    report: dict[str, Any] = {}
    for number, (name, calls) in enumerate(Operators(options.device).all()):
        if number % options.of == options.part and any(word in name for word in options.only):
            for what, call in calls():
                report[f"{name}, {what}"] = repeat(call, options.seconds)
                print(f"\r{len(report)} operators", end="", file=sys.stderr, flush=True)
    wrong = {name: found for name, found in report.items() if any(found["differing"])}
    print(f"\n{len(report)} operators, {sum(x['calls'] for x in report.values())} calls, {len(wrong)} differ")
    for name, found in wrong.items():
        print(f"  {name}: {found}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
