"""`tw.matmul` against cuBLAS through torch, on one GPU: what people multiply, in one interleaved run.

    python -m benchmarks.matmul [--only GROUP ...] [--from NUMBER] [--json FILE]

Candidates of one product run interleaved in random order, as CUDA graphs where a launch takes longer than its work, on
normal random data and warm caches. Results are filled with NaN before, and their first and last rows compared with
float64. cuBLAS has 32 MiB of workspace. For each product the JSON has the configuration that was chosen and what was
predicted, so that the model can be compared with the clock; each group ends with the geometric mean and the least of
its ratios, and the share of those of at least 0.95.

The 200 shapes of `matmul_shapes.json` were drawn once: M, N, K log-uniform from 128 to 16384, of any residue;
`python -m benchmarks.matmul --draw` makes the file. Rows are padded to 16 bytes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

# Before torch makes its handle: size in KiB and number of the buffers.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":32768:1")

SHAPES = Path(__file__).with_name("matmul_shapes.json")
SQUARES = tuple((n, n, n) for n in (2048, 4096, 8192, 16384))
OBLONG = ((4096, 14336, 4096), (4096, 4096, 14336), (8192, 28672, 8192))
MAJORS = ("KK", "KM", "MK", "MM")  # of A and B
WEIGHTS = ((4096, 4096), (14336, 4096), (4096, 14336), (8192, 8192), (7168, 2048), (576, 7168))  # (N, K)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
# Of vision and language models (tokens, and columns and K of their layers), of convolutions of one pixel, of low rank.
MODELS = (
    *((m, n, k) for m in (197, 1576, 6304, 25216) for n, k in ((768, 768), (2304, 768), (3072, 768), (768, 3072))),
    *((m, n, k) for m in (512, 2048, 8192) for n, k in ((1024, 1024), (4096, 1024), (1024, 4096))),
    *((n, n, n) for n in (256, 512, 1000, 1024, 2048)),
    *((4096, 4096, k) for k in (8, 16, 64, 128, 256, 512)),
    *((2048, 2048, 512), (16384, 1024, 128), (65536, 128, 128), (8192, 4096, 16)),
    *((50176, 256, 64), (50176, 64, 256), (12544, 512, 128), (12544, 128, 512), (12544, 512, 256), (2048, 8192, 64)),
    *((3136, 1024, 256), (3136, 256, 1024), (3136, 512, 128), (784, 2048, 512), (784, 512, 2048)),
)


@dataclass(frozen=True)
class Shape:
    """A product: extents, element type by torch's name, majors of A and B, and what float32 may be rounded to."""

    m: int
    n: int
    k: int
    dtype: str = "bfloat16"
    majors: str = "KK"
    precision: str | None = None
    is_padded: bool = True

    @property
    def name(self) -> str:
        kind = self.precision or self.dtype
        return f"{kind} {self.majors} {self.m} x {self.n} x {self.k}{'' if self.is_padded else ', packed rows'}"


def draw(count: int = 200, seed: int = 17) -> list[tuple[int, int, int]]:
    """Return random extents, log-uniform from 128 to 16384."""
    source = random.Random(seed)
    low, high = math.log(128), math.log(16384)
    return [tuple(round(math.exp(source.uniform(low, high))) for _ in range(3)) for _ in range(count)]  # type: ignore[misc]


def drawn() -> list[tuple[int, int, int]]:
    """Return the extents that were drawn once."""
    return [(m, n, k) for m, n, k in json.loads(SHAPES.read_text())]


GROUPS: dict[str, Callable[[], Iterator[Shape]]] = {
    "squares": lambda: (
        Shape(*extents, dtype, majors)
        for dtype in ("bfloat16", "float16")
        for extents in (*SQUARES, *OBLONG)
        for majors in MAJORS
    ),
    "drawn": lambda: (Shape(*extents) for extents in drawn()),
    "models": lambda: (Shape(*extents) for extents in MODELS),
    "odd rows": lambda: (Shape(n, n, n, is_padded=False) for n in (1111, 2047, 4095)),
    "few rows": lambda: (Shape(m, n, k) for n, k in WEIGHTS for m in ROWS),
    "few rows, float16": lambda: (Shape(m, n, k, "float16") for n, k in WEIGHTS[:2] for m in ROWS),
    "long sums": lambda: (Shape(n, n, k) for n, k in ((256, 65536), (512, 16384), (128, 131072))),
    "tf32": lambda: (
        Shape(*extents, "float32", precision="tf32") for extents in (*SQUARES[:3], (3000, 5000, 2000), (64, 4096, 4096))
    ),
}


def measure_shape(shape: Shape) -> dict[str, Any]:
    """Time cuBLAS and tw.matmul on one product."""
    import torch
    from benchmarks.tensorcore import by_matmul, matrix, measure, product

    import tilewright as tw

    dtype = getattr(torch, shape.dtype)
    torch.backends.cuda.matmul.allow_tf32 = shape.precision == "tf32"
    width = 16 // dtype.itemsize

    def operand(rows: int, major: str) -> torch.Tensor:
        contiguous = shape.k if major == "K" else rows
        return matrix(rows, shape.k, dtype, major, pad=-contiguous % width if shape.is_padded else 0)

    a, b = operand(shape.m, shape.majors[0]), operand(shape.n, shape.majors[1])
    pad = -shape.n % width if shape.is_padded else 0
    found = measure(
        {
            "cuBLAS": product(a, b, dtype, None, pad=pad),
            "tw.matmul": product(a, b, dtype, by_matmul(shape.precision), pad=pad),
        }
    )
    out = torch.empty(shape.m, shape.n + pad, dtype=dtype, device="cuda")[:, : shape.n]
    chosen = tw.matmul.explain(a, b.t(), out=out, precision=shape.precision).choice
    assert chosen is not None and chosen.prediction is not None
    found["choice"] = f"{chosen.family.name}, {chosen.configuration}"
    found["predicted_us"] = chosen.prediction.us
    torch.cuda.empty_cache()
    return found


def summary(ratios: list[float]) -> dict[str, float]:
    """Return the geometric mean of ratios, the least, and the share of those of at least 0.95."""
    return {
        "geometric_mean": math.exp(sum(map(math.log, ratios)) / len(ratios)),
        "least": min(ratios),
        "at_least_0.95": sum(ratio >= 0.95 for ratio in ratios) / len(ratios),
    }


def main() -> None:
    """Measure the groups, print them, and write the JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--from", type=int, default=0, dest="first", help="number of the first product of each group")
    parser.add_argument("--draw", action="store_true", help="draw the random shapes, write them, and stop")
    options = parser.parse_args()
    if options.draw:
        SHAPES.write_text("[\n" + ",\n".join(json.dumps(extents) for extents in draw()) + "\n]\n")
        return
    from benchmarks.timing import machine

    results: dict[str, Any] = {"machine": machine()}
    for group in options.only:
        results[group] = {}
        ratios = []
        for shape in islice(GROUPS[group](), options.first, None):
            found = results[group][shape.name] = measure_shape(shape)
            ours = found["tw.matmul"]
            ratios.append(ours["of_first"])
            print(f"{shape.name:36} {ours['seconds'] * 1e6:9.1f} us {ours['T/s']:7.1f} T/s  {ours['of_first']:.3f}  "
                  f"{found['choice']}", flush=True)  # fmt: skip
        results[group]["summary"] = summary(ratios)
        print(f"{group}: {results[group]['summary']}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
