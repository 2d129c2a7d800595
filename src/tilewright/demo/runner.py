"""Run one case: launch, compare with NumPy, and on a GPU time it against the library."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from tilewright.bench.race import compare
from tilewright.demo.arrays import synchronize
from tilewright.demo.case import Array, Backend, Case, Report, Trial

_ROUNDS, _BATCH_MS = 7, 20.0


def run_case(case: Case, backend: Backend) -> Report:
    """Run `case` and return its report. A case that raises is reported as failed; nothing is raised from here."""
    report = Report(case.name, case.size, bytes_moved=case.bytes_moved, flops=case.flops)
    on_gpu = backend == "cuda" and not case.simulated
    try:
        trial = case.prepare()
        begin = time.perf_counter()
        trial.launch()
        if on_gpu:
            synchronize()
        seconds = time.perf_counter() - begin
        error = greatest_difference(trial.result(), trial.expected)
    except Exception as exception:
        return replace(report, failure=f"{type(exception).__name__}: {exception}")
    report = replace(report, seconds=seconds, error=error, limit=trial.limit)
    if not error <= trial.limit:
        return replace(report, failure=f"the greatest error is {error:.3g}, the limit {trial.limit:.3g}")
    if on_gpu:
        report = _timed(report, trial)
    return report


def greatest_difference(actual: Array, expected: Array) -> float:
    """Return the greatest absolute difference of two arrays; infinite where shapes or non-finite values differ."""
    if actual.shape != expected.shape:
        return float("inf")
    if actual.size == 0:
        return 0.0
    a, b = _wide(actual), _wide(expected)
    if np.promote_types(a.dtype, b.dtype).kind in "iu":
        # In unsigned arithmetic the difference is exact: float64 would lose that of two large neighbours.
        return float(np.max(np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(a.astype(np.float64) - b.astype(np.float64)))
    return float("inf") if np.isnan(difference).any() else float(difference.max())


def _wide(array: Array) -> Array:
    """Return `array` with bool as an integer and every kind of float as float64."""
    if array.dtype.kind == "b":
        return array.astype(np.uint8)
    return array if array.dtype.kind in "iu" else array.astype(np.float64)


def _timed(report: Report, trial: Trial) -> Report:
    """Time the launch and the library's routine in turns, so that a change of the clock rate meets both."""
    runs = {"launch": trial.launch} if trial.library is None else {"launch": trial.launch, "library": trial.library}
    try:
        found = compare(runs, rounds=_ROUNDS, batch_ms=_BATCH_MS, flush=False)
    except Exception as exception:
        return replace(report, failure=f"{type(exception).__name__} while timing: {exception}")
    library = found["library"].median / 1000 if "library" in found else None
    return replace(report, seconds=found["launch"].median / 1000, library_seconds=library)
