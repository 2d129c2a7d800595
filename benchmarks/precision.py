"""Float32 by multiply-adds and in parts on tensor cores, against cuBLAS and against float64, on one GPU.

    python -m benchmarks.precision [--json FILE] [--quick]

Squares from 2048 to 8192, and shapes of few rows and of a long K, of normal random float32: `precision` "ieee",
"tf32x3", "bf16x6" and "bf16x9" of `tw.matmul` and cuBLAS float32 (torch, no tf32), interleaved in one run. Of each the
table says the time, what it is of cuBLAS, and the errors against float64, relative to the sum of |a b|: the greatest
and the root of the mean square, over 256 rows. For other inputs (positive numbers, wide exponents, sums that cancel),
errors alone are measured, at 1024 cubed. The JSON has which kernel ran.

`python -m benchmarks.matmul_choice --type tf32x3` measures all candidates of a precision.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.timing import interleaved, machine

import tilewright as tw

PRECISIONS = ("ieee", "tf32x3", "bf16x6", "bf16x9")
SQUARES = tuple((n, n, n) for n in (2048, 3072, 4096, 6144, 8192))
OTHERS = (
    (64, 4096, 4096), (3000, 5000, 2000), (4093, 4095, 4091), (64, 64, 262144), (100, 100, 1000000), (256, 256, 65536),
)  # fmt: skip
ROWS = 256  # of the result that are compared with float64

Pair = tuple[torch.Tensor, torch.Tensor]


def normal(m: int, n: int, k: int) -> Pair:
    """Return normal random matrices."""
    return torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")


def positive(m: int, n: int, k: int) -> Pair:
    """Return matrices of uniform numbers from 0 to 1."""
    return torch.rand(m, k, device="cuda"), torch.rand(k, n, device="cuda")


def wide(m: int, n: int, k: int) -> Pair:
    """Return matrices with exponents from 1e-30 to 1e30 along K."""
    a, b = normal(m, n, k)
    scale = 10.0 ** (60 * torch.rand(k, device="cuda", dtype=torch.float64) - 30)
    return (a * scale).float(), (b / scale[:, None]).float()


def cancelling(m: int, n: int, k: int) -> Pair:
    """Return matrices whose products nearly cancel."""
    a, b = normal(m, n, k // 2)
    last_bits = 1 + torch.randint(-2, 3, a.shape, device="cuda") * 2.0**-22
    return torch.hstack([a, -(a * last_bits)]), torch.vstack([b, b])


INPUTS: tuple[Callable[[int, int, int], Pair], ...] = (normal, positive, wide, cancelling)


def products(a: torch.Tensor, b: torch.Tensor) -> dict[str, tuple[Callable[[], object], torch.Tensor]]:
    """Return what computes a @ b in each way, and where its result goes."""
    found: dict[str, tuple[Callable[[], object], torch.Tensor]] = {}
    out = torch.full((a.shape[0], b.shape[1]), torch.nan, device="cuda")
    found["cuBLAS"] = (partial(torch.matmul, a, b, out=out), out)
    for precision in PRECISIONS:
        out = torch.full_like(out, torch.nan)
        found[precision] = (partial(tw.matmul, a, b, out=out, precision=precision), out)
    return found


def errors(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> dict[str, float]:
    """Return the errors of some rows against float64, relative to the sum of |a b|."""
    step = max(result.shape[0] // ROWS, 1)
    exact, size = a[::step].double() @ b.double(), a[::step].double().abs() @ b.double().abs()
    relative = (result[::step].double() - exact) / size
    return {"greatest": float(relative.abs().max()), "root_mean_square": float(relative.square().mean().sqrt())}


def measure(shape: tuple[int, int, int]) -> dict[str, Any]:
    """Time all ways to compute a shape, in one run, and compare what they computed with float64."""
    a, b = normal(*shape)
    found = products(a, b)
    for run, _ in found.values():
        run()
    wrong = {name: errors(out, a, b) for name, (_, out) in found.items()}
    times = interleaved({name: run for name, (run, _) in found.items()})
    rows: dict[str, Any] = {}
    for name, time in times.items():
        rows[name] = {
            "us": time["seconds"] * 1e6,
            "of_cublas": times["cuBLAS"]["seconds"] / time["seconds"],
            "tflops": 2 * shape[0] * shape[1] * shape[2] / time["seconds"] / 1e12,
            "errors": wrong[name],
        }
        if name != "cuBLAS":
            choice = tw.matmul.explain(a, b, precision=name).choice
            rows[name]["kernel"] = None if choice is None else str(choice.configuration)
    return rows


def show(title: str, rows: dict[str, Any]) -> None:
    """Print a table."""
    print(title)
    for name, row in rows.items():
        error = row["errors"]
        times = f"{row['us']:10.1f} us {row['tflops']:7.1f} TFLOP/s {row['of_cublas']:6.2f}" if "us" in row else ""
        print(f"  {name:8} {times}  errors {error['greatest']:.2e}, {error['root_mean_square']:.2e}", flush=True)


def main() -> None:
    """Measure everything, print it and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="squares of 4096 only")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    results: dict[str, Any] = {"machine": machine()}
    for shape in ((4096, 4096, 4096),) if arguments.quick else (*SQUARES, *OTHERS):
        title = " x ".join(map(str, shape))
        results[title] = measure(shape)
        show(title, results[title])
    for inputs in INPUTS:
        a, b = inputs(1024, 1024, 1024)
        rows = {}
        for name, (run, out) in products(a, b).items():
            run()
            rows[name] = {"errors": errors(out, a, b)}
        title = f"{inputs.__name__} numbers, 1024 cubed"
        results[title] = rows
        show(title, rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
