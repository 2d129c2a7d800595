"""What a suite reports: rows of figures, what the simulator counts, what kernels take of the hardware."""

from __future__ import annotations

import ctypes
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from tilewright.arch import occupancy
from tilewright.bench.machine import machine
from tilewright.errors import TilewrightError
from tilewright.profile import Run, simulate
from tilewright.recording import Recorded, record_launches
from tilewright.runtime import driver


@dataclass
class Row:
    """One line: its name, its figures by name, and what went wrong (None where all is right).

    Figures are plain data. `kernels` says what each launched kernel takes of the hardware.
    """

    name: str
    figures: dict[str, Any] = field(default_factory=dict)  # Any: plain data
    kernels: list[dict[str, Any]] = field(default_factory=list)
    failure: str | None = None


@dataclass(frozen=True)
class Column:
    """A column of the table: the figure's name, the heading, and how it is written.

    `scale` multiplies the figure; `form` is a format of Python's, for one number or for text.
    """

    figure: str
    heading: str
    form: str = "{}"
    scale: float = 1.0

    def text(self, row: Row) -> str:
        """Return the cell of a row, "-" where it has no such figure."""
        value = row.figures.get(self.figure)
        if value is None:
            return "-"
        return self.form.format(value if self.scale == 1 else value * self.scale)


def told(exception: BaseException) -> str:
    """Return what an exception says, and the place that raised it unless the text names one."""
    text = f"{type(exception).__name__}: {exception}"
    frames = traceback.extract_tb(exception.__traceback__)
    if isinstance(exception, TilewrightError) or not frames:
        return text
    return f"{text} ({Path(frames[-1].filename).name}:{frames[-1].lineno})"


@dataclass
class Report:
    """What a suite measured: its settings, its rows, notes for the reader, and the machine."""

    suite: str
    title: str
    columns: Sequence[Column]
    settings: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=machine)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """True where there is a row and none has failed."""
        return bool(self.rows) and all(row.failure is None for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "suite": self.suite,
            "passed": self.passed,
            "settings": self.settings,
            "notes": self.notes,
            "facts": self.facts,
            "rows": [
                {"name": row.name, **row.figures, "kernels": row.kernels, "failure": row.failure} for row in self.rows
            ],
            "machine": self.machine,
        }

    def table(self) -> Table:
        """Return the table; columns that no row fills are left out."""
        shown = [c for c in self.columns if any(row.figures.get(c.figure) is not None for row in self.rows)]
        table = Table(title=self.title, title_justify="left")
        table.add_column("", no_wrap=True)
        for column in shown:
            table.add_column(column.heading, justify="right")
        failing = any(row.failure is not None for row in self.rows)
        if failing:
            table.add_column("")
        for row in self.rows:
            cells: list[Text | str] = [Text(row.name), *(column.text(row) for column in shown)]
            if failing:
                cells.append("" if row.failure is None else Text("FAILED", style="red"))
            table.add_row(*cells)
        return table

    def failures(self) -> list[str]:
        """Return one text for each failed row."""
        return [f"{row.name}: {row.failure}" for row in self.rows if row.failure is not None]


COUNTED = (
    Column("instructions", "instructions", "{:,}"),
    Column("global_bytes", "global MB", "{:,.2f}", 1e-6),
    Column("touched_bytes", "touched MB", "{:,.2f}", 1e-6),
    Column("sectors_per_request", "sectors/request", "{:.2f}"),
    Column("sector_use", "use of sectors", "{:.0f} %", 100),
    Column("shared_bytes_moved", "shared MB", "{:,.2f}", 1e-6),
    Column("bank_conflicts", "bank conflicts", "{:,}"),
    Column("barriers", "barriers", "{:,}"),
)
RESOURCES = (
    Column("registers", "registers"),
    Column("shared_bytes", "shared", "{:,}"),
    Column("occupancy", "occupancy", "{:.0f} %", 100),
)


