"""Tune products that people have on one GPU, and keep for the package what is faster by 1.5 %.

    python -m benchmarks.tuned --json results.json --table src/tilewright/kernels/finds.json ["few rows" ...]

Groups are those of `benchmarks.matmul`. Each product is timed against cuBLAS with the kernel that is chosen now, tuned
(`tw.matmul.tune`), and timed again; what is found goes into the table, beside what it has already, where another kernel
than before is faster by 1.5 %.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.matmul import GROUPS, Shape, measure_shape

LEAST_GAIN = 1.015


def tuned(shape: Shape, most: int) -> tuple[dict[str, Any], str, str, str]:
    """Return the figures of a product, and its place in the table: the GPU, the problem, the kernel."""
    import torch
    from benchmarks.tensorcore import matrix

    import tilewright as tw
    from tilewright.kernels import winners

    before = measure_shape(shape)
    dtype = getattr(torch, shape.dtype)
    width = 16 // dtype.itemsize

    def operand(rows: int, major: str) -> torch.Tensor:
        contiguous = shape.k if major == "K" else rows
        return matrix(rows, shape.k, dtype, major, pad=-contiguous % width if shape.is_padded else 0)

    a, b = operand(shape.m, shape.majors[0]), operand(shape.n, shape.majors[1])
    pad = -shape.n % width if shape.is_padded else 0
    out = torch.empty(shape.m, shape.n + pad, dtype=dtype, device="cuda")[:, : shape.n]
    found = tw.matmul.tune(
        a, b.t(), out=out, precision=shape.precision, most=most, store=False, force=True, progress=False
    )
    explained = tw.matmul.explain(a, b.t(), out=out, precision=shape.precision)
    assert explained.is_found and explained.choice is not None
    place = winners.place_of(explained.problem, a.device.index or 0)
    trials = [(t.config.values["configuration"], t.status, t.milliseconds) for t in found.trials]
    figures = {"before": before, "after": measure_shape(shape), "trials": trials}
    return figures, place.device, place.key, winners.text_of(explained.choice)


def main() -> None:
    """Tune the groups, print what each product gains, and write both files after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", default=["few rows"], help=f"any of {', '.join(GROUPS)}")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--most", type=int, default=28, help="candidates of each product")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no product after so many")
    options = parser.parse_args()
    from benchmarks.timing import machine

    begin = time.monotonic()
    results: dict[str, Any] = {"machine": machine()}
    table = json.loads(options.table.read_text()) if options.table and options.table.exists() else {}
    for shape in (shape for group in options.groups for shape in GROUPS[group]()):
        if time.monotonic() - begin > options.seconds:
            break
        figures, device, key, kernel = tuned(shape, options.most)
        results[shape.name] = figures
        before, after = figures["before"], figures["after"]
        ratios = [each["tw.matmul"]["of_first"] for each in (before, after)]
        print(f"{shape.name:36} {ratios[0]:.3f} -> {ratios[1]:.3f}  {after['choice']}", flush=True)
        if before["choice"] != after["choice"] and ratios[1] >= LEAST_GAIN * ratios[0]:
            table.setdefault(device, {})[key] = kernel
        for file, content in ((options.json, results), (options.table, table)):
            if file:
                file.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
