"""What guarded tiles cost: `python -m benchmarks.edges [--json FILE]`.

The kernel of examples/kernels/elementwise.py, y = a * x + b on float16 matrices, guarded against unguarded where the
tile divides the matrix, and guarded where it does not:

- 8192 x 8192: guarded and unguarded, which differ in one branch of the block;
- 8191 x 8190: rows begin at multiples of 4 bytes, and so no access is wider;
- 8191 x 8190 in rows of 8192: the same elements, with 16-byte accesses but for the vectors at the end of each row.

The reference is torch's copy of as many bytes. Needs torch. Candidates are interleaved on normal random data, outputs
are filled with NaN before and checked after; the matrices are larger than the L2 cache.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.timing import interleaved, machine

from tilewright.demo.examples import examples_folder, load_example

ELEMENTWISE = load_example(examples_folder() / "kernels" / "elementwise.py")
A, B = 0.5, 0.25


def candidates(n: int) -> dict[str, tuple[Callable[[], object], torch.Tensor, torch.Tensor]]:
    """Return what is timed: the call, its input and its output."""
    launch = ELEMENTWISE.launch
    found: dict[str, tuple[Callable[[], object], torch.Tensor, torch.Tensor]] = {}

    def add(name: str, run: Callable[[torch.Tensor, torch.Tensor], object], rows: int, columns: int, row: int) -> None:
        x = torch.randn(rows, row, device="cuda", dtype=torch.float16)[:, :columns]
        y = torch.empty(rows, row, device="cuda", dtype=torch.float16)[:, :columns]
        found[name] = (lambda: run(y, x)), x, y

    add(f"copy, {n} x {n}", lambda y, x: y.copy_(x), n, n, n)
    add(f"unguarded, {n} x {n}", lambda y, x: launch(y, x, A, B, guard=False), n, n, n)
    add(f"guarded, {n} x {n}", lambda y, x: launch(y, x, A, B), n, n, n)
    add(f"guarded, {n - 1} x {n - 2}", lambda y, x: launch(y, x, A, B), n - 1, n - 2, n - 2)
    add(f"guarded, {n - 1} x {n - 2} in rows of {n}", lambda y, x: launch(y, x, A, B), n - 1, n - 2, n)
    add(f"copy, {n - 1} x {n - 2}", lambda y, x: y.copy_(x), n - 1, n - 2, n - 2)
    return found


def check(name: str, run: Callable[[], object], x: torch.Tensor, y: torch.Tensor) -> None:
    """Raise AssertionError where an output is not right."""
    y.fill_(float("nan"))
    run()
    expected = x if name.startswith("copy") else (A * x.float() + B).half()  # A * x is exact
    assert torch.equal(y, expected), name


def measure(n: int = 8192) -> dict[str, Any]:
    """Return the seconds and rates of each candidate, and guarded against unguarded."""
    known = candidates(n)
    for name, (run, x, y) in known.items():
        check(name, run, x, y)
    times = interleaved({name: run for name, (run, _, _) in known.items()})
    copy = 4 * n * n / times[f"copy, {n} x {n}"]["seconds"]
    rates = {name: 4 * known[name][1].numel() / times[name]["seconds"] for name in times}
    rows = {name: {**times[name], "GB/s": rates[name] / 1e9, "of_copy": rates[name] / copy} for name in times}
    ratio = times[f"unguarded, {n} x {n}"]["seconds"] / times[f"guarded, {n} x {n}"]["seconds"]
    return {"rows": rows, "guarded_of_unguarded": ratio}


def main() -> None:
    """Measure, print, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    found = {"machine": machine(), **measure()}
    for name, row in found["rows"].items():
        print(f"{name:40} {row['seconds'] * 1e6:8.1f} us  {row['GB/s']:7.0f} GB/s  {row['of_copy']:5.2f} of copy")
    print(f"guarded against unguarded: {found['guarded_of_unguarded']:.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
