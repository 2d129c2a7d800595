"""The figures of the first slice, on one GPU: bandwidth, the double-buffered matmul, launches, the first call.

    python -m benchmarks.first [--json FILE]

Needs torch for the arrays and for what is compared with. Candidates are interleaved on normal random data, outputs are
filled with NaN before and checked after; the buffers of the bandwidth tests are larger than the L2 cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from benchmarks.timing import interleaved, machine

from tilewright.demo.examples import examples_folder, load_example
from tilewright.suites import launching


def example(name: str) -> ModuleType:
    """Load one example file."""
    return load_example(examples_folder() / f"{name}.py")


def bandwidth(n: int = 8192) -> dict[str, Any]:
    """Measure copy and transpose of an n x n float32 matrix against a device-to-device copy."""
    copying, transposing = example("01_copy"), example("02_transpose")
    src = torch.randn(n, n, device="cuda")
    dst = torch.empty_like(src)
    candidates: dict[str, Callable[[], object]] = {
        "device-to-device copy": lambda: dst.copy_(src),
        "torch copy_(x.t())": lambda: dst.copy_(src.t()),
        "copy, element loops": lambda: copying.launch_elements(dst, src),
        "copy, tw.copy": lambda: copying.launch_tiles(dst, src),
        "copy, fast": lambda: copying.launch_fast(dst, src),
        "transpose, tile transposed": lambda: transposing.launch(dst, src, transposing.TRANSPOSED),
        "transpose, padded": lambda: transposing.launch(dst, src),
        "transpose, fast": lambda: transposing.launch_fast(dst, src),
    }
    for name, run in candidates.items():
        dst.fill_(float("nan"))
        run()
        expected = src.t() if "transpose" in name or ".t()" in name else src
        assert torch.equal(dst, expected), name
    found = interleaved(candidates)
    moved = 2 * src.numel() * 4
    reference = found["device-to-device copy"]["seconds"]
    return {
        name: {**times, "GB/s": moved / times["seconds"] / 1e9, "of_copy": reference / times["seconds"]}
        for name, times in found.items()
    }


def matmul(n: int = 4096) -> dict[str, Any]:
    """Measure the matmul kernels on n cubed float32 against cuBLAS without TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    multiplying = example("03_matmul")
    # Column-major A, B and C: M, N and M contiguous.
    a, b, c = (torch.randn(n, n, device="cuda").t() for _ in range(3))
    rows_a, rows_b, rows_c = (x.contiguous() for x in (a, b, c))
    expected = a.double() @ b.double().t()
    candidates: dict[str, Callable[[], object]] = {
        "cuBLAS": lambda: torch.mm(a, b.t(), out=c),
        "simple": lambda: multiplying.simple(c, a, b),
        "overlapped": lambda: multiplying.overlapped(c, a, b),
        "double-buffered": lambda: multiplying.double_buffered(c, a, b),
        "double-buffered, 16 x 16 threads": lambda: multiplying.square(c, a, b),
        "double-buffered, rows": lambda: multiplying.double_buffered(rows_c, rows_a, rows_b),
        "row-major": lambda: multiplying.row_major(rows_c, rows_a, rows_b),
    }
    errors = {}
    for name, run in candidates.items():
        out = rows_c if "row" in name else c
        out.fill_(float("nan"))
        run()
        errors[name] = float((out.double() - expected).norm() / expected.norm())
        assert errors[name] < 1e-5, (name, errors[name])
    found = interleaved(candidates, batch_seconds=0.03)
    reference = found["cuBLAS"]["seconds"]
    return {
        name: {
            **times,
            "TFLOP/s": 2 * n**3 / times["seconds"] / 1e12,
            "of_cuBLAS": reference / times["seconds"],
            "relative_error": errors[name],
        }
        for name, times in found.items()
    }


def launch() -> dict[str, Any]:
    """Measure the host time of a launch with three tensors that change from call to call."""
    report = launching.new_report()
    launching.measure(report)
    return {row.name: row.figures for row in report.rows}


_COLD = """
import time, json, sys
import torch
a, b, c = (torch.randn(256, 256, device="cuda").t() for _ in range(3))
torch.cuda.synchronize()
import tilewright
from tilewright.demo.examples import examples_folder, load_example
module = load_example(examples_folder() / "03_matmul.py")
begin = time.perf_counter()
module.double_buffered(c, a, b)
torch.cuda.synchronize()
print(json.dumps(time.perf_counter() - begin))
"""


def cold(rounds: int = 5) -> dict[str, Any]:
    """Measure the first call of the double-buffered matmul in fresh processes, with empty and with filled caches."""
    seconds: dict[str, list[float]] = {"empty cache": [], "filled cache": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            for state in seconds:
                environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": folder}
                run = subprocess.run(
                    [sys.executable, "-c", _COLD], env=environment, capture_output=True, text=True, check=True
                )
                seconds[state].append(float(json.loads(run.stdout)))
    return {state: {"seconds": statistics.median(s), "low": min(s), "high": max(s)} for state, s in seconds.items()}


def main() -> None:
    """Measure everything, print a table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": machine()}
    for name, measure in {"bandwidth": bandwidth, "matmul": matmul, "launch": launch, "cold": cold}.items():
        results[name] = measure()
        print(name)
        for row, figures in results[name].items():
            shown = {k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}
            print(f"  {row:32} {shown}", flush=True)
    results["machine_after"] = machine()
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
