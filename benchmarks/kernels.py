"""The kernels of examples/kernels against copies and PyTorch, on one GPU.

    python -m benchmarks.kernels [--json FILE] [--only NAME ...]

Kernels that memory bounds are set against a device-to-device copy of their input, by the rate of bytes read and
written once; attention against FlashAttention 2 in PyTorch, by TFLOP/s (causal counts half of the work); matrix
products against PyTorch's. Candidates run interleaved in random order on normal random data; outputs hold NaN before,
and are checked against PyTorch in float32 or float64 after.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.timing import interleaved, machine
from torch.nn.attention import SDPBackend, sdpa_kernel

from tilewright.demo.examples import examples_folder, load_example

Run = Callable[[], object]
SHAPES = ((16384, 4096), (8192, 16384))


@dataclass(frozen=True)
class Measured:
    """A kernel: what runs it, its bytes or flops, and what its outputs must be."""

    run: Run
    work: float
    outputs: tuple[torch.Tensor, ...] = ()
    expected: tuple[torch.Tensor, ...] = ()
    tolerance: float = 1e-2  # of the greatest magnitude


def example(name: str) -> ModuleType:
    """Load one of the examples."""
    return load_example(examples_folder() / "kernels" / f"{name}.py")


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return normal random data."""
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


def spoiled(like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return an output that nothing was written to."""
    out = torch.empty_like(like, dtype=dtype or like.dtype)
    return out.fill_(float("nan") if out.dtype.is_floating_point else -1)


def copied(x: torch.Tensor) -> Measured:
    """Return the copy that others are compared with."""
    y = torch.empty_like(x)
    return Measured(lambda: y.copy_(x), 2 * x.numel() * x.element_size())


def bytes_of(*arrays: torch.Tensor) -> int:
    """Return the bytes of arrays that are read or written once."""
    return sum(x.numel() * x.element_size() for x in arrays)


def check(name: str, kernel: Measured) -> float:
    """Run a kernel once and return its greatest error, relative to the greatest magnitude of what is expected."""
    kernel.run()
    error = 0.0
    for out, expected in zip(kernel.outputs, kernel.expected, strict=True):
        assert bool(torch.isfinite(out.float()).all()), f"{name}: something was not written"
        error = max(error, float((out.float() - expected.float()).abs().max() / expected.float().abs().max()))
    assert error <= kernel.tolerance, (name, error)
    return error


def measure(kernels: dict[str, Measured]) -> dict[str, Any]:
    """Check every kernel, and time them interleaved; the first is what the rates of others are divided by."""
    errors = {name: check(name, kernel) for name, kernel in kernels.items() if kernel.outputs}
    times = interleaved({name: kernel.run for name, kernel in kernels.items()}, rounds=15, batch_seconds=0.03)
    rates = {name: kernels[name].work / t["seconds"] / 1e12 for name, t in times.items()}
    first = rates[next(iter(kernels))]
    return {
        name: {**times[name], "T/s": rate, "of_first": rate / first, "error": errors.get(name)}
        for name, rate in rates.items()
    }


def attention() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure attention forward against FlashAttention 2."""
    launch = example("attention").launch
    for batch, heads, tokens, head, causal in (
        (1, 16, 16384, 128, False),
        (1, 16, 16384, 128, True),
        (4, 16, 4096, 128, False),
        (4, 16, 4096, 128, True),
        (4, 32, 4096, 64, True),
    ):
        q, k, v = (normal(batch, heads, tokens, head) for _ in range(3))
        out, flops = spoiled(q), 4 * batch * heads * tokens * tokens * head / (2 if causal else 1)

        def flash(q: Any = q, k: Any = k, v: Any = v, causal: bool = causal) -> torch.Tensor:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        ours = Measured(lambda: launch(out, q, k, v, causal), flops, (out,), (flash(),))  # noqa: B023  # called at once
        name = f"{batch} x {heads} x {tokens} x {head}{', causal' if causal else ''}"
        yield name, measure({"FlashAttention 2": Measured(flash, flops), "tilewright": ours})


def int4() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure 4-bit weights against the product with bfloat16 weights, by time."""
    module, n, k = example("int4_matmul"), 8192, 8192
    host = module.random_weights(np.random.default_rng(0), n, k)
    weights, packed = (torch.from_numpy(x).cuda() for x in (host[0], module.pack(host[0])))
    # (N, K / 128) with N contiguous.
    scales = torch.from_numpy(host[1].T.astype(np.float32)).cuda().to(torch.bfloat16).T
    zeros = torch.from_numpy(np.ascontiguousarray(host[2].T)).cuda().T
    full = (weights.float() - zeros.float().repeat_interleave(128, 1)) * scales.float().repeat_interleave(128, 1)
    rounded = full.to(torch.bfloat16)
    for m in (1, 16, 128):
        a = normal(m, k)
        out, work = spoiled(normal(m, n)), bytes_of(packed, scales, zeros, a) + 2 * m * n
        ours = Measured(lambda: module.launch(out, a, packed, scales, zeros), work, (out,), (a.float() @ full.T,))  # noqa: B023  # called at once
        # The same work for both: the ratio is that of the times.
        yield (
            f"{m} x {n} x {k}",
            measure({"torch, bfloat16": Measured(lambda: a @ rounded.T, work), "tilewright, 4 bits": ours}),  # noqa: B023
        )


def grouped() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure the products of eight experts of one launch against a loop of PyTorch's."""
    module, n, k = example("grouped_matmul"), 14336, 4096
    weights = [normal(n, k) for _ in range(8)]
    for rows in ((0, 17, 33, 250, 64, 1, 120, 27), (1024, 100, 2048, 24, 1000, 1001, 1995, 1000)):
        xs = [normal(m, k) for m in rows]
        expected = [x @ w.T for x, w in zip(xs, weights, strict=True)]
        outs, flops = [spoiled(e) for e in expected], 2 * sum(rows) * n * k
        products = module.Products(outs, xs, weights)
        held = tuple(g for g, m in enumerate(rows) if m)
        ours = Measured(products.launch, flops, tuple(outs[g] for g in held), tuple(expected[g] for g in held))

        def loop(xs: Any = xs, outs: Any = [torch.empty_like(e) for e in expected]) -> None:  # noqa: B006
            for x, w, out in zip(xs, weights, outs, strict=True):
                torch.mm(x, w.T, out=out)

        yield f"{sum(rows)} rows", measure({"torch, one by one": Measured(loop, flops), "tilewright": ours})


def split_k() -> Iterator[tuple[str, dict[str, Any]]]:
    """Measure a long K in parts against PyTorch."""
    module, (m, n, k) = example("splitk_matmul"), (256, 256, 65536)
    a, b = normal(m, k), normal(n, k)
    expected, flops = a.double() @ b.double().T, 2 * m * n * k
    for dtype in (torch.bfloat16, torch.float32):
        kernels = {"torch, bfloat16": Measured(lambda: a @ b.T, flops)}
        for splits in (16, 32, 33):
            out = spoiled(expected, dtype)
            workspace = module.make_workspace(out, splits)
            launch = partial(module.launch, out, a, b, splits, workspace=workspace)
            kernels[f"tilewright, {splits} parts"] = Measured(launch, flops, (out,), (expected,))
        yield f"{m} x {n} x {k}, {str(dtype).removeprefix('torch.')} result", measure(kernels)


GROUPS: dict[str, Callable[[], Iterator[tuple[str, dict[str, Any]]]]] = {
    "attention": attention,
    "int4": int4,
    "grouped": grouped,
    "split-k": split_k,
}


def main() -> None:
    """Measure the groups that were asked for, and print or write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", choices=sorted(GROUPS), default=sorted(GROUPS))
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), "results": {}}
    for group in options.only:
        for name, result in GROUPS[group]():
            found["results"][f"{group}: {name}"] = result
            rates = "  ".join(f"{key} {value['T/s']:.3f} ({value['of_first']:.3f})" for key, value in result.items())
            print(f"{group}: {name}: {rates}", flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
