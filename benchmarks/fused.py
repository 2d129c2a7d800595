"""`tw.matmul` with epilogues, further results, batches of small products, and scales, on one GPU, against torch.

    python -m benchmarks.fused [--only GROUP ...] [--json FILE]

gelu(x W^T + b) is compared with torch eager, torch.compile (max-autotune without CUDA graphs), cuBLASLt's epilogue
where torch has it (`torch._addmm_activation`), and the bare products of both. Batches are compared with torch.bmm.
Products with reductions of rows and columns are compared with torch's product and its reduction behind it.
silu(gate) * up of one weight that holds both is compared with torch's product and what follows, eager and compiled, and
with two products of ours, of which the second reads the gate.
8-bit floats are scaled per tensor, per row and per block (1 x 128 of A, 128 x 128 of B), and compared with
`torch._scaled_mm`, whose scaling per row always has fast accumulation; so ours is also measured with
precision="fp8_fast". All candidates of a product run interleaved on normal random data; results are
checked against float64, or for 8-bit floats to 2 %.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.tensorcore import ROWS as CHECKED
from benchmarks.tensorcore import Product, expected, matrix, measure
from benchmarks.timing import machine

import tilewright as tw

ROWS, COLUMNS, DEPTH = 8192, 8192, 4096
BATCH, SMALL = 4096, 64
FURTHER = ((4096, 4096, 4096), (8192, 8192, 4096))
GATED, GATED_ROWS = (14336, 4096), (1, 16, 64, 512, 8192)
SCALED = ((4096, 4096, 4096), (8192, 8192, 8192), (4096, 7168, 2048), (128, 7168, 16384))


def gelu_by_tanh(x: Any) -> Any:
    """Return x (1 + tanh u) / 2 = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3).

    An exact division branches for each element: with one the whole product took 1.7 times as long. Subnormal numbers
    vanish in the sum: with ftz an element takes ten instructions less.
    """
    u = x * tw.fma(x * x, -0.10294324, -2.3022082)
    return x * tw.rcp_approx(1 + tw.ex2_approx(u, ftz=True), ftz=True)


def gelu_of_linear() -> dict[str, dict[str, Any]]:
    """Measure gelu (by tanh) of a linear layer with a bias, and the bare product."""
    x, w = matrix(ROWS, DEPTH, torch.bfloat16), matrix(COLUMNS, DEPTH, torch.bfloat16)
    bias = torch.randn(COLUMNS, device="cuda").to(torch.bfloat16)
    gelu = torch.nn.functional.gelu
    flops = 2 * ROWS * COLUMNS * DEPTH
    out = torch.empty(ROWS, COLUMNS, dtype=torch.bfloat16, device="cuda")
    activated = [
        gelu(x[rows].double() @ w.double().t() + bias.double(), approximate="tanh")
        for rows in (slice(0, CHECKED), slice(-CHECKED, None))
    ]
    compiled = torch.compile(
        lambda: gelu(torch.nn.functional.linear(x, w, bias), approximate="tanh"), mode="max-autotune-no-cudagraphs"
    )

    def ours() -> object:
        return tw.matmul(x, w.t(), bias=bias, epilogue=gelu_by_tanh, out=out)

    found = {
        "torch": Product(lambda: gelu(torch.nn.functional.linear(x, w, bias), approximate="tanh"), flops),
        "torch.compile": Product(compiled, flops),
        "cuBLASLt": Product(lambda: torch._addmm_activation(bias, x, w.t(), use_gelu=True), flops),
        "cuBLAS, product alone": Product(lambda: torch.mm(x, w.t()), flops),
        "tw.matmul": Product(ours, flops, out, activated),
        "tw.matmul, product alone": Product(lambda: tw.matmul(x, w.t(), out=out), flops),
    }
    return {f"gelu(linear) {ROWS} x {COLUMNS} x {DEPTH}": measure(found)}


def silu(x: Any) -> Any:
    """Return x / (1 + exp(-x)), without an exact division."""
    return x * tw.rcp_approx(1 + tw.ex2_approx(-1.442695 * x, ftz=True), ftz=True)


def gated() -> dict[str, dict[str, Any]]:
    """Measure silu(gate) * up, for few rows and many, where the gate's rows of a weight come first."""
    n, k = GATED
    w13 = matrix(2 * n, k, torch.bfloat16)
    return {f"silu(gate) * up, {m} x {n} x {k}": gated_rows(m, w13) for m in GATED_ROWS}


