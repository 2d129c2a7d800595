"""Finished operators against copies, PyTorch and torch.compile, on one GPU.

    python -m benchmarks.operators [--json FILE] [--only NAME ...]

Each work is measured in one interleaved run with a device-to-device copy, PyTorch's own eager operator, and the same
under torch.compile. A rate is that of the bytes that have to move: inputs read and results written once. Results hold
NaN before and are checked against PyTorch in float32 or float64. Forward and backward passes are measured apart;
`tilewright` calls functions of `tw`, `tw.torch` the operators with their dispatch.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.timing import interleaved, machine

import tilewright as tw

Run = Callable[[], Any]
Rows = Iterator[tuple[str, dict[str, Any]]]
SHAPES = ((16384, 4096), (8192, 16384), (2048, 131072))
MOVED = (64, 128, 64, 256)
AXES = ((0, 2, 1, 3), (3, 2, 1, 0), (1, 0, 3, 2), (0, 3, 1, 2))
WEIGHT_TOLERANCE = 2e-2  # of the greatest magnitude: results of bfloat16, and sums over all rows


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


def bytes_of(*arrays: torch.Tensor) -> int:
    return sum(x.numel() * x.element_size() for x in arrays)


def tensors(found: Any) -> tuple[torch.Tensor, ...]:
    return tuple(x for x in found if x is not None) if isinstance(found, (tuple, list)) else (found,)


def check(name: str, run: Run, expected: tuple[torch.Tensor, ...], tolerance: float) -> float:
    """Return the greatest error, relative to the greatest magnitude of what is expected."""
    worst = 0.0
    for ours, known in zip(tensors(run()), expected, strict=False):
        # In parts: a whole difference in float32 would take as much memory again.
        pairs = zip(ours.flatten().split(1 << 26), known.flatten().split(1 << 26), strict=True)
        error = max(float((a.float() - b.float()).abs().max()) for a, b in pairs)
        greatest = max(float(b.abs().max()) for b in known.flatten().split(1 << 26))
        assert error == error, f"{name}: NaN in a result"
        worst = max(worst, error / max(greatest, 1e-30))
    assert worst <= tolerance, (name, worst)
    return worst


def measure(
    moved: int, runs: dict[str, Run], expected: Any, like: torch.Tensor, tolerance: float = WEIGHT_TOLERANCE
) -> dict[str, Any]:
    """Check what is ours, and time all with a copy of `like`, whose rate the others' are divided by."""
    known = tensors(expected)
    errors = {name: check(name, run, known, tolerance) for name, run in runs.items() if name.startswith(("ti", "tw"))}
    target = torch.empty_like(like)
    times = interleaved({"copy": lambda: target.copy_(like), **runs}, rounds=11, batch_seconds=0.012)
    rates = {n: (2 * bytes_of(like) if n == "copy" else moved) / t["seconds"] / 1e12 for n, t in times.items()}
    return {
        n: {**times[n], "TB/s": rate, "of_copy": rate / rates["copy"], "error": errors.get(n)}
        for n, rate in rates.items()
    }


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, dynamic=False)


def with_gradient(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor], grad: torch.Tensor) -> Run:
    """Return the backward pass alone, as autograd runs it."""
    leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
    y = function(*leaves)
    wanted = [x for x in leaves if x.requires_grad]
    return lambda: torch.autograd.grad(y, wanted, grad, retain_graph=True)


def softmax() -> Rows:
    """Measure softmax and its gradient."""
    for shape in SHAPES:
        x, grad = normal(*shape), normal(*shape)
        out = torch.full_like(x, float("nan"))
        run = compiled(lambda x: F.softmax(x, -1))
        runs = {
            "torch": lambda x=x: F.softmax(x, -1),
            "torch.compile": lambda x=x, run=run: run(x),
            "tilewright": lambda x=x, out=out: tw.softmax(x, out=out),
            "tw.torch": lambda x=x: tw.torch.softmax(x),
        }
        yield f"softmax {shape[0]} x {shape[1]}", measure(2 * bytes_of(x), runs, F.softmax(x.float(), -1), x)
        y = F.softmax(x, -1)
        dx = torch.full_like(x, float("nan"))
        known = torch._softmax_backward_data(grad.float(), y.float(), -1, torch.float32)
        runs = {
            "torch": lambda g=grad, y=y: torch._softmax_backward_data(g, y, -1, g.dtype),
            "torch.compile": with_gradient(run, [x], grad),
            "tilewright": lambda g=grad, y=y, dx=dx: tw.softmax_backward(g, y, out=dx),
            "tw.torch": with_gradient(tw.torch.softmax, [x], grad),
        }
        yield f"softmax {shape[0]} x {shape[1]}, backward", measure(3 * bytes_of(x), runs, known, x)


