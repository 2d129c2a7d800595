"""The kernels of `examples/hopper` against cuBLAS and copies, on one GPU of sm_90.

    python -m benchmarks.hopper [--only GROUP] [--json FILE]

Products are C = A B^T of bfloat16, candidates interleaved on normal random data, outputs filled with NaN before and
checked after, as `benchmarks.tensorcore` does. Copies and transposes are of float32 and checked exactly. Attention is
of bfloat16, 16384 tokens in all and 2048 elements a token, and half the work with a causal mask; rows of it are
checked against float64. The first of each group is what the others are compared with: cuBLAS, torch's copy of as many
bytes, cuDNN.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from benchmarks.tensorcore import by_matmul, matrix, measure, product
from benchmarks.timing import interleaved, machine

from tilewright.demo.examples import examples_folder, load_example
from tilewright.schedulers import Grouped, Hilbert, Linear

SIZES = (2048, 4096, 8192)
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


def products(n: int) -> dict[str, Any]:
    """Measure n cubed: cuBLAS, tw.matmul, and the examples with results of bfloat16 and of float32."""
    a, b = (matrix(n, n, torch.bfloat16) for _ in range(2))
    found = {"cuBLAS": product(a, b, torch.bfloat16, None)}
    found["tw.matmul"] = product(a, b, torch.bfloat16, by_matmul())
    found["05_persistent"] = product(a, b, torch.bfloat16, example("05_persistent").matmul)
    found["04_producer_consumers, float32 C"] = product(a, b, torch.float32, example("04_producer_consumers").matmul)
    return measure(found)


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
    for name, out, expected in (("copy", same, src), ("transpose", turned, src.t())):
        out.fill_(float("nan"))
        runs[name]()
        assert torch.equal(out, expected), name
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
    for name, part, values in (
        ("bfloat16", products, SIZES),
        ("bfloat16", uneven, UNEVEN),
        ("float32", copies, COPIES),
        ("attention", attention, ATTENTION),
    ):
        if options.only not in (None, part.__name__):
            continue
        for value in values:
            title = f"{name} {value if isinstance(value, int) else ' x '.join(map(str, value))}"
            results[title] = part(value)
            for row, figures in results[title].items():
                print(f"{title:32} {row:32} {figures['T/s']:8.3f} T/s  {figures['of_first']:.3f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