@contextmanager
def observed(row: Row, *, simulated: bool) -> Iterator[None]:
    """Put into a row what the body of a `with` launches: resources, and on the simulator what it counts.

    An exception ends the body and is the row's failure.
    """
    try:
        with simulate(profile=True) if simulated else nullcontext() as counts, record_launches() as launches:
            yield
        if counts is not None:
            row.figures |= counted(counts)
        row.kernels = resources_of(launches)
        row.figures |= _summary(row.kernels)
    except Exception as exception:
        row.failure = told(exception)


def counted(run: Run) -> dict[str, Any]:
    """Return the figures of all launches inside `simulate(profile=True)`, as plain data.

    `global_bytes` is what warps ask of global memory, `touched_bytes` the sectors that a launch touches at all: the
    least that DRAM moves. `bank_conflicts` are the passes of shared memory beyond the fewest that its requests need.
    """
    total = run.profile.total
    return {
        "instructions": sum(total.instructions.values()),
        "instructions_by_class": dict(total.instructions),
        "operations": dict(total.operations),
        "global_requests": total.global_requests,
        "global_bytes": total.global_bytes,
        "global_sectors": total.global_sectors,
        "global_sectors_least": total.global_sectors_ideal,
        "sectors_per_request": total.sectors_per_request,
        "sector_use": total.sector_use,
        "touched_bytes": sum(launch.touched_bytes for launch in run.profile.launches),
        "shared_requests": total.shared_requests,
        "shared_bytes_moved": total.shared_bytes,
        "shared_wavefronts": total.shared_wavefronts,
        "bank_conflicts": total.shared_conflicts,
        "barriers": total.barriers,
    }


def resources_of(launches: Sequence[Recorded]) -> list[dict[str, Any]]:
    """Return what each launch takes of the hardware, as plain data, one entry for each kernel.

    On a GPU registers and occupancy are those of the loaded code. Elsewhere they come from NVRTC, where it is there,
    and from the rules of `arch.occupancy`.
    """
    kernels: dict[str, dict[str, Any]] = {}
    for launch in launches:
        entry = kernels.get(launch.kernel)
        if entry is None:
            kernels[launch.kernel] = _entry(launch)
        else:
            entry["launches"] += 1
    return list(kernels.values())


def _summary(kernels: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures for a row: those of the kernel with the most blocks."""
    if not kernels:
        return {}
    main = max(kernels, key=lambda k: k["blocks"] or 0)
    return {name: main[name] for name in ("registers", "shared_bytes", "occupancy", "spills")}


def _entry(launch: Recorded) -> dict[str, Any]:
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    grid = launch.grid
    entry: dict[str, Any] = {
        "kernel": launch.kernel,
        "launches": 1,
        "grid": grid,
        "block": launch.block,
        "blocks": None if grid is None else grid[0] * grid[1] * grid[2],
        "arch": launch.lowered.arch.name,
        **dict.fromkeys(("registers", "spills", "shared_bytes", "blocks_per_multiprocessor", "occupancy", "limits")),
    }
    try:
        resources = launch.lowered.module.resources
    except TilewrightError:
        return entry  # no compiler here
    shared = resources.static_shared_bytes + (launch.dynamic_shared_bytes or launch.lowered.cuda.dynamic_shared_bytes)
    arch = launch.lowered.arch
    fitting = occupancy(arch, threads=threads, registers=resources.registers, shared_bytes=shared)
    blocks = fitting.blocks if launch.function is None else _blocks_on_device(launch.function, threads, launch)
    return {
        **entry,
        "registers": resources.registers,
        "spills": resources.spills,
        "shared_bytes": shared,
        "blocks_per_multiprocessor": blocks,
        "occupancy": blocks * arch.warps_of(threads) / arch.warps_per_multiprocessor,
        "limits": list(fitting.limits),
    }


def _blocks_on_device(function: driver.Function, threads: int, launch: Recorded) -> int:
    count = ctypes.c_int()
    with driver.device_context(function.ordinal):
        status = driver.library().cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(count), function.handle, threads, ctypes.c_size_t(launch.dynamic_shared_bytes)
        )
    driver.check(status, "asking for a kernel's occupancy")
    return count.value