def norms(name: str) -> Rows:
    """Measure a norm and its gradients."""
    for shape in SHAPES:
        is_layer, columns = name == "layer_norm", shape[1]
        vectors = [normal(columns) for _ in range(1 + is_layer)]
        x, grad = normal(*shape), normal(*shape)
        out = torch.full_like(x, float("nan"))
        by_torch, ours = getattr(F, name), getattr(tw.torch, name)

        def function(x: Any, *vectors: Any, f: Any = by_torch, columns: int = columns) -> Any:
            return f(x, (columns,), *vectors, eps=1e-5)

        def operator(x: Any, *vectors: Any, f: Any = ours, columns: int = columns) -> Any:
            return f(x, columns, *vectors, eps=1e-5)

        run, direct = compiled(function), getattr(tw, name)
        runs = {
            "torch": lambda x=x, v=vectors, f=function: f(x, *v),
            "torch.compile": lambda x=x, v=vectors, f=run: f(x, *v),
            "tilewright": lambda x=x, v=vectors, out=out, f=direct: f(x, *v, eps=1e-5, out=out),
            "tw.torch": lambda x=x, v=vectors, f=operator: f(x, *v),
        }
        wide = [v.float() for v in (x, *vectors)]
        yield f"{name} {shape[0]} x {columns}", measure(2 * bytes_of(x), runs, function(*wide), x)
        _, *numbers = direct(x, *vectors, eps=1e-5, statistics=True)
        backward, dx = getattr(tw, f"{name}_backward"), torch.full_like(x, float("nan"))
        expected = with_gradient(function, wide, grad.float())()
        del wide
        runs = {
            "torch": with_gradient(function, [x, *vectors], grad),
            "torch.compile": with_gradient(run, [x, *vectors], grad),
            "tilewright": lambda g=grad, x=x, n=numbers, w=vectors[0], dx=dx, f=backward: f(g, x, *n, w, out=dx),
            "tw.torch": with_gradient(operator, [x, *vectors], grad),
        }
        yield f"{name} {shape[0]} x {columns}, backward", measure(3 * bytes_of(x), runs, expected, x)
        torch.cuda.empty_cache()


def permute() -> Rows:
    """Measure permutations; bits have to be the same."""
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        x = normal(*MOVED, dtype=torch.float32)
        x = (x * 40).to(dtype) if dtype is torch.int8 else x.to(dtype)
        for axes in AXES:
            expected = x.permute(axes).contiguous()
            out = torch.empty_like(expected).fill_(-1)
            runs: dict[str, Run] = {
                "torch": lambda x=x, a=axes: x.permute(a).contiguous(),
                "tilewright": lambda x=x, a=axes, out=out: tw.permute(x, a, out=out),
                "tw.torch": lambda x=x, a=axes: tw.torch.permute(x, a),
            }
            if dtype is torch.float32:  # compiling takes its time
                run = compiled(lambda x, axes=axes: x.permute(axes).contiguous())
                runs["torch.compile"] = lambda x=x, f=run: f(x)
            name = f"permute {MOVED} by {axes}, {str(dtype).removeprefix('torch.')}"
            yield name, measure(2 * bytes_of(x), runs, expected, x, 0.0)


def cross_entropy() -> Rows:
    """Measure cross entropy and its gradient, which reads the logits and writes as much."""
    rows, columns = 8192, 128256
    x, labels = normal(rows, columns), torch.randint(0, columns, (rows,), device="cuda")
    run = compiled(F.cross_entropy)
    # One after the other: in float32 the logits take 4 GB.
    halves = zip(x.split(512), labels.split(512), strict=True)
    expected = torch.cat([F.cross_entropy(p.float(), q, reduction="none") for p, q in halves])
    runs = {
        "torch": lambda: F.cross_entropy(x, labels),
        "torch.compile": lambda: run(x, labels),
        "tilewright": lambda: tw.cross_entropy(x, labels),
        "tw.torch": lambda: tw.torch.cross_entropy(x, labels, reduction="none"),
    }
    name = f"cross_entropy {rows} x {columns}"
    like = x[: rows // 2]
    yield name, measure(bytes_of(x), runs, expected, like)
    one = torch.ones((), device="cuda", dtype=x.dtype)
    each = torch.full((rows,), 1 / rows, device="cuda")
    _, top, total = tw.cross_entropy(x, labels, statistics=True)
    dx = torch.empty_like(x).fill_(float("nan"))
    known = with_gradient(F.cross_entropy, [x, labels], one)()
    runs = {
        "torch": with_gradient(F.cross_entropy, [x, labels], one),
        "torch.compile": with_gradient(run, [x, labels], one),
        "tilewright": lambda: tw.cross_entropy_backward(each, x, labels, top, total, out=dx),
        "tw.torch": with_gradient(tw.torch.cross_entropy, [x, labels], one),
    }
    yield f"{name}, backward", measure(2 * bytes_of(x), runs, known, like)


WORKS: dict[str, Callable[[], Rows]] = {
    "softmax": softmax,
    "rms_norm": lambda: norms("rms_norm"),
    "layer_norm": lambda: norms("layer_norm"),
    "permute": permute,
    "cross_entropy": cross_entropy,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", choices=WORKS, default=list(WORKS))
    given = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), "works": {}, "failed": {}}
    begun = time.monotonic()
    for work in given.only:
        torch.manual_seed(0)
        try:
            for name, row in WORKS[work]():
                found["works"][name] = row
                shown = "  ".join(f"{n} {r['of_copy']:.2f}" for n, r in row.items() if n != "copy")
                print(f"{name:60} copy {row['copy']['TB/s']:.2f} TB/s  {shown}", flush=True)
        except Exception as error:  # the others are measured nevertheless
            found["failed"][work] = repr(error)
            print(f"{work}: {error!r}", flush=True)
        torch.cuda.empty_cache()
        if given.json:
            given.json.write_text(json.dumps(found, indent=1))
    print(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