def gated_rows(m: int, w13: torch.Tensor) -> dict[str, Any]:
    """Measure silu(gate) * up for so many rows."""
    (n, k), silu_of = GATED, torch.nn.functional.silu
    x, out = matrix(m, k, torch.bfloat16), torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    flops = 2 * m * 2 * n * k

    def by_torch() -> torch.Tensor:
        gate, up = torch.nn.functional.linear(x, w13).chunk(2, -1)
        return silu_of(gate) * up

    def two_products() -> object:
        gate = tw.matmul(x, w13[:n].t())
        return tw.matmul(x, w13[n:].t(), epilogue=lambda up: silu(gate) * up, out=out)

    def ours() -> object:
        return tw.matmul(x, w13.t(), epilogue=tw.gated(lambda gate, up: silu(gate) * up), out=out)

    exact = []
    for rows in (slice(0, CHECKED), slice(-CHECKED, None)):
        gate, up = (x[rows].double() @ w13.double().t()).chunk(2, -1)
        exact.append(silu_of(gate) * up)
    return measure(
        {
            "torch": Product(by_torch, flops),
            "torch.compile": Product(torch.compile(by_torch, mode="max-autotune-no-cudagraphs"), flops),
            "cuBLAS, product alone": Product(lambda: torch.mm(x, w13.t()), flops),
            "tw.matmul, two products": Product(two_products, flops, out, exact),
            "tw.matmul, gated": Product(ours, flops, out, exact),
            "tw.matmul, product alone": Product(lambda: tw.matmul(x, w13.t()), flops),
        }
    )


