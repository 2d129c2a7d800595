"""What a comparison found: each candidate's times round by round, and the ratios with their confidence."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from tilewright import notebook
from tilewright.bench.timing import Interval, median_interval, quantile
from tilewright.notebook import Column, Row

_COLUMNS = (
    Column("candidate", is_text=True),
    Column("ms"),
    Column("p10", is_wide=True),
    Column("p90", is_wide=True),
    Column("ratio"),
    Column("95 %", is_wide=True),
    Column("error"),
)


@dataclass(frozen=True)
class Candidate:
    """What was measured of one candidate: a time a round, in milliseconds a call.

    `calls` were made in each round, `captured` says that they ran as one CUDA graph, and `host_bound` that the
    host's time of a launch shows in the figures. `error` is the greatest difference from the reference, relative to
    the reference's greatest magnitude; None where nothing was compared.
    """

    name: str
    milliseconds: tuple[float, ...]
    calls: int
    captured: bool = False
    host_bound: bool = False
    error: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)


@dataclass(frozen=True)
class Comparison(Mapping[str, Candidate]):
    """Candidates by name, each with its times; `ratio` compares them with the baseline.

    Print it for a table, or take `as_json()`.
    """

    candidates: Mapping[str, Candidate]
    baseline: str
    flush_bytes: int
    _order: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_order", tuple(self.candidates))

    def __getitem__(self, name: str) -> Candidate:
        return self.candidates[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def ratio(self, name: str, to: str | None = None) -> Interval:
        """Return how fast `name` is against `to` (the baseline): 2.0 takes half its time.

        The median of the ratios of both in the same round, and its 95 % confidence interval by order statistics.
        """
        pairs = zip(self[to or self.baseline].milliseconds, self[name].milliseconds, strict=True)
        return median_interval([other / own for other, own in pairs])

    def as_json(self) -> dict[str, Any]:  # Any: plain data
        """Return everything as plain data."""
        return {
            "baseline": self.baseline,
            "flush_bytes": self.flush_bytes,
            "ratio": "baseline time / own time, round by round; median and confidence interval by order statistics",
            "candidates": {name: self._candidate_json(name) for name in self},
        }

    def _candidate_json(self, name: str) -> dict[str, Any]:
        found, ratio = self[name], self.ratio(name)
        return {
            "median_ms": found.median,
            "p10_ms": quantile(found.milliseconds, 0.1),
            "p90_ms": quantile(found.milliseconds, 0.9),
            "ratio": {"median": ratio.median, "low": ratio.low, "high": ratio.high, "confidence": ratio.confidence},
            "rounds": len(found.milliseconds),
            "calls_per_round": found.calls,
            "captured": found.captured,
            "host_bound": found.host_bound,
            "relative_error": found.error,
            "milliseconds": list(found.milliseconds),
        }

    def table(self) -> Table:
        """Return the table that printing shows."""
        table = Table(*(column.title for column in _COLUMNS))
        for name in self:
            table.add_row(*self._cells(name))
        table.caption = self._caption() or None
        return table

    def _cells(self, name: str) -> list[str]:
        found, ratio = self[name], self.ratio(name)
        times = (found.median, quantile(found.milliseconds, 0.1), quantile(found.milliseconds, 0.9))
        return [
            name + (" *" if found.host_bound else ""),
            *(f"{t:.4f}" for t in times),
            f"{ratio.median:.3f}",
            f"{ratio.low:.3f} to {ratio.high:.3f}",
            "-" if found.error is None else f"{found.error:.1e}",
        ]

    def _caption(self) -> str:
        is_host_bound = any(found.host_bound for found in self.values())
        return "* the host's time of a launch is in this figure" if is_host_bound else ""

    def _repr_html_(self) -> str:
        rows = [Row(self._cells(name), kind="chosen" if name == self.baseline else "") for name in self]
        note = f"a ratio of 2 takes half the time of {self.baseline}"
        below = [notebook.paragraph(self._caption())] if self._caption() else []
        return notebook.box(f"{len(rows)} candidates", notebook.table(_COLUMNS, rows), *below, note=note)

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=120, no_color=True, force_jupyter=False)
        with console.capture() as capture:
            console.print(self.table())
        return capture.get().rstrip("\n")
