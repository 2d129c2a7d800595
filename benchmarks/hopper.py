"""The kernels of `examples/hopper` against cuBLAS and copies, on one GPU of sm_90.

    python -m benchmarks.hopper [--only GROUP] [--json FILE]

Products are C = A B^T of bfloat16, float16, float32 (as tf32) and 8-bit floats (scaled per tensor, and by blocks),
candidates interleaved on normal random data, outputs filled with NaN before and checked after, as
`benchmarks.tensorcore` does. Copies and transposes are of float32 and checked exactly. Attention is of bfloat16, 16384
tokens in all and 2048 elements a token, and half the work with a causal mask; rows of it are checked against float64.
The first of each group is what the others are compared with: cuBLAS, torch's copy of as many bytes, cuDNN.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from benchmarks.tensorcore import Product, by_matmul, expected, matrix, measure, product
from benchmarks.timing import interleaved, machine

from tilewright.demo.examples import examples_folder, load_example
from tilewright.schedulers import Grouped, Hilbert, Linear

SIZES = (2048, 4096, 8192)
TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn)
UNEVEN = ((1792, 2560, 8192), (4096, 4608, 4096))  # 140 and 576 tiles by 132 blocks
ORDERS = (Linear(), Grouped(8), Hilbert())
COPIES = ((8192, 8192), (8000, 8100))
MASKS = ("full", "causal")
# Batch, tokens, elements a head, and the mask.
ATTENTION = tuple(
    (16384 // tokens, tokens, head, mask) for tokens in (16384, 4096, 1024) for head in (128, 64) for mask in MASKS
)


def example(name: str) -> ModuleType:
    """Load one of the examples."""
    return load_example(examples_folder() / "hopper" / f"{name}.py")


def products(n: int, dtype: torch.dtype) -> dict[str, Any]:
    """Measure n cubed: cuBLAS, tw.matmul where it has the type, and the examples."""
    torch.backends.cuda.matmul.allow_tf32 = dtype == torch.float32
    a, b = (matrix(n, n, dtype) for _ in range(2))
    persistent = example("05_persistent").matmul
    if dtype.itemsize == 1:
        return products_of_8_bits(a, b)
    found = {"cuBLAS": product(a, b, dtype, None)}
    found["tw.matmul"] = product(a, b, dtype, by_matmul("tf32" if dtype == torch.float32 else None))
    found["05_persistent"] = product(a, b, dtype, persistent)
    if dtype == torch.bfloat16:
        found["06_cluster_multicast"] = product(a, b, dtype, example("06_cluster_multicast").matmul)
        for tile in ((128, 128), (64, 256)):
            found[f"07_ping_pong, {tile[0]} x {tile[1]}"] = product(a, b, dtype, ping_pong(tile))
        producers = example("04_producer_consumers").matmul
        found["04_producer_consumers, float32 C"] = product(a, b, torch.float32, producers)
    return measure(found)


def ping_pong(tile: tuple[int, int]) -> Callable[..., object]:
    """Return the product by two consumers that alternate."""
    matmul = example("07_ping_pong").matmul
    return lambda out, a, b: matmul(out, a, b, tile)


def products_of_8_bits(a: torch.Tensor, b: torch.Tensor) -> dict[str, Any]:
    """Measure products scaled per tensor, with results of bfloat16; cuBLAS without and with fast accumulation.

    Sums of 8-bit floats lose bits on Hopper, the more the larger K is, so results are checked to 2 %.
    """
    one, flops = torch.ones((), device="cuda"), 2 * a.shape[0] * b.shape[0] * a.shape[1]

    def cublas(fast: bool) -> Product:
        options = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "use_fast_accum": fast}
        return Product(lambda: torch._scaled_mm(a, b.t(), **options), flops)

    persistent = example("05_persistent").matmul
    found = {"cuBLAS": cublas(False), "cuBLAS, fast accumulation": cublas(True)}
    found["05_persistent"] = product(a, b, torch.bfloat16, lambda out, x, y: persistent(out, x, y, alpha=1.0))
    clusters = partial(example("06_cluster_multicast").matmul, alpha=1.0, scheduler=Grouped(8))
    found["06_cluster_multicast, groups of 8"] = product(a, b, torch.bfloat16, clusters)
    return measure(found, limit=2e-2)


def products_of_blocks(n: int) -> dict[str, Any]:
    """Measure n cubed of 8-bit floats with scales of 1 x 128 of A and 128 x 128 of B."""

    def quantize(x: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return 8-bit floats, their scales, and what both stand for."""
        blocks = x.reshape(n // rows, rows, n // 128, 128)
        scales = blocks.abs().amax(dim=(1, 3), keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
        small = (blocks / scales).to(torch.float8_e4m3fn)
        return small.reshape(n, n), scales[:, 0, :, 0].contiguous(), (small.float() * scales).reshape(n, n)

    a, of_a, whole_a = quantize(torch.randn(n, n, device="cuda"), 1)
    b, of_b, whole_b = quantize(torch.randn(n, n, device="cuda"), 128)
    along_m = of_a.t().contiguous()
    out, flops = torch.empty(n, n, dtype=torch.bfloat16, device="cuda"), 2 * n**3
    options = {"scale_a": along_m.t(), "scale_b": of_b.t(), "out_dtype": torch.bfloat16}
    run, correct = example("09_fp8_promoted").matmul, expected(whole_a, whole_b)
    return measure(
        {
            "cuBLAS": Product(lambda: torch._scaled_mm(a, b.t(), **options), flops),
            "09_fp8_promoted": Product(lambda: run(out, a, b, along_m, of_b), flops, out, correct),
        }
    )


def uneven(shape: tuple[int, int, int]) -> dict[str, Any]:
    """Measure a product whose last wave of tiles is nearly empty: cuBLAS, whole tiles in several orders, stream-K."""
    m, n, k = shape
    a, b = matrix(m, k, torch.bfloat16), matrix(n, k, torch.bfloat16)
    whole, stream = example("05_persistent"), example("08_stream_k")
    space = stream.workspace("cuda")
    runs = {f"05_persistent, {order}": partial(whole.matmul, scheduler=order) for order in ORDERS}
    for whole_waves in (True, False):
        name = f"08_stream_k, {'the last waves' if whole_waves else 'all tiles'}"
        runs[name] = lambda out, a, b, w=whole_waves: stream.matmul(out, a, b, space, whole_waves=w)
    found = {"cuBLAS": product(a, b, torch.bfloat16, None)}
    return measure(found | {name: product(a, b, torch.bfloat16, run) for name, run in runs.items()})


def copies(shape: tuple[int, int]) -> dict[str, Any]:
    """Measure a copy and a transpose by TMA against torch's copy."""
    module, src = example("01_tma_copy"), torch.randn(shape, device="cuda")
    same, turned = torch.empty_like(src), torch.empty(shape[::-1], device="cuda")
    runs = {
        "torch.copy_": lambda: same.copy_(src),
        "copy": lambda: module.launch_copy(same, src),
        "transpose": lambda: module.launch_transpose(turned, src),
        "torch, transpose": lambda: turned.copy_(src.t()),
    }
    for name, out, exact in (("copy", same, src), ("transpose", turned, src.t())):
        out.fill_(float("nan"))
        runs[name]()
        assert torch.equal(out, exact), name
    times = interleaved(runs, rounds=15, batch_seconds=0.02)
    rates = {name: 2 * src.nbytes / t["seconds"] / 1e12 for name, t in times.items()}
    first = rates["torch.copy_"]
    return {name: {**times[name], "T/s": rate, "of_first": rate / first} for name, rate in rates.items()}


def attention(shape: tuple[int, int, int, str]) -> dict[str, Any]:
    """Measure attention forward: cuDNN, and example 10."""
    batch, tokens, head, mask = shape
    module, heads, causal = example("10_attention"), 2048 // head, mask == "causal"
    q, k, v = (torch.randn((batch, heads, tokens, head), device="cuda").to(torch.bfloat16) for _ in range(3))
    out = torch.full_like(q, float("nan"))
    runs = {
        "cuDNN": module.by_library(q, k, v, causal),
        "10_attention": lambda: module.launch(out, q, k, v, causal),
    }
    runs["10_attention"]()
    rows = np.r_[:64, tokens - 64 : tokens]
    first = (x[:1, :1].float().cpu().numpy() for x in (q, k, v))
    expected, _ = module.reference(*first, causal, rows)
    found = out[:1, :1].float().cpu().numpy()[:, :, rows]
    error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
    assert error <= 1e-2, error
    assert bool(torch.isfinite(out).all())
    times = interleaved(runs, rounds=15, batch_seconds=0.03)
    flops = 4 * batch * heads * tokens * tokens * head // (2 if causal else 1)
    rates = {name: flops / t["seconds"] / 1e12 for name, t in times.items()}
    return {name: {**times[name], "T/s": rate, "of_first": rate / rates["cuDNN"]} for name, rate in rates.items()}


def main() -> None:
    """Measure everything, print it, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=("products", "uneven", "copies", "attention"), help="one group alone")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": machine()}
    parts: list[tuple[str, str, Callable[[], dict[str, Any]]]] = [
        ("products", f"{'tf32' if dtype == torch.float32 else str(dtype)[6:]} {n}", partial(products, n, dtype))
        for dtype in TYPES
        for n in SIZES
    ]
    parts += [("products", f"float8, scaled by blocks {n}", partial(products_of_blocks, n)) for n in SIZES]
    parts += [("uneven", f"bfloat16 {' x '.join(map(str, shape))}", partial(uneven, shape)) for shape in UNEVEN]
    parts += [("copies", f"float32 {m} x {n}", partial(copies, (m, n))) for m, n in COPIES]
    parts += [("attention", f"attention {' x '.join(map(str, each))}", partial(attention, each)) for each in ATTENTION]
    for group, title, part in parts:
        if options.only not in (None, group):
            continue
        results[title] = part()
        for row, figures in results[title].items():
            print(f"{title:32} {row:32} {figures['T/s']:8.3f} T/s  {figures['of_first']:.3f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