def small_products() -> dict[str, dict[str, Any]]:
    """Measure batches of small products."""
    results = {}
    for dtype in (torch.bfloat16, torch.float32):
        a, b = (torch.randn(BATCH, SMALL, SMALL, device="cuda").to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        exact = [a[n].double() @ b[n].double() for n in (0, -1)]
        flops = 2 * BATCH * SMALL**3

        def ours(a: torch.Tensor = a, b: torch.Tensor = b, out: torch.Tensor = out) -> object:
            return tw.matmul(a, b, out=out)

        def theirs(a: torch.Tensor = a, b: torch.Tensor = b) -> object:
            return torch.bmm(a, b)

        ours()
        for n, x in zip((0, -1), exact, strict=True):
            error = float((out[n].double() - x).norm() / x.norm())
            assert error < 5e-3, (dtype, n, error)
        found = {"torch.bmm": Product(theirs, flops), "tw.matmul": Product(ours, flops)}
        results[f"{BATCH} products of {SMALL} cubed, {str(dtype).removeprefix('torch.')}"] = measure(found)
    return results


def scaled() -> dict[str, dict[str, Any]]:
    """Measure 8-bit floats with one scale for each matrix, and one for each row of A and column of B."""
    results = {}
    for m, n, k in SCALED:
        a, b = matrix(m, k, torch.float8_e4m3fn), matrix(n, k, torch.float8_e4m3fn)
        one, rows = torch.ones((), device="cuda"), torch.ones(m, 1, device="cuda")
        columns, flops = torch.ones(1, n, device="cuda"), 2 * m * n * k
        # laid out as torch wants them: those of A by columns, those of B's blocks along K
        deep = torch.ones(k // 128, m, device="cuda").t(), torch.ones(n // 128, k // 128, device="cuda").t()
        for name, x, y in (("per tensor", one, one), ("per row", rows, columns), ("per block", *deep)):
            options = {"scale_a": x, "scale_b": y, "out_dtype": torch.bfloat16}
            out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")

            def ours(
                fast: bool, out: torch.Tensor = out, a: Any = a, b: Any = b, x: Any = x, y: Any = y
            ) -> Callable[[], object]:
                precision = "fp8_fast" if fast else None
                return lambda: tw.matmul(a, b.t(), scale_a=x, scale_b=y, precision=precision, out=out)

            def theirs(fast: bool, a: Any = a, b: Any = b, options: dict[str, Any] = options) -> Callable[[], object]:
                return lambda: torch._scaled_mm(a, b.t(), use_fast_accum=fast, **options)

            found = {"cuBLAS": Product(theirs(name == "per row"), flops)}
            found |= {"cuBLAS, fast": Product(theirs(True), flops)} if name == "per tensor" else {}
            found["tw.matmul"] = Product(ours(False), flops, out, expected(a, b))
            if name != "per block":
                found["tw.matmul, fast"] = Product(ours(True), flops, out, expected(a, b))
            results[f"e4m3 {name} {m} x {n} x {k}"] = measure(taken(found), limit=2e-2)
    return results


def taken(found: dict[str, Product]) -> dict[str, Product]:
    """Return the products without those that PyTorch refuses on this GPU, which are named."""
    kept = {}
    for name, product in found.items():
        try:
            product.run()
        except (RuntimeError, ValueError) as error:
            print(f"{name}: {error}".splitlines()[0], flush=True)
        else:
            kept[name] = product
    return kept


def further() -> dict[str, dict[str, Any]]:
    """Measure products with column sums, largest values of rows and a second output, and torch's passes behind one."""
    results = {}
    for m, n, k in FURTHER:
        a, b = matrix(m, k, torch.bfloat16), matrix(n, k, torch.bfloat16)
        flops, exact = 2 * m * n * k, expected(a, b)
        out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
        asked = {"column sums": ("sum", -2), "amax of rows": ("amax", -1), "two outputs": tw.bfloat16}

        def ours(also: Any, out: torch.Tensor = out, a: Any = a, b: Any = b) -> Callable[[], object]:
            return lambda: tw.matmul(a, b.t(), out=out, also=also)

        def theirs(reduce: Callable[[torch.Tensor], object], a: Any = a, b: Any = b) -> Callable[[], object]:
            return lambda: reduce(torch.mm(a, b.t()))

        x, (_, sums, most) = a.double() @ b.double().t(), tw.matmul(a, b.t(), also=[("sum", -2), ("amax", -1)])
        assert (sums - x.sum(0)).abs().max() < 1e-3 * x.sum(0).abs().max()
        assert (most - x.abs().amax(1)).abs().max() < 1e-3 * most.max()
        del x
        found = {
            "cuBLAS, product alone": Product(lambda a=a, b=b: torch.mm(a, b.t()), flops),
            "torch, column sums": Product(theirs(lambda y: y.sum(0, dtype=torch.float32)), flops),
            "torch, amax of rows": Product(theirs(lambda y: y.abs().amax(1)), flops),
            "tw.matmul, product alone": Product(ours(()), flops, out, exact),
            **{f"tw.matmul, {name}": Product(ours(also), flops, out, exact) for name, also in asked.items()},
        }
        results[f"further results {m} x {n} x {k}"] = measure(found)
    return results


GROUPS = {"gelu": gelu_of_linear, "gated": gated, "small": small_products, "scaled": scaled, "further": further}


def main() -> None:
    """Measure the groups, print them, and write the JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": machine()}
    for group in options.only:
        for name, rows in GROUPS[group]().items():
            results[name] = rows
            print(name)
            for row, figures in rows.items():
                rates = f"{figures['seconds'] * 1e6:10.1f} us {figures['T/s']:8.1f} T/s  {figures['of_first']:.3f}"
                print(f"  {row:26} {rates}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
