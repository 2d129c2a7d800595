"""What a run found to be wrong with a kernel, and the error that carries it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.errors import CheckError, TilewrightError
from tilewright.ir.core import Op
from tilewright.source import SourceLocation

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Finding:
    """One fault at one source line.

    `kind` is "out-of-bounds", "uninitialised-read", "misaligned", "barrier-divergence", "warp-divergence" or
    "assertion".
    `buffer`, `index` and `coordinate` name the first element concerned, `block` and `thread` who was the
    first there, and `count` how many threads were concerned in all. `message` is the whole text.
    """

    kind: str
    message: str
    location: SourceLocation | None
    buffer: str | None
    index: int | None
    coordinate: tuple[int, ...] | None
    block: Dim3
    thread: Dim3 | None
    count: int

    @property
    def file(self) -> str | None:
        """The Python file of the faulty line."""
        return None if self.location is None else self.location.file

    @property
    def line(self) -> int | None:
        """The number of the faulty line, from 1."""
        return None if self.location is None else self.location.line

    def __str__(self) -> str:
        return self.message


class FindingsError(CheckError):
    """A `CheckError` with what was found."""

    def __init__(self, finding: Fault, findings: tuple[Finding, ...]) -> None:
        super().__init__(finding.summary, details=finding.details(), location=finding.op.location, help=finding.help)
        self.findings = findings


@dataclass
class Fault:
    """A finding in the making: what the first offending thread did, and how many did the same so far."""

    op: Op
    kind: str
    summary: str
    block: Dim3
    thread: Dim3 | None = None
    buffer: str | None = None
    index: int | None = None
    coordinate: tuple[int, ...] | None = None
    notes: Sequence[str] = ()
    help: str | None = None
    count: int = field(default=1)

    def details(self) -> list[str]:
        """Return the lines below the summary."""
        who = f"block {self.block}" + ("" if self.thread is None else f", thread {self.thread}")
        others = self.count - 1
        if others:
            who += f", and {others} more"
        return [*self.notes, who]

    def finding(self) -> Finding:
        """Return the finished finding."""
        message = TilewrightError(self.summary, details=self.details(), location=self.op.location, help=self.help)
        return Finding(
            self.kind,
            str(message),
            self.op.location,
            self.buffer,
            self.index,
            self.coordinate,
            self.block,
            self.thread,
            self.count,
        )


class Collector:
    """Gathers faults, one for each op and kind; raises at the first if it is told to."""

    def __init__(self, raise_errors: bool) -> None:
        self.raise_errors = raise_errors
        self._faults: dict[tuple[Op, str], Fault] = {}

    def report(self, fault: Fault) -> None:
        """Add a fault, or add its count to an earlier one of the same op and kind."""
        first = self._faults.setdefault((fault.op, fault.kind), fault)
        if first is not fault:
            first.count += fault.count
        if self.raise_errors:
            raise FindingsError(fault, self.findings)

    def error(self, fault: Fault) -> FindingsError:
        """Add a fault after which the run cannot go on, and return the error to raise."""
        self._faults.setdefault((fault.op, fault.kind), fault)
        return FindingsError(fault, self.findings)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings so far, in the order in which they were made."""
        return tuple(fault.finding() for fault in self._faults.values())
