"""What a tuning finds: each candidate with its time or the reason why it is out, and which candidates are right.

Candidates with equal results form a group, equal up to the tolerance of `bench.checking.greatest_error`. With a
reference there is one group that counts, its own. Without, the largest counts; a tie cannot be decided by anything
that is known here, so it is an error and asks for a reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from rich.table import Table

from tilewright import notebook
from tilewright.bench.checking import greatest_error, tolerance_of
from tilewright.errors import TuningError
from tilewright.notebook import Column, Row
from tilewright.tune.configs import Config

Status: TypeAlias = Literal["ok", "failed", "wrong", "untimed"]


@dataclass(frozen=True)
class Trial:
    """One candidate. `milliseconds` is None where it was not timed; `reason` says why it is out."""

    config: Config
    status: Status
    milliseconds: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Tuning:
    """The result of a tuning: the best config, and all trials in the order in which they were made.

    `source` is "measured" (now), "stored" (found on disk; there are no trials then) or "simulated": results were
    checked and nothing was timed, so `best` is the first right one. `complete` is False where the time budget ended
    the search.
    """

    best: Config
    trials: tuple[Trial, ...]
    source: Literal["measured", "stored", "simulated"]
    milliseconds: float | None = None
    complete: bool = True

    def as_json(self) -> dict[str, Any]:  # Any: plain data
        """Return everything as plain data."""
        return {
            "best": self.best.as_json(),
            "milliseconds": self.milliseconds,
            "source": self.source,
            "complete": self.complete,
            "trials": [trial_json(trial) for trial in self.trials],
        }

    def table(self) -> Table:
        """Return the table that printing shows, the fastest first."""
        return trials_table(self.trials, self.best)

    def __str__(self) -> str:
        return as_text(self.table())

    def _repr_html_(self) -> str:
        columns = (Column("config", is_text=True), Column("ms"), Column("", is_text=True))
        rows = [Row(cells, kind="chosen" if cells[-1] == "best" else "") for cells in _cells(self.trials, self.best)]
        found = "" if self.milliseconds is None else f", {self.milliseconds:.4f} ms"
        note = self.source + ("" if self.complete else "; the time budget ended the search")
        return notebook.box(f"best: {self.best}{found}", *([notebook.table(columns, rows)] if rows else []), note=note)


def trial_json(trial: Trial) -> dict[str, Any]:
    """Return one trial as plain data."""
    return {
        "config": trial.config.as_json(),
        "status": trial.status,
        "milliseconds": trial.milliseconds,
        "reason": trial.reason,
    }


def trials_table(trials: tuple[Trial, ...], best: Config | None) -> Table:
    """Return the table of trials: those that were timed by time, then the others."""
    table = Table("config", "ms", "", title_justify="left")
    for cells in _cells(trials, best):
        table.add_row(*cells)
    return table


def _cells(trials: tuple[Trial, ...], best: Config | None) -> list[tuple[str, str, str]]:
    """Return of each trial its config, its time, and what became of it."""
    found = []
    for trial in sorted(trials, key=lambda t: (t.status != "ok", t.milliseconds or 0.0)):
        mark = "best" if trial.config == best else "" if trial.status == "ok" else f"{trial.status}: {trial.reason}"
        if trial.status == "untimed" and trial.config != best:
            mark = "right"
        found.append((str(trial.config), "-" if trial.milliseconds is None else f"{trial.milliseconds:.4f}", mark))
    return found


def as_text(table: Table) -> str:
    """Return a table as plain text."""
    from rich.console import Console

    console = Console(width=140, no_color=True, force_jupyter=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip("\n")


def why_none(name: str, trials: tuple[Trial, ...]) -> TuningError:
    """Return the error for a tuning of which no candidate is left."""
    return TuningError(
        f"none of the {len(trials)} candidates for {name} can be used",
        details=[f"{t.config}: {t.status}: {(t.reason or '').splitlines()[0]}" for t in trials],
    )


Results = Mapping[str, "np.ndarray[Any, Any]"]  # by the name of the output


@dataclass
class _Group:
    results: Results
    members: list[Config] = field(default_factory=list)


class Verdicts:
    """Groups of candidates by result."""

    def __init__(self, reference: Results | None, tolerance: float | None) -> None:
        self._tolerance = tolerance
        self._reference = None if reference is None else _Group(reference)
        self._groups = [] if self._reference is None else [self._reference]

    def add(self, config: Config, results: Results) -> bool:
        """Put a candidate into its group; say whether that is the one that counts as things stand."""
        for group in self._groups:
            if self.error(results, group.results) is None:
                break
        else:
            group = _Group(results)
            self._groups.append(group)
        group.members.append(config)
        return group is self._leader

    def join(self, results: Results | None, members: list[Config]) -> None:
        """Put candidates with equal results into their group; without results, into that of the reference."""
        if results is None:
            assert self._reference is not None
            self._reference.members += members
            return
        for config in members:
            self.add(config, results)

    def groups(self) -> list[tuple[Results, list[Config]]]:
        """Return the results that there are, each with the candidates that have them; the reference's come first."""
        return [(group.results, list(group.members)) for group in self._groups]

    def right(self) -> list[Config]:
        """Return the candidates of the group that counts.

        Raises `TuningError` where two groups are equally large and no reference was given.
        """
        if not self._groups:
            return []
        leader = self._leader
        if self._reference is None:
            rivals = [g for g in self._groups if len(g.members) == len(leader.members)]
            if len(rivals) > 1:
                raise TuningError(
                    f"candidates disagree on the result, {len(leader.members)} against {len(leader.members)}",
                    details=[f"one result: {'; '.join(map(str, g.members))}" for g in rivals],
                    help="give @tw.autotune a reference, a function of the same arguments that computes the result",
                )
        return list(leader.members)

    def why_wrong(self, config: Config) -> str | None:
        """Return what is wrong with a candidate's result, None where it is right."""
        leader = self._leader
        group = next(g for g in self._groups if config in g.members)
        if group is leader:
            return None
        whose = "the reference" if self._reference is not None else f"{len(leader.members)} other candidates"
        return f"{self.error(group.results, leader.results)}, against {whose}"

    def error(self, results: Results, expected: Results) -> str | None:
        """Return how results differ, None where they agree."""
        common = [name for name in results if name in expected]
        if not common:
            return f"other results ({', '.join(results)})"
        for name in common:
            limit = tolerance_of(results[name].dtype) if self._tolerance is None else self._tolerance
            error = greatest_error(results[name], expected[name])
            if not error <= limit:
                return f"{name} is off by {error:.3g} of its greatest value ({limit:.3g} allowed)"
        return None

    @property
    def _leader(self) -> _Group:
        if self._reference is not None:
            return self._reference
        return max(self._groups, key=lambda group: len(group.members))  # the first of equals
