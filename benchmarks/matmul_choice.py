"""The choice of `tw.matmul` against the clock: every candidate of a list of problems, predicted and measured.

    python -m benchmarks.matmul_choice [--json FILE] [--type bfloat16] [--quick]

For each problem the table shows what each candidate took, what the model said, and what the choice costs against the
fastest candidate. Below some ten microseconds the host's time is what is measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.timing import interleaved, machine

from tilewright.kernels.arguments import Inputs, Options, arrange_problem
from tilewright.kernels.choice import all_candidates, fastest
from tilewright.kernels.dispatch import machine_of, plan_call
from tilewright.kernels.family import Candidate
from tilewright.runtime.arrays import describe


@dataclass(frozen=True)
class Case:
    """A product; `majors` says which of A (N: contiguous along K) and B (T: contiguous along K) is how."""

    m: int
    n: int
    k: int
    dtype: torch.dtype
    majors: str = "NT"
    precision: str | None = None

    @property
    def name(self) -> str:
        kind = self.precision or str(self.dtype).removeprefix("torch.")
        return f"{kind} {self.majors} {self.m} x {self.n} x {self.k}"


_SHAPES = ((256, 256, 256), (512, 512, 4096), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096))
_UNEVEN = ((128, 4096, 4096), (4096, 512, 1024), (1000, 3000, 500), (4093, 4095, 4091), (16, 8192, 8192))
TYPES: dict[str, tuple[torch.dtype, str | None]] = {
    "bfloat16": (torch.bfloat16, None),
    "tf32": (torch.float32, "tf32"),
    "float32": (torch.float32, None),
    **{name: (torch.float32, name) for name in ("tf32x3", "bf16x6", "bf16x9")},
    "float64": (torch.float64, None),
    "int8": (torch.int8, None),
    "float8": (torch.float8_e4m3fn, None),
}


def random(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Return normal random numbers, or uniform integers."""
    if not dtype.is_floating_point:
        return torch.randint(-128, 128, (rows, columns), dtype=dtype, device="cuda")
    return torch.randn(rows, columns, device="cuda").to(dtype)


def runs_of(case: Case) -> tuple[dict[str, Callable[[], object]], list[Candidate], Candidate]:
    """Return what runs each legal candidate, the candidates, and the model's choice."""
    a = random(case.m, case.k, case.dtype) if case.majors[0] == "N" else random(case.k, case.m, case.dtype).t()
    b = random(case.n, case.k, case.dtype).t() if case.majors[1] == "T" else random(case.k, case.n, case.dtype)
    infos = (describe(a), describe(b), None, None, None)
    arranged = arrange_problem(Inputs(infos), Options(case.precision))
    dtype = getattr(torch, arranged.problem.d.dtype.name)
    arrays = (a, b, torch.empty(case.m, case.n, dtype=dtype, device="cuda"), None, None)
    target = machine_of(0)
    found = all_candidates(arranged.problem, target)
    pointers = [x.data_ptr() for x in arrays if x is not None]
    runs: dict[str, Callable[[], object]] = {}
    for candidate in found:
        if candidate.prediction is not None:
            planned = plan_call(arranged, arrays, (0, 1, 2), candidate)
            runs[str(candidate.configuration)] = partial(planned.run, arrays, pointers, (), 1, 0)
    return runs, found, fastest(arranged.problem, target, found)


def measure(case: Case) -> dict[str, Any]:
    """Time every candidate of a case."""
    runs, found, choice = runs_of(case)
    for run in runs.values():
        run()
    times = interleaved(runs, rounds=10, batch_seconds=0.02)
    best = min(t["seconds"] for t in times.values())
    predictions = {str(o.configuration): o.prediction.us for o in found if o.prediction is not None}
    chosen = times[str(choice.configuration)]["seconds"]
    rows = {name: {"us": t["seconds"] * 1e6, "predicted_us": predictions[name]} for name, t in times.items()}
    return {"candidates": rows, "choice": str(choice.configuration), "choice_over_best": chosen / best}


def main() -> None:
    """Measure all cases, print them, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--type", choices=TYPES, help="one element type only")
    parser.add_argument("--quick", action="store_true", help="squares only")
    arguments = parser.parse_args()
    results: dict[str, Any] = {"machine": machine()}
    for name in [arguments.type] if arguments.type else TYPES:
        dtype, precision = TYPES[name]
        for shape in _SHAPES if arguments.quick else (*_SHAPES, *_UNEVEN):
            case = Case(*shape, dtype, precision=precision)
            found = results[case.name] = measure(case)
            print(f"{case.name}: the choice takes {found['choice_over_best']:.2f} of the best")
            for row, figures in found["candidates"].items():
                mark = "->" if row == found["choice"] else "  "
                print(
                    f"  {mark} {row:36} {figures['us']:9.1f} us  {figures['predicted_us']:9.1f} predicted", flush=True
                )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
