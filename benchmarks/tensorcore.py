"""`tw.matmul` and the tensor-core examples against cuBLAS, on one GPU.

    python -m benchmarks.tensorcore [--json FILE]

C = A B^T, candidates interleaved on normal random data (int8: uniform), outputs filled with NaN before and the first
and last rows checked after: floats against float64, integers exactly. The first of each group is what the others are
compared with: cuBLAS, or for shapes with edges the aligned shape, by the rate.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from benchmarks.timing import interleaved, machine

import tilewright as tw
from tilewright.demo.examples import examples_folder, load_example

ROWS = 128  # at either end of the result that are checked
Run = Callable[[], object]


@dataclass(frozen=True)
class Product:
    """One way of computing a product; `out` is checked unless `expected` is None."""

    run: Run
    flops: int
    out: torch.Tensor | None = None
    expected: tuple[torch.Tensor, torch.Tensor] | None = None


def example(name: str) -> ModuleType:
    """Load one of the tensor-core examples."""
    return load_example(examples_folder() / "tensorcore" / f"{name}.py")


def matrix(rows: int, columns: int, dtype: torch.dtype, major: str = "K", pad: int = 0) -> torch.Tensor:
    """Return a random matrix, contiguous along K or along its rows, with `pad` elements between rows."""
    if major != "K":
        return matrix(columns, rows, dtype, pad=pad).t()
    shape = (rows, columns + pad)
    if dtype == torch.int8:
        memory = torch.randint(-128, 128, shape, dtype=dtype, device="cuda")
    else:
        wide = dtype if dtype == torch.float64 else torch.float32
        memory = torch.randn(shape, dtype=wide, device="cuda").to(dtype)
    return memory[:, :columns]


def expected(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first and the last rows of A B^T."""
    b = b.double().t()
    return a[:ROWS].double() @ b, a[-ROWS:].double() @ b


def product(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype, run: Callable[..., object] | None, pad: int = 0
) -> Product:
    """Return a product of A and B^T into new memory; without `run` that of torch."""
    m, n, k = a.shape[0], b.shape[0], a.shape[1]
    out = torch.empty(m, n + pad, dtype=out_dtype, device="cuda")[:, :n]
    if run is None:
        if a.dtype == torch.int8:
            return Product(lambda: torch._int_mm(a, b.t()), 2 * m * n * k)
        return Product(lambda: torch.mm(a, b.t(), out=out), 2 * m * n * k)
    return Product(lambda: run(out, a, b), 2 * m * n * k, out, expected(a, b))


def by_matmul(precision: str | None = None, **options: Any) -> Callable[..., object]:
    """Return the library's function."""
    return lambda out, a, b: tw.matmul(a, b.t(), out=out, precision=precision, **options)


def measure(products: dict[str, Product], limit: float = 5e-3) -> dict[str, Any]:
    """Check every product, floats to a relative error, and time them interleaved."""
    errors = {}
    for name, each in products.items():
        if each.out is None or each.expected is None:
            continue
        exact = not each.out.dtype.is_floating_point
        each.out.fill_(-1 if exact else float("nan"))
        each.run()
        parts = zip((each.out[:ROWS], each.out[-ROWS:]), each.expected, strict=True)
        errors[name] = max(float((x.double() - y).norm() / y.norm()) for x, y in parts)
        assert bool(torch.isfinite(each.out.double()).all()), name
        assert errors[name] <= (0 if exact else limit), (name, errors[name])
    times = interleaved({name: each.run for name, each in products.items()}, rounds=14, batch_seconds=0.03)
    rates = {name: products[name].flops / t["seconds"] / 1e12 for name, t in times.items()}
    first = rates[next(iter(products))]
    return {
        name: {**times[name], "T/s": rate, "of_first": rate / first, "relative_error": errors.get(name)}
        for name, rate in rates.items()
    }


def square(
    n: int, dtype: torch.dtype, out: torch.dtype, precision: str | None = None, **more: Callable[..., object]
) -> dict[str, Any]:
    """Measure n cubed with K contiguous in both: cuBLAS, tw.matmul, and examples."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    a, b = matrix(n, n, dtype), matrix(n, n, dtype)
    runs = {"tw.matmul": by_matmul(precision), **more}
    return measure(
        {"cuBLAS": product(a, b, out, None), **{name: product(a, b, out, run) for name, run in runs.items()}}
    )


def majors(n: int, dtype: torch.dtype) -> dict[str, Any]:
    """Measure all four majors against cuBLAS for K contiguous in both."""
    a, b = matrix(n, n, dtype), matrix(n, n, dtype)
    products = {"cuBLAS": product(a, b, dtype, None)}
    for names in ("KK", "MK", "KM", "MM"):
        x, y = matrix(n, n, dtype, names[0]), matrix(n, n, dtype, names[1])
        products[f"tw.matmul, {names}"] = product(x, y, dtype, by_matmul())
    return measure(products)


def edges(dtype: torch.dtype, out: torch.dtype, precision: str | None = None) -> dict[str, Any]:
    """Measure 4093 x 4095 x 4091, rows padded to 16 bytes, against 4096 cubed."""
    m, n, k, row = 4093, 4095, 4091, 4096
    run = by_matmul(precision)
    products = {"aligned": product(matrix(row, row, dtype), matrix(row, row, dtype), out, run)}
    for names in ("KK", "MM") if dtype.itemsize > 1 else ("KK",):
        x = matrix(m, k, dtype, names[0], row - (k if names[0] == "K" else m))
        y = matrix(n, k, dtype, names[1], row - (k if names[1] == "K" else n))
        products[f"with edges, {names}"] = product(x, y, out, run, pad=1)
    if dtype.itemsize < 4:
        products["rows of odd length"] = product(matrix(m, k, dtype), matrix(n, k, dtype), out, run)
    return measure(products)


def main() -> None:
    """Measure everything, print it, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    half, multistage, others = (torch.bfloat16, torch.float16), example("03_multistage"), example("04_int8_fp64")
    f32, f64, s8, s32 = torch.float32, torch.float64, torch.int8, torch.int32
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        **{
            f"{str(t)[6:]} {n}": lambda t=t, n=n: square(n, t, t, example=multistage.matmul)
            for t in half
            for n in (4096, 8192)
        },
        "bfloat16 majors 4096": lambda: majors(4096, torch.bfloat16),
        **{f"tf32 {n}": lambda n=n: square(n, f32, f32, "tf32") for n in (4096, 8192)},
        "float64 4096": lambda: square(
            4096, f64, f64, example=lambda out, a, b: others.matmul(out, a, b, others.FP64_HOPPER)
        ),
        "int8 4096": lambda: square(4096, s8, s32, example=lambda out, a, b: others.matmul(out, a, b, others.INT8)),
        "float32 4096": lambda: square(4096, f32, f32),
        **{f"{str(t)[6:]} edges": lambda t=t: edges(t, t) for t in (torch.bfloat16, f64, f32)},
        "tf32 edges": lambda: edges(f32, f32, "tf32"),
        "int8 edges": lambda: edges(s8, s32),
    }
    results: dict[str, Any] = {"machine": machine()}
    for name, part in parts.items():
        results[name] = part()
        for row, figures in results[name].items():
            print(f"{name:22} {row:22} {figures['T/s']:8.1f} T/s  {figures['of_first']:.3f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
